"""The guard under real PyTorch on the virtual GPU: the budget holds, for everybody; with an overflow the program goes on."""

import os
import subprocess
import sys
import textwrap

import pytest
from conftest import COMMAND, PYTHON_2_11

MIB = 1 << 20

# What programs below share: a training step, cudaMalloc as any library calls it, and what the guard says so far.
SHARED = """
import ctypes, json, sys
import torch

def take(size):
    "cudaMalloc, as another library calls it: its code."
    runtime, place = ctypes.CDLL(None), ctypes.c_void_p()
    code = runtime.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size))
    runtime.cudaGetLastError()
    return code

def report():
    text = ctypes.create_string_buffer(1 << 20)
    assert ctypes.CDLL(None).oomph_guard_report(text, len(text)) < len(text)
    return json.loads(text.value)

def train(steps, rows, width=2048, layers=8):
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(rows, width, device="cuda")
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        yield

"""


@pytest.fixture
def run(tmp_path):
    """Runs a program under `oomph run`; gives what it printed last, as values, and what oomph said."""

    def run(program, *options, python=sys.executable, code=0, **environment):
        path = tmp_path / "program.py"
        path.write_text(SHARED + textwrap.dedent(program))
        command = [COMMAND, "run", "--gpu", "t4", "--python", str(python), *options, str(path)]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == code, done.stderr
        return done.stdout.split("\n")[-2:-1], done.stderr

    return run


def values(printed):
    return [int(word) for word in printed[0].split()]


@pytest.mark.parametrize("python", [sys.executable, PYTHON_2_11])
def test_a_budget_is_the_cards_size_and_holds_for_every_library(run, python):
    printed, said = run(
        """
        total = torch.cuda.get_device_properties(0).total_memory
        first = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        codes = [take(300 << 20) for _ in range(4)]
        try:
            torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
            message = "it fits"
        except torch.OutOfMemoryError as error:
            message = str(error)
        assert "total capacity of 2.00 GiB of which 124.00 MiB is free" in message, message
        # What is given back can be had again.
        del first
        torch.cuda.empty_cache()
        torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
        (device,) = report()["devices"]
        print(total, *torch.cuda.mem_get_info(), *codes, device["peak"], device["refused"])
        """,
        "--budget",
        "2GiB",
        python=python,
    )
    total, free, shown, *codes, peak, refused = values(printed)
    assert total == shown == 2 << 30
    assert codes == [0, 0, 0, 2]
    assert free == (2 << 30) - (900 + 200) * MIB
    assert peak == (1 << 30) + 900 * MIB
    # One of cudaMalloc, two of PyTorch, which frees its cache and tries again.
    assert refused == 3
    assert "at most 1.88 GiB of a budget of 2.00 GiB was used" in said


