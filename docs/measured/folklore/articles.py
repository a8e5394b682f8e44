"""The code examples of five articles, run as they stand (``seeds``), each with what it claims."""

import contextlib
import io
import os
import pathlib
import tempfile

from folklore.measure import GIB, MIB, allocated, count, fresh, limit, ram, ram_begin, ram_peak, reserved, warm
from folklore.tip import tip

SEEDS = pathlib.Path(__file__).resolve().parent / "seeds"
GROUP = "The articles' examples, run"


def run(name, change=lambda text: text):
    """Runs an example in an empty folder; gives its variables, which hold what it holds."""
    text = change((SEEDS / f"{name}.py").read_text())
    variables = {"__name__": "__main__"}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        os.chdir(folder)
        try:
            exec(compile(text, f"{name}.py", "exec"), variables)
        finally:
            os.chdir(before)
    return variables, printed.getvalue()


def on_the_gpu(name, change=lambda text: text, computes=True):
    """What an example took at its peak, and what its variables hold and PyTorch keeps at its end; without the workspaces of cuBLAS, if it computes at all."""
    import torch

    torch.cuda.init()
    if computes:
        warm()
    before = fresh()
    variables, printed = run(name, change)
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated() - before[0], "held": allocated() - before[0], "kept": reserved() - before[1]}, variables, printed


def without(name, line):
    """The example without a line of its own; an error if it is not there."""

    def change(text):
        if line not in text:
            raise ValueError(f"{name} has no {line!r}")
        return text.replace(line, "pass")

    return change


def segment(size):
    """What PyTorch takes from the card for so large a tensor, and counts as allocated if less than 1 MiB of it would be left."""
    return -(-size // (2 * MIB)) * 2 * MIB


def example(name):
    return f"[{name}.py](measured/folklore/seeds/{name}.py)"


@tip(
    group=GROUP,
    says="*Maximize GPU memory*, 1: a `clone()` too many, and `empty_cache()` after `del`",
    done=f"{example('maximize_1_copies')}, as written.",
    shows="GPU memory at its peak {peak}, in PyTorch's cache {kept}; the array {array}",
    verdict="does nothing",
    holds=lambda n: n["peak"] == n["kept"] == 0,
    why="All of it is on the CPU: `from_numpy` shares the array, `clone()` copies it, and `empty_cache()` has nothing to empty. `data_np`'s memory is held by the first tensor only.",
    oomph="`oomph.who()`.",
)
def maximize_1_copies():
    numbers, _, _ = on_the_gpu("maximize_1_copies")
    return numbers | {"array": 1024 * 1024 * 3 * 8}


@tip(
    group=GROUP,
    says="*Maximize GPU memory*, 2: make data on demand, and `del data, labels` in each step",
    done=f"{example('maximize_2_dataset')}; mended: 96 items, not a million (4 TiB of random numbers). Then without the `del`, and with `del batch` too.",
    shows="most RAM on top: {as_written} as written, {without_del} without the `del`, {with_batch} with `del batch`; a batch is 128 MiB",
    verdict="true, but",
    holds=lambda n: n["as_written"] < 5 * 128 * MIB
    and abs(n["as_written"] - n["without_del"]) < 64 * MIB
    and n["as_written"] - n["with_batch"] > 64 * MIB,
    why="Making data on demand works. The `del` does nothing, because `batch` still holds both tensors; with `del batch` one batch less is there while the next is made.",
    oomph="`oomph.doctor(loader)`.",
    needs="host",
    settings={"as_written": {}, "without_del": {}, "with_batch": {}},
)
def maximize_2_dataset(how):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    line = "del data, labels"
    changes = {"as_written": line, "without_del": "pass", "with_batch": "del data, labels, batch"}
    torch.set_num_threads(1)
    for _ in DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=32):
        pass
    before = ram_begin()
    run("maximize_2_dataset", lambda text: text.replace(line, changes[how]))
    return {"": ram_peak() - before}


