"""Tips about smaller models: pruning, sparse matrices, loading."""

import os
import tempfile

from folklore.measure import allocated, fresh, milliseconds, warm
from folklore.tip import tip

GROUP = "Smaller models"


@tip(
    group=GROUP,
    says="Pruning makes the model smaller",
    done="Nine tenths of the weights of a network are pruned by `torch.nn.utils.prune.l1_unstructured`; then `prune.remove`; then half of each layer's neurons are really cut out.",
    shows="weights {before}; pruned {pruned}, after `remove` {removed}; cut out {cut}",
    verdict="does nothing",
    holds=lambda n: n["pruned"] >= 1.9 * n["before"] and n["removed"] == n["before"] and n["cut"] < 0.3 * n["before"],
    why="A zero takes four bytes too, and while pruning a mask and the original are kept as well. Only what is cut out of the shape is gone.",
    oomph="`oomph.fit_inference(allow=(\"pruning\",))` makes 2:4 sparse weights where the card has them, which do take less.",
)
def pruning():
    import torch
    from torch import nn
    from torch.nn.utils import prune

    from folklore import models

    base = fresh()[0]
    model = models.mlp(width=2048, depth=8)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    numbers = {"before": allocated() - base}
    for layer in linears:
        prune.l1_unstructured(layer, "weight", amount=0.9)
    fresh()
    numbers["pruned"] = allocated() - base
    for layer in linears:
        prune.remove(layer, "weight")
    fresh()
    numbers["removed"] = allocated() - base
    with torch.no_grad():
        for layer in linears:
            rows, columns = (max(size // 2, 64) for size in layer.weight.shape)
            layer.weight = nn.Parameter(layer.weight[:rows, :columns].clone())
            layer.bias = nn.Parameter(layer.bias[:rows].clone())
    fresh()
    return numbers | {"cut": allocated() - base}


@tip(
    group=GROUP,
    says="Sparse tensors save memory",
    done="A matrix of 4096 × 4096 float32 as dense, and with 1 % and 50 % of its values as COO and as CSR with 32-bit indices.",
    shows="dense {dense}; 1 %: COO {coo_1}, CSR {csr_1}; 50 %: COO {coo_50}, CSR {csr_50}",
    verdict="true, but",
    holds=lambda n: n["coo_1"] < n["dense"] / 10 and n["csr_1"] < n["dense"] / 10 and n["coo_50"] > 2 * n["dense"] and n["csr_50"] >= n["dense"],
    why="A value of COO brings two indices of 8 bytes, so it pays below a fifth. CSR with 32-bit indices pays below a half. Most weights, activations and gradients are not that sparse.",
    oomph="`oomph.data.load` makes a CSR matrix where that is smaller.",
)
def sparse_tensors():
    import torch

    size = 4096
    generator = torch.Generator().manual_seed(0)
    base = fresh()[0]
    dense = torch.randn(size, size, device="cuda")
    numbers = {"dense": allocated() - base}
    del dense
    for share in (1, 50):
        each = size * share // 100
        columns = torch.stack([torch.randperm(size, generator=generator)[:each].sort().values for _ in range(size)])
        rows = torch.arange(size).repeat_interleave(each)
        values = torch.randn(size * each, generator=generator)
        base = fresh()[0]
        coo = torch.sparse_coo_tensor(torch.stack([rows, columns.flatten()]).cuda(), values.cuda(), (size, size), check_invariants=False, is_coalesced=True)
        numbers[f"coo_{share}"] = allocated() - base
        del coo
        starts = torch.arange(0, size * each + 1, each, dtype=torch.int32)
        base = fresh()[0]
        csr = torch.sparse_csr_tensor(starts.cuda(), columns.flatten().int().cuda(), values.cuda(), (size, size), check_invariants=False)
        numbers[f"csr_{share}"] = allocated() - base
        del csr
    return numbers


@tip(
    group=GROUP,
    says="Load the checkpoint straight to the GPU",
    done="A state dict of a network is loaded into the model: by `torch.load(path)` as it was saved from the GPU, with `map_location=\"cpu\"`, and with `mmap=True` too.",
    shows="peak on the GPU above the model's own {model}: {straight}, {cpu}, {mapped}",
    times="loading takes {straight_ms:.0f} ms, {cpu_ms:.0f} ms, {mapped_ms:.0f} ms",
    verdict="false",
    holds=lambda n: n["straight"] >= 0.98 * n["model"] and n["cpu"] < 0.2 * n["model"] and n["mapped"] < 0.2 * n["model"],
    why="The loaded tensors and the model's are on the GPU together, once as large again. From the CPU they are copied one by one.",
    oomph="`oomph predict` shows the peak of loading; OM203.",
)
def load_checkpoint():
    import torch

    from folklore import models

    warm()
    model = models.mlp(width=2048, depth=8)
    numbers = {"model": models.weights(model)}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint.pt")
        torch.save(model.state_dict(), path)
        for name, options in (("straight", {}), ("cpu", {"map_location": "cpu"}), ("mapped", {"map_location": "cpu", "mmap": True})):
            base = fresh()[0]
            load = lambda options=options: model.load_state_dict(torch.load(path, **options))
            load()
            numbers |= {name: torch.cuda.max_memory_allocated() - base, f"{name}_ms": milliseconds(load)}
    return numbers
