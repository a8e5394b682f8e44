"""What writes to tensors where no mode sees it: code that Inductor made, Triton's kernels, graphs that are captured and replayed, modules that are traced,
storages that change their size.

What they may have written is not known afterwards.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._inductor.output_code import CompiledFxGraph
    from triton.runtime.jit import JITFunction

    from .values import Values

Tensor = torch.Tensor


def watch(values: Values) -> None:
    after_import("torch._inductor.output_code", lambda module: _watch_compiled(module.CompiledFxGraph, values))
    after_import("triton.runtime.jit", lambda module: _watch_triton(module.JITFunction, values))
    _watch_graphs(values)
    _watch_tracing(values)
    _watch_storages(values)


def _watch_compiled(graph: type[CompiledFxGraph], values: Values) -> None:
    call = graph.__call__

    @functools.wraps(call)
    def called(self: CompiledFxGraph, inputs: list[Any]) -> Any:
        # Only those that it writes to are held: it drops the others as early as it can.
        written = [inputs[index] for index in getattr(self, "mutated_input_idxs", ())]
        try:
            return call(self, inputs)
        finally:
            for tensor in written:
                forget(values, tensor, "compiled code wrote to it")

    graph.__call__ = called


def _watch_triton(function: type[JITFunction], values: Values) -> None:
    run = function.run

    @functools.wraps(run)
    def ran(self: JITFunction, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(self, *args, **kwargs)
        finally:
            for tensor in (*args, *kwargs.values()):
                forget(values, tensor, "a kernel of Triton's may have written to it")

    function.run = ran


def _watch_graphs(values: Values) -> None:
    """What is captured is not run, and what it writes to is written to by each replay."""
    graph = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    @functools.wraps(begin)
    def capture_begin(self: torch.cuda.CUDAGraph, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        values.capturing = True

    @functools.wraps(end)
    def capture_end(self: torch.cuda.CUDAGraph) -> None:
        values.capturing = False
        end(self)

    @functools.wraps(replay)
    def replayed(self: torch.cuda.CUDAGraph) -> None:
        replay(self)
        for storage in values.captured:
            values.lineage.forget_storage(storage)

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed


def _watch_tracing(values: Values) -> None:
    """TorchScript's tracer takes what a mode hands back for constants: it traces without. What is written meanwhile, nobody sees."""

    def without_mode(trace: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(trace)
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                with values.off():
                    return trace(*args, **kwargs)
            finally:
                values.lineage.forget_all("a module was traced since, which may have written to it")

        return traced

    for holder, name in ((torch.jit, "trace"), (torch.jit, "trace_module"), (torch.jit, "_get_trace_graph")):
        setattr(holder, name, without_mode(getattr(holder, name)))


def _watch_storages(values: Values) -> None:
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        values.lineage.forget_storage(self._cdata)
        return resize(self, size)

    clone = torch.UntypedStorage.clone

    @functools.wraps(clone)
    def cloned(self: torch.UntypedStorage) -> torch.UntypedStorage:
        """As copy.deepcopy does it."""
        made = clone(self)
        if self._cdata in values.lineage.undrawn:
            values.lineage.leave_undrawn(made)
        return made

    torch.UntypedStorage.resize_, torch.UntypedStorage.clone = resize_, cloned


def forget(values: Values, tensor: Any, why: str) -> None:
    if isinstance(tensor, Tensor) and type(tensor) in (Tensor, torch.nn.Parameter):
        values.unlearn(tensor, why)
