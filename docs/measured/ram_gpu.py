"""RAM by line on a machine with a GPU: the kernel's count, pinned memory, what CUDA itself takes of the host, and what recording costs.

    python docs/measured/ram_gpu.py --oomph target/debug/oomph --out results

Prints tables; the recordings of one training run (the GPU's memory, and RAM) go to the folder, for the page that has both.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from ram import Bench, mib, of_script, percent

# Each prints, as JSON, what it knows itself of pinned memory, and seconds of a step.
END = """
import json
stats = torch.cuda.host_memory_stats() if hasattr(torch.cuda, "host_memory_stats") else {}
print(json.dumps({"pinned": stats.get("allocated_bytes.peak", 0), "step": step if "step" in globals() else None}))
"""

PROGRAMS = {
    "a loader that pins, four workers": """
        import time, torch
        from torch.utils.data import DataLoader, Dataset
        class Pictures(Dataset):
            def __len__(self): return 64 * 40
            def __getitem__(self, i): return torch.randn(3, 224, 224), i % 10
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, 2), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3, 2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        times = []
        for x, y in DataLoader(Pictures(), 64, num_workers=4, pin_memory=True):
            began = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            loss.item()
            times.append(time.perf_counter() - began)
        step = sorted(times)[len(times) // 2]
        """,
    "a checkpoint to the card": """
        import torch
        torch.save({f"w{i}": torch.randn(4096, 2048) for i in range(24)}, "model.pt")
        state = torch.load("model.pt")
        state = {name: value.cuda() for name, value in state.items()}
        """,
    "transformers, loaded and generating": """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=12, n_head=16)).save_pretrained("gpt2")
        model = GPT2LMHeadModel.from_pretrained("gpt2").cuda()
        tokens = model.generate(torch.ones(4, 16, dtype=torch.long, device="cuda"), max_new_tokens=40, do_sample=False)
        """,
    "activations kept on the host": """
        import time, torch
        layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(8)]).cuda()
        optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)
        times = []
        for _ in range(12):
            began = time.perf_counter()
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                loss = layers(torch.randn(2048, 4096, device="cuda")).square().mean()
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            loss.item()
            times.append(time.perf_counter() - began)
        step = sorted(times)[len(times) // 2]
        """,
    "a large tensor, pinned and copied": """
        import torch
        data = torch.randn(150_000_000)
        pinned = data.pin_memory()
        there = pinned.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        del data
        back = there.half().cpu()
        """,
    "mixed precision, a language model": """
        import time, torch
        from transformers import GPT2Config, GPT2LMHeadModel
        model = GPT2LMHeadModel(GPT2Config()).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        times = []
        for _ in range(30):
            tokens = torch.randint(0, 50257, (8, 512)).cuda()
            began = time.perf_counter()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            loss.item()
            times.append(time.perf_counter() - began)
        step = sorted(times)[len(times) // 2]
        """,
}

# What CUDA takes of the host, stage by stage.
STAGES = r"""
import json
def counted():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line)
    return {name: int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssFile", "RssShmem")}
stages = {}
import torch
stages["import torch"] = counted()
torch.cuda.init(); torch.ones(1, device="cuda"); torch.cuda.synchronize()
stages["the first tensor on the card"] = counted()
a = torch.randn(512, 512, device="cuda"); (a @ a).sum().item()
stages["a product (cuBLAS)"] = counted()
torch.nn.functional.conv2d(torch.randn(4, 3, 64, 64, device="cuda"), torch.randn(8, 3, 3, 3, device="cuda")).sum().item()
stages["a convolution (cuDNN)"] = counted()
(a.softmax(-1).sort().values.cumsum(0) + a.exp()).sum().item()
stages["some more kernels"] = counted()
print(json.dumps(stages))
"""


def last_json(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def truth(bench: Bench, out: pathlib.Path) -> None:
    print("| program | kernel, plain | kernel, recorded | oomph says | off | pinned, by PyTorch | by oomph | by line |\n|---|---:|---:|---:|---:|---:|---:|---|")
    near = 0
    for name, text in PROGRAMS.items():
        folder = bench.place(name)
        script = bench.write(folder, textwrap.dedent(text).lstrip("\n") + END, "train.py")
        code, said, err, _ = bench.call(bench.plain(script), folder)
        if code != 0:
            print(f"| {name} | FAILED: {err.strip()[-200:]} |")
            continue
        plain = of_script(bench.polled(bench.plain(script), folder), script)
        under = of_script(bench.polled(bench.under(script), folder), script)
        host = bench.explained(folder / "train-ram.oomph")["host"]
        off = host["anonymous"] - under[0]["anonymous"]
        near += abs(off) <= 0.02 * under[0]["anonymous"]
        lines = "; ".join(f"{(line['place'] or {}).get('line', '-')}: {mib(line['bytes'])}" for line in host["lines"][:3])
        known = last_json(said)
        print(
            f"| {name} | {mib(plain[0]['anonymous'])} | {mib(under[0]['anonymous'])} | {mib(host['anonymous'])} | {percent(off, under[0]['anonymous'])} | {mib(known['pinned'])} | {mib(host['by_how']['pinned'])} | {lines} |",
            flush=True,
        )
        if name.startswith("a loader"):
            for recording in ("train.oomph", "train-ram.oomph"):
                shutil.copy(folder / recording, out / recording)
    print(f"\n{near} of {len(PROGRAMS)} are within 2 %.\n")


def stages(bench: Bench) -> None:
    folder = bench.place("stages")
    script = bench.write(folder, STAGES, "stages.py")
    code, said, err, _ = bench.call(bench.plain(script), folder)
    assert code == 0, err
    print("| after | own memory, MiB | pages of files | shared |\n|---|---:|---:|---:|")
    for name, counted in last_json(said).items():
        print(f"| {name} | {mib(counted['RssAnon'])} | {mib(counted['RssFile'])} | {mib(counted['RssShmem'])} |")
    print()


def predicted(bench: Bench) -> None:
    """The kernel does not count what CUDA has pinned as the process's own, so it is added. The first process alone: workers are the same on both."""
    print("| program | predicted, MiB | kernel's own, and pinned | CUDA's part |\n|---|---:|---:|---:|")
    for name, text in PROGRAMS.items():
        folder = bench.place(name + " again")
        script = bench.write(folder, textwrap.dedent(text).lstrip("\n") + END, "train.py")
        done = subprocess.run(
            [bench.oomph, "predict", "--gpu", "h200", "--ram", "--format", "json", "--python", bench.python, str(script)],
            cwd=folder,
            capture_output=True,
            text=True,
            env=bench.environment,
            timeout=400,
        )
        if not done.stdout:
            print(f"| {name} | FAILED: {done.stderr.strip()[-200:]} |")
            continue
        host = json.loads(done.stdout)["host"]
        code, said, err, _ = bench.call(bench.plain(script), folder)
        assert code == 0, err[-400:]
        real = of_script(bench.polled(bench.plain(script), folder), script)[0]["anonymous"] + last_json(said)["pinned"]
        print(
            f"| {name} | {mib(host['least'])} to {mib(host['most'])} ({host['processes']} processes) | {mib(real)} | {mib(real - host['most'])} to {mib(real - host['least'])} |",
            flush=True,
        )
    print()


def cost(bench: Bench, rounds: int) -> None:
    print("| program | | ms a step | |\n|---|---|---:|---:|")
    for name in ("mixed precision, a language model", "a loader that pins, four workers", "activations kept on the host"):
        folder = bench.place(name + " timed")
        script = bench.write(folder, textwrap.dedent(PROGRAMS[name]).lstrip("\n") + END, "train.py")
        ways = {
            "plain": bench.plain(script),
            "oomph run": [bench.oomph, "run", "-q", "--python", bench.python, str(script)],
            "oomph run --ram": bench.under(script),
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, command in ways.items():
                code, said, err, _ = bench.call(command, folder)
                assert code == 0, err[-400:]
                found[way].append(1000 * last_json(said)["step"])
        least = {way: min(times) for way, times in found.items()}
        for way, time in least.items():
            print(f"| {name} | {way} | {time:.2f} | {percent(time - least['plain'], least['plain']) if way != 'plain' else ''} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["stages", "truth", "predicted", "cost"])
    parser.add_argument("--oomph", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder")
    parser.add_argument("--only", default=None)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    bench = Bench(args)
    for part in args.parts:
        print(f"## {part}\n", flush=True)
        match part:
            case "stages":
                stages(bench)
            case "truth":
                truth(bench, args.out)
            case "predicted":
                predicted(bench)
            case "cost":
                cost(bench, args.rounds)


if __name__ == "__main__":
    main()
