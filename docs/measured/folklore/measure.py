"""How experiments measure: PyTorch's counters, the card's, the process's RAM, and time. Runs in the process of one experiment."""

import contextlib
import gc
import os
import resource
import statistics
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Kernels do nothing on the virtual GPU, so times mean nothing there.
VIRTUAL = bool(os.environ.get("FOLKLORE_VIRTUAL"))


def allocated():
    import torch

    return torch.cuda.memory_allocated()


def reserved():
    import torch

    return torch.cuda.memory_reserved()


def used():
    """What the card says is in use, by all processes: the context, what PyTorch reserved, other processes."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def used_by_nvml():
    """The same by NVML, for programs that do not use PyTorch; None without it."""
    import ctypes

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    library.nvmlInit_v2()
    device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    return int(memory[2]) if library.nvmlDeviceGetMemoryInfo(device, memory) == 0 else None


def count(name):
    """One of PyTorch's counters: num_alloc_retries, num_ooms, num_device_alloc, num_device_free."""
    import torch

    return torch.cuda.memory_stats().get(name, 0)


def fresh():
    """As little as can be: garbage collected, cache given back, peaks forgotten. Gives what is allocated and reserved all the same."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return allocated(), reserved()


def warm():
    """Has cuBLAS and cuBLASLt take their workspaces, so that they are there before every measurement and not in the first one only. (PyTorch 2.11 keeps
    them; 2.15 takes them for each call.)"""
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a = torch.randn(256, 256, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.Linear(256, 256, device="cuda", dtype=dtype)(a @ a).sum().backward()
    torch.cuda.synchronize()


def peak(work):
    """Runs it; gives the peaks above what was there before: allocated, reserved."""
    import torch

    before = fresh()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before[0], torch.cuda.max_memory_reserved() - before[1]


def limit(size):
    """Holds PyTorch to so many bytes; None: to all that there is."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if size is None else size / total)


def pinned_ram():
    """What PyTorch's allocator of pinned memory holds, its cache included."""
    import torch

    return torch.cuda.host_memory_stats()["allocated_bytes.current"]


def largest_free_piece():
    """Of what PyTorch has reserved and is not in use."""
    import torch

    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    return max((block["size"] for block in blocks if block["state"] == "inactive"), default=0)


def milliseconds(step, repeats=15, warmups=5):
    """The median of a step, the device waited for before and after; None where time means nothing."""
    if VIRTUAL:
        return None
    import torch

    for _ in range(warmups):
        step()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    return statistics.median(times)


def ram():
    """The resident set of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def ram_begin():
    """From here on the peak counts; gives the resident set now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return ram()


def ram_peak():
    """The highest resident set since then (or ever, where the machine does not let it be reset). Not getrusage's, which a child inherits."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) * KIB


def ram_of(process):
    """What a process has to itself, and its share of what it has in common with others (PSS)."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * KIB
