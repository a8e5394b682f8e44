"""What of DeepSpeed asks for more than there is: for a compiler, and for ranks that agree with each other.

Its optimizers are compiled where they are first used (``jit_load``), on a machine that may have no compiler for them. A kernel does nothing on the virtual GPU, and these allocate nothing:
they write to the tensors that they are given. So nothing is compiled, and what they write to is not known afterwards. And before ZeRO 3 gathers, ranks compare what they are about to gather with
rank 0's, of which nothing comes here. Boundary: only optimizers of which that is so are stood in for; what was compiled when DeepSpeed was installed, and every other operation, is DeepSpeed's business.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from .imports import after_import
from .unseen import forget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .child import Run
    from .values import Values

# Of each operation, those of its functions that write to tensors.
STEPS = {"fused_adam": ["multi_tensor_adam"], "fused_lion": ["multi_tensor_lion"]}
STEPS |= {f"cpu_{name}": [f"{name}_update", f"{name}_rollback"] for name in ("adam", "lion", "adagrad")}


def watch(run: Run) -> None:
    after_import("deepspeed.ops.op_builder.builder", lambda builder: _stand_in(builder.OpBuilder, run))
    if run.task.get("world"):
        after_import("deepspeed.runtime.zero.utils", _agree)


class _Operation:
    """What is loaded in the place of a compiled module."""

    def __init__(self, name: str, values: Values) -> None:
        for step in STEPS[name]:
            setattr(self, step, _step(name, values))
        kind = name.rpartition("_")[2]
        setattr(self, f"create_{kind}", lambda *args: 0)
        setattr(self, f"destroy_{kind}", lambda *args: 0)


def _step(name: str, values: Values) -> Callable[..., int]:
    def step(*args: Any) -> int:
        for tensor in _tensors(args):
            forget(values, tensor, f"{name} of DeepSpeed may have written to it")
        return 0

    return step


def _tensors(args: Iterable[Any]) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, (list, tuple)):
            yield from _tensors(arg)
        else:
            yield arg


def _stand_in(builder: Any, run: Run) -> None:
    load = builder.jit_load

    def jit_load(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.name not in STEPS:
            return load(self, *args, **kwargs)
        text = f"{self.name} of DeepSpeed was not compiled: it writes in place, and takes no memory of its own"
        if text not in run.facts["notes"]:
            run.facts["notes"].append(text)
        return _Operation(self.name, run.values)

    builder.jit_load = jit_load


def _agree(utils: Any) -> None:
    """Each rank is taken to gather what rank 0 does. What it sends for the comparison is sent."""
    compare, receive = utils.assert_lst_len_same_as_other_ranks, utils.get_lst_from_rank0

    @functools.wraps(compare)
    def compared(lst: list[Any]) -> None:
        with contextlib.suppress(RuntimeError):
            compare(lst)

    @functools.wraps(receive)
    def received(lst: list[Any]) -> list[Any]:
        receive(lst)
        return lst

    utils.assert_lst_len_same_as_other_ranks, utils.get_lst_from_rank0 = compared, received
