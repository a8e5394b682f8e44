"""Gives allocations of the backward pass the forward line that caused them.

Autograd's threads have no Python stack, so the recorder finds no line for what they allocate: often a third of all
allocations. Every node of the graph has a number, though, which is known both when the forward pass makes it and when
the backward pass runs it, and both are reported to the recorder.

Backward passes run without the mode that watches values: where a mode is active, PyTorch adds gradients up and scatters
them out of place, with copies that it would not make otherwise. A hook on each node reports when it runs instead.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from .gradients import OURS, SEEN, is_own

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from ctypes import CDLL
    from types import ModuleType
    from typing import Any

    from torch import Tensor
    from torch.autograd.graph import GradientEdge, Node

    from oomph.live.native import Native

    from .gradients import Got, Plan
    from .values import Values


class Backward:
    def __init__(self, torch: ModuleType, recorder: Native | None) -> None:
        """``recorder``: None if nobody wants to know lines."""
        self.recorder = recorder
        self.counts: dict[int, list[int]] = {}
        # Backward passes that run, one inside of another, and the leaves that the inner ones have reached.
        self.under_way = 0
        self.nested: set[int] = set()
        # The number of the node that autograd made for the operation that is under way.
        self.number = -1
        self._node = torch._C._current_autograd_node
        self._number = torch.autograd._get_sequence_nr if hasattr(torch.autograd, "_get_sequence_nr") else torch._C._autograd._get_sequence_nr
        self._builds_graph = torch.is_grad_enabled

    def operation(self) -> None:
        """Called before every operation that the mode sees."""
        node = self._node()
        if node is not None:
            # A forward pass that is run again, or a version whose insides `follow` does not know.
            if self.recorder is not None:
                self.recorder.backward(node._sequence_nr(), node.name().encode())
        elif self._builds_graph():
            # The node of this operation has just been made, with the number before the next.
            self.number = self._number() - 1
            if self.recorder is not None:
                self.recorder.forward(self.number)

    def remember_counts(self, counts: list[int]) -> None:
        """How many elements the masks of this operation select: its backward pass will count them again."""
        if self._node() is None and self._builds_graph():
            self.counts[self.number] = counts

    # -- backward passes

    def follow(self, torch: ModuleType, values: Values, library: CDLL) -> None:
        """Takes the mode off while gradients are computed, and puts it back where a forward pass is run again."""
        run = torch.autograd._engine_run_backward

        @functools.wraps(run)
        def engine_run_backward(
            roots: Sequence[Tensor | GradientEdge],
            gradients: Sequence[Tensor | None],
            keep_graph: bool,
            create_graph: bool,
            inputs: Sequence[Tensor | GradientEdge],
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            whole = roots, gradients, keep_graph, create_graph, inputs, *args
            if values.lineage.computing:
                return run(*whole, **kwargs)
            if values.is_paused:
                values.note_reads()
                try:
                    return run(*whole, **kwargs)
                finally:
                    # Kernels of the backward pass read sizes of their own.
                    library.oomph_guessed()
            leaves = self.watch(roots, library)
            accumulates = kwargs.get("accumulate_grad")
            plan: Plan | None = None
            before: Got = {}
            # One inside of another (a checkpoint of the older kind) adds to what the outer one adds to.
            if not self.under_way:
                with contextlib.suppress(Exception):
                    plan = values.gradients.plan(roots, gradients, keep_graph)
                    before = values.gradients.before_accumulating(plan[0]) if plan and accumulates else {}
            done, self.under_way = False, self.under_way + 1
            try:
                with values.off():
                    found = run(*whole, **kwargs)
                done = True
                return found
            finally:
                self.under_way -= 1
                if create_graph and done:
                    values.gradients.mark_foreign([leaf.variable.grad for leaf in leaves] if accumulates else found)
                for leaf in leaves:
                    if self.under_way:
                        self.nested.add(id(leaf.variable))
                    gradient = leaf.variable.grad if accumulates else None
                    if gradient is not None:
                        values.unlearn(gradient)
                if not self.under_way:
                    if done and plan:
                        self.arrive(values, plan, before, found, inputs, accumulates)
                    self.nested.clear()
                    values.gradients.end_of_pass()
                library.oomph_guessed()

        values.gradients.watch_hooks(values.on)
        own = torch.autograd.function.BackwardCFunction
        run_own = own.apply

        @functools.wraps(run_own)
        def apply(node: Node, *gradients: Any) -> Any:
            if values.lineage.computing or values.is_paused or not is_own(node):
                return run_own(node, *gradients)
            return values.gradients.run_own(values, run_own, node, gradients)

        own.apply = apply
        torch.autograd._engine_run_backward = engine_run_backward
        from torch.utils import checkpoint

        class Recomputes(checkpoint._recomputation_hook):
            def __enter__(self) -> Any:
                self.again = values.on()
                self.again.__enter__()
                return super().__enter__()

            def __exit__(self, *error: Any) -> Any:
                try:
                    return super().__exit__(*error)
                finally:
                    self.again.__exit__(None, None, None)

        checkpoint._recomputation_hook = Recomputes

    def arrive(
        self,
        values: Values,
        plan: Plan,
        before: Got,
        found: Sequence[Tensor | None] | None,
        inputs: Sequence[Tensor | GradientEdge],
        accumulates: bool | None,
    ) -> None:
        """Gradients are where they belong: what they are is known, by how they came about."""
        leaves, came = plan
        if accumulates:
            for variable, slot in leaves:
                if variable.grad is not None and not (inputs and all(variable is not one for one in inputs)):
                    old = before.get(id(variable))
                    known = id(variable) not in self.nested | values.gradients.touched and (id(variable) not in before or old is not None)
                    values.gradients.arrived(variable.grad, slot if known else None, old)
            return
        of_leaf = {id(variable): slot for variable, slot in leaves}
        for one, gradient in zip(inputs, found or ()):
            # One that lies in the storage of what is known already has its value there.
            if gradient is not None and isinstance(one, values.gradients.tensor) and not values.is_followed(gradient):
                slot = of_leaf.get(id(one)) if one.grad_fn is None else came.get(one.grad_fn, {}).get(one.output_nr)
                values.gradients.arrived(gradient, slot)

    def watch(self, roots: Sequence[Tensor | GradientEdge], library: CDLL) -> list[Node]:
        """Puts a hook on every node of the graph."""
        leaves = []
        left = [root.grad_fn if hasattr(root, "grad_fn") else getattr(root, "node", None) for root in roots]
        seen = set()
        while left:
            node = left.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            left.extend(follower for follower, _ in node.next_functions)
            if not node.next_functions:
                # Gradients arrive there; what hooks it has is DistributedDataParallel's business.
                if hasattr(node, "variable"):
                    leaves.append(node)
                continue
            metadata = node.metadata
            if SEEN not in metadata:
                metadata[SEEN] = True
                node.register_prehook(self.hook(node._sequence_nr(), node.name(), library))
        return leaves

    def hook(self, number: int, name: str, library: CDLL) -> Callable[[object], None]:
        counts, recorder, encoded = self.counts.get(number), self.recorder, name.encode()

        def before(gradients: object) -> None:
            if recorder is not None:
                recorder.backward(number, encoded)
            library.oomph_end_script()
            for count in counts or ():
                library.oomph_script_read(count)

        setattr(before, OURS, True)
        return before
