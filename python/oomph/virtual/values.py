"""Keeps true what a program computes to steer itself.

Small tensors of integers and booleans (lengths, masks, positions, token ids) and tiny tensors of floats (a loss
scale) have their true bytes on the virtual GPU. Each operation on them is done once more on the CPU, over the very
bytes that stand for device memory, so that what the program reads back is right. PyTorch's own operation runs all the
same, because its allocations are what is measured.

Of larger tensors only how they came about is kept (``lineage``), and they are computed when the program reads them: always where
that is quick, and where something is decided by it as long as there is time.

Where a value cannot be had and the program only selects by it (argmax, topk, multinomial), a
choice is drawn at random within its range; where a size depends on it (nonzero), the largest or the least is taken; each is noted.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import gradients as _gradients
from . import lineage as _lineage
from . import philox as _philox
from . import reads as _reads
from .library_code import is_installed, is_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from torch._ops import OpOverload

    from .backward import Backward
    from .lineage import Drawn, Entry, Function, Value, Write

    # VIEW, MAKES, or what is written to (a list of ``Write``). They are told apart by ``is``, which no type follows.
    Schema = Any
    # What is called in the place of an operation.
    Handler = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]

Tensor = torch.Tensor

INTEGERS = 1 << 20
FLOATS = 4096
IDLE = 1 << 14
BIG_FILL = 1 << 16
GENERATOR_STATE = 5056
# Storages up to this many bytes have their true bytes at the device's address (TRUE_BYTES of the virtual card).
TRUE_BYTES = 4 << 20
# What a read is for: to be printed, most likely; to be counted or looked up, as accuracies are, but lengths too; to decide.
SHOWN, COUNTED, DECIDES = range(3)
# Seconds that one of the first two may take, and all of its kind together. What decides may take all that there is.
LIMITS = {SHOWN: (0.1, 2.0), COUNTED: (3.0, 15.0)}

VIEW, WRITES, MAKES = range(3)


class Values(TorchDispatchMode):
    """The mode that sees every operation."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(
        self,
        library: ctypes.CDLL,
        reads: _reads.Reads,
        backward: Backward,
        bytes: int = 2 << 30,
        seconds: float = 60,
        least: bool = False,
        patient: bool = False,
        plain: bool = False,
    ) -> None:
        """``bytes`` of host memory and ``seconds``: what values may take. ``least``: sizes that are not known are taken to be the least, not the most.
        ``patient``: whatever is read is worth its time, not only what something is decided by, and weights are drawn. ``plain``: ``item()`` gives numbers of the plain types, which do not say where they decide."""
        super().__init__()
        self.library, self.reads, self.backward = library, reads, backward
        self.lineage = _lineage.Lineage(bytes, seconds, self.draw_like_the_card)
        self.gradients = _gradients.Gradients(self.lineage, self.true_bytes)
        self.least, self.patient, self.plain_numbers = least, patient, plain
        self.took = {SHOWN: 0.0, COUNTED: 0.0}
        # Whether the read under way is that of item(), whose number may only be printed.
        self.asks_item = False
        # Whether anything on the card was read so far, by the program or by an operation that needs to know a size.
        self.has_read = False
        self.is_paused = False
        # Hears of every operation that was run, if somebody counts.
        self.account: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], object] | None = None
        self.all_true: dict[int, _lineage.StorageWeakRef] = {}
        self.unknown_read: _reads.Place | None = None
        self.unknown_why = ""
        # What would compute the value that was read last, if there is a way.
        self.later: _reads.Later | None = None
        self.ways_to_count: dict[tuple[str, torch.dtype], Callable[[int], int] | None] = {}
        self.generator = torch.Generator()
        self.generator.manual_seed(0x6F6F6D)
        self.schemas: dict[OpOverload, Schema] = {}
        self.composite: dict[OpOverload, bool] = {}
        self.seeded: dict[OpOverload, bool] = {}
        # Seed and offset of the random numbers that the operation draws which is under way.
        self.drawn: Drawn | None = None
        self.card: dict[int, tuple[int, int]] = {}
        # Operations are captured into a graph, and not run.
        self.capturing = False
        self.captured: set[int] = set()
        self.copies = _lineage.operations("_to_copy", "copy_")
        # What these read says whether something went wrong (zero, nothing did), or decides over values only.
        self.check_only = _lineage.operations(
            "_linalg_check_errors", "_assert_async", "linalg_cholesky_ex", "linalg_inv_ex",
            "_linalg_svd", "_linalg_eigh", "linalg_lstsq", "histc",
        )  # fmt: skip
        self.handlers: dict[OpOverload, Handler] = {}
        handle = lambda names, handler: self.handlers.update(dict.fromkeys(_lineage.operations(*names), handler))
        handle(["_local_scalar_dense"], self.read_scalar)
        handle(["nonzero", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc"], self.count_nonzero)
        handle(["masked_select"], self.select_masked)
        handle(["index", "_unsafe_index", "index_put_", "index_put", "_index_put_impl_"], self.index_by_mask)
        handle(["repeat_interleave"], self.repeat)
        handle(["_unique2", "unique_consecutive", "unique_dim", "_unique"], self.unique)
        handle(["bincount"], self.count_bins)
        handle(["_coalesce"], self.coalesce)
        handle(["argmax", "argmin", "topk", "sort", "argsort", "max", "min", "multinomial", "kthvalue"], self.choose)
        handle(["isnan", "isinf", "isfinite"], self.healthy)
        handle(["eq", "ne"], self.compare)
        handle(["mul", "logical_and", "bitwise_and"], self.both)
        handle(["all"], self.all_of)
        handle(["_nested_tensor_from_mask"], self.nest)
        handle(["_nested_tensor_from_mask_left_aligned"], self.is_left_aligned)
        handle(["linalg_eig", "linalg_eigvals", "_linalg_eigvals", "normal"], self.check_sound)
        handle(["_amp_foreach_non_finite_check_and_unscale_"], self.unscale)
        handle(["_amp_update_scale_"], self.update_scale)
        handle(["normal_", "uniform_", "erfinv_"], self.fill_at_random)
        handle(["equal"], self.compare_all)
        handle(["lift_fresh", "lift"], self.from_python)
        collectives = {
            "allgather_": self.gather,
            "_allgather_base_": self.gather_base,
            "allreduce_": self.keep,
            "broadcast_": self.keep,
            "barrier": self.keep,
        }
        for name, handler in collectives.items():
            self.handlers.update(dict.fromkeys(_lineage.operations(name, namespace="c10d"), handler))

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Without this mode, where it is the innermost."""
        modes = torch.utils._python_dispatch
        stack = modes._get_current_dispatch_mode_stack()
        if not stack or stack[-1] is not self:
            yield
            return
        modes._pop_mode()
        try:
            yield
        finally:
            modes._push_mode(self)
            self.library.oomph_guessed()  # not what the next operation reads

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is followed meanwhile, in backward passes and their recomputations neither. For what is known to read nothing: it takes less than half of the time."""
        before, self.is_paused = self.is_paused, True
        self.library.oomph_guessed()
        try:
            with self.off():
                try:
                    yield
                finally:
                    self.note_reads()
        finally:
            self.is_paused = before

    def note_reads(self) -> None:
        """Where nothing is followed, the card says that something was read: it has answered with zeros."""
        self.has_read = bool(self.library.oomph_guessed()) or self.has_read

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """With this mode, if it is not there."""
        if self.is_paused or self in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            yield
            return
        with self:
            yield

    # -- what every operation goes through

    def __torch_dispatch__(self, func: Function, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        # Subclasses (DTensor, fake tensors) have their own ways; what they do inside comes without this mode.
        for kind in types:
            if kind is not Tensor and kind is not torch.nn.Parameter:
                return self.accounted(func, args, kwargs, self.of_subclass(func, args, kwargs))
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if self.is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.backward.operation()
        if torch.is_grad_enabled():
            if self.is_seeded(func):
                # Its derivative would draw again. That of dropout is known by its mask.
                self.gradients.operations.setdefault(self.backward.number, None)
            else:
                self.gradients.before(self.backward.number, func, args, kwargs)
        if self.capturing:
            return self.forget(func, args, kwargs, func(*args, **kwargs), self.schema(func), "it was captured into a graph")
        self.drawn = self.before_draw(args, kwargs) if self.is_seeded(func) else None
        handler = self.handlers.get(func)
        if handler is not None:
            out = handler(func, args, kwargs)
            self.library.oomph_guessed()  # what handlers read, they know about
        else:
            out = self.plain(func, args, kwargs)
        return self.accounted(func, args, kwargs, out)

    def accounted(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        if self.account is not None:
            self.account(func, args, kwargs, out)
        return out

    def is_composite(self, func: OpOverload) -> bool:
        """Whether it consists of other operations. Of inference's tensors it comes here whole, and its schema says nothing of what it does."""
        known = self.composite.get(func)
        if known is None:
            known = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd") and func not in self.handlers
            self.composite[func] = known
        return known

    def of_subclass(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        schema = self.schema(func) if isinstance(func, torch._ops.OpOverload) else MAKES
        for target in self.lineage.targets(args, kwargs, schema if type(schema) is list else ()):
            names = target.__tensor_flatten__()[0] if hasattr(target, "__tensor_flatten__") else ("_local_tensor",)
            for inside in (getattr(target, name, None) for name in names):
                if type(inside) is Tensor:
                    self.unlearn(inside, "it is inside of a tensor of another kind")
        return out

    def is_seeded(self, func: OpOverload) -> bool:
        known = self.seeded.get(func)
        if known is None:
            known = self.seeded[func] = torch.Tag.nondeterministic_seeded in func.tags
        return known

    def before_draw(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Drawn | None:
        """Where the card's generator is; None if it is not the card that draws."""
        values = (*args, *kwargs.values())
        device = next((one.device for one in values if isinstance(one, Tensor) and one.is_cuda), kwargs.get("device"))
        if device is None or torch.device(device).type != "cuda":
            return None
        torch.cuda._lazy_init()
        device = torch.device(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = next((one for one in values if isinstance(one, torch.Generator)), torch.cuda.default_generators[index])
        try:
            return (*_philox.state(generator), index)
        except Exception:  # while a graph is captured
            return None

    def draw_like_the_card(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], out: Any, drawn: Drawn) -> Any:
        """Arguments are on the CPU, the answer too; None if this PyTorch's kernels are not followed."""
        seed, offset, index = drawn
        if index not in self.card:
            properties = torch.cuda.get_device_properties(index)
            self.card[index] = properties.multi_processor_count, properties.max_threads_per_multi_processor
        result = _philox.draw(func, args, kwargs, out, seed, offset, *self.card[index])
        if result is None or "dropout" not in func._schema.name:
            return result
        (tensor, rate, *_), mask = args, result[1]
        return _gradients.dropped(tensor, mask, _scale(rate)), mask

    def plain(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = self.schema(func)
        if type(schema) is list:
            self.before_write(func, args, kwargs, schema)
        out = func(*args, **kwargs)
        if self.lineage.undrawn:
            results = self.lineage.targets(args, kwargs, schema) if type(schema) is list else out if isinstance(out, (list, tuple)) else (out,)
            self.lineage.spread_undrawn(args, kwargs, list(results))
        if func.namespace in ("c10d", "_c10d_functional"):
            # Their schemas do not say what they write to.
            return self.unlearn_all(args, kwargs, out)
        guessed = self.library.oomph_guessed()
        if func in self.copies:
            self.has_read = self.has_read or (isinstance(out, Tensor) and not out.is_cuda and any(isinstance(one, Tensor) and one.is_cuda for one in args))
        elif guessed and func not in self.check_only:
            self.has_read = True
            self.reads.note(_reads.SIZE, f"{func._schema.name} reads a number that its own kernels would have computed")
        # FSDP makes thousands without an element: one for each rank that gets nothing of a parameter.
        if schema is VIEW or (func is torch.ops.aten.new_empty.default and out.numel() == 0):
            return out
        if self.computable(args, kwargs, out):
            return self.compute(func, args, kwargs, out, schema)
        return self.follow(func, args, kwargs, out, schema)

    def unlearn_all(self, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> Any:
        for tensor in _lineage.flattened((*args, *kwargs.values(), out)):
            self.unlearn(tensor)
        return out

    def is_followed(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and not tensor.is_nested and self.lineage.is_pending_or_known(tensor)

    def before_write(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], schema: Iterable[Write]) -> None:
        for target in self.lineage.targets(args, kwargs, schema):
            if isinstance(target, Tensor) and not target.is_cuda and target.layout is torch.strided and not target.is_nested and target.device.type == "cpu":
                self.lineage.before_host_write(func, target)

    def schema(self, func: OpOverload) -> Schema:
        kind = self.schemas.get(func)
        if kind is None:
            schema = func._schema
            writes = [(index, argument.name) for index, argument in enumerate(schema.arguments) if argument.alias_info is not None and argument.alias_info.is_write]
            aliased = any(value.alias_info is not None for value in schema.returns)
            # Some of those that write in place write a shape only.
            kind = VIEW if torch.Tag.inplace_view in func.tags else writes or (VIEW if aliased else MAKES)
            self.schemas[func] = kind
        return kind

    # -- which bytes are true

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the bytes at its address are the true ones."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return False
        entry = self.lineage.entry(tensor)
        return entry is not None and entry.true

    def learn(self, tensor: torch.Tensor) -> None:
        entry = self.lineage.entry_for(tensor)
        entry.true, entry.made_up = True, False
        self.lineage.put(entry, None)

    def unlearn(self, tensor: torch.Tensor, why: str | None = None) -> None:
        if tensor.is_cuda and tensor.layout is torch.strided and not tensor.is_nested:
            self.lineage.forget(tensor, why)
            self.all_true.pop(tensor.untyped_storage()._cdata, None)
            if self.capturing:
                self.captured.add(tensor.untyped_storage()._cdata)

    def value_of(self, tensor: torch.Tensor, purpose: int = DECIDES) -> torch.Tensor | None:
        """The same tensor on the CPU with its true values; None if they cannot be had."""
        if not tensor.is_cuda:
            return tensor
        self.has_read = True
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
            return None
        # There is one wherever bytes were computed.
        entry: Any = self.lineage.entry(tensor)
        if entry is not None and entry.true:
            self.note_made_up(entry, purpose)
            return self.alias(tensor)
        flat = self.compute_bytes(entry.value, purpose) if entry is not None and entry.value is not None else None
        if flat is None:
            return None
        self.note_made_up(entry.value, purpose)
        true = _lineage.view(flat, _lineage.Slot(None, tensor))
        storage = tensor.untyped_storage()
        if entry.value is not None and entry.value.flat is flat and 0 < storage.nbytes() <= TRUE_BYTES and self.small(tensor):
            ctypes.memmove(storage.data_ptr(), flat.data_ptr(), storage.nbytes())
            entry.true, entry.made_up = True, entry.value.made_up
        return true

    def note_made_up(self, what: Entry | Value, purpose: int) -> None:
        if what.made_up and purpose is DECIDES:
            self.reads.note(_reads.BRANCH, "it follows from a choice among what is not known, which was drawn")

    def limit(self) -> float:
        """Seconds for a read that decides: half of what is left, so that one does not take all."""
        budget = self.lineage.budget
        return (budget.seconds - budget.spent) / 2

    def spent(self) -> dict[str, float]:
        """What values took: bytes of host memory at most, and seconds."""
        budget = self.lineage.budget
        return {"bytes": budget.most, "seconds": round(budget.spent, 3)}

    def compute_bytes(self, value: Value, purpose: int) -> torch.Tensor | None:
        budget, limit = self.lineage.budget, self.limit()
        if purpose is not DECIDES and not self.patient:
            one, all_of_them = LIMITS[purpose]
            limit = min(one, all_of_them - self.took[purpose], limit)
        spent = budget.spent
        flat = self.lineage.compute_value(value, limit) if limit > 0 else value.flat
        if purpose is not DECIDES:
            self.took[purpose] += budget.spent - spent
        return flat

    @staticmethod
    def small(tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and not tensor.is_nested and tensor.numel() <= (FLOATS if tensor.is_floating_point() or tensor.is_complex() else INTEGERS)

    def computable(self, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
        """Whether all that goes in is known, and what comes out is small."""
        device = False
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor):
                    if tensor.is_cuda:
                        device = True
                        if not self.small(tensor) or not self.is_known(tensor) or tensor.is_conj() or tensor.is_neg():
                            return False
                    elif not self.small(tensor):
                        return False
        results = out if isinstance(out, (list, tuple)) else (out,)
        for tensor in results:
            if isinstance(tensor, Tensor):
                if tensor.is_cuda:
                    device = True
                if not self.small(tensor):
                    return False
        return device

    def alias(self, tensor: Any) -> Any:
        """The same bytes as a tensor of the CPU."""
        if not isinstance(tensor, Tensor) or not tensor.is_cuda:
            return tensor
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if size == 0:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        data = (ctypes.c_char * size).from_address(storage.data_ptr())
        flat = torch.frombuffer(data, dtype=torch.uint8)
        return torch._VF.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())

    def on_cpu(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.alias(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self.on_cpu(part) for part in value) if type(value) in (list, tuple) else value
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return self.generator
        return value

    def is_idle(self, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> bool:
        """Whether it is large and follows from a choice that was drawn, as the routes of experts do: it is worth its time only if somebody reads it."""
        results = out if isinstance(out, (list, tuple)) else (out,)
        if not all(isinstance(one, Tensor) and one.is_cuda for one in results) or max((one.numel() for one in results), default=0) < IDLE:
            return False
        entries = (self.lineage.entry(one) for one in _lineage.flattened((*args, *kwargs.values())) if one.is_cuda and one.layout is torch.strided)
        return any(entry is not None and entry.made_up for entry in entries)

    def compute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, schema: Schema) -> Any:
        if schema is MAKES and self.is_idle(args, kwargs, out):
            return self.follow(func, args, kwargs, out, schema)
        try:
            with torch.no_grad():
                arguments = {name: self.on_cpu(value) for name, value in kwargs.items() if name != "pin_memory"}
                if self.is_seeded(func):
                    result = self.random_result(func, self.on_cpu(args), arguments, out, schema)
                    if result is None:
                        return self.forget(func, args, kwargs, out, schema, "random numbers of the card")
                else:
                    result = func(*self.on_cpu(args), **arguments)
        except Exception:  # no such operation on the CPU
            return self.follow(func, args, kwargs, out, schema)
        if schema is not MAKES:
            # Written through the alias; what was written over is known if all of it was small.
            return self.marked(args, kwargs, self.written(args, kwargs, out, schema), schema)
        if not isinstance(out, (list, tuple)):
            out, result, single = (out,), (result,), True
        else:
            single = False
        kept = []
        for made, true in zip(out, result):
            if isinstance(made, Tensor):
                if made.shape != true.shape:
                    self.unlearn(made)
                elif made.is_cuda:
                    self.alias(made).copy_(true)
                    self.learn(made)
                else:
                    made.copy_(true)
                kept.append(made)
            else:
                kept.append(true)
        self.marked(args, kwargs, out, schema)
        self.after_dropout(func, args, out)
        return kept[0] if single else type(out)(kept) if type(out) in (list, tuple) else out

    def random_result(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, schema: Schema) -> Any:
        if self.drawn is None:
            return None
        result = self.draw_like_the_card(func, args, kwargs, out, self.drawn)
        if result is not None and schema is not MAKES:
            args[0].copy_(result)
        return result

    def marked(self, args: Sequence[Any], kwargs: dict[str, Any], out: Any, schema: Schema) -> Any:
        """What follows from what was made up is made up."""
        entries = [self.lineage.entry(one) for one in _lineage.flattened((*args, *kwargs.values())) if one.is_cuda and one.layout is torch.strided]
        if any(entry is not None and entry.made_up for entry in entries):
            made = out if isinstance(out, (list, tuple)) else (out,)
            for tensor in made if schema is MAKES else self.lineage.targets(args, kwargs, schema):
                if isinstance(tensor, Tensor) and tensor.is_cuda and self.is_known(tensor):
                    known: Any = self.lineage.entry(tensor)
                    known.made_up = True
        return out

    def written(self, args: Sequence[Any], kwargs: dict[str, Any], out: Any, writes: Iterable[Write]) -> Any:
        for index, name in writes:
            target = args[index] if index < len(args) else kwargs.get(name)
            for tensor in target if isinstance(target, (list, tuple)) else (target,):
                # A part of a larger tensor that is not known leaves it so.
                if isinstance(tensor, Tensor) and tensor.is_cuda:
                    if _lineage.is_whole(tensor):
                        self.learn(tensor)
        return out

    def follow(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, schema: Schema) -> Any:
        """Keeps how the results came about. What goes to the host is computed now."""
        if not any(one.is_cuda for one in _lineage.flattened((*args, *kwargs.values(), out))):
            return out
        if func in self.copies:
            source, target = (args[0], out) if schema is MAKES else (args[1], args[0])
            if isinstance(target, Tensor) and not target.is_cuda and isinstance(source, Tensor) and source.is_cuda:
                return self.to_host(source, target, out)
        if self.is_seeded(func) and (self.drawn is None or not _philox.follows(func)):
            return self.forget(func, args, kwargs, out, schema, "random numbers of the card")
        self.lineage.record(func, args, kwargs, out, [] if schema is MAKES else schema, schema is MAKES, self.true_bytes, self.drawn)
        self.after_dropout(func, args, out)
        return out

    def after_dropout(self, func: OpOverload, args: tuple[Any, ...], out: Any) -> None:
        if self.drawn is not None and "dropout" in func._schema.name and torch.is_grad_enabled():
            self.gradients.dropped_out(self.backward.number, args[0], out[1], _scale(args[1]))

    def follow_attention(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: torch.Tensor) -> torch.Tensor:
        """What was run as a whole, without this mode."""
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = {**dict(zip(names, args)), **kwargs}
        positional = [given.pop(name, default) for name, default in zip(names[:6], (None, None, None, None, 0.0, False))]
        if not out.is_cuda:
            return out
        if positional[4]:
            return self.forget(None, args, kwargs, out, MAKES, "random numbers of the card")
        attention = torch.ops.aten.scaled_dot_product_attention.default
        self.gradients.attended(attention, positional, given, out)
        return self.lineage.record(attention, positional, given, out, [], True, self.true_bytes)

    def true_bytes(self, storage: torch.UntypedStorage) -> torch.Tensor:
        data = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()) if storage.nbytes() else b""
        return torch.frombuffer(data, dtype=torch.uint8) if storage.nbytes() else _lineage.blank(0)

    def to_host(self, source: torch.Tensor, target: torch.Tensor, out: Any) -> Any:
        if not target.numel():
            return out
        few = not target.is_floating_point() and not target.is_complex() and target.numel() <= FLOATS
        true = self.value_of(source, COUNTED if few else SHOWN)
        if true is None:
            self.copied(target, self.why(source))
        else:
            with torch.no_grad():
                target.copy_(true)
        return out

    def forget(self, func: OpOverload | None, args: Sequence[Any], kwargs: dict[str, Any], out: Any, schema: Schema, why: str | None = None) -> Any:
        if schema is MAKES:
            for tensor in out if isinstance(out, (list, tuple)) else (out,):
                if isinstance(tensor, Tensor) and tensor.is_cuda:
                    for part in _lineage.parts(tensor) or ():
                        self.unlearn(part, why)
            return out
        for tensor in self.lineage.targets(args, kwargs, () if schema is VIEW else schema):
            if isinstance(tensor, Tensor):
                self.unlearn(tensor, why)
        return out

    def copied(self, tensor: torch.Tensor, why: str) -> None:
        """Floats on the CPU are mostly logged; a few integers are mostly lengths or choices."""
        counts = not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= FLOATS
        what = _reads.SIZE if counts else _reads.READ
        self.reads.note(what, f"values that only a GPU would have computed are copied to the CPU{why}")

    @staticmethod
    def from_device(args: Iterable[Any]) -> bool:
        return any(isinstance(value, Tensor) and value.is_cuda for value in args)

    # -- reads

    def read_scalar(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        func = functools.partial(_as_int64, func)
        value = func(tensor)
        if not tensor.is_cuda:
            return value
        # A boolean decides. A float is a loss, mostly, and a whole number that item() gives is a count: what they decide by being compared is computed then.
        purpose = SHOWN if isinstance(value, (float, complex)) else COUNTED if self.asks_item and not isinstance(value, bool) else DECIDES
        true = self.value_of(tensor, purpose)
        if true is not None:
            entry: Any = self.lineage.entry(tensor)
            if purpose is not DECIDES and (entry.made_up or (entry.value is not None and entry.value.made_up)):
                # Only what is decided by it is in doubt.
                self.unknown_read, self.unknown_why, self.later = _reads.calling_line(), "", None
            return func(true)
        self.later = self.computed_later(func, tensor)
        self.unknown_read, self.unknown_why = _reads.calling_line(), self.why(tensor)
        self.reads.note(_reads.READ, f"a value that only a GPU would have computed{self.unknown_why}", self.unknown_read)
        if isinstance(value, bool):
            # Distributions ask whether their arguments are valid.
            return _reads.asked_by("/torch/distributions/")
        # Numbers that programs live with: a loss of 1 has a logarithm, a length of 1 is a length.
        return type(value)(1)

    def computed_later(self, func: Callable[[torch.Tensor], _reads.Scalar], tensor: torch.Tensor) -> _reads.Later | None:
        entry = self.lineage.entry(tensor)
        if entry is None or entry.value is None or entry.value.lost is not None:
            return None
        value, form = entry.value, _lineage.Slot(None, tensor)

        def compute() -> _reads.Scalar | None:
            flat = self.compute_bytes(value, DECIDES)
            return None if flat is None else _reads.without_sign(func(_lineage.view(flat, form)), tensor.dtype)

        return compute

    def from_python(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """torch.tensor(..., device="cuda") copies where no mode sees it, and then shows the result."""
        out = func(*args, **kwargs)
        if out.is_cuda and self.small(out):
            self.learn(out)
        elif out.is_cuda:
            self.unlearn(out, "it was made from Python's numbers where nobody sees it")
        return out

    def compare_all(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = func(*args, **kwargs)
        if not self.from_device(args):
            return value
        both = [self.value_of(tensor) for tensor in args[:2]]
        if all(tensor is not None for tensor in both):
            return func(*both)
        self.reads.note(_reads.BRANCH, "tensors that are not known are compared")
        return value

    # -- sizes that depend on values

    def scripted(self, counts: Iterable[int], func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation whose own kernel would have counted."""
        for count in counts:
            self.library.oomph_script_read(count)
        try:
            return func(*args, **kwargs)
        finally:
            self.library.oomph_end_script()

    def open_size(self, what: str, tensor: torch.Tensor, least: int, most: int) -> int:
        """A size that hangs on values that cannot be had: it is said, and one end of the range is taken."""
        self.reads.open_sizes += least != most
        taken = "as few" if self.least else "as many"
        self.reads.note(_reads.SIZE, f"{what}: how many is not known, {taken} as there can be are taken{self.why(tensor)}")
        return least if self.least else most

    def why(self, tensor: torch.Tensor) -> str:
        """Why its value could not be had, in brackets."""
        entry = self.lineage.entry(tensor) if tensor.layout is torch.strided and not tensor.is_nested else None
        if entry is None or entry.value is None:
            return ""
        self.reads.more_helps |= entry.value.lost in (None, _lineage.FULL, _lineage.UNDRAWN)
        if entry.value.lost is None:
            return " (it would take more than --values-seconds allows)"
        return f" ({entry.value.lost})"

    def count_of(self, tensor: torch.Tensor, what: str) -> int:
        """How many elements are not zero."""
        true = self.value_of(tensor)
        if true is not None:
            return int(torch.count_nonzero(true))
        return self.open_size(what, tensor, 0, tensor.numel())

    def count_nonzero(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not tensor.is_cuda:
            return func(*args, **kwargs)
        out = self.scripted([self.count_of(tensor, "nonzero")], func, args, kwargs)
        return self.finish(func, args, kwargs, out)

    def select_masked(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args[0].is_cuda:
            return func(*args, **kwargs)
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        count = self.count_of(args[1], "masked_select")
        count *= max(1, shape.numel() // max(1, args[1].numel()))
        out = self.scripted([count], func, args, kwargs)
        return self.finish(func, args, kwargs, out)

    def index_by_mask(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        masks = [index for index in args[1] if isinstance(index, Tensor) and index.is_cuda and index.dtype in (torch.bool, torch.uint8)]
        if not masks or not args[0].is_cuda or _fills(func, *args, **kwargs):
            return self.plain(func, args, kwargs)
        counts = [self.count_of(mask, "boolean index") for mask in masks]
        self.backward.remember_counts(counts)
        if "put" in func._schema.name and isinstance(args[2], Tensor) and args[2].dim() > 0:
            # The values say how many there are, whatever was assumed of the mask.
            counts = [args[2].shape[0] if args[2].shape[0] > 1 else counts[0]] * len(counts)
        out = self.scripted(counts, func, args, kwargs)
        return self.finish(func, args, kwargs, out)

    def repeat(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        repeats = args[0]
        if not isinstance(repeats, Tensor) or not repeats.is_cuda or kwargs.get("output_size") is not None:
            return self.plain(func, args, kwargs)
        true = self.value_of(repeats)
        if true is not None:
            total = int(true.sum())
        else:
            self.reads.note(_reads.SIZE, "repeat_interleave: how often is not known, once is taken")
            total = repeats.numel()
        # After the total it reads whether none is negative.
        return self.finish(func, args, kwargs, self.scripted([total, 1], func, args, kwargs))

    def unique(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not tensor.is_cuda:
            return func(*args, **kwargs)
        true = self.value_of(tensor)
        along = 0 if "dim" not in func._schema.name else args[1]
        if true is not None:
            count = func(true, *args[1:], **kwargs)[0].shape[along]
        else:
            most = tensor.numel() if tensor.dim() < 2 or "dim" not in func._schema.name else tensor.shape[along]
            count = self.open_size("unique", tensor, min(1, most), most)
        return self.finish(func, args, kwargs, self.scripted([count], func, args, kwargs))

    def coalesce(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Sparse gradients: as many rows stay as there are different indices."""
        tensor = args[0]
        if not tensor.is_cuda:
            return func(*args, **kwargs)
        indices = tensor._indices()
        true = self.value_of(indices)
        if true is not None:
            count = torch.unique(true, dim=1).shape[1]
        else:
            count = self.open_size("coalesce", indices, min(1, indices.shape[1]), indices.shape[1])
        return self.scripted([count], func, args, kwargs)

    def count_bins(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not tensor.is_cuda:
            return func(*args, **kwargs)
        true = self.value_of(tensor) if tensor.numel() else None
        if true is not None:
            top = int(true.max())
        else:
            self.reads.note(_reads.SIZE, "bincount: the largest value is not known")
            top = 0
        # The kernel reads the least and the greatest.
        return self.finish(func, args, kwargs, self.scripted([0, top], func, args, kwargs))

    def lengths(self, mask: torch.Tensor) -> torch.Tensor:
        """How many elements of each row are selected."""
        true = self.value_of(mask)
        if true is not None:
            return true.sum(1)
        length = self.open_size("lengths of a batch", mask, min(1, mask.shape[1]), mask.shape[1])
        return torch._VF.full((mask.shape[0],), length, device="cpu")

    def nest(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """TransformerEncoder's way to skip padding. Its kernel would have read the lengths; it then does this."""
        padded, mask = args[0], args[1]
        if not padded.is_cuda:
            return func(*args, **kwargs)
        lengths = self.lengths(mask)
        return torch.ops.aten._nested_from_padded(padded, torch.stack([lengths, torch.full_like(lengths, padded.shape[2])], 1))

    def is_left_aligned(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        padded, mask = args[0], args[1]
        if not padded.is_cuda:
            return func(*args, **kwargs)
        lengths = self.lengths(mask)
        true = self.value_of(mask)
        return bool(lengths.eq(mask.shape[1]).all()) or (true is not None and bool((true.diff(dim=1, prepend=true.new_ones(len(mask), 1)).sum(1) <= 1).all()))

    def finish(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        """As `plain` after its operation."""
        schema = self.schema(func)
        if self.computable(args, kwargs, out):
            return self.compute(func, args, kwargs, out, schema)
        return self.follow(func, args, kwargs, out, schema)

    # -- what is drawn or assumed

    def choose(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # multinomial reads whether the probabilities are sound, then whether a row has none (up to PyTorch 2.4).
        checks = [1, 0] if "multinomial" in func._schema.name else []
        out = self.scripted(checks, func, args, kwargs)
        tensor = args[0]
        if not isinstance(tensor, Tensor) or not tensor.is_cuda or self.schema(func) is not MAKES:
            return self.finish(func, args, kwargs, out)
        if self.computable(args, kwargs, out):
            return self.compute(func, args, kwargs, out, MAKES)
        self.follow(func, args, kwargs, out, MAKES)
        for made in out if isinstance(out, (list, tuple)) else (out,):
            if isinstance(made, Tensor) and made.dtype == torch.int64 and tensor.dtype != torch.int64 and made.numel() <= INTEGERS and not self.affords(made):
                self.draw(func, args, kwargs, tensor, made)
        return out

    def affords(self, tensor: torch.Tensor) -> bool:
        """Whether there is time to compute it."""
        lineage = self.lineage
        entry = lineage.entry(tensor)
        if entry is None or entry.value is None or entry.value.lost is not None:
            return False
        left = self.limit()
        return entry.value.flat is not None or lineage.takes(entry.value, left) < left

    def draw(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensor: torch.Tensor, made: torch.Tensor) -> None:
        """Indices along the dimension that was looked along, all different where the operation gives several."""
        name = func._schema.name.split("::")[1]
        dim = -1
        if name == "topk":
            dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
        elif name in ("argmax", "argmin", "max", "min", "sort", "argsort", "kthvalue"):
            place = 2 if name == "kthvalue" else 1
            given = args[place] if len(args) > place else kwargs.get("dim")
            dim = given if isinstance(given, int) and not isinstance(given, bool) else -1
            if name in ("argmax", "argmin") and given is None:
                self.alias(made).fill_(int(torch.randint(max(1, tensor.numel()), (), generator=self.generator)))
                self.made_up(made)
                return
        size = tensor.shape[dim] if tensor.dim() else 1
        several = name in ("topk", "sort", "argsort", "multinomial") and made.dim() and made.shape[dim] > 1
        if several:
            target = self.alias(made).movedim(dim, -1)
            rows = target.numel() // target.shape[-1]
            if rows * size <= INTEGERS:
                order = torch.rand(rows, size, generator=self.generator).argsort(-1)[:, : target.shape[-1]]
                target.copy_(order.reshape(target.shape))
            else:
                # Consecutive ones. Those for each first one are made once: a division takes longer than all the rest.
                first = torch._VF.arange(size) if size <= rows else torch.randint(size, (rows,), generator=self.generator)
                order = (first[:, None] + torch._VF.arange(target.shape[-1])) % size
                if size <= rows:
                    order = order.index_select(0, torch.randint(size, (rows,), generator=self.generator))
                target.copy_(order.reshape(target.shape))
        else:
            self.alias(made).copy_(torch.randint(max(1, size), made.shape, generator=self.generator))
        self.made_up(made)

    def made_up(self, tensor: torch.Tensor) -> None:
        self.learn(tensor)
        learnt: Any = self.lineage.entry(tensor)
        learnt.made_up = True

    def healthy(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self.plain(func, args, kwargs)
        if out.is_cuda and out.numel() <= INTEGERS and not self.lineage.is_pending_or_known(out):
            self.alias(out).fill_("isfinite" in func._schema.name)
            self.learn(out)
        return out

    def compare(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """isfinite is `x == x` and `|x| != inf`, isnan may be `x != x`: numbers are taken to be sound."""
        out = self.plain(func, args, kwargs)
        if len(args) < 2 or not isinstance(out, Tensor) or not out.is_cuda or self.schema(func) is not MAKES:
            return out
        same = args[0] is args[1]
        if not same and (isinstance(args[1], Tensor) or args[1] != float("inf")) or self.lineage.is_pending_or_known(out):
            return out
        sound = ("::eq" in func._schema.name) is same
        if self.small(out):
            self.alias(out).fill_(sound)
            self.learn(out)
        elif sound:
            self.take_for_true(out)
        return out

    def take_for_true(self, tensor: torch.Tensor) -> None:
        if len(self.all_true) > 1000:
            self.all_true = {key: ref for key, ref in self.all_true.items() if not ref.expired()}
        storage = tensor.untyped_storage()
        self.all_true[storage._cdata] = _lineage.StorageWeakRef(storage)

    def is_all_true(self, tensor: object) -> bool:
        if not isinstance(tensor, Tensor) or tensor.dtype is not torch.bool or not tensor.is_cuda or tensor.is_nested:
            return False
        return tensor.untyped_storage()._cdata in self.all_true and not self.is_followed(tensor)

    def both(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        true = len(args) > 1 and self.is_all_true(args[0]) and self.is_all_true(args[1])
        out = self.plain(func, args, kwargs)
        if true and isinstance(out, Tensor):
            self.take_for_true(out)
        return out

    def all_of(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        true = self.is_all_true(args[0])
        out = self.plain(func, args, kwargs)
        if true and self.small(out):
            self.alias(out).fill_(True)
            self.learn(out)
        return out

    def check_sound(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """First it reads whether all of its input is finite, or not negative (twice)."""
        if not self.from_device(args):
            return self.plain(func, args, kwargs)
        return self.finish(func, args, kwargs, self.scripted([1, 1] if "normal" in func._schema.name else [1], func, args, kwargs))

    def unscale(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """No gradient overflows: what is predicted is the steady state."""
        found = args[1]
        out = func(*args, **kwargs)
        for gradient in args[0]:
            self.unlearn(gradient)
        self.alias(found).zero_()
        self.learn(found)
        return out

    def update_scale(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        scale, tracker, found, growth, backoff, interval = args
        if all(self.is_known(tensor) for tensor in (scale, tracker, found)):
            scale, tracker = self.alias(scale), self.alias(tracker)
            if float(self.alias(found)):
                scale.mul_(backoff)
                tracker.zero_()
            elif int(tracker) + 1 >= interval:
                scale.mul_(growth)
                tracker.zero_()
            else:
                tracker.add_(1)
        return out

    # -- collectives: every other rank has what this one has

    def keep(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)

    def gather(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        for gathered, own in zip(args[0], args[1]):
            for one in gathered:
                self.same(one, own)
        return out

    def gather_base(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        gathered, own = args[0], args[1]
        if own.numel() and gathered.is_contiguous():
            self.same(gathered, own, gathered.numel() // own.numel())
        return out

    def same(self, one: torch.Tensor, own: torch.Tensor, times: int = 1) -> None:
        if own.is_cuda and self.small(one) and self.small(own) and self.is_known(own):
            flat = self.alias(own).reshape(-1)
            self.alias(one).copy_((flat.repeat(times) if times > 1 else flat).reshape(one.shape))
            if _lineage.is_whole(one):
                self.learn(one)
        else:
            self.unlearn(one)

    def fill_at_random(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if tensor.device.type != "cpu" or self.patient or tensor.numel() < BIG_FILL or not tensor.is_contiguous() or not self.initialises():
            return self.plain(func, args, kwargs)
        # Weights that are only on their way to the device: their values do not matter, and drawing them takes seconds.
        draws = self.draws_of(func, tensor)
        if draws is None or (draws and not self.pass_over(kwargs.get("generator") or torch.default_generator, draws)):
            return self.plain(func, args, kwargs)
        self.lineage.leave_undrawn(tensor)
        return tensor

    def draws_of(self, func: OpOverload, tensor: torch.Tensor) -> int | None:
        """How many numbers of 32 bits a fill draws, by the way in which this PyTorch was seen to count; None if it is none of those that are known."""
        name, dtype = func._schema.name, tensor.dtype
        if name.endswith("erfinv_"):
            return 0
        if (name, dtype) not in self.ways_to_count:
            self.ways_to_count[name, dtype] = self.way_to_count(func, dtype)
        way = self.ways_to_count[name, dtype]
        return None if way is None else way(tensor.numel())

    def way_to_count(self, func: OpOverload, dtype: torch.dtype) -> Callable[[int], int] | None:
        words = 2 if dtype == torch.float64 else 1
        # The normal fill ends on sixteen: it draws the last ones again, or some too many.
        for extra in (lambda size: 0, lambda size: 16 if size % 16 else 0, lambda size: -size % 16):
            way = lambda size, extra=extra: words * (size + extra(size))
            if all(self.counts(func, dtype, size, way(size)) for size in (1000, 1024)):
                return way
        return None

    def counts(self, func: OpOverload, dtype: torch.dtype, size: int, draws: int) -> bool:
        real, leapt = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
        func(torch._VF.empty(size, dtype=dtype), generator=real)
        return self.pass_over(leapt, draws) and torch.equal(real.get_state(), leapt.get_state())

    def pass_over(self, generator: torch.Generator, draws: int) -> bool:
        """Moves the generator on as if it had drawn."""
        state = generator.get_state()
        if state.numel() != GENERATOR_STATE or not self.library.oomph_advance_random(state.data_ptr(), draws):
            return False
        generator.set_state(state)
        return True

    @staticmethod
    def initialises() -> bool:
        """Whether the call comes from a library that initialises weights, not from the program's own code."""
        place = _initialising_frame()
        return is_installed(place) or is_torch(place)


def _fills(func: OpOverload, tensor: torch.Tensor, indices: Sequence[torch.Tensor | None], values: Any = None, accumulate: bool = False, *more: Any, **others: Any) -> bool:
    """Whether one number is written by one mask, for which nothing is counted: PyTorch fills there."""
    is_number = isinstance(values, Tensor) and not values.is_cuda and values.numel() == 1
    return "put" in func._schema.name and is_number and not accumulate and sum(index is not None for index in indices) == 1


def _as_int64(func: OpOverload, tensor: torch.Tensor) -> _reads.Scalar:
    """Reads a number. From a mode PyTorch takes none that int64 cannot hold, so that a large one without a sign is read as one of int64."""
    return func(tensor.view(torch.int64) if tensor.dtype is torch.uint64 else tensor)


def _scale(rate: float) -> float:
    """What dropout multiplies by what it keeps."""
    return 0.0 if rate == 1 else 1 / (1 - rate)


def _initialising_frame() -> str:
    return _reads.asking_file((*_reads.DISPATCH, "/torch/utils/_contextlib.py", "/torch/overrides.py"))


def avoid_detours(values: Values) -> None:
    """Where a mode is active, some functions take a way that is meant for subclasses, or none at all."""
    ctc_loss = torch.ctc_loss

    @functools.wraps(ctc_loss)
    def with_numbers(log_probs: object, targets: object, input_lengths: object, target_lengths: object, *args: object, **kwargs: object) -> object:
        numbers = lambda lengths: lengths.tolist() if isinstance(lengths, Tensor) and lengths.dim() == 1 else lengths
        return ctc_loss(log_probs, targets, numbers(input_lengths), numbers(target_lengths), *args, **kwargs)

    torch.ctc_loss = with_numbers
    attention = torch.nn.functional.scaled_dot_product_attention

    @functools.wraps(attention)
    def with_scores_in_place(*args: object, **kwargs: object) -> object:
        # Its plain form adds the mask to the scores in place, but to a copy of them where a mode is active: one more of the largest tensors that there are.
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if torch.compiler.is_compiling() or any(type(one) not in (Tensor, torch.nn.Parameter) for one in tensors):
            return attention(*args, **kwargs)
        with values.off():
            out = attention(*args, **kwargs)
        return values.follow_attention(args, kwargs, out)

    torch.nn.functional.scaled_dot_product_attention = with_scores_in_place
    if not hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        # Older PyTorch requires a registration of each of them for each mode.
        call = torch._ops.HigherOrderOperator.__call__

        @functools.wraps(call)
        def without_the_mode(self: object, *args: object, **kwargs: object) -> object:
            with values.off():
                return call(self, *args, **kwargs)

        torch._ops.HigherOrderOperator.__call__ = without_the_mode