@tip(
    group=GROUP,
    says="*Maximize GPU memory*, 3: `no_grad()`, and `del large_tensor`",
    done=f"{example('maximize_3_no_grad')}; mended: the model is made and saved first, and `torch.load` gets `weights_only=False`, without which it refuses since PyTorch 2.6. Then without `no_grad()`.",
    shows="peak {peak}, {grad_peak} without `no_grad()`; the model {weights}",
    verdict="true",
    holds=lambda n: n["peak"] < n["grad_peak"],
    why="[`no_grad()`](#no-grad) works. `del large_tensor` comes when the peak is over.",
    oomph="OM202.",
)
def maximize_3_no_grad():
    with_grad, variables, _ = on_the_gpu("maximize_3_no_grad", lambda text: text.replace("with torch.no_grad():", "with torch.enable_grad():"))
    del variables
    numbers, variables, _ = on_the_gpu("maximize_3_no_grad")
    return numbers | {"grad_peak": with_grad["peak"], "weights": sum(p.numel() * 4 for p in variables["model"].parameters())}


@tip(
    group=GROUP,
    says="*Increase CUDA GPU memory*, 1: `a.half()` instead of float32",
    done=f"{example('increase_1_half')}, as written.",
    shows="it prints 8000000 and 4000000 bytes; allocated at its end {held}",
    verdict="true, but",
    holds=lambda n: n["printed"] == 1 and n["held"] > 12_000_000,
    why="[The half tensors come on top](#half-makes-a-copy). `del a, b`, or make them half from the start.",
    oomph="OM203.",
)
def increase_1_half():
    numbers, _, printed = on_the_gpu("increase_1_half")
    return numbers | {"printed": int(" 8000000 bytes" in printed and " 4000000 bytes" in printed)}


@tip(
    group=GROUP,
    says="*Increase CUDA GPU memory*, 3: a batch of 16",
    done=f"{example('increase_3_batch')}, as written; then with a batch of 256.",
    shows="peak {peak} and {larger_peak}, reserved {kept} and {larger_kept}",
    verdict="does nothing",
    holds=lambda n: n["larger_peak"] - n["peak"] < 4 * MIB and n["larger_kept"] - n["kept"] <= 4 * MIB,
    why="Weights, Adam's state and the workspace of cuBLAS are most of it.",
    oomph="`oomph explain` says what holds the memory.",
)
def increase_3_batch():
    larger, variables, _ = on_the_gpu("increase_3_batch", lambda text: text.replace("batch_size = 16 ", "batch_size = 256 "))
    del variables
    numbers, _, _ = on_the_gpu("increase_3_batch")
    return numbers | {"larger_peak": larger["peak"], "larger_kept": larger["kept"]}


@tip(
    group=GROUP,
    says="*Colab memory issues*, 1: a generator over the array, `del batch`, `gc.collect()`",
    done=f"{example('resolve_1_generator')}, as written.",
    shows="most RAM on top {peak}; the array {array}; still there at the end {held}",
    verdict="false",
    holds=lambda n: n["peak"] >= n["array"] and n["held"] > 0.95 * n["array"],
    why="The array is made first and whole, and [each batch is a view of it](#generators): `del batch` gives back nothing.",
    oomph="`oomph.data.stream(path, batch=1000, budget=\"1GiB\")` never has it whole.",
    needs="host",
)
def resolve_1_generator():
    import numpy

    numpy.random.rand(10).mean()
    before = ram_begin()
    variables, _ = run("resolve_1_generator")
    return {"peak": ram_peak() - before, "held": ram() - before, "array": variables["large_data"].nbytes}