def test_memory_of_the_drivers_pools_counts_too(run):
    printed, _ = run(
        """
        held = []
        try:
            while True:
                held.append(torch.empty(100 << 20, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            pass
        print(report()["devices"][0]["peak"], take(200 << 20))
        """,
        "--budget",
        "1GiB",
        "--no-recording",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    assert values(printed) == [1000 * MIB, 2]


def test_managed_memory_is_beside_the_budget(run):
    """As on the virtual GPU itself: its pages make room for whoever needs it."""
    printed, said = run(
        """
        torch.zeros(1, device="cuda")
        before = torch.cuda.mem_get_info()
        cuda, held = ctypes.CDLL(None), ctypes.c_void_p()
        assert cuda.cudaMallocManaged(ctypes.byref(held), ctypes.c_size_t(1500 << 20), 1) == 0
        during = report()["devices"][0]["managed"]
        same = int(torch.cuda.mem_get_info() == before)
        assert cuda.cudaFree(held) == 0
        device = report()["devices"][0]
        print(during, same, device["managed"], device["managed_peak"], int(device["peak"] < 500 << 20))
        """,
        "--budget",
        "1GiB",
        "--no-recording",
    )
    assert values(printed) == [1500 * MIB, 1, 0, 1500 * MIB, 1]
    assert "beside it 1.46 GiB of managed memory, which moves to the host when the device is full" in said


def test_a_program_that_dies_of_its_budget_ends_with_an_overflow(run):
    program = """
        for _ in train(4, rows=16384):
            pass
        print(torch.cuda.max_memory_allocated())
    """
    _, said = run(program, "--budget", "1200MiB", code=1)
    assert "OutOfMemoryError" in said
    printed, said = run(program, "--budget", "1200MiB", "--overflow", "2GiB")
    assert values(printed)[0] > 1800 * MIB, "PyTorch's own statistics keep working"
    assert "overflowed into host memory" in said
    assert "program.py" in said, "the lines are named"


def test_optimizer_state_overflows_once_the_steps_are_known(run):
    printed, _ = run(
        """
        seen = []
        for _ in train(8, rows=16384):
            (device,) = report()["devices"]
            seen.append((device["host"]["moved_out"], device["host"]["moved_in"], device["host"]["now"]))
        (device,) = report()["devices"]
        assert device["host"]["failures"] == 0
        assert device["used"] <= device["peak"] <= 1850 << 20
        print(*[value for step in seen[-3:] for value in step], torch.cuda.max_memory_allocated(), device["host"]["peak"])
        """,
        "--budget",
        "1850MiB",
        "--overflow",
        "2GiB",
    )
    *seen, allocated, peak = values(printed)
    steps = [seen[index : index + 3] for index in range(0, 9, 3)]
    out = [after[0] - before[0] for before, after in zip(steps, steps[1:])]
    back = [after[1] - before[1] for before, after in zip(steps, steps[1:])]
    lacks = allocated - 1850 * MIB
    assert out[0] == out[1] == back[0] == back[1], "each step moves as much out as in"
    assert lacks <= out[0] <= lacks + 300 * MIB, "little more than what does not fit"
    assert steps[-1][2] >= lacks, "after the optimizer's step its state is on the host"
    assert peak <= lacks + 400 * MIB


def test_ways_to_use_host_memory_are_measured_and_one_is_kept(run):
    printed, said = run(
        """
        seen = []
        for _ in train(22, rows=16384):
            (device,) = report()["devices"]
            seen.append(device["policy"])
        assert device["host"]["failures"] == 0
        assert device["used"] <= device["peak"] <= 1850 << 20
        times = {policy["name"]: policy["milliseconds"] for policy in device["policies"]}
        assert set(seen) == set(times), (seen, times)
        assert all(time > 0 for time in times.values()), times
        assert times[device["policy"]] == min(times.values()), (device["policy"], times)
        print(len(times), len(set(seen[-3:])))
        """,
        "--budget",
        "1850MiB",
        "--overflow",
        "2GiB",
    )
    assert values(printed) == [4, 1]
    assert "Measured, a step: everything moves" in said


def test_an_overflow_alone_begins_where_the_card_ends(run):
    printed, _ = run(
        """
        held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(17)]
        (device,) = report()["devices"]
        print(device["peak"] >> 20, device["host"]["peak"] >> 20, torch.cuda.memory_reserved() >> 20)
        """,
        "--overflow",
        "8GiB",
    )
    peak, host, reserved = values(printed)
    assert reserved == 17 << 10
    assert 13 << 10 < peak < 15 << 10
    assert peak + host == 17 << 10


def test_expandable_segments_overflow_too(run):
    printed, _ = run(
        """
        held = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(15)]
        (device,) = report()["devices"]
        del held
        torch.cuda.empty_cache()
        again = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(15)]
        print(device["peak"] >> 20, device["host"]["peak"] >> 20, torch.cuda.memory_allocated() >> 20)
        """,
        "--budget",
        "1GiB",
        "--overflow",
        "1GiB",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    device, host, allocated = values(printed)
    assert device <= 1 << 10
    assert allocated == 1500
    assert 1500 <= device + host <= 1540


# A driver of few functions: enough to see who is asked.
DRIVER = """
#include <stddef.h>
#include <string.h>
static size_t used;
int cuInit(unsigned flags) { return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemAlloc_v2(void **place, size_t size) { used += size; *place = (void *)(0x200000000000 + used); return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = 80UL << 30; *free = *total - used; return 0; }
int cuDeviceTotalMem_v2(size_t *total, int device) { *total = 80UL << 30; return 0; }
int cuGetProcAddress_v2(const char *name, void **place, int version, unsigned long flags, int *status) {
    *place = !strcmp(name, "cuMemAlloc") ? (void *)cuMemAlloc_v2 : !strcmp(name, "cuInit") ? (void *)cuInit : NULL;
    return *place ? 0 : 500;
}
"""

ASKS_THE_DRIVER = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
place, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
codes = [driver.cuInit(0)]
found = ctypes.c_void_p()
driver.cuGetProcAddress_v2(b"cuMemAlloc", ctypes.byref(found), 13000, ctypes.c_uint64(0), None)
allocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(found.value)
codes += [driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(400 << 20)), allocate(ctypes.addressof(place), 400 << 20)]
codes += [driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(400 << 20)), allocate(ctypes.addressof(place), 400 << 20)]
driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(*codes, free.value >> 20, total.value >> 20, driver.cuGetProcAddress_v2(b"cuNothing", ctypes.byref(found), 13000, ctypes.c_uint64(0), None))
"""


def test_whoever_opens_the_driver_by_name_meets_the_guard_first(tmp_path):
    """As on a real GPU: the driver is a file, programs open libcuda.so.1 and ask it for functions in both ways."""
    (tmp_path / "driver.c").write_text(DRIVER)
    driver = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, tmp_path / "driver.c"], check=True)
    path = tmp_path / "asks.py"
    path.write_text(ASKS_THE_DRIVER)
    command = [COMMAND, "run", "--python", sys.executable, "--budget", "1GiB", "--no-recording", str(path)]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert values([done.stdout]) == [0, 0, 0, 2, 2, 224, 1024, 500]
    assert "2 requests did not fit, the largest of 400 MiB" in done.stderr


def test_without_a_gpus_driver_programs_run_as_ever(tmp_path):
    """The guard is loaded into every process of a program, also into those that have nothing to do with CUDA."""
    path = tmp_path / "plain.py"
    path.write_text("import subprocess; print(subprocess.run(['echo', 'fine'], capture_output=True, text=True).stdout)")
    command = [COMMAND, "run", "--gpu", "t4", "--python", sys.executable, "--budget", "1GiB", "--overflow", "1GiB", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr
