"""What a batch is made of, and its parts: how many samples it has, and some of them, without copying.

A batch is whatever the training loop gives to the loss: tensors in tuples, lists, dicts and dataclasses. What the loss of the whole is,
given the losses of the parts, is said elsewhere (``counts``); only `micro_batches`, for people who write their own loop, brings the two
together.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from oomph.fitting.errors import FitError, NotSplittable

# What data sets and tokenizers call the targets.
_NAMES_OF_TARGETS = ("labels", "label", "targets", "target")
# How many elements of a sample are checked for padding.
_ELEMENTS_SEEN = 4096
_ELEMENTS_AT_ONCE = 1 << 20


# Of torch, of Hugging Face's datasets, and oomph's own.
_GIVES_BATCHES = ("DataLoader", "Dataset", "IterableDataset", "DatasetDict", "Stream")


def refuse_what_gives_batches(batch: Any) -> None:
    """A loader, a dataset or an iterator in place of a batch."""
    known = [kind.__name__ for kind in type(batch).__mro__ if kind.__name__ in _GIVES_BATCHES]
    name = type(batch).__name__
    if hasattr(type(batch), "__next__"):
        raise FitError(f"the batch is a {name}, which gives batches: give one of them, next(...) of it")
    if known and "Dataset" in known[-1]:
        raise FitError(f"the batch is a {name}, which has samples: give one batch, as the training loop gets it, such as next(iter(DataLoader(dataset, batch_size=...)))")
    if known:
        raise FitError(f"the batch is a {name}, which gives batches: give one of them, such as next(iter(loader))")


def samples(batch: Any) -> int:
    """How many samples a batch has: the size of the dimension 0 that its tensors share.

    Tensors without dimensions, or with 1 where others have more, belong to every sample. Where no tensor has all samples, lists may: one
    image, text or dict of targets each. Raises NotSplittable where tensors disagree, or where there is nothing to count.
    """
    tensors, lengths = _sizes(batch)
    leading = Counter(tensor.shape[0] for tensor in tensors if tensor.dim() > 0)
    # The most common first; a size of 1 may be that of a tensor for all samples.
    candidates = sorted(leading, key=lambda size: (size == 1, -leading[size]))
    candidates += [length for length in lengths if length not in leading]
    for candidate in candidates:
        if candidate > 0 and _fits(batch, candidate, top=True):
            return candidate
    raise NotSplittable(_disagreement(tensors))


def take(batch: Any, start: int, stop: int) -> Any:
    """The samples from `start` to before `stop`, in the same structure. Tensors are views of the batch's; nothing is copied."""
    return _take(batch, start, stop, samples(batch), top=True)


def pick(batch: Any, rows: Sequence[int]) -> Any:
    """The samples of those numbers, in that order, in the same structure. Tensors are copies, unless the rows follow each other."""
    count = samples(batch)
    if list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return _take(batch, rows[0], rows[0] + len(rows), count, top=True)
    of_tensor = lambda tensor: tensor.index_select(0, torch.tensor(rows, device=tensor.device))
    return _cut(batch, count, True, of_tensor, lambda node: [node[row] for row in rows])


def traits(batch: Any) -> dict[tuple[int, str], list[float]]:
    """What may make samples count differently, by tensor and kind: for each sample how much of it is padding or masked, or how long it is.

    Zeros, -100, and how often the first and the last element are repeated: padding of any value does that. What has one number for each
    sample (lengths, weights) is that number. Only what differs between samples, by more than a hundredth of their elements, is returned.
    Waits for the GPU once if tensors are there.
    """
    count = samples(batch)
    seen: dict[tuple[int, str], Any] = {}
    waiting: list[tuple[Any, bool]] = [(batch, True)]
    number = 0
    while waiting:
        node, top = waiting.pop(0)
        number += 1
        if isinstance(node, torch.Tensor):
            if node.dim() > 0 and node.shape[0] == count and node.numel():
                seen.update(((number, name), values) for name, values in _traits_of(node.detach()).items())
        elif _children(node) is not None and _has_one_each(node, count, top):
            seen[number, "amount"] = torch.tensor([_amount(child) for child in node], dtype=torch.float32)
        else:
            waiting += [(child, False) for child in _children(node) or ()]
    if not seen:
        return {}
    values = torch.stack([one.to(device=next(iter(seen.values())).device, dtype=torch.float32) for one in seen.values()]).tolist()
    return {key: row for key, row in zip(seen, values) if min(row) < max(row)}


