"""How near oomph.fit comes to a GPU with all the memory in the world: one script, rows of JSON, one table.

    python docs/measured/fit_speed.py run --oomph target/release/oomph --out FOLDER [--only qwen2-0.5b,t5-large] [--methods fit] [--seconds 500]
    python docs/measured/fit_speed.py table --out FOLDER

For each model one effective batch, and under a budget of 15 GiB: every block checkpointed (in parts, where the whole batch does not fit so), parts alone (the largest
that fits), and oomph.fit. *limit* is the plain loop with all the memory that it wants. Random weights and data: time and memory do not depend on their values. Needs a GPU with
some 100 GiB, torch, torchvision, transformers and cloudpickle.
"""

import argparse
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))

GIB = 1 << 30
BUDGET = 15 * GIB
METHODS = ("limit", "checkpoint", "parts", "fit")
WARM, TIMED = 2, 4

# Kind, samples in the effective batch, tokens in a sample.
CASES = {
    "qwen2-0.5b": ("decoder", 12, 512),
    "gpt2-medium": ("decoder", 13, 1024),
    "gpt2-large": ("decoder", 8, 1024),
    "smollm2-360m": ("decoder", 16, 1024),
    "t5-large": ("encoder-decoder", 30, 512),
    "whisper-medium": ("encoder-decoder", 16, 0),
    "bart-large": ("encoder-decoder", 24, 512),
    "vit-l": ("vision transformer", 272, 0),
    "swin-b": ("vision transformer", 192, 0),
    "bert-large": ("encoder", 32, 512),
    "convnext-l": ("convolutional", 192, 0),
    "resnet152": ("convolutional", 224, 0),
}


def build(name):
    """Model on the GPU, optimizer, a batch, and the loss as oomph.fit takes it (None: the model's own)."""
    import torch
    import transformers as tf

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    _, samples, length = CASES[name]
    vision = None
    with torch.device("cuda"):
        if name == "qwen2-0.5b":
            shape = dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)
            model = tf.Qwen2ForCausalLM(tf.Qwen2Config(vocab_size=151936, tie_word_embeddings=True, **shape))
        elif name == "smollm2-360m":
            shape = dict(hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15, num_key_value_heads=5)
            model = tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=49152, tie_word_embeddings=True, **shape))
        elif name.startswith("gpt2"):
            shape = {"gpt2-medium": dict(n_layer=24, n_embd=1024, n_head=16), "gpt2-large": dict(n_layer=36, n_embd=1280, n_head=20)}[name]
            model = tf.GPT2LMHeadModel(tf.GPT2Config(**shape))
        elif name == "t5-large":
            shape = dict(d_model=1024, d_ff=4096, num_layers=24, num_heads=16, d_kv=64)
            model = tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=32128, decoder_start_token_id=0, **shape))
        elif name == "whisper-medium":
            shape = dict(d_model=1024, encoder_layers=24, decoder_layers=24, encoder_attention_heads=16, decoder_attention_heads=16, encoder_ffn_dim=4096, decoder_ffn_dim=4096)
            model = tf.WhisperForConditionalGeneration(tf.WhisperConfig(vocab_size=51865, **shape))
        elif name == "bart-large":
            model = tf.BartForConditionalGeneration(tf.BartConfig())
        elif name == "bert-large":
            shape = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
            model = tf.BertForMaskedLM(tf.BertConfig(**shape))
        else:
            import torchvision

            vision = {"vit-l": "vit_l_16", "swin-b": "swin_b", "convnext-l": "convnext_large", "resnet152": "resnet152"}[name]
            model = getattr(torchvision.models, vision)()
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if name == "resnet152" else torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device="cuda").manual_seed(1)
    if vision is not None:
        images = torch.randn(samples, 3, 224, 224, device="cuda", generator=generator)
        return model, optimizer, (images, torch.randint(1000, (samples,), device="cuda", generator=generator)), torch.nn.CrossEntropyLoss()
    if name == "whisper-medium":
        sounds = torch.randn(samples, 80, 3000, device="cuda", generator=generator)
        return model, optimizer, {"input_features": sounds, "labels": torch.randint(50000, (samples, 128), device="cuda", generator=generator)}, None
    ids = torch.randint(30000, (samples, length), device="cuda", generator=generator)
    if name == "t5-large":
        return model, optimizer, {"input_ids": ids, "labels": torch.randint(30000, (samples, 128), device="cuda", generator=generator)}, None
    return model, optimizer, {"input_ids": ids, "labels": ids}, None


