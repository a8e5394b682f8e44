"""Keeps how gradients came about, so that what follows from them can be computed as well: weights after a step, the losses of the next.

Backward passes run without a mode, as they would without oomph. But what they do follows from the forward pass: each node of autograd's graph
has the number of the operation that made it. So before a backward pass the graph is walked from the loss to the leaves, and each
node becomes one of ``lineage``: the derivative of that operation, at what went into it. Nothing is computed, unless somebody reads what follows.

A function of the program's own computes its gradients itself: what it will hand on is promised, and its backward pass runs watched.

Boundary: says what gradients are, by lineage. A node whose operation is not known (made by a backward pass that can be differentiated itself, or with a hook
that may change what comes by) gives gradients that are not known.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import torch

from .lineage import HIDDEN, SUBSTITUTES, Held, Slot, Sparse, flattened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from torch._ops import OpOverload
    from torch.autograd.graph import GradientEdge, Node

    from .lineage import Alias, Function, Lineage, Value
    from .values import Values

    # What is known of a gradient. A sparse one passes through as well, and nobody looks into it.
    Known = Slot | Held
    # Gradients by the number of the output that they are of.
    Got = dict[int, Known | None]
    # Leaves with their gradients, and what came to each node.
    Plan = tuple[list[tuple[torch.Tensor, Known | None]], dict[Node, Got]]
    # A node, None where no gradient goes on, and which of its outputs.
    Edges = Sequence[tuple[Any, int]]

Tensor = torch.Tensor
# Operations whose derivatives are waited for. A graph that is dropped without a backward pass says nothing when it goes.
OPERATIONS = 20_000
# What a derivative takes, in times of the operation.
TIMES = 3
# The node of a tensor that was written to by one of its views.
WROTE_TO_PART = "torch::autograd::CopySlices"
# An attribute of hooks that are not the program's.
OURS = "is_of_oomph"
# In the metadata of nodes: a backward pass came by; a backward pass made it.
SEEN, FOREIGN = "oomph", "oomph made by a backward pass"
# Where the name of a node is not the name of its operation.
OTHER_NAMES = {"nllloss": "nlllossforward", "nllloss2d": "nllloss2dforward"}


def dropped(tensor: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Dropout, once its mask is drawn. The kernel computes it so, in single precision."""
    wide = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return (wide * mask * scale).to(tensor.dtype)


class Operation:
    """An operation of the forward pass, and what went into it."""

    __slots__ = ("func", "args", "kwargs", "inputs", "wanted", "forms", "cost", "name", "part")

    def __init__(
        self,
        func: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        inputs: tuple[Value, ...],
        wanted: list[int],
        forms: list[Form],
        cost: float,
        name: str,
        part: Part | None,
    ) -> None:
        self.func, self.args, self.kwargs, self.inputs, self.cost, self.name = func, args, kwargs, inputs, cost, name
        # Where it wrote, if that was a part of a larger tensor.
        self.part = part
        # Which of the tensors that go in have gradients, by their order, and what these look like.
        self.wanted, self.forms = wanted, forms
        for value in inputs:
            value.uses += 1

    def __del__(self) -> None:
        for value in self.inputs:
            value.uses -= 1


class Derivative:
    """Gradients of an operation's inputs, from those of its outputs."""

    __slots__ = ("func", "wanted", "cloned")

    def __init__(self, operation: Operation) -> None:
        func = operation.func
        self.func, self.wanted = SUBSTITUTES.get(func, func), set(operation.wanted)
        # What the operation writes to is not ours alone.
        arguments = func._schema.arguments if hasattr(func, "_schema") else ()
        writes = [index for index, argument in enumerate(arguments) if argument.alias_info is not None and argument.alias_info.is_write]
        self.cloned = {*writes, *(HIDDEN[func][0] if func in HIDDEN else ())}

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any], gradients: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        leaves, count = [], 0

        def prepare(value: Any, clones: bool) -> Any:
            nonlocal count
            if isinstance(value, list):
                return [prepare(one, clones) for one in value]
            if not isinstance(value, Tensor):
                return value
            count += 1
            if count - 1 in self.wanted:
                leaf = value.detach().requires_grad_()
                leaves.append(leaf)
                return leaf.clone() if clones else leaf
            return value.clone() if clones else value

        with torch.enable_grad():
            args = [prepare(value, index in self.cloned) for index, value in enumerate(args)]
            kwargs = {name: prepare(value, False) for name, value in kwargs.items()}
            out = self.func(*args, **kwargs)
            outputs = [one for one in flattened(out if isinstance(out, (list, tuple)) else (out,)) if one.requires_grad]
            chosen = [(outputs[number], gradient) for number, gradient in gradients.items()]
            found = torch.autograd.grad([one for one, _ in chosen], leaves, [gradient for _, gradient in chosen], allow_unused=True)
        return [torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found)]