def _traits_of(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    flat = tensor.reshape(tensor.shape[0], -1)
    if flat.shape[1] == 1:
        return {"value": torch.view_as_real(flat)[..., 0, 0] if flat.is_complex() else flat[:, 0]}
    flat = flat[:, :: -(-flat.shape[1] // _ELEMENTS_SEEN)]
    # A few samples after others: all at once, what is computed here would be several times the batch.
    parts = [_counts_of(part) for part in flat.split(max(1, _ELEMENTS_AT_ONCE // flat.shape[1]))]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    # Some zeros more or less are in any data; in steps of a hundredth they are no difference.
    return {name: count // -(-flat.shape[1] // 100) for name, count in found.items()}


def _counts_of(flat: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {"zeros": (flat == 0).sum(1)}
    if not flat.dtype.is_floating_point and not flat.is_complex() and flat.dtype not in (torch.bool, torch.uint8):
        found["ignored"] = (flat == -100).sum(1)
    found["first"] = (flat == flat[:, :1]).cumprod(1, dtype=torch.uint8).sum(1)
    found["last"] = (flat == flat[:, -1:]).flip(1).cumprod(1, dtype=torch.uint8).sum(1)
    return found


def _amount(node: Any) -> float:
    """How much there is of one sample in a list: elements of tensors, letters of texts, or a number itself."""
    if isinstance(node, torch.Tensor):
        return node.numel()
    if isinstance(node, (int, float)):
        return float(node)
    children = _children(node)
    if children is not None:
        return sum(_amount(child) for child in children)
    return len(node) if isinstance(node, (str, bytes)) else 0


def moved(batch: Any, device: torch.device) -> Any:
    """The same structure with its tensors on that device; those that are there already stay. Copies of pinned memory do not wait."""
    return _with_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def in_new_containers(batch: Any) -> Any:
    """The same tensors: who takes one out of a dict or a list takes it from a copy of that."""
    return _with_tensors(batch, lambda tensor: tensor)


def shortened(batch: Any, most: int) -> Any:
    """The first positions of sequences, at most so many; the batch itself if its sequences are not longer.

    The longest second dimension is taken for that of sequences. Tensors of which a dimension behind the first is as long are cut there, masks in two.
    """
    lengths: list[int] = []
    _with_tensors(batch, lambda tensor: lengths.append(tensor.shape[1]) if isinstance(tensor, torch.Tensor) and tensor.dim() > 1 else None)
    longest = max(lengths, default=0)
    if longest <= most:
        return batch

    def cut(tensor: Any) -> Any:
        for dimension in range(1, tensor.dim() if isinstance(tensor, torch.Tensor) else 0):
            if tensor.shape[dimension] == longest:
                tensor = tensor.narrow(dimension, 0, most)
        return tensor

    return _with_tensors(batch, cut)


def _with_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return change(batch)
    children = _children(batch)
    if children is None:
        return batch
    return _rebuilt(batch, [_with_tensors(child, change) for child in children])


def per_sample(batch: Any) -> int:
    """How many elements all tensors have for each sample: a batch of longer sequences has more than the one that was tried."""
    count = samples(batch)
    tensors, _ = _sizes(batch)
    return -(-sum(tensor.numel() for tensor in tensors) // count)


def cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """(start, stop) of at most `parts` parts of `count` samples, none empty, as even as can be, the larger ones first."""
    if parts < 1:
        raise ValueError(f"a batch has at least 1 part, not {parts}")
    parts = min(parts, count)
    size, more = divmod(count, parts)
    edges = [part * size + min(part, more) for part in range(parts + 1)]
    return list(zip(edges, edges[1:]))


def micro_batches(batch: Any, n: int, *, targets: Callable[[Any], Any] | None = None, ignore_index: int = -100, shifted: bool = False) -> Iterator[tuple[Any, float]]:
    """The batch in at most `n` parts, each with its weight: the gradient of the whole batch in the memory of a part.

        optimizer.zero_grad()
        for part, weight in oomph.micro_batches(batch, 4):
            (loss_fn(model, part) * weight).backward()
        optimizer.step()

    The weights sum to 1. For a loss that is a mean over targets, a part weighs as many of the batch's targets as it has: those that are not
    `ignore_index` in the integers called "labels", "label", "targets" or "target", or in the second of (inputs, integers). Models that
    predict the next token leave out the first label of every row: say ``shifted=True`` for them (those of transformers called
    ...ForCausalLM). Any other count is given by ``targets``, called with each part. Without targets to count, samples are.

    A part without any target has no mean (its loss would be nan) and no weight: it is left out. If no part has any, all come, as in the
    plain loop. Counting makes the program wait for the GPU once. Raises NotSplittable where the batch has no samples to part; parts give
    another result for BatchNorm and for losses that compare the samples of a batch.
    """
    whole = samples(batch)
    edges = cuts(whole, n)
    parts = [_take(batch, start, stop, whole, top=True) for start, stop in edges]
    counts = _counted(parts, targets, ignore_index, shifted)
    if counts is None or not any(counts):
        counts = [float(stop - start) for start, stop in edges]
    total = sum(counts)
    for part, count in zip(parts, counts):
        if count:
            yield part, count / total


def _counted(parts: list[Any], targets: Callable[[Any], Any] | None, ignore_index: int, shifted: bool) -> list[float] | None:
    """The targets of each part, or None where there are none to see."""
    if targets is None:
        found: list[Any] = [_targets(part) for part in parts]
        if any(one is None for one in found):
            return None
        counts: list[Any] = [((one[..., 1:] if shifted else one) != ignore_index).sum() for one in found]
    else:
        counts = [targets(part) for part in parts]
    on_device = [count for count in counts if isinstance(count, torch.Tensor)]
    if len(on_device) == len(counts):
        return torch.stack([count.reshape(()) for count in counts]).tolist()  # One wait for all.
    return [float(count) for count in counts]


def _targets(batch: Any) -> torch.Tensor | None:
    """The integers that a loss takes as targets, where they have a name or a place that says so."""
    named: Mapping[str, Any] = {}
    if isinstance(batch, Mapping):
        named = batch
    elif dataclasses.is_dataclass(batch) or hasattr(batch, "_fields"):
        named = {name: getattr(batch, name) for name in _NAMES_OF_TARGETS if hasattr(batch, name)}
    elif isinstance(batch, (tuple, list)) and len(batch) == 2:
        named = {"targets": batch[1]}
    for name in _NAMES_OF_TARGETS:
        value = named.get(name)
        if isinstance(value, torch.Tensor) and not value.dtype.is_floating_point and value.dtype != torch.bool and value.dim() > 0:
            return value
    return None


def _children(node: Any) -> list[Any] | None:
    """What a container holds; None for what is none."""
    if isinstance(node, PackedSequence):
        raise NotSplittable("the batch has a PackedSequence, whose samples are interleaved: give padded ones, and pack them in the model")
    if isinstance(node, Mapping):
        return list(node.values())
    if isinstance(node, (tuple, list)):
        return list(node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [getattr(node, field.name) for field in dataclasses.fields(node)]
    return None


def _is_sequence(node: Any) -> bool:
    return isinstance(node, (tuple, list)) and not hasattr(node, "_fields")


def _sizes(batch: Any) -> tuple[list[torch.Tensor], list[int]]:
    """All tensors, and the lengths of the lists that may have one entry a sample."""
    tensors: list[torch.Tensor] = []
    lengths: list[int] = []
    waiting = [batch]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, torch.Tensor):
            if node.is_nested or node.layout != torch.strided:
                raise NotSplittable(f"the batch has a {'nested' if node.is_nested else 'sparse'} tensor, which cannot be cut into views")
            tensors.append(node)
            continue
        children = _children(node)
        if children is None:
            continue
        if _is_sequence(node) and children and not _is_size(node):
            lengths.append(len(children))
        waiting += children
    return tensors, lengths


def _is_size(node: Any) -> bool:
    """Whether this is a tuple of numbers, as image sizes are; lists of numbers have one for each sample."""
    return isinstance(node, tuple) and all(isinstance(one, (int, float)) for one in node)


def _has_one_each(node: Any, count: int, top: bool) -> bool:
    """Whether a list or tuple has one entry for each sample."""
    if not _is_sequence(node) or len(node) != count or _is_size(node):
        return False
    if top and any(isinstance(child, torch.Tensor) or _is_sequence(child) for child in node):
        return False  # Inputs and targets, not samples.
    if top:
        return not (all(_fits(child, count, top=False) for child in node) and any(_is_cut(child, count) for child in node))
    if all(isinstance(child, torch.Tensor) and child.dim() > 0 and child.shape[0] == count for child in node):
        # Both readings are possible: as many tensors as they have samples. Images in a list have their channels first.
        return all(child.dim() == 3 and child.shape[0] in (1, 3) for child in node)
    return True


def _fits(node: Any, count: int, top: bool) -> bool:
    """Whether a batch of that many samples may look like this."""
    if isinstance(node, torch.Tensor):
        return node.dim() == 0 or node.shape[0] in (count, 1)
    children = _children(node)
    if children is None or _has_one_each(node, count, top):
        return True
    return all(_fits(child, count, top=False) for child in children)


def _is_cut(node: Any, count: int) -> bool:
    """Whether there is something in it that has all samples."""
    if isinstance(node, torch.Tensor):
        return node.dim() > 0 and node.shape[0] == count
    if _has_one_each(node, count, top=False):
        return True
    return any(_is_cut(child, count) for child in _children(node) or ())


def _take(node: Any, start: int, stop: int, count: int, top: bool) -> Any:
    # narrow and not a slice: subclasses that come from indexing forget what they are.
    return _cut(node, count, top, lambda tensor: tensor.narrow(0, start, stop - start), lambda some: list(some)[start:stop])


def _cut(node: Any, count: int, top: bool, of_tensor: Callable[[torch.Tensor], Any], of_list: Callable[[Any], list[Any]]) -> Any:
    """The same structure with some samples of each tensor and list that has them all."""
    if isinstance(node, torch.Tensor):
        return of_tensor(node) if node.dim() > 0 and node.shape[0] == count else node
    children = _children(node)
    if children is None:
        return node
    if _has_one_each(node, count, top):
        return _rebuilt(node, of_list(node))
    return _rebuilt(node, [_cut(child, count, False, of_tensor, of_list) for child in children])


def _rebuilt(node: Any, children: list[Any]) -> Any:
    """The same container with other contents."""
    if isinstance(node, MutableMapping):
        new = copy.copy(node)
        for key, child in zip(node, children):
            new[key] = child
        return new
    if isinstance(node, Mapping):
        kind: Any = type(node)
        return kind(zip(node, children))
    if hasattr(node, "_fields"):
        return type(node)(*children)
    if isinstance(node, (tuple, list)):
        return type(node)(children)
    new = copy.copy(node)
    for field, child in zip(dataclasses.fields(node), children):
        object.__setattr__(new, field.name, child)  # Frozen ones too.
    return new


def _disagreement(tensors: list[torch.Tensor]) -> str:
    shapes: dict[int, tuple[int, ...]] = {}
    for tensor in tensors:
        if tensor.dim() > 0 and tensor.shape[0] != 1:
            shapes.setdefault(tensor.shape[0], tuple(tensor.shape))
    if len(shapes) < 2:
        return "the batch has no tensor with a dimension of samples: nothing can be taken in parts"
    first, second = list(shapes.values())[:2]
    return f"the batch has tensors of shape {first} and {second}: it is not clear how many samples there are"
