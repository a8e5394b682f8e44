"""Whose code a file is: the user's own, PyTorch's, or another library's. Told by its path; nothing is read.

The same rule as Rust's `oomph-words/src/library_code.rs`, and one table of cases, `oomph-words/library_code.txt`, that both are held to. What is oomph's own is for
the callers to say: they know where they lie. It runs in other people's processes: the standard library alone, and little of that.
"""

_INSTALLED = ("site-packages", "dist-packages")
# Python's own library, and what PyTorch's compiler wrote. Windows has the first in Lib.
_PARTS = ("/lib/python3", "/torchinductor_", "/Lib/")
# PyTorch built from source: its own folders, not everything that lies under a folder called torch.
_TORCH = ("nn/", "optim/", "utils/", "autograd/", "cuda/", "amp/", "distributed/", "_dynamo/", "_inductor/", "_tensor", "functional.py", "_ops.py")
# Code that was made rather than written: frozen modules, generated functions, FX graphs.
_MADE = ("<frozen", "<string>", "<eval_with_key", "<decorator-gen", "<torch_package", "<__array_function__")


def is_library(file: str) -> bool:
    """Whether a file belongs to a library, or to Python itself, or was not written by anybody."""
    unified = file.replace("\\", "/")
    return unified.startswith(_MADE) or is_installed(unified) or any(part in unified for part in _PARTS) or is_torch(unified)


def is_installed(file: str) -> bool:
    """Whether a file came with an installed package: not Python's own, and not the user's."""
    return any(part in file for part in _INSTALLED)


def is_torch(file: str) -> bool:
    """Whether a file is PyTorch's, installed or built from source."""
    unified = file.replace("\\", "/")
    if "-packages/torch/" in unified:
        return True
    return any(after.startswith(_TORCH) for after in ("/" + unified).split("/torch/")[1:])
