"""Memory of one's own, pinned for CUDA where it lies: exactly its size, where PyTorch's pinned memory is rounded up to a power of two."""

from __future__ import annotations

import torch


def pin(memory: torch.Tensor, device: torch.device) -> int:
    """Lets the GPU copy from and to it while the program goes on. Gives CUDA's code: 0, or why not."""
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel() * memory.element_size(), 0))
    if code != 0:
        # The error stays in CUDA until it is read, and the next kernel would be blamed.
        try:
            torch.zeros(1, device=device).add_(1)
        except torch.cuda.OutOfMemoryError:
            raise  # The allocator's own; CUDA's "out of memory" may be the very error that is waiting.
        except RuntimeError:
            pass
    return code


def unpin(address: int) -> None:
    """Before the memory goes."""
    torch.cuda.cudart().cudaHostUnregister(address)
