"""PyTorch's budget for the activations of compiled code: peaks as predicted on the virtual GPU beside those of a real one, and what a step takes.

    python docs/measured/compiled_budget.py --oomph target/debug/oomph --out FOLDER [--only llama,gpt2,vit] [--layers 4] [--gpu h200]

Three models of transformers with random weights in bfloat16, compiled as a whole by Inductor, AdamW (fused). Each budget is set as oomph.fit sets it (random numbers
are kept), the model is compiled anew, makes two steps, and then three whose peaks and times count. The same program runs on the virtual GPU, beside the real one's.
*Kept* is what the forward pass has left allocated, beyond what there was before it. Code is compiled from nothing in both: caches are in FOLDER.
Needs a GPU with Triton, and torch and transformers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))

MIB = 1 << 20
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1)


def build(name, layers):
    """A model on the GPU, and a batch."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if name == "llama":
            shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 8192}
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_hidden_layers=layers, use_cache=False))
        elif name == "gpt2":
            # With its dropout.
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=8192, n_embd=1024, n_head=16, n_layer=layers, use_cache=False))
        else:
            model = transformers.ViTForImageClassification(transformers.ViTConfig(num_hidden_layers=layers, num_labels=1000))
        if name == "vit":
            batch = {"pixel_values": torch.randn(256, 3, 224, 224), "labels": torch.randint(1000, (256,))}
        else:
            ids = torch.randint(8192, (16, 1024))
            batch = {"input_ids": ids, "labels": ids}
    torch.set_default_dtype(torch.float32)
    return model.train(), batch


def sweep(name, layers):
    """One line of JSON for each budget."""
    import torch
    from oomph.fitting.techniques.compiled import ActivationBudget

    plain, batch = build(name, layers)
    optimizer = torch.optim.AdamW(plain.parameters(), fused=True)
    model = torch.compile(plain)

    def step():
        before = torch.cuda.memory_allocated()
        loss = model(**batch).loss
        kept = torch.cuda.memory_allocated() - before
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return kept

    for budget in BUDGETS:
        applied = ActivationBudget(model, budget) if budget < 1 else None
        began = time.perf_counter()
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        compiled = time.perf_counter() - began
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        kept = [step() for _ in range(3)][-1]
        torch.cuda.synchronize()
        row = {"model": name, "budget": budget, "kept": kept, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        print(json.dumps({**row, "seconds": (time.perf_counter() - began) / 3, "compiled": compiled}), flush=True)
        if applied is not None:
            applied.undo()


def start(command, cache, log):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen([str(part) for part in command], stdout=open(log, "w"), stderr=subprocess.STDOUT, env=environment)


def rows_of(log):
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"model"')]


def table(rows):
    """Predicted beside measured, in MiB, and the difference of the peak allocated."""
    lines = ["| model | budget | kept: predicted | measured | allocated: predicted | measured | | reserved: predicted | measured | ms a step |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|")
    for name, predicted, measured in rows:
        for one, other in zip(predicted, measured):
            away = one["allocated"] / other["allocated"] - 1
            pairs = {key: f"{one[key] / MIB:,.0f} | {other[key] / MIB:,.0f}" for key in ("kept", "allocated", "reserved")}
            lines.append(f"| {name} | {one['budget']} | {pairs['kept']} | {pairs['allocated']} | {away:+.2%} | {pairs['reserved']} | {1000 * other['seconds']:.1f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", default="llama,gpt2,vit")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--sweep", help="one model, here; for this program's own use")
    options = parser.parse_args()
    if options.sweep:
        sweep(options.sweep, options.layers)
        return
    began, out, names = time.monotonic(), options.out.resolve(), options.only.split(",")
    out.mkdir(parents=True, exist_ok=True)
    one = [HERE, "--layers", options.layers, "--sweep"]
    virtual = [options.oomph.resolve(), "on-virtual-gpu", "--quiet", "--python", sys.executable, "--gpu", options.gpu]
    predicting = [start([*virtual, *one, name], out / f"cache-predicted-{name}", out / f"predicted-{name}.txt") for name in names]
    for name in names:
        # One after another: their times count.
        start([sys.executable, *one, name], out / f"cache-measured-{name}", out / f"measured-{name}.txt").wait()
    for process in predicting:
        process.wait()
    rows = [(name, rows_of(out / f"predicted-{name}.txt"), rows_of(out / f"measured-{name}.txt")) for name in names]

    import torch
    import transformers

    about = {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "layers": options.layers,
    }
    report = {**about, "rows": {name: {"predicted": predicted, "measured": measured} for name, predicted, measured in rows}}
    (out / "compiled_budget.json").write_text(json.dumps(report, indent=1))
    print(about, table(rows), f"{time.monotonic() - began:.0f} s in all", sep="\n")


if __name__ == "__main__":
    main()
