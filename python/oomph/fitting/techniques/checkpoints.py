"""Checkpointing of blocks: their activations are computed again in the backward, with the same result.

PyTorch's non-reentrant checkpoint does the work. What is here keeps it exact on blocks that were not written for it: buffers that a forward
changes (statistics of BatchNorm, vectors of spectral_norm) are shown to the second forward as the first saw them and left as it left them,
caches of keys and values are not filled twice, and inputs that a block changes in place are kept from before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint, noop_context_fn

from oomph.fitting.errors import FitError
from oomph.fitting.techniques.blocks import CHECKPOINT, Surrounded, get_block
from oomph.fitting.techniques.caches import without_caches
from oomph.fitting.techniques.technique import Technique, differs_in_length, some_of


class CheckpointedBlocks(Surrounded):
    """Blocks that are checkpointed until ``undo()``; ``names`` leaves out those that checkpoint themselves."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        blocks = {name: get_block(model, name) for name in names}
        super().__init__(model, CHECKPOINT, {name: _Checkpoint(name, block) for name, block in blocks.items() if not _checkpoints_itself(model, name, block)})


def checkpoint_blocks(model: nn.Module, names: Sequence[str]) -> CheckpointedBlocks:
    """Has the named blocks keep only their inputs for the backward, and compute the rest again there.

    Results are the same to the bit. Blocks that checkpoint themselves already are left alone.
    """
    return CheckpointedBlocks(model, names)


def _checkpoints_itself(model: nn.Module, name: str, block: nn.Module) -> bool:
    # Models of transformers have the flag at each layer, or (older ones) at the module that calls the layers.
    above = [model] + [model.get_submodule(".".join(name.split(".")[:depth])) for depth in range(1, name.count(".") + 1)]
    if any(getattr(module, "gradient_checkpointing", False) is True for module in [*above, *block.modules()]):
        return True
    return any(type(module).__name__ == "CheckpointWrapper" for module in [*above, *block.modules()])


