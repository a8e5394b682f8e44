"""What writes to tensors where no mode sees it: code that Inductor made, Triton's kernels, graphs that are captured and replayed, modules that are traced,
storages that change their size.

What they may have written is not known afterwards.
"""

import functools

import torch

from .imports import after_import

Tensor = torch.Tensor


def watch(values):
    after_import("torch._inductor.output_code", lambda module: _watch_compiled(module.CompiledFxGraph, values))
    after_import("triton.runtime.jit", lambda module: _watch_triton(module.JITFunction, values))
    _watch_graphs(values)
    _watch_tracing(values)
    _watch_storages(values)


def _watch_compiled(graph, values):
    call = graph.__call__

    @functools.wraps(call)
    def called(self, inputs):
        # Only those that it writes to are held: it drops the others as early as it can.
        written = [inputs[index] for index in getattr(self, "mutated_input_idxs", ())]
        try:
            return call(self, inputs)
        finally:
            for tensor in written:
                forget(values, tensor, "compiled code wrote to it")

    graph.__call__ = called


def _watch_triton(function, values):
    run = function.run

    @functools.wraps(run)
    def ran(self, *args, **kwargs):
        try:
            return run(self, *args, **kwargs)
        finally:
            for tensor in (*args, *kwargs.values()):
                forget(values, tensor, "a kernel of Triton's may have written to it")

    function.run = ran


def _watch_graphs(values):
    """What is captured is not run, and what it writes to is written to by each replay."""
    graph = torch.cuda.CUDAGraph
    begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

    @functools.wraps(begin)
    def capture_begin(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        values.capturing = True

    @functools.wraps(end)
    def capture_end(self):
        values.capturing = False
        end(self)

    @functools.wraps(replay)
    def replayed(self):
        replay(self)
        for storage in values.captured:
            values.lineage.forget_storage(storage)

    graph.capture_begin, graph.capture_end, graph.replay = capture_begin, capture_end, replayed


def _watch_tracing(values):
    """TorchScript's tracer takes what a mode hands back for constants: it traces without. What is written meanwhile, nobody sees."""

    def without_mode(trace):
        @functools.wraps(trace)
        def traced(*args, **kwargs):
            try:
                with values.off():
                    return trace(*args, **kwargs)
            finally:
                values.lineage.forget_all("a module was traced since, which may have written to it")

        return traced

    for holder, name in ((torch.jit, "trace"), (torch.jit, "trace_module"), (torch.jit, "_get_trace_graph")):
        setattr(holder, name, without_mode(getattr(holder, name)))


def _watch_storages(values):
    resize = torch.UntypedStorage.resize_

    @functools.wraps(resize)
    def resize_(self, size):
        values.lineage.forget_storage(self._cdata)
        return resize(self, size)

    clone = torch.UntypedStorage.clone

    @functools.wraps(clone)
    def cloned(self):
        """As copy.deepcopy does it."""
        made = clone(self)
        if self._cdata in values.lineage.undrawn:
            values.lineage.leave_undrawn(made)
        return made

    torch.UntypedStorage.resize_, torch.UntypedStorage.clone = resize_, cloned


def forget(values, tensor, why):
    if isinstance(tensor, Tensor) and type(tensor) in (Tensor, torch.nn.Parameter):
        values.unlearn(tensor, why)
