"""The census: who held what when memory ran out, as the recorder and a prediction leave it. On the virtual GPU."""

import json
import os
import struct
import subprocess
import sys
import textwrap

import pyarrow
import pytest
from conftest import COMMAND, PYTHON_2_11, ROOT, slowness

# The package as it lies here, with the command as built.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}

CENSUS = 11


def censuses(path):
    """Those of a recording, by the format's page: docs/reference/oomph-format.md."""
    data, place, found = path.read_bytes(), 12, []
    while place < len(data):
        kind, raw, packed, _ = struct.unpack_from("<BIII", data, place)
        place += 13
        if kind == CENSUS:
            found.append(json.loads(pyarrow.Codec("zstd").decompress(data[place : place + packed], raw, asbytes=True)))
        place += packed
    return found


def started(folder, text, *options, verb="run", python=sys.executable, name="train.py", **more):
    (folder / name).write_text(textwrap.dedent(text).lstrip("\n"))
    command = [COMMAND, verb, "--python", str(python), "--gpu", "t4", *options, name]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, **{**pipes, "env": ENVIRONMENT, **more})


def ran(folder, *arguments, **options):
    """Runs a program to its end; gives its exit code, what it printed, and the censuses of its recording."""
    process = started(folder, *arguments, **options)
    out, err = process.communicate(timeout=300)
    recording = folder / "train.oomph"
    return process.returncode, out, err, censuses(recording) if recording.exists() else []


def line_of(folder, text, name="train.py"):
    """The number of the one line that has this in it."""
    (number,) = [number for number, line in enumerate((folder / name).read_text().splitlines(), 1) if text in line]
    return number


def holder(census, name, what="tensor"):
    (found,) = [holder for holder in census["holders"] if holder["name"] == name and holder["what"] == what]
    return found


def puts(holder):
    return holder["line"], holder["how"], holder["text"]


KiB, MiB = 1 << 10, 1 << 20

# Many holders, one out-of-memory after another, each caught.
HOLDERS = """
import copy
import functools
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(256, 256) for _ in range(3)])
        self.register_buffer("scale", torch.ones(1024))
        self.outputs = []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x * self.scale[:256])
        self.outputs.append(x.detach())
        return x


class Trainer:
    def __init__(self, model):
        self.model = model
        self.cache = {}
        self.log = {"loss": [], "rate": 0.1}

    def step(self, number, x):
        self.cache[number] = x
        self.log["loss"].append(
            x[:16] + 1,  # a copy
        )


def hooked(model):
    features = []

    def keep(module, args, output):
        features.append(output.clone())

    model.layers[0].register_forward_hook(keep)


def counting():
    kept = torch.zeros(1 << 18, device="cuda")

    def ask():
        return kept

    return ask


@functools.lru_cache(maxsize=None)
def table(size):
    return torch.zeros(size, device="cuda")


def big(*shape):
    return torch.zeros(*shape, device="cuda")


def run_out(batch, scale):
    seen = [batch]
    seen.append(big(1 << 16))
    try:
        wide = torch.empty(1 << 44, device="cuda") + batch["x"] * model.scale[0] + scale
    except torch.OutOfMemoryError:
        return


model = Net().cuda()
trainer = Trainer(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
history = []
joined = big(1, 256)
total = 0
hidden = big(8, 256)
callback = counting()
table(1 << 17)
for number in range(4):
    out = trainer.model(big(64, 256))
    loss = out.square().mean()
    total += loss
    history.append(big(1 << 20))
    trainer.step(number, big(1 << 16))
    joined = torch.cat([joined, big(1, 256)])
    hidden = torch.tanh(model.layers[1](hidden))
loss.backward(retain_graph=True)
optimizer.step()
best = copy.deepcopy(model.state_dict())
saved = [copy.deepcopy(model.state_dict()) for _ in range(2)]
teacher = copy.deepcopy(model).eval().requires_grad_(False)
hooked(model)
with torch.no_grad():
    for _ in range(2):
        model(big(64, 256))
before = torch.cuda.memory_allocated()
run_out({"x": big(32, 8), "y": 3}, torch.ones(4))
assert torch.cuda.memory_allocated() == before, (torch.cuda.memory_allocated(), before)
with torch.no_grad():
    run_out({"x": big(32, 8), "y": 3}, torch.ones(4))
"""
LAYER = 4 * 256 * 256 + 4 * 256
WEIGHTS = 3 * LAYER


