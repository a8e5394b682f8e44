"""Attention of grouped queries by a kernel that holds no scores.

Where several heads of queries share one of keys and values (Llama, Qwen, Mistral, Gemma), few of PyTorch's kernels take them as they are: those for 16 bits, on cards from Ampere on. On a T4, or in
float32, PyTorch writes out the scores of every pair of positions instead, which are the most of what a long sequence needs. With keys and values repeated for every head of queries, which are
small beside scores, a kernel takes them. The sums are the same, in another order.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from oomph.fitting.techniques.technique import Technique

_NAME = "scaled_dot_product_attention"
# PyTorch's number for attention that writes out its scores.
_WITH_SCORES = 0

# Those that are applied now; the functions are replaced while there are any.
_applied: list[RepeatedGroups] = []
_replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
_lock = threading.RLock()


class RepeatedGroups:
    """Until ``undo()``, attention has the keys and values of grouped queries repeated wherever a kernel that holds no scores takes them only so. That is so for all models
    of the process: the function is PyTorch's own."""

    def __init__(self, model: nn.Module) -> None:
        #: How many calls were changed.
        self.calls = 0
        with _lock:
            _applied.append(self)
            _replace({type(module).__module__ for module in model.modules()})

    def undo(self) -> None:
        with _lock:
            if self not in _applied:
                return
            _applied.remove(self)
            if not _applied:
                while _replaced:
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
        if _applied and kwargs.get("enable_gqa") and not torch.compiler.is_compiling() and _is_worth_it(query, key, value, args, kwargs):
            # What is made here and kept by nobody else is gone with the graph.
            groups = query.shape[-3] // key.shape[-3]
            key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
            kwargs = {**kwargs, "enable_gqa": False}
            for one in _applied:
                one.calls += 1
        return original(query, key, value, *args, **kwargs)

    return attention


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
    if torch._fused_sdp_choice(query, key, value, **given, enable_gqa=True) != _WITH_SCORES:
        return False
    # Of the right shape and type, without a copy.
    key, value = (one[:, :1].expand(-1, heads, -1, -1) for one in (key, value))
    return bool(torch._fused_sdp_choice(query, key, value, **given, enable_gqa=False) != _WITH_SCORES)


GROUPED_QUERIES = Technique(
    "repeat_groups",
    lambda *_: "keys and values repeated for grouped queries, so that no attention scores are held",
    "same sums in another order; scores of all pairs of positions are never written",
    apply=lambda step: RepeatedGroups(step.model),
)
