"""What the recorder costs, and what the guard holds, on a real GPU: one script, one table.

    python live.py --oomph PATH/oomph [--only overhead,train,overflow,caught,budget] [--out FOLDER]
    python live.py --oomph PATH/oomph --gpu h200 --short        without a GPU: a rehearsal on a virtual one, times mean nothing

- overhead: steps of three models, plain, under oomph's recorder, under PyTorch's own (Python stacks), in turns in one process.
- overflow: three models train unlimited; then in four fifths of what they allocated, which kills them; then again with host
  memory beyond that. Losses are compared bit by bit.
- caught: after an out-of-memory that the program catches, what is allocated in the handler.
- budget: 15 GiB, asked for by PyTorch, cuBLAS, cuDNN and a second library that calls cudaMalloc; NVML is the witness.

Children wait for each other with a lock, so that only one is on the GPU; their imports overlap.
"""

import argparse
import ctypes
import fcntl
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "../.."))
GIB, MIB = 1 << 30, 1 << 20
SMALL = {"gpt2": 4, "resnet50": 16, "bert": 16}
LARGE = {"gpt2": 16, "bert": 64, "resnet50": 64}
SHORT = bool(os.environ.get("OOMPH_MEASURE_SHORT"))


# --- in children ------------------------------------------------------------------------------------------