def checkpoint_everywhere(name, model):
    """As people do it: the switch of transformers, and of torchvision's models every block."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    from oomph.fitting.techniques.blocks import find_blocks
    from torch.utils.checkpoint import checkpoint

    for block in map(model.get_submodule, find_blocks(model)):
        block.forward = (lambda forward: lambda *args: checkpoint(forward, *args, use_reentrant=False))(block.forward)


def cut(batch, start, stop):
    return {key: value[start:stop] for key, value in batch.items()} if isinstance(batch, dict) else tuple(each[start:stop] for each in batch)


def timed(step, samples):
    import torch

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TIMED):
        step()
    torch.cuda.synchronize()
    return samples * TIMED / (time.perf_counter() - start)


def by_hand(name, method):
    """The plain loop in parts as large as fit; every block checkpointed or none."""
    import torch

    model, optimizer, batch, criterion = build(name)
    samples = CASES[name][1]
    if method == "checkpoint":
        checkpoint_everywhere(name, model)
    if method != "limit":
        hold(torch)

    def step(size):
        optimizer.zero_grad(set_to_none=True)
        for start in range(0, samples, size):
            part = cut(batch, start, min(samples, start + size))
            loss = criterion(model(part[0]), part[1]) if criterion else model(**part).loss
            (loss * (min(samples, start + size) - start) / samples).backward()
        optimizer.step()

    whole = name == "resnet152"  # BatchNorm: parts are another training.
    sizes = [samples] if method == "limit" or whole else dict.fromkeys(-(-samples // parts) for parts in (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 272))
    for size in sizes:
        try:
            torch.cuda.reset_peak_memory_stats()
            speed = timed(lambda: step(size), samples)
            return {"speed": speed, "part": size, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        except torch.cuda.OutOfMemoryError:
            pass
        optimizer.zero_grad(set_to_none=True)
        optimizer.state.clear()
        gc.collect()
        torch.cuda.empty_cache()
    return {"speed": None}


def hold(torch):
    from oomph.fitting.planning.card import here

    device = torch.device("cuda", 0)
    torch.cuda.set_per_process_memory_fraction((BUDGET - here(device).context) / torch.cuda.mem_get_info()[1])


def by_fit(name):
    import oomph
    import torch

    model, optimizer, batch, criterion = build(name)
    samples = CASES[name][1]
    started = time.perf_counter()
    fit = oomph.fit(model, optimizer, loss=criterion, batch=batch, budget=BUDGET)
    planned = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    speed = timed(lambda: fit.step(batch), samples)
    after = torch.cuda.memory_stats()
    allocated, reserved = fit.peak()
    predicted = fit.plan.predicted
    return {
        "speed": speed,
        "allocated": allocated,
        "reserved": reserved,
        "predicted_allocated": predicted and predicted.allocated,
        "predicted_reserved": predicted and predicted.reserved,
        "seconds_estimated": predicted and predicted.seconds,
        "planning": planned,
        "retries": after["num_alloc_retries"] - before["num_alloc_retries"],
        "ooms": after["num_ooms"] - before["num_ooms"],
        "history": fit.plan.history,
        "notes": fit.plan.notes,
        "chosen": fit.plan.summary(),
        "plan": str(fit.plan),
        "data": fit.plan.to_dict(),
    }


def work(name, methods):
    import torch

    for method in methods.split(","):
        started = time.perf_counter()
        try:
            row = by_fit(name) if method == "fit" else by_hand(name, method)
        except Exception as error:
            traceback.print_exc()
            row = {"error": f"{type(error).__name__}: {error}"[:500]}
        print("ROW " + json.dumps({"model": name, "method": method, "took": time.perf_counter() - started, **row}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def run(options):
    import shutil

    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OOMPH_COMMAND": str(pathlib.Path(options.oomph).resolve()) if options.oomph else shutil.which("oomph") or ""}
    end = time.monotonic() + options.seconds
    for name in options.only.split(",") if options.only else CASES:
        methods = options.methods.split(",")
        # What is done by hand shares a process; oomph.fit has one of its own.
        for group in ([each for each in methods if each != "fit"], [each for each in methods if each == "fit"]):
            left = end - time.monotonic()
            if not group or left < 15:
                continue
            try:
                ran = subprocess.run([sys.executable, str(HERE), "work", name, ",".join(group)], capture_output=True, text=True, env=environment, timeout=left)
                said = ran.stdout + ran.stderr
            except subprocess.TimeoutExpired:
                said = "timeout"
            rows = [json.loads(line[4:]) for line in said.splitlines() if line.startswith("ROW ")] or [{"model": name, "method": group[0], "error": said[-800:]}]
            with open(out / "rows.jsonl", "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            for row in rows:
                shown = ("speed", "took", "part", "planning", "chosen", "allocated", "predicted_allocated", "reserved", "predicted_reserved", "error")
                print(name, row["method"], json.dumps({key: row[key] for key in shown if key in row})[:900], flush=True)


def table(options):
    rows = {}
    for line in (pathlib.Path(options.out) / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows[row["model"], row["method"]] = row
    print("| model | kind | batch | checkpointing | parts alone | oomph.fit | limit | fit / limit | planning | reserved: predicted, measured | oomph.fit did |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    ratios = []
    for name, (kind, samples, length) in CASES.items():
        if (name, "fit") not in rows or (name, "limit") not in rows:
            continue
        fit, limit = rows[name, "fit"], rows[name, "limit"]

        def speed(method):
            row = rows.get((name, method), {})
            return "none" if not row.get("speed") else f"{row['speed']:.1f}/s" + (f" (parts of {row['part']})" if row.get("part") not in (None, samples) else "")

        ratio = fit["speed"] / limit["speed"] if fit.get("speed") and limit.get("speed") else 0.0
        ratios.append(ratio)
        predicted, reserved = fit.get("predicted_reserved") or 0, fit.get("reserved") or 1
        size = f"{samples} × {length}" if length else str(samples)
        memory = f"{predicted:,}, {reserved:,} ({100 * (reserved / max(predicted, 1) - 1):+.2f} %)"
        cells = [
            name,
            kind,
            size,
            speed("checkpoint"),
            speed("parts"),
            speed("fit"),
            speed("limit"),
            f"{ratio:.2f}",
            f"{fit.get('planning', 0):.0f} s",
            memory,
            fit.get("chosen", fit.get("error", "")).split(":")[0],
        ]
        print("| " + " | ".join(cells) + " |")
    if ratios:
        ratios.sort()
        print(f"\nfit / limit: median {ratios[len(ratios) // 2]:.2f}, least {ratios[0]:.2f}, of {len(ratios)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("run", "work", "table"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--oomph")
    parser.add_argument("--out", default="fit-speed")
    parser.add_argument("--only")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seconds", type=float, default=540)
    options = parser.parse_args()
    if options.what == "work":
        work(*options.names)
    else:
        {"run": run, "table": table}[options.what](options)


if __name__ == "__main__":
    main()
