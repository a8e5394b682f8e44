"""`oomph top` and `oomph doctor` on a real GPU: their numbers beside NVML's, PyTorch's and the kernel's, at moments at which nothing moves.

    python docs/measured/machine.py --oomph target/release/oomph [--out FOLDER]

Builds nothing: needs a GPU, its driver's libnvidia-ml.so.1 and nvidia-smi, and torch. Two programs hold memory: a plain one, and one that trains under
`oomph run`. The first screen of each verb goes to FOLDER/top.txt, FOLDER/doctor.txt and so on. Exits with 1 if a comparison fails.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

GIB = 1 << 30

PLAIN = """
import sys, torch
held = torch.randn({size} // 4, device="cuda")
torch.cuda.synchronize()
print("ready", torch.cuda.memory_allocated(), flush=True)
sys.stdin.readline()
"""

TRAINS = """
import json, sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4096, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 4096)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(20):
    torch.cuda.reset_peak_memory_stats()
    optimizer.zero_grad()
    loss = model(torch.randn(2048, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
counters = {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved(), "last_peak": torch.cuda.max_memory_allocated(), "steps": 20}
print("ready", json.dumps(counters), flush=True)
sys.stdin.readline()
"""


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t"""

    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("reserved", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def nvml():
    """What the driver says of the first card, asked directly."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    device = ctypes.c_void_p()
    assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
    assert library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)) == 0
    name, uuid, driver = (ctypes.create_string_buffer(96) for _ in range(3))
    assert library.nvmlDeviceGetName(device, name, 96) == 0 and library.nvmlDeviceGetUUID(device, uuid, 96) == 0
    assert library.nvmlSystemGetDriverVersion(driver, 96) == 0
    card = {key: getattr(memory, key) for key in ("total", "reserved", "free", "used")}
    return card | {"name": name.value.decode(), "uuid": uuid.value.decode(), "driver": driver.value.decode()}


def smi_processes():
    """What nvidia-smi says of processes, in MiB."""
    asked = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    rows = (line.split(",") for line in asked.stdout.splitlines() if "," in line)
    return {int(pid): int(mib) if mib.strip().isdigit() else None for pid, mib in rows}


class Holder:
    """A program that holds memory until it is asked to end."""

    def __init__(self, program, *before):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*before, *(() if before else (sys.executable,)), program], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready"), line
        self.counters = json.loads(line.split(" ", 1)[1])

    def end(self):
        self.process.stdin.write("\n")
        self.process.stdin.close()
        self.process.wait(timeout=60)


class Comparisons:
    """Each is printed as it is made."""

    def __init__(self):
        self.failed, self.rows = 0, []

    def same(self, what, oomph, other, by, tolerance=0):
        holds = oomph is not None and (oomph == other if isinstance(other, str) or other is None else abs(oomph - other) <= tolerance)
        self.failed += not holds
        self.rows.append({"what": what, "oomph": oomph, "other": other, "by": by, "tolerance": tolerance, "holds": holds})
        shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in (oomph, other)]
        print(f"| {what} | {shown[0]} | {shown[1]} | {by} | {'yes' if holds else 'NO'} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--oomph", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    oomph = str(args.oomph.resolve())
    out = args.out or pathlib.Path(tempfile.mkdtemp())
    out.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp())

    def call(name, *words, expected=(0,), **environment):
        done = subprocess.run([oomph, *words], capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120", **environment}, timeout=180)
        if name:
            (out / f"{name}.txt").write_text(f"$ oomph {' '.join(words)}   (exit {done.returncode})\n{done.stdout}{done.stderr}")
        assert done.returncode in expected, (words, done.returncode, done.stderr)
        return done.stdout

    compared = Comparisons()

    def checkup(name, *words, wrong=(), **environment):
        """The screen, and what --format json says, in which these checks must be wrong and no others."""
        call(name, "doctor", "--python", sys.executable, *words, expected=(bool(wrong),), **environment)
        facts = json.loads(call(None, "doctor", "--python", sys.executable, "--format", "json", *words, expected=(bool(wrong),), **environment))
        found = sorted({finding["check"] for finding in facts["findings"] if finding["level"] == "wrong"})
        compared.same(f"{name}: what is wrong", ", ".join(found), ", ".join(sorted(wrong)), "what was set up")
        return facts

    print("| what | oomph | other | by | same |\n|---|---:|---:|---|---|")

    # An idle card.
    facts = checkup("doctor")
    (out / "doctor.json").write_text(json.dumps(facts, indent=1))

    (folder / "plain.py").write_text(PLAIN.format(size=3 * GIB))
    (folder / "trains.py").write_text(TRAINS)
    os.chdir(folder)
    plain = Holder(str(folder / "plain.py"))
    trains = Holder(str(folder / "trains.py"), oomph, "run", "--python", sys.executable, "-o", str(folder / "trains.oomph"))
    time.sleep(2)

    sample = json.loads(call(None, "top", "--json-lines", "--count", "1"))
    (out / "top.json").write_text(json.dumps(sample, indent=1))
    card, reported = sample["gpus"]["cards"][0], nvml()
    for key in ("name", "uuid", "total", "reserved", "free", "used"):
        compared.same(f"top: card, {key}", card[key], reported[key], "NVML")
    compared.same("top: driver", sample["gpus"]["driver"], reported["driver"], "NVML")
    by_pid = {process["pid"]: process for process in sample["processes"]}
    seen = smi_processes()
    for pid, mib in seen.items():
        on = next((one["bytes"] for one in by_pid.get(pid, {}).get("on_gpus", ())), None)
        compared.same("top: a process on the card, MiB", None if on is None else on >> 20, mib, "nvidia-smi")
    compared.same("top: processes on the card", sum(bool(process["on_gpus"]) for process in sample["processes"]), 2, "two were started")
    inside = next(process["inside"] for process in sample["processes"] if process.get("inside"))
    device = inside["devices"][0]
    for key in ("allocated", "reserved", "last_peak"):
        compared.same(f"top: {key} from inside", device[key], trains.counters[key], "PyTorch")
    compared.same("top: steps from inside", inside["steps"], trains.counters["steps"], "the program")
    call("top", "top", "--once", "--on-gpus")
    checkup("doctor-shared")

    exporter = subprocess.Popen([oomph, "top", "--prometheus", "127.0.0.1:9477"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(100):
            try:
                text = urllib.request.urlopen("http://127.0.0.1:9477/metrics", timeout=10).read().decode()
                break
            except OSError:
                time.sleep(0.1)
        (out / "metrics.txt").write_text(text)
        value = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("oomph_gpu_")}
        reported = nvml()
        for key in ("total", "reserved", "free", "used"):
            compared.same(f"exporter: card, {key}", int(value[f"oomph_gpu_{key}_bytes"]), reported[key], "NVML")
    finally:
        exporter.terminate()
        exporter.wait()
    trains.end()
    plain.end()

    # A card that another process has filled, settings, a card that is hidden.
    free = nvml()["free"]
    (folder / "plain.py").write_text(PLAIN.format(size=free - 4 * GIB))
    large = Holder(str(folder / "plain.py"))
    checkup("doctor-full", wrong=["card"])
    large.end()
    checkup(
        "doctor-settings",
        wrong=["debugging"],
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,garbage_collection_threshold:0.8",
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        CUDA_LAUNCH_BLOCKING="1",
    )
    checkup("doctor-hidden", wrong=["visible-devices"], CUDA_VISIBLE_DEVICES="7")
    checkup("doctor-deep", "--deep")
    (out / "machine.json").write_text(json.dumps(compared.rows, indent=1))
    print(f"{len(compared.rows) - compared.failed} of {len(compared.rows)} are the same")
    return int(compared.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