@pytest.fixture(scope="module", params=["run", "run 2.11", "predict"])
def taken(request, tmp_path_factory):
    """The folder, the first census, and the one without gradients."""
    folder = tmp_path_factory.mktemp("census")
    verb, _, version = request.param.partition(" ")
    more = ["--output", "train.oomph"] if verb == "predict" else []
    code, out, err, found = ran(folder, HOLDERS, *more, verb=verb, python=PYTHON_2_11 if version else sys.executable)
    assert code == 0, err
    assert len(found) == 2 and all(census["complete"] for census in found), (len(found), err)
    return folder, *found


def test_a_list_a_dictionary_and_an_attribute_have_their_names_and_the_lines_that_fill_them(taken):
    folder, census, _ = taken
    history = holder(census, "history")
    assert (history["root"], history["container"], history["length"], history["function"]) == ("variable", "list", 4, "")
    assert (history["bytes"], history["tensors"], history["path"], history["shape"]) == (16 * MiB, 4, "history[0]", [1 << 20])
    assert puts(history) == (line_of(folder, "history.append("), "append", "history.append(big(1 << 20))")
    assert os.path.basename(history["file"]) == "train.py" and history["dtype"] == "float32"
    cache = holder(census, "trainer.cache")
    assert (cache["container"], cache["length"], cache["bytes"]) == ("dict", 4, MiB)
    assert puts(cache) == (line_of(folder, "self.cache[number] = x"), "item", "self.cache[number] = x")
    log = holder(census, "trainer.log['loss']")
    assert (log["container"], log["length"], log["tensors"]) == ("list", 4, 4)
    assert puts(log) == (line_of(folder, 'self.log["loss"].append('), "append", 'self.log["loss"].append( x[:16] + 1,  # a copy )')
    outputs = holder(census, "model.outputs")
    assert (outputs["container"], outputs["length"], outputs["how"]) == ("list", 6, "append")
    assert outputs["line"] == line_of(folder, "self.outputs.append(")


def test_hooks_closures_locals_and_caches_of_functions_are_told_apart(taken):
    folder, census, _ = taken
    features = holder(census, "features")
    assert (features["root"], features["function"], features["hook"], features["length"]) == ("hook", "keep", "keep", 2)
    assert puts(features) == (line_of(folder, "features.append("), "append", "features.append(output.clone())")
    kept = holder(census, "kept")
    assert (kept["root"], kept["function"], kept["bytes"]) == ("closure", "ask", MiB)
    seen = holder(census, "seen")
    assert (seen["root"], seen["function"], seen["length"]) == ("local", "run_out", 2)
    assert seen["line"] == line_of(folder, "seen.append(")
    assert [one["bytes"] for one in census["holders"] if one["name"].startswith("table")] == [512 * KiB]


def test_sums_and_recurrences_are_counted_in_forwards(taken):
    folder, census, _ = taken
    total = holder(census, "total")
    assert (total["container"], total["with_graph"], total["forwards"], total["chained"]) == ("tensor", 1, 4, False)
    assert puts(total) == (line_of(folder, "total += loss"), "add", "total += loss")
    assert total["nodes"] > 4 * 3
    hidden = holder(census, "hidden")
    assert (hidden["forwards"], hidden["chained"], hidden["line"]) == (4, True, line_of(folder, "hidden = torch.tanh("))
    # What hangs on the sum already is not counted again.
    assert holder(census, "loss").get("nodes", 0) == 0
    joined = holder(census, "joined")
    assert (joined["how"], joined["line"], joined["shape"]) == ("concatenate", line_of(folder, "joined = torch.cat("), [5, 256])


