"""What people fine-tune with, on the virtual GPU: TRL's trainers, diffusers' LoRA, torchao's weights and optimizers, peft over bitsandbytes.

    pip install torch transformers peft bitsandbytes trl diffusers torchao datasets cloudpickle
    OOMPH=target/debug/oomph PYTHONPATH=python python docs/measured/finetune.py

Each program is a tiny model with local data. It is predicted for a card, and then planned by `oomph.fit` (trainers: by its callback) for a budget and run on the same virtual
card: what the plan said is beside what its steps took. Needs no GPU and no network. Prints a table; programs that fail are listed with what they said.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = {
    "sft": "TRL SFTTrainer, nf4, paged AdamW in 8 bits",
    "dpo": "TRL DPOTrainer, nf4, paged AdamW in 8 bits",
    "unet": "diffusers UNet, LoRA, fp16, AdamW",
    "int8": "torchao int8 weights, LoRA, torchao AdamW in 8 bits",
    "llm.int8": "bitsandbytes Linear8bitLt, LoRA, AdamW in 8 bits",
}
# Without the CUDA context, all but the trainers' are to need a plan.
BUDGETS = {"unet": "700MiB", "int8": "700MiB", "llm.int8": "700MiB"}


# -- the programs, each in a process of its own


def tiny_llama(folder):
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=four_bit, device_map={"": 0}, dtype=torch.bfloat16)


def trl(kind, folder):
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    words = {f"w{number}": number for number in range(1000)} | {"<pad>": 1000, "<eos>": 1001, "<unk>": 1002}
    by_word = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    by_word.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_word, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    text = [f"w{number}" for number in range(256)]
    common = dict(output_dir=folder, per_device_train_batch_size=8, max_steps=4, max_length=256, optim="paged_adamw_8bit", report_to=[], bf16=True, save_strategy="no")
    common |= dict(gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, logging_steps=1)
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    if kind == "sft":
        rows = Dataset.from_list([{"text": " ".join(text)}] * 64)
        return SFTTrainer(tiny_llama(folder), args=SFTConfig(**common), train_dataset=rows, processing_class=tokenizer, peft_config=lora)
    rows = Dataset.from_list([{"prompt": "w1 w2", "chosen": " ".join(text[:200]), "rejected": " ".join(text[:100])}] * 64)
    return DPOTrainer(tiny_llama(folder), args=DPOConfig(**common), train_dataset=rows, processing_class=tokenizer, peft_config=lora)


def unet():
    import torch
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from diffusers.training_utils import cast_training_params
    from peft import LoraConfig

    model = UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128),
        layers_per_block=1,
        cross_attention_dim=64,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=8,
        norm_num_groups=8,
    )
    model.requires_grad_(False)
    model.to("cuda", dtype=torch.float16)
    model.add_adapter(LoraConfig(r=4, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    cast_training_params(model, dtype=torch.float32)
    noise = DDPMScheduler(num_train_timesteps=1000)

    def loss(model, batch):
        added = torch.randn_like(batch["latents"])
        times = torch.randint(0, 1000, (len(added),), device="cuda")
        noisy = noise.add_noise(batch["latents"], added, times)
        with torch.autocast("cuda", torch.float16):
            out = model(noisy, times, batch["text"], return_dict=False)[0]
        return torch.nn.functional.mse_loss(out.float(), added.float())

    batch = {"latents": torch.randn(32, 4, 32, 32, device="cuda", dtype=torch.float16), "text": torch.randn(32, 77, 64, device="cuda", dtype=torch.float16)}
    return model, torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4), loss, batch


def layers(kind):
    """A stack of blocks whose linear layers are in 8 bits, with adapters."""
    import torch
    from torch import nn

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.down, self.up = base, nn.Linear(1024, 8, bias=False), nn.Linear(8, 1024, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x.float())).to(x.dtype)

    blocks = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)) for _ in range(8)]
    model = nn.Sequential(*blocks).to(torch.float16).requires_grad_(False)
    if kind == "int8":
        from torchao.optim import AdamW8bit
        from torchao.quantization import Int8WeightOnlyConfig, quantize_

        quantize_(model.cuda(), Int8WeightOnlyConfig())
    else:
        from bitsandbytes.nn import Int8Params, Linear8bitLt
        from bitsandbytes.optim import AdamW8bit

        for block in blocks:
            for place in (0, 2):
                new = Linear8bitLt(1024, 1024, has_fp16_weights=False, threshold=6.0)
                new.weight, new.bias = Int8Params(block[place].weight.data, requires_grad=False), block[place].bias
                block[place] = new
    for block in blocks:
        block[0], block[2] = Adapted(block[0]), Adapted(block[2])
    model.cuda()
    batch = torch.randn(16384, 1024, device="cuda", dtype=torch.float16)
    optimizer = AdamW8bit([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    return model, optimizer, lambda model, batch: (model(batch).float() - batch.float()).square().mean(), batch


def program(name, planned, folder):
    import torch

    if name in ("sft", "dpo"):
        trainer = trl(name, folder)
        if planned:
            import oomph
            from transformers import TrainerCallback

            class Measure(TrainerCallback):
                def on_step_end(self, args, state, control, **_):
                    if state.global_step == 1:
                        # Planning and its trials are over.
                        torch.cuda.empty_cache()
                        torch.cuda.reset_peak_memory_stats()

            callback = oomph.fit_trainer(trainer, quiet=True)
            trainer.add_callback(Measure())
        trainer.train()
        plan = callback.plan if planned else None
    else:
        model, optimizer, loss, batch = unet() if name == "unet" else layers(name)
        plan = None
        if planned:
            import oomph

            fit = oomph.fit(model, optimizer, loss=loss, batch=batch, budget=BUDGETS[name], quiet=True)
            plan = fit.plan
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            if planned:
                fit.step(batch)
            else:
                loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    if planned:
        predicted = plan.predicted
        told = {"plan": plan.summary().partition(":")[0], "notes": plan.notes, "taken": torch.cuda.max_memory_allocated()}
        told |= {"planned": predicted and predicted.allocated, "plain": plan.found and plan.found.plain.allocated}
        with open(os.environ["TOLD"], "w") as file:
            json.dump(told, file)


# -- the table


def measure(name, oomph, gpu):
    script = [os.path.abspath(__file__), "--program", name]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOLD": os.path.join(folder, "told.json")}
        run = lambda *words: subprocess.run([oomph, *words], capture_output=True, text=True, env=environment, cwd=folder)
        begun = time.monotonic()
        ran = run("predict", "--gpu", gpu, "--format", "json", "--no-recording", "--python", sys.executable, *script)
        seconds = time.monotonic() - begun
        if ran.returncode:
            return {"failed": ran.stderr[-1500:]}
        predicted = json.loads(ran.stdout)
        ran = run("on-virtual-gpu", "--gpu", gpu, "--python", sys.executable, *script, "--planned")
        if ran.returncode:
            return {"failed": ran.stderr[-1500:]}
        with open(environment["TOLD"]) as file:
            return {**json.load(file), "predicted": predicted, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=PROGRAMS)
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--gpu", default="rtx-4090")
    asked = parser.parse_args()
    if asked.program:
        with tempfile.TemporaryDirectory() as folder:
            return program(asked.program, asked.planned, folder)
    oomph = os.environ.get("OOMPH") or shutil.which("oomph")
    if oomph is None:
        sys.exit("no command `oomph`: name it in $OOMPH")
    oomph = os.path.abspath(oomph)
    os.environ["OOMPH_COMMAND"] = oomph
    failures = []
    print("| program | predicted | frozen weights | adapters | seconds | plain step, by `oomph.fit` | plan | planned | taken |")
    print("|---|---:|---:|---:|---:|---:|---|---:|---:|")
    for name in [asked.only] if asked.only else PROGRAMS:
        found = measure(name, oomph, asked.gpu)
        if "failed" in found:
            failures.append((name, found["failed"]))
            continue
        kinds = {held["kind"]: held["bytes"] for held in found["predicted"]["kinds"]}
        number = lambda bytes: "" if bytes is None else f"{bytes:,}"
        cells = [
            PROGRAMS[name],
            number(found["predicted"]["peak"]["allocated"]),
            number(kinds.get("frozen_weights", 0)),
            number(kinds.get("adapters", 0)),
            f"{found['seconds']:.0f}",
        ]
        print("| " + " | ".join([*cells, number(found["plain"]), found["plan"], number(found["planned"]), number(found["taken"])]) + " |", flush=True)
        for note in found["notes"]:
            failures.append((name, note))
    for name, said in failures:
        print(f"\n{name}: {said}")


if __name__ == "__main__":
    main()