@tip(
    group=GROUP,
    says="*Colab memory issues*, 2: float32 and the smallest integers",
    done=f"{example('resolve_2_types')}, as written.",
    shows="it prints 763 → 381 MB and 763 → 191 MB; most RAM on top {peak}",
    verdict="true, but",
    holds=lambda n: n["printed"] == 1 and n["peak"] > 2 * 763 * MIB,
    why="The large arrays are made first and `astype` copies: the peak is higher than without it. Ask for the type where the data is made or read.",
    oomph="`oomph.data.load` reads straight into the smallest type that keeps every value.",
    needs="host",
)
def resolve_2_types():
    before = ram_begin()
    _, printed = run("resolve_2_types")
    numbers = [float(line.split()[-2]) for line in printed.splitlines()]
    return {"peak": ram_peak() - before, "printed": int([round(number) for number in numbers] == [763, 381, 763, 191])}


@tip(
    group=GROUP,
    says="*Colab memory issues*, 3: a sparse matrix instead of a dense one",
    done=f"{example('resolve_3_sparse')}, as written; its two numbers are held against what they stand for.",
    shows="it prints 7629 MB for the dense one, of which {dense_ram} were RAM, and 0.0076 MB for the sparse one, which takes {sparse}",
    verdict="true, but",
    holds=lambda n: n["printed"] == 1 and n["dense_ram"] < 7629 * MIB // 2 and n["sparse"] > 40 * 8000,
    why="Sparse is smaller, but neither number is its size: `numpy.zeros` takes memory only where it is written, in pages of 4 KiB or of 2 MiB, and `.data` leaves out the indices and 100,001 starts of rows.",
    oomph="`oomph data profile` counts indices.",
    needs="scipy",
)
def resolve_3_sparse():
    import numpy
    from scipy.sparse import csr_matrix

    def change(text):
        return without("resolve_3_sparse", "del sparse_matrix")(text).replace("dense_matrix = np.zeros", "before = ram()\ndense_matrix = np.zeros").replace(
            "del dense_matrix", "after = ram()"
        )

    csr_matrix((numpy.ones(1), ([0], [0])), shape=(2, 2))
    variables, printed = run("resolve_3_sparse", lambda text: "from folklore.measure import ram\n" + change(text))
    matrix = variables["sparse_matrix"]
    numbers = [float(line.split()[-1]) for line in printed.splitlines()]
    return {
        "dense_ram": max(variables["after"] - variables["before"], 0),
        "sparse": matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes,
        "printed": int(round(numbers[0]) == 7629 and abs(numbers[1] - 0.0076) < 1e-4),
    }


@tip(
    group=GROUP,
    says="*Out of memory when allocating a float tensor*, 1: intermediate tensors accumulate without `backward()`",
    done=f"{example('float_tensor_1_no_backward')}, as written.",
    shows="allocated at its end {held}, which is the last tensor, {last}; peak {peak}; out-of-memories: {ooms:d}",
    verdict="false",
    holds=lambda n: n["held"] == n["last"] and n["ooms"] == 0,
    why="No tensor needs gradients, so there is no graph, and [its names end with each call](#without-backward).",
    oomph="OM201.",
)
def float_tensor_1_no_backward():
    import torch

    numbers, variables, _ = on_the_gpu("float_tensor_1_no_backward")
    return numbers | {"last": segment(variables["a"].untyped_storage().nbytes()), "ooms": torch.cuda.memory_stats()["num_ooms"]}


@tip(
    group=GROUP,
    says="*Out of memory when allocating a float tensor*, 2: growing tensors fragment memory",
    done=f"{example('float_tensor_2_variable_sizes')}; mended: its last lines are indented wrongly. Then with PyTorch held to 400 MiB, where its last tensor has 381.",
    shows="allocated at its end {held}, cached before the last tensor {cache}; held to 400 MiB: retries {retries:d}, out-of-memories {ooms:d}",
    verdict="false",
    holds=lambda n: n["held"] == 0 and n["ooms"] == 0 and 0 < n["cache"] < 32 * MIB,
    why="Every tensor is deleted before the next is made, so whole segments are free. [Holes](#fragmentation) need a neighbour that lives on.",
    oomph="OM401: holes, not cache.",
)
def float_tensor_2_variable_sizes():
    import torch

    numbers, _, _ = on_the_gpu("float_tensor_2_variable_sizes")
    limit(400 * MIB + fresh()[1])
    run("float_tensor_2_variable_sizes")
    stats = torch.cuda.memory_stats()
    return numbers | {"cache": numbers["kept"] - segment(400_000_000), "retries": stats["num_alloc_retries"], "ooms": stats["num_ooms"]}