def test_modules_optimizers_and_copies(taken):
    folder, census, _ = taken
    by_name = {module["name"]: module for module in census["modules"]}
    model, teacher = by_name["model"], by_name["teacher"]
    assert set(by_name) == {"model", "teacher"}
    assert (model["class"], model["parameters"], model["bytes"]) == ("Net", WEIGHTS // 4, WEIGHTS + 4 * KiB)
    assert (model["gradients"], model["training"], model["requires_grad"], model["optimized"]) == (WEIGHTS, True, True, True)
    assert (teacher["training"], teacher["requires_grad"], teacher["optimized"], teacher["copy_of"]) == (False, False, False, "model")
    assert model["dtype"] == "float32" and model.get("copy_of") is None
    (optimizer,) = census["optimizers"]
    assert (optimizer["name"], optimizer["class"], optimizer["foreach"]) == ("optimizer", "AdamW", True)
    assert (optimizer["bytes"], optimizer["parameters"]) == (2 * WEIGHTS, WEIGHTS)
    assert [holder(census, "model", what)["bytes"] for what in ("parameters", "gradients", "buffers")] == [WEIGHTS, WEIGHTS, 4 * KiB]
    assert holder(census, "optimizer", "optimizer state")["bytes"] == 2 * WEIGHTS
    best, saved = holder(census, "best"), holder(census, "saved")
    assert (best["container"], best["length"], best["copy_of"], best["bytes"]) == ("dict", 7, "model", WEIGHTS + 4 * KiB)
    assert (saved["container"], saved["length"], saved["copy_of"], saved["tensors"]) == ("list", 2, "model", 14)
    assert holder(census, "history").get("copy_of") is None


def test_the_line_that_ran_out_with_what_it_names(taken):
    folder, census, without = taken
    innermost, outer = census["frames"]
    line = line_of(folder, "wide = torch.empty(")
    assert (innermost["function"], innermost["line"], os.path.basename(innermost["file"])) == ("run_out", line, "train.py")
    assert innermost["text"] == (folder / "train.py").read_text().splitlines()[line - 1].strip()
    named = {tensor["name"]: (tensor["shape"], tensor["dtype"], tensor["device"]) for tensor in innermost["tensors"]}
    assert named == {
        "batch['x']": ([32, 8], "float32", "cuda:0"),
        "model.scale": ([1024], "float32", "cuda:0"),
        "scale": ([4], "float32", "cpu"),
    }
    assert outer["function"] == "<module>" and not outer.get("tensors")
    assert (census["grad_enabled"], without["grad_enabled"]) == (True, False)
    assert without["frames"][0]["line"] == line
    assert census["asked"] == 4 << 44 and census["device"] == 0


def test_the_card_and_the_largest_tensors(taken):
    _, census, _ = taken
    assert (census["card"]["name"], census["card"]["capability"]) == ("Tesla T4", [7, 5])
    assert census["card"]["total"] > 14 << 30 and 0 < census["card"]["elsewhere"] < 1 << 30
    sizes = [tensor["bytes"] for tensor in census["tensors"]]
    assert sizes == sorted(sizes, reverse=True) and sizes[:4] == [4 * MiB] * 4
    assert census["holders"][census["tensors"][0]["holder"]]["name"] == "history"
    assert len({tensor["address"] for tensor in census["tensors"]}) == len(sizes)
    # What is reported is what PyTorch has, less what only its graphs hold.
    assert [one["bytes"] for one in census["holders"]] == sorted((one["bytes"] for one in census["holders"]), reverse=True)


# --- behaviour ------------------------------------------------------------------------------------------------

BEHAVIOUR = """
import gc
import json
import sys
import threading
import time
import torch

torch.empty(1, device="cuda")


def run_out():
    try:
        torch.empty(1 << 44, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "CUDA out of memory" in str(error)
        return
    raise AssertionError


def allocated():
    return torch.cuda.memory_allocated()


# In a thread, while another one holds a lock.
lock, holds, done = threading.Lock(), threading.Event(), threading.Event()


def hold():
    held_by_another = torch.zeros(1 << 20, device="cuda")
    with lock:
        holds.set()
        done.wait()


def work():
    holds.wait()
    mine = [torch.zeros(1 << 19, device="cuda")]
    run_out()


others = [threading.Thread(target=hold), threading.Thread(target=work)]
for thread in others:
    thread.start()
others[1].join()
done.set()
others[0].join()
assert allocated() == 0, allocated()

# In a backward pass, whose thread is autograd's.
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        run_out()
        return gradient * 2


Double.apply(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()


# Things that must not be touched.
class Hostile:
    def __init__(self):
        self.kept = torch.zeros(1 << 18, device="cuda")

    def __getattribute__(self, name):
        raise SystemError("looked at")

    __len__ = __iter__ = __eq__ = __hash__ = __bool__ = __repr__ = __getattribute__


hostile = object.__new__(Hostile)
object.__setattr__(hostile, "kept", torch.zeros(1 << 18, device="cuda"))
run_out()

# No memory for a census: the program's own error comes through.
import _oomph_live.census as census

taken = census.take


def without_memory(*arguments):
    taken.__globals__["_Census"].tell, kept = fail, taken.__globals__["_Census"].tell
    try:
        return taken(*arguments)
    finally:
        taken.__globals__["_Census"].tell = kept


def fail(*arguments):
    raise MemoryError


census.take = without_memory
before = allocated()
run_out()
census.take = taken
assert gc.isenabled() and allocated() == before

# Many, one after another.
begun = time.monotonic()
for _ in range(200):
    run_out()
print(json.dumps({"seconds": time.monotonic() - begun, "allocated": allocated() == before}))
"""


def test_threads_locks_strangers_and_no_memory(tmp_path):
    code, out, err, found = ran(tmp_path, BEHAVIOUR)
    assert code == 0 and "Traceback" not in err, err
    reported = json.loads(out)
    assert reported["allocated"] is True
    thread, backward, hostile, *many = found
    assert [frame["function"] for frame in thread["frames"]] == ["run_out", "work"]
    mine, other = holder(thread, "mine"), holder(thread, "held_by_another")
    assert (mine["root"], mine["function"], mine["bytes"]) == ("local", "work", 2 * MiB)
    assert (other["root"], other["function"], other["bytes"]) == ("local", "hold", 4 * MiB)
    # The thread of the backward pass has the frames that it runs, and those that wait for it.
    assert [frame["function"] for frame in backward["frames"]] == ["run_out", "backward", "<module>"]
    assert backward["frames"][2]["text"].endswith(".sum().backward()")
    kept = holder(hostile, "hostile.kept")
    assert (kept["container"], kept["bytes"]) == ("tensor", MiB)
    # At most a twentieth of the time goes into them, once four were taken.
    print(f"200 caught out-of-memories: {reported['seconds']:.2f} s, {len(many)} more censuses")
    assert len(found) <= 16


FULL_HOST = """
import resource, torch
kept = [torch.empty(1000, device="cuda") for _ in range(5000)]
mapped = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
fill = []
resource.setrlimit(resource.RLIMIT_AS, (mapped + (64 << 20), -1))
for size in (1 << 20, 1 << 12):
    try:
        while True:
            fill.append(bytearray(size))
    except MemoryError:
        pass
try:
    torch.empty(1 << 40, device="cuda")
except (torch.OutOfMemoryError, MemoryError) as error:
    said = type(error).__name__
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
fill.clear()
kept.append(torch.ones(3, device="cuda"))
print(said, len(kept))
"""


def test_a_host_without_memory_is_no_worse_than_without_a_recorder(tmp_path):
    script = tmp_path / "full.py"
    script.write_text(FULL_HOST)
    said = []
    for options in (["--no-recording"], ["-o", "full.oomph"], ["-o", "full.oomph", "--budget", "10GiB"]):
        command = [COMMAND, "run", "--quiet", "--gpu", "t4", "--python", sys.executable, *options, script]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] in ("OutOfMemoryError 5001\n", "MemoryError 5001\n") and said == said[:1] * 3
    (device,) = json.loads(subprocess.run([COMMAND, "explain", "--format", "json", tmp_path / "full.oomph"], capture_output=True, text=True).stdout)["devices"]
    assert device["completeness"]["complete"] and (device["ooms"][0]["size"] == 4 << 40 or not said[0].startswith("Out"))