class Part:
    """A view that an operation wrote to, in the tensor that it is a view of: to autograd, the whole of that one is new then."""

    __slots__ = ("whole", "view")

    def __init__(self, view: torch.Tensor) -> None:
        whole = view._base
        self.whole = whole.shape, whole.stride()
        self.view = view.shape, view.stride(), view.storage_offset() - whole.storage_offset()


class PartDerivative:
    """Gradients of an operation that wrote to a part: what came for the rest of the whole goes on as it came."""

    __slots__ = ("derivative", "part")

    def __init__(self, operation: Operation) -> None:
        # Only an operation that has one comes here.
        part: Any = operation.part
        self.derivative, self.part = Derivative(operation), part

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any], gradients: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        whole = torch.empty_strided(*self.part.whole, dtype=gradients[0].dtype).copy_(gradients[0])
        written = whole.as_strided(*self.part.view)
        found = self.derivative(args, kwargs, {0: written.clone()})
        if 0 in self.derivative.wanted:
            written.copy_(found[0])
            found[0] = whole.contiguous()
        return found


class Form:
    """A contiguous tensor of this type and shape."""

    __slots__ = ("dtype", "shape", "stride", "offset", "size")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape, self.offset = tensor.dtype, torch.Size(tensor.shape), 0
        stride, strides = 1, []
        for length in reversed(self.shape):
            strides.append(stride)
            stride *= max(1, length)
        self.stride = tuple(reversed(strides))
        self.size = stride * self.dtype.itemsize if 0 not in self.shape else 0


