"""Attention of grouped queries by a kernel that holds no scores.

Where several heads of queries share one of keys and values (Llama, Qwen, Mistral, Gemma), few of PyTorch's kernels take them as they are: those for 16 bits, on cards from Ampere on. On a T4, or in
float32, PyTorch up to 2.11 at least writes out the scores of every pair of positions instead, which are the most of what a long sequence needs. With keys and values repeated for every head of
queries, which are small beside scores, a kernel takes them. The sums are the same, in another order.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from oomph.fitting.techniques.saved import in_backward
from oomph.fitting.techniques.technique import Technique

_NAME = "scaled_dot_product_attention"
# PyTorch's number for attention that writes out its scores.
_WITH_SCORES = 0

# Those that are applied now; the functions are replaced while there are any.
_applied: list[_Applied] = []
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
_lock = threading.RLock()
# Of each thread, how deep it is in forward passes of models that it is applied to.
_within = threading.local()


class _Applied:
    def __init__(self) -> None:
        self.calls = 0


class RepeatedGroups:
    """Until ``undo()``, or until the model is gone, attention in the model's forward passes has the keys and values of grouped queries repeated wherever a kernel that holds no scores takes
    them only so; and where a backward pass runs a forward pass again."""

    def __init__(self, model: nn.Module) -> None:
        self._applied = _Applied()
        # By name, so that a model with these hooks can be pickled.
        self._hooks = [model.register_forward_pre_hook(_enter, prepend=True), model.register_forward_hook(_leave, always_call=True)]
        self._end = weakref.finalize(model, _take_off, self._applied)
        self._end.atexit = False
        with _lock:
            _applied.append(self._applied)
            _replace({type(module).__module__ for module in model.modules()})

    @property
    def calls(self) -> int:
        """How many were changed."""
        return self._applied.calls

    def undo(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        self._end()


def _enter(module: nn.Module, args: Any) -> None:
    _within.depth = getattr(_within, "depth", 0) + 1


def _leave(module: nn.Module, args: Any, output: Any) -> None:
    _within.depth = max(0, getattr(_within, "depth", 0) - 1)


def _take_off(applied: _Applied) -> None:
    with _lock:
        _applied.remove(applied)
        while _replaced and not _applied:
            space, name, original, version = _replaced.pop()
            # What others have put around it since stays, and calls one that does nothing any more.
            if space.get(name) is version:
                space[name] = original


def _replace(modules: set[str]) -> None:
    """Where programs look the function up: in ``torch.nn.functional``, and by name in the modules that the model's classes are of."""
    found = getattr(F, _NAME, None)
    if found is None or not hasattr(torch, "_fused_sdp_choice"):
        return
    # There may be a version of ours already, from another model.
    original, version = next(((one[2], one[3]) for one in _replaced if one[3] is found), (found, None))
    version = version or _version(original)
    for space in (vars(F), *(vars(sys.modules[name]) for name in modules if name in sys.modules)):
        for name in [name for name, value in space.items() if value is original]:
            _replaced.append((space, name, original, version))
            space[name] = version


def _version(original: Any) -> Any:
    @functools.wraps(original)
    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("enable_gqa") and _applied and _is_here() and _is_worth_it(query, key, value, args, kwargs):
            groups = query.shape[-3] // key.shape[-3]
            key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
            kwargs = {**kwargs, "enable_gqa": False}
            for one in _applied:
                one.calls += 1
        return original(query, key, value, *args, **kwargs)

    return attention


def _is_here() -> bool:
    if torch.compiler.is_compiling():
        return False
    return getattr(_within, "depth", 0) > 0 or in_backward()


def _is_worth_it(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the scores would be written out as it is, and not with keys and values repeated. Attention that drops something draws other random numbers in another kernel, and is left alone."""
    of = {**dict(zip(("attn_mask", "dropout_p", "is_causal"), args)), **kwargs}
    tensors = (query, key, value)
    if of.get("dropout_p") or any(type(one) is not torch.Tensor or one.dim() != 4 for one in tensors) or torch.are_deterministic_algorithms_enabled():
        return False
    heads, shared = query.shape[1], key.shape[1]
    if not shared or heads == shared or heads % shared or value.shape[1] != shared:
        return False
    given = {"attn_mask": of.get("attn_mask"), "dropout_p": 0.0, "is_causal": of.get("is_causal", False), "scale": of.get("scale")}
    try:
        query, key, value = (_as_computed(one) for one in tensors)
        if torch._fused_sdp_choice(query, key, value, **given, enable_gqa=True) != _WITH_SCORES:
            return False
        # Of the right shape and type, without a copy.
        key, value = (one[:, :1].expand(-1, heads, -1, -1) for one in (key, value))
        return bool(torch._fused_sdp_choice(query, key, value, **given, enable_gqa=False) != _WITH_SCORES)
    except RuntimeError:
        # Under a transform of torch.func, or on a device that has no choice.
        return False


def _as_computed(tensor: torch.Tensor) -> torch.Tensor:
    """Under autocast attention is computed in another type: one of that, and of this shape."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind) or tensor.dtype == torch.get_autocast_dtype(kind):
        return tensor
    row = torch.empty(tensor.shape[-1:], dtype=torch.get_autocast_dtype(kind), device=tensor.device)
    return row.requires_grad_(tensor.requires_grad).expand(tensor.shape)


GROUPED_QUERIES = Technique(
    "repeat_groups",
    lambda *_: "keys and values repeated for grouped queries, so that no attention scores are held",
    "same sums in another order; scores of all pairs of positions are never written",
    apply=lambda step: RepeatedGroups(step.model),
)
