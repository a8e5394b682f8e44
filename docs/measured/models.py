"""`oomph predict --model` for models at their full sizes: how long it takes, and what it says beside the same model trained by a script that was written by hand.

    python docs/measured/models.py --oomph target/release/oomph [--only WORD,...] [--out rows.jsonl]

Needs no GPU, and no network: the configurations are written from the sizes below, which are those of the models. Needs torch, transformers, peft and bitsandbytes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

BY_HAND = pathlib.Path(__file__).with_name("models_by_hand.py")

# name, class of the configuration, its sizes; way, card, batch, sequence.
CASES = [
    ("Llama 3.2 1B", "LlamaConfig", "LlamaForCausalLM", dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072, tie_word_embeddings=True), "full", "rtx-4090", 2, 2048),
    ("Llama 3.1 8B", "LlamaConfig", "LlamaForCausalLM", dict(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072), "qlora", "rtx-4090", 2, 2048),
    ("Qwen2.5 7B", "Qwen2Config", "Qwen2ForCausalLM", dict(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=131072), "qlora", "t4", 1, 2048),
    ("Mistral 7B", "MistralConfig", "MistralForCausalLM", dict(vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=32768, sliding_window=None), "lora", "a100-40gb", 4, 2048),
    ("Gemma 2 2B", "Gemma2Config", "Gemma2ForCausalLM", dict(vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256, max_position_embeddings=8192, tie_word_embeddings=True), "lora", "rtx-4090", 2, 2048),
    ("Phi-3 mini", "Phi3Config", "Phi3ForCausalLM", dict(vocab_size=32064, hidden_size=3072, intermediate_size=8192, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32, max_position_embeddings=4096), "qlora", "t4", 2, 1024),
    ("Pythia 1.4B (GPT-NeoX)", "GPTNeoXConfig", "GPTNeoXForCausalLM", dict(vocab_size=50304, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=16, max_position_embeddings=2048), "full", "rtx-4090", 4, 2048),
    ("GPT-2", "GPT2Config", "GPT2LMHeadModel", dict(vocab_size=50257, n_embd=768, n_layer=12, n_head=12, n_positions=1024), "full", "t4", 8, 1024),
    ("T5 large", "T5Config", "T5ForConditionalGeneration", dict(vocab_size=32128, d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16, decoder_start_token_id=0), "full", "rtx-4090", 4, 512),
    ("BERT large", "BertConfig", "BertForMaskedLM", dict(vocab_size=30522, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096), "full", "t4", 8, 512),
    ("Mixtral 8x7B", "MixtralConfig", "MixtralForCausalLM", dict(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=32768), "lora", "h200", 1, 2048),
    ("OLMoE 1B-7B", "OlmoeConfig", "OlmoeForCausalLM", dict(vocab_size=50304, hidden_size=2048, intermediate_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=16, num_experts=64, num_experts_per_tok=8, max_position_embeddings=4096), "lora", "a100-40gb", 2, 2048),
    ("Qwen3 30B-A3B", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", dict(vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, max_position_embeddings=40960), "infer", "h100-sxm", 8, 4096),
]  # fmt: skip


def predicted(oomph, *words):
    """What the command says, and how long it took."""
    began = time.monotonic()
    ran = subprocess.run([oomph, "predict", "--format", "json", "--no-recording", "--python", sys.executable, *map(str, words)], capture_output=True, text=True)
    seconds = time.monotonic() - began
    if not ran.stdout:
        raise SystemExit(f"{words}: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout), seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--out")
    options = parser.parse_args()
    import transformers

    print(
        "| model | way | card | batch | sequence | fits | largest batch | longest sequence | seconds | allocated, by name | by hand | difference |\n|---|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|",
        flush=True,
    )
    for name, kind, architecture, sizes, way, card, batch, sequence in CASES:
        if not any(word in name.lower() for word in options.only.lower().split(",")):
            continue
        with tempfile.TemporaryDirectory() as folder:
            getattr(transformers, kind)(**sizes, architectures=[architecture], dtype="bfloat16").save_pretrained(folder)
            found, seconds = predicted(options.oomph, "--model", folder, "--train", way, "--gpu", card, "--batch", batch, "--sequence", sequence)
            by_hand, _ = (
                predicted(options.oomph, "--gpu", "b300", "--steps", 0, BY_HAND, folder, way, batch, sequence)
                if card != "t4"
                else predicted(options.oomph, "--gpu", card, "--memory", "900GiB", "--steps", 0, BY_HAND, folder, way, batch, sequence)
            )
        first = found["cards"][0]
        allocated = first["needs"]["allocated"]
        row = [
            name,
            way,
            card,
            batch,
            sequence,
            "yes" if found["fits"] else "no",
            first["largest_batch"],
            first["longest_sequence"],
            f"{seconds:.1f}",
            f"{allocated:,}",
            f"{by_hand['peak']['allocated']:,}",
            f"{allocated - by_hand['peak']['allocated']:,}",
        ]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(
                    json.dumps({"name": name, "seconds": seconds, "load": os.getloadavg(), "by_name": found | {"script": None, "findings": None}, "by_hand": by_hand["peak"]})
                    + "\n"
                )


if __name__ == "__main__":
    main()