@tip(
    group=GROUP,
    says="*Out of memory when allocating a float tensor*, 3: element-wise operations are cached",
    done=f"{example('float_tensor_3_elementwise')}, as written.",
    shows="allocated at its end {held}; peak {peak}, of which the last tensor is {last}",
    verdict="false",
    holds=lambda n: n["held"] == 0 and n["peak"] == n["last"],
    why="After `del` all four are gone; the peak is the last tensor alone. [Nothing is cached](#elementwise-operations).",
    oomph="OM303.",
)
def float_tensor_3_elementwise():
    numbers, _, _ = on_the_gpu("float_tensor_3_elementwise")
    return numbers | {"last": segment(400_000_000)}


@tip(
    group=GROUP,
    says="*Manage GPU memory*, 1: `del x`, `del y`, `empty_cache()`",
    done=f"{example('manage_1_del')}, as written; then with `x.sin_()`.",
    shows="peak {peak}, at its end {held} allocated and {kept} reserved; in place the peak is {inplace_peak}",
    verdict="true, but",
    holds=lambda n: (n["peak"], n["held"], n["kept"], n["inplace_peak"]) == (8 * GIB, 0, 0, 4 * GIB),
    why="It gives all back, after the peak is over. The peak decides whether it fits, and that is halved in place.",
    oomph="OM303.",
)
def manage_1_del():
    numbers, _, _ = on_the_gpu("manage_1_del")
    inplace, _, _ = on_the_gpu("manage_1_del", lambda text: text.replace("x.sin()", "x.sin_()"))
    return numbers | {"inplace_peak": inplace["peak"]}


@tip(
    group=GROUP,
    says="*Manage GPU memory*, 2: `no_grad()` “substantially” reduces memory",
    done=f"{example('manage_2_no_grad')}, as written; then with gradients.",
    shows="peak {peak}, with gradients {grad_peak}",
    verdict="does nothing",
    holds=lambda n: n["peak"] == n["grad_peak"],
    why="One linear layer keeps its input and its weight, and both are there anyway. [`no_grad()`](#no-grad) pays where there are activations between layers.",
    oomph="OM202.",
)
def manage_2_no_grad():
    grad, variables, _ = on_the_gpu("manage_2_no_grad", lambda text: text.replace("with torch.no_grad():", "with torch.enable_grad():"))
    del variables
    numbers, _, _ = on_the_gpu("manage_2_no_grad")
    return numbers | {"grad_peak": grad["peak"]}


@tip(
    group=GROUP,
    says="*Manage GPU memory*, 3: `del` and `empty_cache()` after every batch",
    done=f"{example('manage_3_loader')}, as written, ten epochs of 313 batches; then without `empty_cache()`.",
    shows="peak {peak} and {plain_peak}; segments taken from the card {taken:,d} and {plain_taken:,d}",
    verdict="does nothing",
    holds=lambda n: n["peak"] == n["plain_peak"] and n["taken"] >= 3000 and n["plain_taken"] <= 2,
    why="A batch is 13 KiB. For each, 2 MiB are taken from the driver and given back, 3,130 times, to save nothing.",
    oomph="OM402.",
)
def manage_3_loader():
    begun = count("num_device_alloc")
    plain, variables, _ = on_the_gpu("manage_3_loader", without("manage_3_loader", "torch.cuda.empty_cache()"), computes=False)
    del variables
    plain_taken = count("num_device_alloc") - begun
    numbers, _, _ = on_the_gpu("manage_3_loader", computes=False)
    return numbers | {"plain_peak": plain["peak"], "plain_taken": plain_taken, "taken": count("num_device_alloc") - begun - plain_taken}
