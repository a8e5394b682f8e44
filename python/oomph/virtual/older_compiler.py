"""PyTorch's compiler up to 2.8, which compiles nothing while a mode is on, and says so to nobody: a prediction would be that of the program without it.

Newer ones ask the mode (``ignore_compile_internals``). What compiled code does is seen as with them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.utils import _python_dispatch

from .imports import after_import

if TYPE_CHECKING:
    from torch._dynamo.guards import CheckFunctionManager

    from .values import Values


def let_it_compile(mode: Values) -> None:
    """The mode is on."""
    if hasattr(_python_dispatch.TorchDispatchMode, "ignore_compile_internals"):
        return
    for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode"):
        if hasattr(_python_dispatch, name):
            setattr(_python_dispatch, name, False)
    after_import("torch._dynamo.guards", lambda module: _guard_as_run(module.CheckFunctionManager, mode))


def _guard_as_run(manager: type[CheckFunctionManager], mode: Values) -> None:
    """Guards remember whether a mode was on when they were made, for it changes how tensors are dispatched. They are made with all modes off, and are
    asked with this one on: nothing would be found again, and all be compiled anew."""
    make = manager.__init__

    @functools.wraps(make)
    def made(self: CheckFunctionManager, *args: Any, **kwargs: Any) -> None:
        if _python_dispatch._len_torch_dispatch_stack():
            return make(self, *args, **kwargs)
        _python_dispatch._push_mode(mode)
        try:
            return make(self, *args, **kwargs)
        finally:
            _python_dispatch._pop_mode()

    manager.__init__ = made