class _Checkpoint:
    """What lies around the forward of one block, and what it has learned of the block's ways."""

    def __init__(self, name: str, block: nn.Module) -> None:
        self.name = name
        # The positions of inputs and the owners and keys of buffers that a forward has changed; None until a forward has been seen.
        self.changed_inputs: set[int] | None = None if any(getattr(inner, "inplace", False) for inner in block.modules()) else set()
        self.changed_buffers: set[tuple[str, str]] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Checkpoint:
        return self

    def __call__(self, block: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        args, kwargs, filled = without_caches(block, args, kwargs)
        if filled:
            return forward(*args, **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not any(tensor.requires_grad for tensor in tensors) and not any(parameter.requires_grad for parameter in block.parameters()):
            return forward(*args, **kwargs)
        return self._checkpointed(block, forward, leaves, spec, tensors)

    def _checkpointed(self, block: nn.Module, forward: Callable[..., Any], leaves: list[Any], spec: pytree.TreeSpec, tensors: list[torch.Tensor]) -> Any:
        if self.changed_inputs is None:
            self.changed_inputs = _inputs_changed_by(block, forward, leaves, spec)
        buffers = _Buffers(block, self.changed_buffers)
        versions = [tensor._version for tensor in tensors]
        # Tensors are passed to the checkpoint one by one, wherever they were: only those go through the hooks for saved tensors.
        fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        first: list[list[torch.Tensor]] = [tensors]

        def run(*kept: torch.Tensor) -> Any:
            # The first run takes the inputs themselves, for it may change them; later ones take what was kept of them.
            now = first.pop() if first else [each.clone() if place in changed else each for place, each in enumerate(kept)]
            filled = list(fixed)
            for place, tensor in zip(places, now):
                filled[place] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            return forward(*args, **kwargs)

        changed = self.changed_inputs
        kept = [_copy(tensor) if place in changed else tensor for place, tensor in enumerate(tensors)]
        context_fn = buffers.contexts if buffers else noop_context_fn
        result = checkpoint(run, *kept, use_reentrant=False, preserve_rng_state=True, context_fn=context_fn)
        self.changed_buffers = buffers.learn(self.name)
        self._check_inputs({place for place, tensor in enumerate(tensors) if tensor._version != versions[place]})
        return result

    def _check_inputs(self, changed: set[int]) -> None:
        known = self.changed_inputs or set()
        self.changed_inputs = changed | known
        if not changed <= known:
            raise FitError(f"block {self.name} changes its input in place, which was not foreseen; the next step takes account of it")


def _inputs_changed_by(block: nn.Module, forward: Callable[..., Any], leaves: list[Any], spec: pytree.TreeSpec) -> set[int]:
    """Which of its tensors a block changes in place, found out once, on copies and without gradients: to keep copies of all would cost their memory."""
    copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    tensors = [leaf for leaf in copies if isinstance(leaf, torch.Tensor)]
    versions = [tensor._version for tensor in tensors]
    buffers = [(buffer, buffer.detach().clone()) for buffer in block.buffers()]
    devices = sorted({tensor.device.index or 0 for tensor in tensors if tensor.is_cuda})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        args, kwargs = pytree.tree_unflatten(copies, spec)
        forward(*args, **kwargs)
        for buffer, was in buffers:
            buffer.copy_(was)
    return {place for place, tensor in enumerate(tensors) if tensor._version != versions[place]}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that changes to the other do not reach, and that a graph can be built on as on the other."""
    with torch.no_grad():
        copy = tensor.detach().clone()
    return copy.requires_grad_(tensor.requires_grad)


class _Buffers:
    """The buffers of a block that its forward changes, so that a second forward sees and leaves what the first did.

    Which these are is known after a first forward; for that one, all are kept. Statistics of PyTorch's own norms are not compared by
    a forward that changes them, so of these nothing is kept.
    """

    def __init__(self, block: nn.Module, known: set[tuple[str, str]] | None) -> None:
        self._owners: dict[tuple[str, str], nn.Module] = {}
        self._unread: set[tuple[str, str]] = set()
        self._seen: dict[tuple[str, str], tuple[torch.Tensor, int]] = {}
        self._kept: dict[tuple[str, str], torch.Tensor] = {}
        self._known = known
        for path, owner in block.named_modules():
            norm = isinstance(owner, _NormBase) and type(owner).__module__.startswith("torch.nn.modules.")
            for key, buffer in owner._buffers.items():
                if buffer is None:
                    continue
                place = (path, key)
                self._owners[place] = owner
                if norm:
                    if owner.training:
                        self._unread.add(place)
                    continue
                self._seen[place] = (buffer, buffer._version)
                if known is None or place in known:
                    self._kept[place] = buffer.detach().clone()

    def __bool__(self) -> bool:
        return bool(self._unread or self._kept)

    def learn(self, block: str) -> set[tuple[str, str]]:
        """Which buffers the first forward has changed; the copies of the others are freed."""
        changed = {place for place, (buffer, version) in self._seen.items() if self._owners[place]._buffers.get(place[1]) is not buffer or buffer._version != version}
        known = self._known
        if known is not None and not changed <= known:
            names = ", ".join(".".join(filter(None, place)) for place in sorted(changed - known))
            raise FitError(f"block {block} cannot be checkpointed: it changes its buffer {names}, which its first forward did not")
        for place in set(self._kept) - changed - (known or set()):
            del self._kept[place]
        self._seen = {}
        return changed | (known or set())

    def contexts(self) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        return contextlib.nullcontext(), _Again(self._replaced)

    @contextlib.contextmanager
    def _replaced(self) -> Iterator[None]:
        before: list[tuple[nn.Module, str, torch.Tensor | None]] = []
        try:
            for place in [*self._unread, *self._kept]:
                owner, key = self._owners[place], place[1]
                now = owner._buffers.get(key)
                before.append((owner, key, now))
                source = self._kept.get(place, now)
                owner._buffers[key] = None if source is None else source.detach().clone()
            yield
        finally:
            for owner, key, now in reversed(before):
                owner._buffers[key] = now


class _Again:
    """A context that can be entered again and again: a graph that is kept is computed anew for each backward."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make = make
        self._entered: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = self._make()
        context.__enter__()
        self._entered.append(context)

    def __exit__(self, *raised: Any) -> bool | None:
        return self._entered.pop().__exit__(*raised)


CHECKPOINTED_BLOCKS = Technique(
    "checkpoint",
    lambda names, _, blocks: f"{some_of(len(names), blocks)} run again in the backward pass",
    "same numbers; pays with recomputation",
    apply=lambda step: checkpoint_blocks(step.model, step.plan.checkpoint),
    is_new=differs_in_length,
)
