"""The techniques of ``oomph.fit_inference``: one entry for each, in the order in which they are listed. They are applied to a ``running.inference.FitInference``."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from oomph.fitting.techniques.technique import Technique
from oomph.fitting.techniques.weight_stream import WeightStream
from oomph.fitting.techniques.weights import BF16_WEIGHTS, bf16_weights, prune, quantize_weights, why_not_semi_structured

# In which order they are applied. What is pruned need never be whole on the GPU; what is quantised must be there.
FULL, PRUNED, THERE, SMALLER = range(4)


def _in_bits(bits: int, turn: int) -> Technique:
    return Technique(
        "bits",
        lambda *_: f"weights in {bits} bits (allowed)",
        "you allowed it",
        apply=lambda fitted: quantize_weights(fitted.model, bits),
        stage=SMALLER,
        is_new=lambda before, after: before != after and after == bits,
        allow=f"{bits}bit-weights",
        allowed=f"weights of linear layers in {bits} bits",
        asked=lambda _: {"bits": bits},
        turn=turn,
    )


def _saves_nothing(search: Any) -> str | None:
    why = why_not_semi_structured(search.model, torch.cuda.get_device_capability(), "bf16-weights" in search.allow)
    return why and f"pruning saves nothing here: {why}"


def _nothing_is_generated(search: Any) -> str | None:
    return "" if search.generate is None else None


TECHNIQUES: tuple[Technique, ...] = (
    dataclasses.replace(BF16_WEIGHTS, apply=lambda fitted: bf16_weights(fitted.model), stage=FULL, allowed="weights in bfloat16", asked=lambda _: {"bf16_weights": True}, turn=1),
    _in_bits(8, turn=4),
    _in_bits(4, turn=5),
    Technique(
        "pruned",
        lambda *_: "two of every four weights dropped (allowed)",
        "you allowed it",
        apply=lambda fitted: prune(fitted.model, semi_structured=True, device=fitted.device),
        stage=PRUNED,
        allow="pruning",
        allowed="two of every four weights of linear layers dropped (fp16 or bf16, compute capability 8.0 or newer)",
        asked=lambda _: {"bits": 0, "pruned": True},
        turn=6,
        why_not=_saves_nothing,
    ),
    # The cache is transformers' own: it is passed to `generate`.
    Technique(
        "cache",
        lambda *_: "the cache in host memory",
        "same numbers; pays with copies",
        is_new=lambda before, after: before != after and after == "offloaded",
        asked=lambda _: {"cache": "offloaded"},
        turn=2,
        why_not=_nothing_is_generated,
    ),
    Technique(
        "cache",
        lambda *_: "the cache in 8 bits (allowed)",
        "you allowed it",
        is_new=lambda before, after: before != after and after == "quantized",
        allow="8bit-cache",
        allowed="the cache of keys and values in 8 bits (needs hqq)",
        asked=lambda _: {"cache": "quantized"},
        turn=3,
        why_not=_nothing_is_generated,
    ),
    Technique(
        "streamed",
        lambda count, _, blocks: f"weights of {count} of {blocks} blocks in host memory",
        "same numbers; pays with copies",
        apply=lambda fitted: WeightStream(fitted.model, fitted.device, fitted.chosen.streamed),
        stage=THERE,
    ),
)

# What may change the numbers, and therefore is done only if it is named in ``allow``.
ALLOWED = {one.allow: one.allowed for one in sorted(TECHNIQUES, key=lambda one: one.turn) if one.allow is not None}
