"""Tips about giving memory back: del, gc.collect(), empty_cache(), restarts."""

import contextlib
import gc
import io
import sys

from folklore.measure import GIB, MIB, allocated, count, fresh, largest_free_piece, limit, milliseconds, peak, reserved, used, warm
from folklore.tip import tip

GROUP = "Letting go"


@tip(
    group=GROUP,
    says="`del x` frees GPU memory",
    done="1 GiB is made and deleted; then 1 GiB more is made.",
    shows="allocated {allocated_before} → {allocated_after}, reserved {reserved_before} → {reserved_after}, in use on the card {used_before} → {used_after}; with the second tensor {reserved_again} reserved",
    verdict="true, but",
    holds=lambda n: n["allocated_before"] - n["allocated_after"] == GIB
    and n["reserved_after"] == n["reserved_before"] == n["reserved_again"]
    and abs(n["used_after"] - n["used_before"]) < 64 * MIB,
    why="It is free for PyTorch at once, and stays reserved, so `nvidia-smi` shows no change.",
    oomph="`oomph top`, `oomph.who()`: allocated and reserved apart.",
    rank=1,
    headline="`del` works at once, but `nvidia-smi` does not show it: 1 GiB deleted is {allocated_after} allocated and still {reserved_after} reserved.",
)
def del_frees():
    import torch

    x = torch.randn(GIB // 4, device="cuda")
    torch.cuda.synchronize()
    numbers = {"allocated_before": allocated(), "reserved_before": reserved(), "used_before": used()}
    del x
    numbers |= {"allocated_after": allocated(), "reserved_after": reserved(), "used_after": used()}
    y = torch.randn(GIB // 4, device="cuda")
    return numbers | {"reserved_again": reserved(), "second": y.numel() * 4}


@tip(
    group=GROUP,
    says="`del` the big tensor once you have the part you need",
    done="The first ten numbers of 1 GiB are kept as `part = x[:10]`; then `del x`; then `part = part.clone()`.",
    shows="allocated {before} → {after_del} after `del`, {after_clone} after `clone()`",
    verdict="does nothing",
    holds=lambda n: n["after_del"] == n["before"] == GIB and n["after_clone"] == 512,
    why="A slice is a view: 40 bytes hold the whole storage. So do other names, lists, closures and graphs.",
    oomph="`oomph.who()` names every holder.",
)
def del_beside_a_view():
    import torch

    x = torch.randn(GIB // 4, device="cuda")
    part = x[:10]
    before = allocated()
    del x
    after = allocated()
    part = part.clone()
    return {"before": before, "after_del": after, "after_clone": allocated()}


@tip(
    group=GROUP,
    says="`gc.collect()` after `del`, or memory is not freed",
    done="1 GiB is deleted, then `gc.collect()` is called; the same with a tensor in an object that refers to itself.",
    shows="given back by `gc.collect()`: {plain_collected} of 1 GiB; of the one in a cycle {cycle_collected}",
    times="one call takes {collect_ms:.0f} ms",
    verdict="true, but",
    holds=lambda n: n["plain_collected"] == 0 and n["cycle_collected"] == GIB,
    why="Only objects in reference cycles wait for the collector: modules with hooks, exceptions, trainers.",
    oomph="`oomph.who()` has a row *garbage in cycles*; `oomph.free()` collects.",
    rank=6,
    headline="`gc.collect()` gives back {plain_collected} of a tensor that was deleted, and all of one that is caught in a cycle.",
)
def gc_collect():
    import torch

    class Node:
        pass

    gc.disable()
    x = torch.randn(GIB // 4, device="cuda")
    del x
    before = allocated()
    gc.collect()
    plain = before - allocated()
    node = Node()
    node.itself, node.tensor = node, torch.randn(GIB // 4, device="cuda")
    del node
    before = allocated()
    gc.collect()
    return {"plain_collected": plain, "cycle_collected": before - allocated(), "collect_ms": milliseconds(gc.collect)}


@tip(
    group=GROUP,
    says="`del data, target` at the end of each step",
    done="A network is trained with batches of 64 MiB: as it is, with `del` of the batch, with `del` of batch, outputs and loss.",
    shows="peak allocated {plain_peak}, {batch_peak} and {all_peak}",
    verdict="does nothing",
    holds=lambda n: n["plain_peak"] == n["batch_peak"] == n["all_peak"],
    why="The peak is in the backward pass, and by then the names hold the new batch.",
    oomph="`oomph explain`: what was alive at the peak, by line.",
)
def del_each_step():
    import torch

    from folklore import models

    warm()

    def loop(how):
        model = models.mlp(depth=6, inputs=4096)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            data, target = models.vectors(4096, 4096)
            optimizer.zero_grad()
            output = model(data)
            loss = torch.nn.functional.cross_entropy(output, target)
            loss.backward()
            optimizer.step()
            if how != "plain":
                del data, target
            if how == "all":
                del output, loss

    return {f"{how}_peak": peak(lambda how=how: loop(how))[0] for how in ("plain", "batch", "all")}


@tip(
    group=GROUP,
    says="Catch the out-of-memory, call `empty_cache()`, try a smaller batch",
    done="A function makes 1 GiB and asks for 1 TiB. `gc.collect()` and `empty_cache()` in the handler, and again after the `except` block.",
    shows="allocated in the handler {inside}, after the block {after}",
    verdict="does nothing",
    holds=lambda n: n["inside"] == GIB and n["after"] == 0,
    why="The exception holds its traceback, that the frames, and those their tensors. Let the block end, then try again.",
    oomph="`oomph run` and `oomph.record()` clear the frames as the handler begins; `oomph.fit` steps down by itself. OM102.",
    card=lambda h200: "under oomph, 268,435,456 bytes before and the same in the handler ([live.md](measured/live.md#a-caught-out-of-memory))",
    rank=5,
    headline="`empty_cache()` inside `except OutOfMemoryError:` gives nothing back ({inside} stay allocated): the exception itself holds the tensors. After the block it is {after}.",
)
def empty_cache_in_a_handler():
    import torch

    def attempt():
        large = torch.randn(GIB // 4, device="cuda")
        return large, torch.empty(1 << 40, dtype=torch.uint8, device="cuda")

    try:
        attempt()
    except torch.OutOfMemoryError:
        gc.collect()
        torch.cuda.empty_cache()
        inside = allocated()
    return {"inside": inside, "after": allocated()}


@tip(
    group=GROUP,
    says="`torch.cuda.empty_cache()` frees GPU memory",
    done="1 GiB is held and 1 GiB was deleted; then `empty_cache()`.",
    shows="allocated {allocated_before} → {allocated_after}, reserved {reserved_before} → {reserved_after}, in use on the card {used_before} → {used_after}",
    verdict="true, but",
    holds=lambda n: n["allocated_before"] == n["allocated_after"] == GIB
    and n["reserved_before"] - n["reserved_after"] == GIB
    and abs(n["used_before"] - n["used_after"] - GIB) < 64 * MIB,
    why="What is already free goes back to the card: to other processes, and to what cuBLAS, NCCL and other libraries take past PyTorch's allocator. No tensor is freed, and PyTorch's own allocations gain nothing.",
    oomph="`oomph.free()` does it last and says how much came back.",
)
def empty_cache_once():
    import torch

    kept = torch.randn(GIB // 4, device="cuda")
    gone = torch.randn(GIB // 4, device="cuda")
    torch.cuda.synchronize()
    del gone
    before = {"allocated_before": allocated(), "reserved_before": reserved(), "used_before": used()}
    torch.cuda.empty_cache()
    return before | {"allocated_after": allocated(), "reserved_after": reserved(), "used_after": used(), "kept": kept.numel() * 4}


@tip(
    group=GROUP,
    says="`empty_cache()` before the big allocation, or it runs out of memory",
    done="PyTorch is held to 1 GiB. Six tensors of 100 MiB are made and deleted; then 800 MiB are asked for, without `empty_cache()`.",
    shows="{cached} in the cache, {largest} in one piece; the request succeeds; PyTorch emptied its cache {retries:d} time, out-of-memories: {ooms:d}",
    verdict="does nothing",
    holds=lambda n: n["retries"] == 1 and n["ooms"] == 0 and n["cached"] == 600 * MIB and n["got"] == 800 * MIB,
    why="Before it raises, PyTorch gives its whole cache back and asks again. But cuBLAS, NCCL and other libraries take memory past PyTorch's allocator, and nothing is emptied for them: where one of those fails (`CUBLAS_STATUS_ALLOC_FAILED`, NCCL's out of memory), `empty_cache()` before it helps (pytorch/pytorch#128601).",
    oomph="`oomph explain` counts these retries; OM101 says why no free piece served.",
    card=lambda h200: f"`fragment_oom`: {h200('fragment_oom', 'num_alloc_retries')} retry, {h200('fragment_oom', 'num_ooms')} out-of-memories",
    rank=2,
    headline="`empty_cache()` does nothing for PyTorch's own allocations: PyTorch does the same before it raises ({retries:d} retry, {ooms:d} errors). It can help what cuBLAS, NCCL and other libraries take past PyTorch's allocator.",
)
def empty_cache_against_oom():
    import torch

    limit(GIB)
    several = [torch.randn(100 * MIB // 4, device="cuda") for _ in range(6)]
    del several
    cached, largest = reserved(), largest_free_piece()
    large = torch.randn(800 * MIB // 4, device="cuda")
    return {"cached": cached, "largest": largest, "got": large.numel() * 4, "retries": count("num_alloc_retries"), "ooms": count("num_ooms")}


@tip(
    group=GROUP,
    says="`empty_cache()` in every step of the loop",
    done="A network is trained for ten steps, without and with `empty_cache()` after each.",
    shows="peak allocated {plain_peak} and {emptied_peak}, peak reserved {plain_reserved} and {emptied_reserved}; segments taken from the card in each later step: {plain_taken:d} and {emptied_taken:d}",
    times="a step takes {plain_ms:.2f} ms and {emptied_ms:.2f} ms",
    verdict="does nothing",
    holds=lambda n: n["plain_peak"] == n["emptied_peak"]
    and n["plain_taken"] == 0
    and n["emptied_taken"] >= 3
    and n["emptied_reserved"] >= 0.9 * n["plain_reserved"]
    and n.get("emptied_ms", 1) >= n.get("plain_ms", 0),
    why="The step needs the same memory again. Each segment is asked of the driver anew, which waits for the GPU.",
    oomph="OM402.",
    card=lambda h200: f"`thrash`: {h200('thrash', 'num_device_alloc')} segments taken and {h200('thrash', 'num_device_free')} given back in six steps",
    rank=3,
    headline="`empty_cache()` in each step leaves the peak at {emptied_peak} and takes {emptied_taken:d} segments from the driver in every step instead of {plain_taken:d}.",
)
def empty_cache_each_step():
    import torch

    from folklore import models

    warm()
    numbers = {}
    for how in ("plain", "emptied"):
        before = fresh()
        model = models.mlp(depth=6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model=model, optimizer=optimizer, how=how):
            models.step(model, optimizer, models.class_loss, models.vectors(4096))
            if how == "emptied":
                torch.cuda.empty_cache()

        for _ in range(5):
            step()
        taken = count("num_device_alloc")
        for _ in range(5):
            step()
        numbers |= {
            f"{how}_taken": (count("num_device_alloc") - taken) // 5,
            f"{how}_peak": torch.cuda.max_memory_allocated() - before[0],
            f"{how}_reserved": torch.cuda.max_memory_reserved() - before[1],
            f"{how}_ms": milliseconds(step),
        }
        del model, optimizer, step
    return numbers


@tip(
    group=GROUP,
    says="`torch.empty_cache()`",
    done="It is called as in the articles.",
    shows="`AttributeError`",
    verdict="false",
    holds=lambda n: n["exists"] == 0 and n["exists_in_cuda"] == 1,
    why="There is no such function. It is `torch.cuda.empty_cache()`.",
    oomph="`oomph.free()`.",
)
def torch_empty_cache():
    import torch

    return {"exists": int(hasattr(torch, "empty_cache")), "exists_in_cuda": int(hasattr(torch.cuda, "empty_cache"))}


@tip(
    group=GROUP,
    says="Restart the runtime: nothing else frees all of it",
    done="A network is trained with Adam; then all is deleted, garbage is collected, workspaces of cuBLAS are cleared, the cache is emptied.",
    shows="in use on the card {used_start} with an empty context, {used_highest} while training, {used_end} afterwards; reserved afterwards {reserved_end}",
    verdict="true, but",
    holds=lambda n: n["reserved_end"] == 0 and n["used_highest"] - n["used_start"] > GIB // 2 and 0 <= n["used_end"] - n["used_start"] < GIB // 2,
    why="All that PyTorch took comes back without a restart. What stays is the CUDA context, with its kernels. Restart for what you cannot name, or to give back the context.",
    oomph="`oomph.free()` frees what has no name; `oomph.who()` names the rest.",
    rank=9,
    headline="A restart is rarely needed: after `del`, `gc.collect()` and `empty_cache()` the process keeps {reserved_end} of PyTorch's memory, and its CUDA context.",
)
def restart_the_runtime():
    import torch

    from folklore import models

    torch.cuda.init()
    start = used()
    model = models.mlp(width=2048)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        models.step(model, optimizer, models.class_loss, models.vectors(4096))
    torch.cuda.synchronize()
    highest = used()
    del model, optimizer
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return {"used_start": start, "used_highest": highest, "used_end": used(), "reserved_end": reserved()}


@tip(
    group=GROUP,
    says="In a notebook, `del x` and the memory is back",
    done="1 GiB is displayed, as the last line of a cell is; then `del x`.",
    shows="allocated {before} → {after_del} after `del`, {after_all} once `_` is gone as well",
    verdict="does nothing",
    holds=lambda n: n["before"] == n["after_del"] == GIB and n["after_all"] == 0,
    why="IPython keeps what was displayed as `_`, `__`, `___`, `Out[3]` and `_3`, and after an error the traceback with all its frames.",
    oomph="`oomph.who()` names these; `oomph.free()` frees them.",
)
def del_in_a_notebook():
    import builtins

    import torch

    x = torch.randn(GIB // 4, device="cuda")
    before = allocated()
    with contextlib.redirect_stdout(io.StringIO()):
        sys.displayhook(x)
    del x
    after = allocated()
    del builtins._
    return {"before": before, "after_del": after, "after_all": allocated()}
