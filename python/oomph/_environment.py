"""What this process runs in."""

from __future__ import annotations

import os


def on_virtual_gpu() -> bool:
    """Whether the card is one that oomph makes believe: its memory is counted and takes no RAM, its kernels take no time."""
    return "OOMPH_VIRTUAL_GPU" in os.environ