def alone():
    """Waits until no other process is on the GPU."""
    lock = open(os.environ["OOMPH_MEASURE_LOCK"], "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def say(kind, **row):
    print("ROW " + json.dumps({"kind": kind, **row}), flush=True)


def build(name, batch):
    """A training step, as tests/programs/grid.py writes it, in bfloat16 with AdamW; gives the loss."""
    import torch

    sys.path.insert(0, os.path.join(ROOT, "tests/programs"))
    import grid

    torch.manual_seed(0)
    model, data, loss_of = grid.MODELS[name](batch, False)
    optimizer = grid.optimizer(model.parameters(), "adamw")

    def step():
        inputs = data()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def import_all():
    import torch
    import torchvision
    from transformers import BertForSequenceClassification, GPT2LMHeadModel

    return torch, torchvision, BertForSequenceClassification, GPT2LMHeadModel


def timed(step, count):
    import torch

    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times


def overhead(library):
    torch = import_all()[0]
    sys.path.insert(0, os.path.join(ROOT, "python"))
    from oomph.live import recording

    lock = alone()
    folder = tempfile.mkdtemp()
    rounds, steps, settle = (1, 2, 1) if SHORT else (4, 12, 5)
    for name, batch in SMALL.items():
        step = build(name, batch)
        timed(step, 4 if SHORT else 12)
        attachment = recording.attachment(torch, library)
        times = {"plain": [], "oomph": [], "torch": []}
        for turn in range(rounds):
            times["plain"] += timed(step, steps)
            ours = recording.Recording(os.path.join(folder, f"{name}{turn}.oomph"))
            attachment.begin(ours)
            timed(step, settle)
            times["oomph"] += timed(step, steps)
            ours.stop()
            torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
            timed(step, 2)
            times["torch"] += timed(step, steps)
            torch.cuda.memory._record_memory_history(enabled=None)
        milliseconds = {mode: statistics.median(all) * 1e3 for mode, all in times.items()}
        say("overhead", model=name, batch=batch, ms=milliseconds, events=ours.counts[0], repeated=ours.counts[2], file=os.path.getsize(ours.path))
        step = None
        gc.collect()
        torch.cuda.empty_cache()
    lock.close()


def train(label, names):
    torch = import_all()[0]
    lock = alone()
    for name in names.split(","):
        row = {"label": label, "model": name, "batch": LARGE[name]}
        torch.cuda.reset_peak_memory_stats()
        try:
            step = build(name, 4 if SHORT else LARGE[name])
            losses, times = [], []
            for _ in range(3 if SHORT else 30):
                torch.cuda.synchronize()
                began = time.perf_counter()
                losses.append(step())
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            row.update(losses=[float(loss) for loss in losses], ms=statistics.median(times[-5:]) * 1e3, all_ms=[round(one * 1e3, 1) for one in times])
        except torch.OutOfMemoryError as error:
            row.update(error=str(error)[:160])
        row.update(reserved=torch.cuda.max_memory_reserved(), allocated=torch.cuda.max_memory_allocated(), ooms=torch.cuda.memory_stats().get("num_ooms", 0))
        say("train", **row)
        step = losses = None
        gc.collect()
        torch.cuda.empty_cache()
    lock.close()


def caught():
    import torch

    lock = alone()
    kept = torch.randn(64 << 20, device="cuda")
    before = torch.cuda.memory_allocated()

    def attempt():
        large = torch.randn(1 << 28, device="cuda")
        with torch.no_grad():
            inner(large)

    def inner(large):
        also = large + 1
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        return also

    try:
        attempt()
    except torch.OutOfMemoryError as error:
        after = torch.cuda.memory_allocated()
        held = error
    say("caught", before=before, after=after, peak=torch.cuda.max_memory_allocated(), kept=kept.numel(), error=type(held).__name__)
    lock.close()


def nvml_used():
    """Bytes in use on the first device, by all processes, as the driver counts them; None without NVML."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        library.nvmlInit_v2()
        device = ctypes.c_void_p()
        library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
        memory = (ctypes.c_uint64 * 3)()
        return int(memory[2]) if library.nvmlDeviceGetMemoryInfo(device, memory) == 0 else None
    except OSError:
        return None


def budget():
    import torch

    lock = alone()
    nothing = nvml_used()
    torch.cuda.init()
    a = torch.randn(2048, 2048, device="cuda")
    (a @ a).sum().item()
    torch.nn.functional.conv2d(torch.randn(8, 16, 64, 64, device="cuda"), torch.randn(16, 16, 3, 3, device="cuda")).sum().item()
    runtime = next(line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line)
    cuda = ctypes.CDLL(runtime)
    pointer, outside = ctypes.c_void_p(), 0
    while outside < 4 * GIB and cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(256 * MIB)) == 0:
        outside += 256 * MIB
    blocks = []
    try:
        while len(blocks) < 1000:
            blocks.append(torch.randn(64 << 18, device="cuda"))
    except torch.OutOfMemoryError as error:
        message = str(error)[:200]
    second = cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(256 * MIB))
    used = nvml_used()
    kept, total = len(blocks), float(blocks[0][0])
    say(
        "budget", by_nvml=None if used is None else used - nothing, by_torch=torch.cuda.memory_reserved(), by_second_library=outside,
        second_after=second, free_total=torch.cuda.mem_get_info(), message=message, blocks=kept, first=total,
    )  # fmt: skip
    lock.close()


# --- the parent -------------------------------------------------------------------------------------------


class Parent:
    def __init__(self, args):
        self.args = args
        self.out = args.out or tempfile.mkdtemp()
        self.rows = []
        self.began = time.time()
        os.environ.update(OOMPH_MEASURE_LOCK=os.path.join(self.out, "gpu.lock"), HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", PYTHONUNBUFFERED="1")
        if args.short:
            os.environ["OOMPH_MEASURE_SHORT"] = "1"

    def start(self, *words, run=()):
        card = ["--gpu", self.args.gpu] if self.args.gpu else []
        command = [self.args.oomph, "run", "--python", sys.executable, *card, *run, os.path.abspath(__file__), "--child", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.out)

    def finish(self, child, label):
        try:
            out, err = child.communicate(timeout=self.args.patience)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
        reported = [line.strip() for line in err.splitlines() if "overflowed into host memory" in line]
        for line in out.splitlines():
            if line.startswith("ROW "):
                self.rows.append({**json.loads(line[4:]), "reported": reported[0] if reported else ""})
        with open(os.path.join(self.out, "log.txt"), "a") as log:
            log.write(f"== {label} ({child.returncode}, {time.time() - self.began:.0f} s)\n{out}\n{err}\n")
        with open(os.path.join(self.out, "rows.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
        tail = [line for line in err.splitlines() if line.startswith(("oomph: device", "  "))][-12:]
        print(f"== {label}: exit {child.returncode}, {time.time() - self.began:.0f} s\n" + "\n".join(tail), flush=True)

    def trained(self, label, name):
        return next((row for row in self.rows if row["kind"] == "train" and (row["label"], row["model"]) == (label, name)), None)

    def run(self):
        only = self.args.only.split(",")
        library = subprocess.run([self.args.oomph, "run", "--library"], capture_output=True, text=True).stdout.strip()
        first = []
        if "train" in only:
            first.append(("unlimited", self.start("train", "unlimited", ",".join(LARGE), run=["--no-recording"])))
        if "overhead" in only:
            time.sleep(0.5)
            first.append(("overhead", self.start("overhead", library, run=["--no-recording"])))
        if "caught" in only:
            first.append(("caught", self.start("caught", run=["-o", "caught.oomph"])))
        if "budget" in only:
            first.append(("budget", self.start("budget", run=["--budget", "15GiB", "-o", "budget.oomph"])))
        for label, child in first[:1]:
            self.finish(child, label)
        later = []
        for name in LARGE if "overflow" in only else ():
            plain = self.trained("unlimited", name)
            if plain is None or "losses" not in plain:
                continue
            # What CUDA itself takes counts too: 600 MiB on this card, or a little less.
            limit = f"{plain['allocated'] * 8 // 10 + (0 if self.args.short else 600 * MIB)}B"
            more = f"{max(plain['allocated'] // 2, 2 * GIB)}B"
            later.append((f"overflow {name}", self.start("train", "overflow", name, run=["--budget", limit, "--overflow", more, "-o", f"{name}.oomph"])))
            if name == "gpt2":
                later.append((f"dies {name}", self.start("train", "dies", name, run=["--budget", limit, "-o", f"{name}-dies.oomph"])))
        for label, child in first[1:] + later:
            self.finish(child, label)
        print(self.table())

    def table(self):
        import datetime

        lines = []
        try:
            query = "name,driver_version"
            card = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
        except OSError:
            card = "virtual"
        version = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout.strip()
        lines.append(f"{datetime.date.today()}, {card}, torch {version}, Python {sys.version.split()[0]}\n")
        of = lambda kind: [row for row in self.rows if row["kind"] == kind]
        lines += ["| model, batch | plain | oomph's recorder | PyTorch's recorder | steps not written |", "|---|---:|---:|---:|---:|"]
        for row in of("overhead"):
            ms = row["ms"]
            cost = lambda mode: f"{ms[mode]:.2f} ms (+{100 * (ms[mode] / ms['plain'] - 1):.1f} %)"
            lines.append(f"| {row['model']} {row['batch']} | {ms['plain']:.2f} ms | {cost('oomph')} | {cost('torch')} | {row['repeated']} |")
        lines += ["", "| model, batch | allocated, unlimited | step | with four fifths of it | with overflow | losses |", "|---|---:|---:|---|---:|---|"]
        notes = []
        for name in LARGE:
            plain, over, dies = (self.trained(label, name) for label in ("unlimited", "overflow", "dies"))
            if plain is None or "ms" not in plain:
                continue
            dead = "not run" if dies is None else ("dies: " + dies["error"][:60] if "error" in dies else "completes")
            if over is None:
                slow, same = "not run", ""
            elif "ms" not in over:
                slow, same = over["error"][:60], ""
            else:
                slow = f"{over['ms']:.1f} ms ({over['ms'] / plain['ms']:.2f} times)"
                same = "equal" if over["losses"] == plain["losses"] else f"{max(abs(a - b) for a, b in zip(over['losses'], plain['losses'])):.2g} apart at most"
            lines.append(f"| {name} {LARGE[name]} | {plain['allocated'] / GIB:.2f} GiB | {plain['ms']:.1f} ms | {dead} | {slow} | {same} |")
            if over is not None and over["reported"]:
                notes.append(f"{name}: {over['reported']}")
        lines += ["", *notes]
        for row in of("caught"):
            lines.append(f"\nCaught out-of-memory: {row['before']} bytes allocated before, {row['peak']} at most, {row['after']} in the handler.")
        for row in of("budget"):
            lines.append(
                f"\nBudget of 15 GiB ({15 * GIB} bytes): NVML counts {row['by_nvml']} bytes, of which PyTorch reserved {row['by_torch']} and a second library "
                f"{row['by_second_library']}; a further cudaMalloc of 256 MiB gives {row['second_after']}; PyTorch says: {row['message']}"
            )
        text = "\n".join(lines)
        with open(os.path.join(self.out, "table.md"), "w") as file:
            file.write(text + "\n")
        return text


def main():
    if "--child" in sys.argv:
        what, *words = sys.argv[sys.argv.index("--child") + 1 :]
        return {"overhead": overhead, "train": train, "caught": caught, "budget": budget}[what](*words)
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph", required=True)
    parser.add_argument("--gpu")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="train,overhead,caught,overflow,budget")
    parser.add_argument("--out")
    parser.add_argument("--patience", type=float, default=600)
    args = parser.parse_args()
    args.oomph = os.path.abspath(args.oomph)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
        args.out = os.path.abspath(args.out)
    Parent(args).run()


if __name__ == "__main__":
    main()
