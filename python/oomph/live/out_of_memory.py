"""Whether an exception says that a GPU had no memory for something: PyTorch's own, or what cuBLAS, cuDNN, NCCL and the driver were refused.

It asks by name and by message, so that it can be asked where PyTorch is not imported. It runs in other people's processes: no imports.
"""

# What libraries say that were refused memory, beside PyTorch's own OutOfMemoryError.
_REFUSALS = (
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the GPU had no memory for something."""
    if any(kind.__name__ == "OutOfMemoryError" and kind.__module__.partition(".")[0] == "torch" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(refusal in str(error) for refusal in _REFUSALS)