def test_a_kill_in_the_midst_of_a_census_leaves_a_recording(tmp_path):
    text = """
    import os, signal, sys, torch
    import _oomph_live.census as census
    kept = [torch.zeros(1 << 20, device="cuda")]
    try:
        torch.empty(1 << 44, device="cuda")
    except torch.OutOfMemoryError:
        pass
    census._Census._group = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    torch.empty(1 << 44, device="cuda")
    """
    code, _, _, found = ran(tmp_path, text)
    assert code == 137
    assert [holder(one, "kept")["bytes"] for one in found] == [4 * MiB]
    done = subprocess.run([COMMAND, "explain", "--format", "json", "train.oomph"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    assert device["peak"]["allocated"] == 4 * MiB


def test_what_it_costs(tmp_path):
    text = """
    import torch
    for count in (1_000, 10_000, 100_000):
        kept = [torch.empty(128, device="cuda") for _ in range(count)]
        try:
            torch.empty(1 << 44, device="cuda")
        except torch.OutOfMemoryError:
            pass
    """
    for again in (True, True, False):
        code, _, err, found = ran(tmp_path, text)
        assert code == 0, err
        # By the clock: where others have the machine for a moment, it is they who are measured. So it is measured again, and once has to do.
        if all(census["milliseconds"] < 3000 for census in found) or not again:
            break
    for count, census in zip((1_000, 10_000, 100_000), found, strict=True):
        size = len(json.dumps(census, separators=(",", ":")))
        print(f"{count} tensors: {census['milliseconds']:.0f} ms, {size} bytes, {'all' if census['complete'] else 'not all'} of them looked at")
        assert sum(one["tensors"] for one in census["holders"]) == count or not census["complete"]
        assert size < 512 * KiB
        assert census["milliseconds"] < 3000 or census["milliseconds"] < 3000 * slowness()
    # Where the machine is busy, it stops before it has looked at a hundred thousand.
    assert [holder(census, "kept")["length"] for census in found if census["complete"]][:2] == [1_000, 10_000]


LONG_SUM = """
import torch
from oomph import _graphs
from oomph.live import graphs
from oomph.live.tensors import Tensors

def total():
    sum = torch.ones(1, requires_grad=True)
    for _ in range(60_000):
        sum = sum * 1.5
    return sum

sum = total()
census = graphs.Graphs(torch, lambda: False)
print(census.of([sum.grad_fn]).nodes, census.complete)
census.drop()
del sum
sum = total()
who = _graphs.Graphs(torch, Tensors(torch))
print(len(who.held([sum], 1)[0]) > 0, who.is_held(sum), who.may_hold_more(sum))
who.drop()
del sum, who
print("it goes on")
"""


def test_a_sum_of_a_whole_epoch_is_looked_at_without_killing_the_program():
    """PyTorch frees nodes that Python has looked at one inside the other: a walk down all of a long sum makes the program's own `del` overflow the stack."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", LONG_SUM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "5001 False\nTrue True True\nit goes on\n"), done.stderr