class Gradients:
    tensor = Tensor

    def __init__(self, lineage: Lineage, true_bytes: Alias) -> None:
        self.lineage, self.true_bytes = lineage, true_bytes
        self.operations: dict[int, Operation | None] = {}
        # By nodes of the program's own functions: what comes to them, and what they will hand on.
        self.promised: dict[Node, tuple[Got, list[Slot]]] = {}
        # Leaves that the pass under way leads to, and those whose gradients a function of the program's own has written to.
        self.leaves: list[torch.Tensor] = []
        self.touched: set[int] = set()
        # A function of the program's own is run.
        self.in_own = False
        # The program has put hooks where gradients come by: they may change them.
        self.hooked = False
        self.thread = threading.get_ident()
        self._node = torch._C._current_autograd_node

    # -- the forward pass

    def before(self, number: int, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Called before an operation that autograd has made a node for, with its number."""
        if self.hooked:
            return
        if self._node() is not None or threading.get_ident() != self.thread:
            if self.in_own and any(tensor.requires_grad for tensor in flattened((*args, *kwargs.values()))):
                # A graph that another thread makes, which may be kept: its numbers are not ours.
                self.stop()
            return
        if number in self.operations and not self.is_prelude(self.operations[number], func):
            return
        wanted, forms, on_device = [], [], False
        for index, tensor in enumerate(flattened((*args, *kwargs.values()))):
            on_device |= tensor.is_cuda
            if tensor.requires_grad:
                wanted.append(index)
                forms.append(Form(tensor))
        if not wanted or not on_device:
            return
        if has_hooks_on_saved():
            # What the derivative will see is what the program's hooks make of it.
            self.operations[number] = None
            return
        part = None
        if writes_to_first(func) and isinstance(args[0], Tensor) and args[0]._is_view():
            part = Part(args[0])
            if wanted[0] == 0:
                forms[0] = Form(args[0]._base)
        self.keep(number, func, args, kwargs, wanted, forms, part=part)

    def is_prelude(self, operation: Operation | None, func: Function) -> bool:
        """Whether an operation only kept a copy of what the one after it writes to: both are of one node, that of the second."""
        return operation is not None and operation.name == "clone" and writes_to_first(func)

    def keep(
        self,
        number: int,
        func: Function,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        wanted: list[int],
        forms: list[Form],
        name: str | None = None,
        part: Part | None = None,
    ) -> None:
        inputs: dict[int, Value] = {}
        slot = lambda value: self.lineage.slot(value, inputs, self.true_bytes, {})
        try:
            slots = [slot(value) for value in args]
            named = {key: slot(value) for key, value in kwargs.items()}
        except LookupError:
            self.operations[number] = None
        else:
            cost = TIMES * self.lineage.cost(func, args, ())
            self.operations[number] = Operation(func, slots, named, tuple(inputs.values()), wanted, forms, cost, name or plain_name(func), part)
        while len(self.operations) > OPERATIONS:
            del self.operations[next(iter(self.operations))]

    def dropped_out(self, number: int, tensor: torch.Tensor, mask: torch.Tensor, scale: float) -> None:
        """Dropout, whose mask is known by its own lineage."""
        if not self.hooked and self._node() is None and tensor.requires_grad:
            self.keep(number, dropped, (tensor, mask, scale), {}, [0], [Form(tensor)], "nativedropout")

    def attended(self, func: Function, args: Sequence[Any], kwargs: dict[str, Any], out: torch.Tensor) -> None:
        """Attention that ran as one operation."""
        node = out.grad_fn
        if self.hooked or node is None or not node.name().startswith("ScaledDotProduct"):
            return
        wanted = [index for index, tensor in enumerate(flattened(args)) if tensor.requires_grad]
        forms = [Form(tensor) for tensor in flattened(args) if tensor.requires_grad]
        name = node.name().rstrip("0123456789").removesuffix("Backward").lower()
        self.keep(node._sequence_nr(), func, args, kwargs, wanted, forms, name)

    def stop(self) -> None:
        """Gradients are not followed from now on."""
        self.hooked = True
        self.operations.clear()

    def watch_hooks(self, watched: Callable[[], AbstractContextManager[None]]) -> None:
        """From now on it is noted when the program hooks itself into backward passes. What its hooks do is seen: they run within ``watched``."""

        def wrap(holder: Any, name: str) -> None:
            original = getattr(holder, name, None)
            if original is None:
                return

            @functools.wraps(original)
            def hooking(target: object, hook: Callable[..., Any], *args: object, **kwargs: object) -> object:
                if getattr(hook, OURS, False):
                    return original(target, hook, *args, **kwargs)
                self.stop()

                @functools.wraps(hook)
                def seen(*given: object, **named: object) -> object:
                    with watched():
                        return hook(*given, **named)

                return original(target, seen, *args, **kwargs)

            setattr(holder, name, hooking)

        wrap(Tensor, "register_hook")
        wrap(Tensor, "register_post_accumulate_grad_hook")
        wrap(torch.autograd.graph, "register_multi_grad_hook")
        wrap(torch.autograd.function.BackwardCFunction, "register_hook")
        wrap(torch.autograd.function.BackwardCFunction, "register_prehook")

    # -- the backward pass

    def plan(self, roots: Sequence[torch.Tensor | GradientEdge], gradients: Sequence[torch.Tensor | None], keep_graph: bool) -> Plan | None:
        """What the gradients of the leaves will be, as slots: pairs of a leaf and its gradient, None if that is not known. And what came to each node."""
        if self.hooked:
            return None
        order = topological(roots)
        coming: dict[Node, dict[int, list[Known | None]]] = {}
        came: dict[Node, Got] = {}
        leaves: list[tuple[torch.Tensor, Known | None]] = []
        for root, gradient in zip(roots, gradients):
            node, number = (root.grad_fn, root.output_nr) if isinstance(root, Tensor) else (root.node, root.output_nr)
            coming.setdefault(node, {}).setdefault(number, []).append(self.first(root, gradient))
        for node in order:
            got = {number: self.total(slots) for number, slots in coming.pop(node, {}).items()}
            came[node] = got
            if hasattr(node, "variable"):
                leaves.append((node.variable, got.get(0)))
                self.leaves.append(node.variable)
                continue
            edges = node.next_functions
            for (follower, number), slot in zip(edges, self.through(node, got, edges)):
                if follower is not None and got:
                    coming.setdefault(follower, {}).setdefault(number, []).append(slot)
            if not keep_graph and FOREIGN not in node.metadata:
                self.operations.pop(number_of(node), None)
        return leaves, came

    def first(self, root: torch.Tensor | GradientEdge, gradient: torch.Tensor | None) -> Known | None:
        """The gradient that a backward pass begins with."""
        try:
            if gradient is not None:
                return self.lineage.slot(gradient, {}, self.true_bytes, {})
            return Held(torch._VF.ones(root.shape, dtype=root.dtype, device="cpu"), None)
        except LookupError:
            return None

    def total(self, slots: Sequence[Known | None]) -> Known | None:
        if any(slot is None for slot in slots):
            return None
        total = slots[0]
        for slot in slots[1:]:
            form = total if isinstance(total, Slot) else slot
            if not isinstance(form, Slot):
                return None
            made = self.node(torch.ops.aten.add.Tensor, (total, slot), (total, slot), [form], 0.0)
            if made is None:
                return None
            (total,) = made
        return total

    def through(self, node: Node, got: Got, edges: Edges) -> Sequence[Known | None]:
        """The gradients that a node hands on."""
        unknown: list[Known | None] = [None] * len(edges)
        if not got or any(slot is None for slot in got.values()) or FOREIGN in node.metadata:
            return unknown
        if is_own(node):
            return self.promise(node, got, edges)
        operation = self.operations.get(number_of(node))
        if operation is None:
            return unknown
        derivative: Derivative | PartDerivative
        if node.name() == WROTE_TO_PART:
            if operation.part is None:
                return unknown
            derivative = PartDerivative(operation)
        else:
            name = node.name().rstrip("0123456789").removesuffix("Backward").lower()
            if OTHER_NAMES.get(name, name) != operation.name:
                return unknown
            derivative = Derivative(operation)
        wanted = [index for index, (follower, _) in enumerate(edges) if follower is not None]
        shapes = [torch.Size(edges[index][0]._input_metadata[edges[index][1]].shape) for index in wanted]
        if shapes != [form.shape for form in operation.forms]:
            return unknown
        given = (operation.args, operation.kwargs, got)
        made = self.node(derivative, given, (*operation.inputs, *got.values()), operation.forms, operation.cost)
        if made is not None:
            for index, slot in zip(wanted, made):
                unknown[index] = slot
        return unknown

    def promise(self, node: Node, got: Got, edges: Edges) -> list[Slot | None]:
        """What a function of the program's own will hand on, once it has."""
        promises = [self.lineage.promise(Form(follower._input_metadata[number])) if follower is not None else None for follower, number in edges]
        self.promised[node] = got, [promise for promise in promises if promise is not None]
        return promises

    def run_own(self, values: Values, run: Callable[..., Any], node: Node, gradients: Sequence[Any]) -> Any:
        """Runs the backward pass of a function of the program's own: what comes to it is known, if it is, and what it does is seen."""
        got, promises = self.promised.pop(node, ({}, []))
        if not all(is_plain(gradient) for gradient in gradients):
            # Batched, by functorch: they have no storage of their own.
            return run(node, *gradients)
        bound = []
        for number, gradient in enumerate(gradients):
            if number in got and isinstance(gradient, Tensor) and not values.is_followed(gradient):
                self.arrived(*self.without_expansion(gradient, got[number]))
                bound.append(gradient)
        before, nested = [self.state_of(leaf) for leaf in self.leaves], self.in_own
        self.in_own = True
        try:
            with values.on():
                found = run(node, *gradients)
        finally:
            self.in_own = nested
            self.touched.update(id(leaf) for leaf, state in zip(self.leaves, before) if self.state_of(leaf) != state)
        handed = [one for one, needed in zip(found if isinstance(found, tuple) else (found,), node.needs_input_grad) if needed]
        if len(handed) == len(promises):
            for promise, gradient in zip(promises, handed):
                self.lineage.keep_promise(promise, self.known(gradient))
        # Others may be added to them where they lie, which nobody sees.
        for gradient in (*bound, *handed):
            if isinstance(gradient, Tensor) and is_plain(gradient):
                self.lineage.forget(gradient)
        return found

    def end_of_pass(self) -> None:
        self.promised.clear()
        self.leaves.clear()
        self.touched.clear()

    def state_of(self, leaf: torch.Tensor) -> object:
        """Which gradient a leaf has, and what is known to be in it."""
        gradient = leaf.grad
        if gradient is None or not is_plain(gradient):
            return gradient is None
        entry = self.lineage.entry(gradient)
        return id(gradient), gradient._version, entry and id(entry.value)

    def without_expansion(self, tensor: torch.Tensor, slot: Known | None) -> tuple[torch.Tensor, Known | None]:
        """One number that stands for many, as the gradient of a sum is, by that number."""
        if tensor.dim() == 0 or any(tensor.stride()) or tensor.untyped_storage().nbytes() != tensor.element_size() or slot is None:
            return tensor, slot
        one = tensor.as_strided((1,), (1,), 0)
        made = self.node(first_of, (slot,), (slot,), [Form(one)], 0.0)
        return one, made[0] if made else None

    def known(self, gradient: object) -> Slot | None:
        if not isinstance(gradient, Tensor) or not is_plain(gradient):
            return None
        entry = self.lineage.entry(gradient)
        if entry is not None and entry.value is not None and entry.value.node is not None and entry.value.node.func is None:
            # Memory that nothing was seen to write to: a kernel that no mode sees did.
            return None
        try:
            slot = self.lineage.slot(gradient, {}, self.true_bytes, {})
        except LookupError:
            return None
        return slot if isinstance(slot, Slot) else None

    def mark_foreign(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """The nodes of a graph that a backward pass made: another thread did, which counts for itself, so that their numbers are not ours."""
        left = [tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None]
        while left:
            metadata, node = left[-1].metadata, left.pop()
            if SEEN not in metadata and FOREIGN not in metadata:
                metadata[FOREIGN] = True
                left.extend(follower for follower, _ in node.next_functions if follower is not None)

    def node(self, func: Function, args: Sequence[Any], inputs: Iterable[Known | Value | None], forms: Sequence[Form | Slot], cost: float) -> list[Slot] | None:
        values: dict[int, Any] = {id(value): value for value in (one.value if isinstance(one, Slot) else one for one in inputs) if not isinstance(value, (Held, Sparse))}
        return self.lineage.derive(func, args, tuple(values.values()), forms, cost)

    def arrived(self, tensor: torch.Tensor, slot: Known | None, old: Known | None = None) -> None:
        """A gradient is in its tensor now. ``old``: what was there before, to which it was added."""
        if slot is not None and old is not None:
            slot = self.total([old, slot])
        if tensor.layout is not torch.strided or tensor.is_nested:
            return
        if slot is None or tensor.shape != (slot.shape if isinstance(slot, Slot) else slot.tensor.shape):
            self.lineage.forget(tensor)
            return
        self.lineage.bind(tensor, slot)

    def before_accumulating(self, leaves: Iterable[tuple[torch.Tensor, Known | None]]) -> Got:
        """What the leaves have already, to which their gradients will be added."""
        found = {}
        for variable, _ in leaves:
            if variable.grad is not None:
                # A sparse one is not followed.
                try:
                    found[id(variable)] = self.lineage.slot(variable.grad, {}, self.true_bytes, {})
                except LookupError:
                    found[id(variable)] = None
        return found


def first_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[:1].clone()


def is_plain(value: object) -> bool:
    """Whether it is no tensor, or one with a storage of its own: those of vmap have none."""
    if not isinstance(value, Tensor):
        return True
    if type(value) not in (Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_nested:
        return False
    try:
        value.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def has_hooks_on_saved() -> bool:
    """Whether the program changes what operations keep for their derivatives. PyTorch's own hooks (checkpoints, copies on the host) give back what they got."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks: Any = top(True) if top is not None else None
    return bool(hooks) and not getattr(hooks[0], "__module__", "").startswith("torch.")


def is_own(node: Node) -> bool:
    """Whether a node is a function of the program's own, or of a library that is not PyTorch."""
    return isinstance(node, torch.autograd.function.BackwardCFunction) and not type(node)._forward_cls.__module__.startswith("torch.")


def number_of(node: Node) -> int:
    """The number of the operation that made a node. One that wrote to a part made two: its own, and that of the whole, which is in the graph."""
    return node._sequence_nr() - (node.name() == WROTE_TO_PART)


@functools.cache
def writes_to_first(func: Function) -> bool:
    """Whether an operation writes to its first argument alone."""
    arguments = func._schema.arguments if hasattr(func, "_schema") else ()
    return [index for index, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write] == [0]


@functools.cache
def plain_name(func: OpOverload) -> str:
    return func._schema.name.split("::")[1].replace("_", "").lower()


def topological(roots: Sequence[torch.Tensor | GradientEdge]) -> list[Node]:
    """All nodes that lead to leaves, each after all those that hand it a gradient."""
    first = [root.grad_fn if isinstance(root, Tensor) else root.node for root in roots]
    waits: dict[Node, int] = {}
    seen: set[Node] = set()
    left = [node for node in first if node is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        for follower, _ in node.next_functions:
            if follower is not None:
                waits[follower] = waits.get(follower, 0) + 1
                left.append(follower)
    order: list[Node] = []
    ready = [node for node in dict.fromkeys(first) if node is not None and not waits.get(node)]
    while ready:
        node = ready.pop()
        order.append(node)
        for follower, _ in node.next_functions:
            if follower is not None:
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
    return order
