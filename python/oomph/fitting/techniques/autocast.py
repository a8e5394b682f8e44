"""Operations in 16 bits where PyTorch's autocast finds that right. The step runs under it; nothing is changed that must be undone."""

from __future__ import annotations

from oomph.fitting.techniques.technique import Technique

AUTOCAST = Technique(
    "autocast",
    lambda half, *_: f"autocast in {half} (allowed)",
    "you allowed it; usually faster",
    allow="bf16",
    allowed="autocast in bfloat16 (float16 with a gradient scaler on cards without it)",
    asked=lambda half: {"autocast": half},
    turn=1,
)
