"""``oomph.fit_inference``: makes forward passes and text generation fit a GPU: in parts, and with the cache or weights in host memory.

The same manners as ``oomph.fit``: a child on the virtual GPU runs candidates, the cheapest that fits is applied, and an out-of-memory leads
one rung down without losing what is done. Weights travel block by block (``WeightStream``). What changes numerics has to be allowed.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from oomph._sizes import text
from oomph.fitting.errors import FitError, NotSplittable
from oomph.fitting.planning.asking import NoAnswer, ask
from oomph.fitting.planning.card import Card, Room, bytes_on, here, named, room_here, room_on
from oomph.fitting.planning.payload import NotPackable, pack
from oomph.fitting.running.batches import moved, samples, take
from oomph.fitting.running.step import hold_to
from oomph.fitting.techniques import optimizers
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.host import Lanes, Slab, aligned, host_room, size_of
from oomph.fitting.techniques.weights import Shrunk, bf16_weights, prune, quantize_weights, why_not_semi_structured
from oomph.live.frames import release
from oomph.live.out_of_memory import is_out_of_memory

ALLOWED = {
    "bf16-weights": "weights in bfloat16",
    "8bit-weights": "weights of linear layers in 8 bits",
    "4bit-weights": "weights of linear layers in 4 bits",
    "8bit-cache": "the cache of keys and values in 8 bits (needs hqq)",
    "pruning": "two of every four weights of linear layers dropped (fp16 or bf16, compute capability 8.0 or newer)",
}


@dataclass(frozen=True)
class InferencePlan:
    """One way to run the model. The default is all samples at once, with everything on the GPU."""

    #: Samples in a part; 0 is all at once.
    size: int = 0
    #: What transformers calls the implementation of the cache: None is its own choice, "offloaded" waits in host memory.
    cache: str | None = None
    #: Blocks whose weights wait in host memory until they are needed.
    streamed: int = 0
    bf16_weights: bool = False
    #: Bits of weights, 0 is as they are.
    bits: int = 0
    #: Two of every four weights are dropped.
    pruned: bool = False

    def but(self, **changes: Any) -> InferencePlan:
        return dataclasses.replace(self, **changes)

    def words(self, count: int, blocks: int) -> str:
        parts = -(-count // self.size) if self.size else 1
        said = [f"{count} samples in {parts} parts of {self.size}" if parts > 1 else f"all {count} samples at once"]
        if self.bf16_weights:
            said.append("weights in bfloat16 (allowed)")
        if self.bits:
            said.append(f"weights in {self.bits} bits (allowed)")
        if self.pruned:
            said.append("two of every four weights dropped (allowed)")
        if self.cache:
            said.append("the cache in host memory" if self.cache == "offloaded" else "the cache in 8 bits (allowed)")
        if self.streamed:
            said.append(f"weights of {self.streamed} of {blocks} blocks in host memory")
        return ", ".join(said)


# -- Weights that travel


class WeightStream:
    """Keeps the weights of ``streamed`` blocks in pinned host memory, and brings each to the device while the block before it runs.

    The streamed ones are spread evenly, so that copies have time. For inference: what is written to such weights on the device is lost.
    """

    def __init__(self, model: nn.Module, device: torch.device, streamed: int) -> None:
        self._device = device
        self._lanes = Lanes(device)
        self._origins = [(tensor, tensor.device) for tensor in [*model.parameters(), *model.buffers()]]
        self._blocks = [_Block(tensors, device) for tensors in _own_tensors(model)]
        streamed_tensors = {id(tensor) for block in self._blocks for tensor in block.tensors}
        modules = [model.get_submodule(name) for name in find_blocks(model)]
        self._hooks: list[Any] = []
        self._line: list[_Block] = []
        try:
            self.stream(streamed)
            for tensor, _ in self._origins:
                if id(tensor) not in streamed_tensors:
                    tensor.data = tensor.data.to(device)
        except BaseException:
            self.undo()
            raise
        for module, block in zip(modules, self._blocks):
            self._hooks.append(module.register_forward_pre_hook(lambda *_, block=block: self._enter(block), prepend=True))
            self._hooks.append(module.register_forward_hook(lambda *_, block=block: self._leave(block), always_call=True))

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    @property
    def bytes_on_host(self) -> int:
        return sum(block.slab.size for block in self._blocks if block.slab is not None)

    def stream(self, count: int) -> None:
        """Lets the weights of so many blocks wait in host memory, and those of the others be on the device."""
        self.rest()
        chosen = _spread(count, len(self._blocks))
        with _plain():
            for index, block in enumerate(self._blocks):
                if index in chosen and block.slab is None:
                    block.go(self._lanes)
            for index, block in enumerate(self._blocks):
                if index not in chosen:
                    block.stay()
        self._line = [block for index, block in enumerate(self._blocks) if index in chosen]

    def rest(self) -> None:
        """Takes all streamed weights off the device, also after a pass that failed."""
        with _plain():
            self._lanes.wait_for_all()
            for block in self._blocks:
                block.leave()

    def undo(self) -> None:
        """Puts all weights back where they were."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self.rest()
        with _plain():
            for tensor, device in self._origins:
                # A copy, because the host memory that it lies in is given back.
                tensor.data = tensor.data.to(device, copy=True) if tensor.data.device == device else tensor.data.to(device)
        self._line.clear()
        self._blocks.clear()
        self._origins.clear()

    def _enter(self, block: _Block) -> None:
        if block.slab is None:
            return
        with _plain():
            block.come(self._lanes)
            block.arrive(self._lanes)
            place = next(index for index, one in enumerate(self._line) if one is block)
            following = self._line[(place + 1) % len(self._line)]
            if following is not block:
                try:
                    following.come(self._lanes)
                except Exception as error:
                    # It comes when it is needed.
                    if not is_out_of_memory(error):
                        raise

    def _leave(self, block: _Block) -> None:
        if block.slab is not None:
            with _plain():
                block.leave()


class _Block:
    """The weights of one block that belong to it alone."""

    def __init__(self, tensors: list[Tensor], device: torch.device) -> None:
        self.tensors, self.device = tensors, device
        self.slab: Any = None
        self._places: list[tuple[int, int]] = []
        self._host: list[Tensor] = []
        self._memory: Tensor | None = None
        self._arrived: Any = None

    def go(self, lanes: Any) -> None:
        """To host memory."""
        places, end = [], 0
        for tensor in self.tensors:
            places.append((end, size_of(tensor)))
            end += aligned(places[-1][1])
        self.slab, self._places = Slab(max(end, 1), self.device), places
        self._host = [_inside(self.slab.tensor, place, tensor) for place, tensor in zip(places, self.tensors)]
        for host, tensor in zip(self._host, self.tensors):
            if optimizers.copies_are_real or not lanes.is_cuda:
                host.copy_(tensor.data)
            tensor.data = host

    def stay(self) -> None:
        """On the device."""
        for tensor in self.tensors:
            if self.slab is not None or tensor.device != self.device:
                tensor.data = tensor.data.to(self.device, copy=True)
        self.slab, self._host, self._places = None, [], []

    def come(self, lanes: Any) -> None:
        """On its way to the device, beside what runs there."""
        if self._memory is not None:
            return
        self._memory = torch.empty(self.slab.size, dtype=torch.uint8, device=self.device)
        with lanes.copying(lanes.coming):
            if optimizers.copies_are_real or not lanes.is_cuda:
                self._memory.copy_(self.slab.tensor, non_blocking=True)
        self._arrived = lanes.mark(lanes.coming)

    def arrive(self, lanes: Any) -> None:
        lanes.wait(self._arrived)
        for place, tensor in zip(self._places, self.tensors):
            tensor.data = _inside(self._memory, place, tensor)

    def leave(self) -> None:
        for host, tensor in zip(self._host, self.tensors):
            tensor.data = host
        self._memory = self._arrived = None


def _inside(memory: Tensor, place: tuple[int, int], like: Tensor) -> Tensor:
    stride = torch.empty_like(like, device="meta").stride()
    return memory[place[0] : place[0] + place[1]].view(like.dtype).as_strided(like.shape, stride)


def _own_tensors(model: nn.Module) -> list[list[Tensor]]:
    """For each block, the parameters and buffers that nothing outside of it has."""
    names = find_blocks(model)
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        block = next((one for one in names if name == one or name.startswith(one + ".")), "")
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            owners.setdefault(id(tensor), set()).add(block)
    own = []
    for name in names:
        module = model.get_submodule(name)
        tensors = {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
        own.append([tensor for key, tensor in tensors.items() if owners[key] == {name} and type(tensor.data) is Tensor and tensor.numel()])
    return own


def _spread(count: int, of: int) -> set[int]:
    return {index for index in range(of) if (index + 1) * count // of > index * count // of}


@contextmanager
def _plain() -> Any:
    """Tensors that are made inside can become the data of parameters, also while the model runs in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        yield


# -- Outputs of parts


def join(parts: list[Any], sizes: list[int]) -> Any:
    """The output for the whole batch, of those for its parts. What is not made of tensors comes as a list, one for each part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Tensor):
        if any(part.dim() == 0 or part.shape[0] % size for part, size in zip(parts, sizes)):
            raise NotSplittable("the model gives a value for the whole batch, which parts cannot give: leave the labels out of the batch")
        return torch.cat(parts)
    if isinstance(first, Mapping):
        joined = {key: join([part[key] for part in parts], sizes) for key in first}
        kind: Any = type(first)
        return kind(**joined) if hasattr(first, "to_tuple") else kind(joined)
    if isinstance(first, (tuple, list)):
        if isinstance(first, list) and all(len(part) == size for part, size in zip(parts, sizes)) and not isinstance(first[0], Tensor):
            return [one for part in parts for one in part]
        joined_entries = [join(list(entries), sizes) for entries in zip(*parts)]
        return type(first)(*joined_entries) if hasattr(first, "_fields") else type(first)(joined_entries)
    if all(part is None for part in parts) or (isinstance(first, (bool, int, float, str)) and all(part == first for part in parts)):
        return first
    return parts


def pad_and_join(parts: list[Tensor], pad: int) -> Tensor:
    """Sequences of different lengths, one below the other, filled up at the right."""
    longest = max(part.shape[1] for part in parts)
    return torch.cat([nn.functional.pad(part, (0, longest - part.shape[1]), value=pad) for part in parts])


def _to(output: Any, device: str) -> Any:
    if isinstance(output, Tensor):
        return output.to(device)
    if isinstance(output, Mapping):
        entries = {key: _to(value, device) for key, value in output.items()}
        kind: Any = type(output)
        return kind(**entries) if hasattr(output, "to_tuple") else kind(entries)
    if isinstance(output, (tuple, list)):
        entries_list = [_to(value, device) for value in output]
        return type(output)(*entries_list) if hasattr(output, "_fields") else type(output)(entries_list)
    return output


# -- Running


class FitInference:
    """A model that fits. Call it with a batch, or call ``generate``; ``undo`` puts the model back as it was, but for weights that became
    bfloat16: they stay rounded.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        plan: InferencePlan,
        count: int,
        to: str | None = None,
        apply: bool = True,
        fraction: float | None = None,
    ) -> None:
        self.model, self.device, self.chosen, self.to = model, device, plan, to
        self.count = count
        self.blocks = len(find_blocks(model))
        #: What was predicted, in words; and each step down.
        self.notes: list[str] = []
        self.history: list[str] = []
        self._undo: list[Callable[[], None]] = []
        self._stream: WeightStream | None = None
        #: What pruning did, if it is in the plan and was applied.
        self.pruning: Shrunk | None = None
        try:
            self._prepare(apply, fraction)
        except BaseException:
            self.undo()
            raise

    @property
    def plan(self) -> str:
        """What is done, and what has happened."""
        return "\n".join([self.chosen.words(self.count, self.blocks), *self.notes, *self.history])

    def _prepare(self, apply: bool, fraction: float | None) -> None:
        training = [(module, module.training) for module in self.model.modules()]

        def restore() -> None:
            for module, was in training:
                module.training = was

        self._undo.append(restore)
        self.model.eval()
        if not apply:
            return
        if fraction is not None:
            self._undo.append(hold_to(fraction, self.device))
        if self.chosen.bf16_weights:
            self._undo.append(bf16_weights(self.model).undo)
        if self.chosen.pruned:
            # Before the others come to the GPU: it need not hold all of the full weights.
            self.pruning = prune(self.model, semi_structured=True, device=self.device)
            self._undo.append(self.pruning.undo)
        if self.chosen.streamed:
            self._start_streaming()
        else:
            self._undo.append(_moving(self.model, self.device))
        if self.chosen.bits:
            self._undo.append(quantize_weights(self.model, self.chosen.bits).undo)

    def _start_streaming(self) -> None:
        self._stream = WeightStream(self.model, self.device, self.chosen.streamed)
        self._undo.append(self._stream.undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._stream = None

    def __call__(self, batch: Any) -> Any:
        """The model's output for the batch, as one forward pass would give it, on the device or where ``to`` says."""
        outputs, sizes = self._in_parts(batch, self._forward)
        return self._joined(lambda: join(outputs, sizes), lambda: join([_to(output, "cpu") for output in outputs], sizes))

    def generate(self, batch: Any, **options: Any) -> Any:
        """What ``model.generate`` gives; sequences that end early are filled up at the right with ``pad_token_id``.

        In parts, only sequences are given of an output with scores and the like. Sampling draws other random numbers than without parts.
        """
        outputs, _ = self._in_parts(batch, lambda part: self._generate(part, options), generating=True)
        if len(outputs) == 1:
            return outputs[0]
        sequences = [output if isinstance(output, Tensor) else output.sequences for output in outputs]
        joined = pad_and_join(sequences, _pad_token(self.model, options))
        return joined if isinstance(outputs[0], Tensor) else type(outputs[0])(sequences=joined)

    def _forward(self, part: Any) -> Any:
        if isinstance(part, Mapping):
            # A cache of keys and values that nobody reads is only memory.
            quiet = {} if "use_cache" in part or not hasattr(getattr(self.model, "config", None), "use_cache") else {"use_cache": False}
            return self.model(**part, **quiet)
        return self.model(*part) if isinstance(part, (tuple, list)) else self.model(part)

    def _generate(self, part: Any, options: dict[str, Any]) -> Any:
        options = {**self._cache_options(), **options}
        if isinstance(part, Mapping):
            return self.model.generate(**part, **options)
        return self.model.generate(part, **options)

    def _cache_options(self) -> dict[str, Any]:
        if self.chosen.cache == "quantized":
            return {"cache_implementation": "quantized", "cache_config": {"backend": "hqq", "nbits": 8}}
        return {"cache_implementation": self.chosen.cache} if self.chosen.cache else {}

    def _in_parts(self, batch: Any, run: Callable[[Any], Any], *, generating: bool = False, only: int | None = None) -> tuple[list[Any], list[int]]:
        count = samples(batch)
        outputs: list[Any] = []
        sizes: list[int] = []
        start = 0
        while start < count and (only is None or len(outputs) < only):
            stop = min(count, start + (self.chosen.size or count))
            error = None
            try:
                with torch.inference_mode():
                    output = run(moved(take(batch, start, stop), self.device))
                    outputs.append(output if self.to is None else _to(output, self.to))
                    del output
                sizes.append(stop - start)
                start = stop
            except Exception as raised:
                if not is_out_of_memory(raised):
                    raise
                release(raised)  # Its frames hold what the pass had made.
                error = raised
            if error is not None:
                self._step_down(error, stop - start, generating)
                error = None
        if self._stream is not None:
            self._stream.rest()  # The first block is there already, for a pass that does not come.
        return outputs, sizes

    def _step_down(self, error: Exception, size: int, generating: bool) -> None:
        """One rung down: smaller parts, then the cache in host memory, then weights."""
        plan = self.chosen
        if self._stream is not None:
            self._stream.rest()
        if size > 1:
            plan = plan.but(size=-(-size // 2))
        elif generating and plan.cache is None:
            plan = plan.but(cache="offloaded", size=1)
        elif plan.streamed < self.blocks and not plan.bits and not plan.pruned:
            plan = plan.but(streamed=min(self.blocks, max(1, plan.streamed * 2)), size=1)
        else:
            raise error
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.chosen = plan
        if plan.streamed and self._stream is None:
            self._start_streaming()
        elif self._stream is not None:
            self._stream.stream(plan.streamed)
        self.history.append(f"memory ran out; now: {plan.words(self.count, self.blocks)}")

    def _joined(self, join_here: Callable[[], Any], join_on_host: Callable[[], Any]) -> Any:
        try:
            return join_here()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release(error)
        self.history.append("memory ran out for the joined outputs; they are in host memory")
        return join_on_host()


def _moving(model: nn.Module, device: torch.device) -> Callable[[], None]:
    origins = [(tensor, tensor.device) for tensor in [*model.parameters(), *model.buffers()]]

    def move(places: Iterable[tuple[Tensor, torch.device]]) -> None:
        for tensor, place in places:
            if tensor.device != place:
                tensor.data = tensor.data.to(place)

    def back() -> None:
        move(origins)

    try:
        move((tensor, device) for tensor, _ in origins)
    except BaseException:
        back()
        raise
    return back


def _pad_token(model: nn.Module, options: Mapping[str, Any]) -> int:
    config = getattr(model, "generation_config", None)
    for name in ("pad_token_id", "eos_token_id"):
        found = options.get(name, getattr(config, name, None))
        if found is not None:
            return int(found[0] if isinstance(found, (list, tuple)) else found)
    return 0


# -- Planning


def fit_inference(
    model: nn.Module,
    batch: Any,
    *,
    generate: dict[str, Any] | None = None,
    budget: str | int = "auto",
    gpu: str | None = None,
    allow: Iterable[str] = (),
    to: str | None = None,
    quiet: bool = False,
) -> FitInference:
    """Makes forward passes, or generation, fit the GPU, and runs them.

    >>> fit = oomph.fit_inference(model, batch=example)  # doctest: +SKIP
    >>> output = fit(batch)  # doctest: +SKIP

    ``batch`` is an example as large as they come. ``generate=dict(max_new_tokens=...)`` plans for ``fit.generate``. ``budget`` and ``gpu``
    are as in ``oomph.fit``. The model may be on the CPU: it is moved, as far as it fits. ``to="cpu"`` takes outputs off the GPU, part by
    part. ``allow`` names what may change numerics: "bf16-weights", "8bit-weights", "4bit-weights", "8bit-cache", and "pruning",
    which drops two of every four weights where the card can leave them out (what that does to the results is for you to measure).
    """
    allow = tuple(allow)
    for name in allow:
        if name not in ALLOWED:
            raise FitError(f"allow has {name!r}; what can be allowed is {', '.join(map(repr, ALLOWED))}")
    if "8bit-cache" in allow and importlib.util.find_spec("hqq") is None:
        raise FitError("a cache in 8 bits needs a package\n\nhint: pip install hqq")
    if generate is not None and "max_new_tokens" not in generate and "max_length" not in generate:
        raise FitError("how long sequences get decides over memory: say generate=dict(max_new_tokens=...)")
    count = samples(batch)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    if not on_gpu and gpu is None:
        fitted = FitInference(model, device, InferencePlan(), count, to)
        fitted.notes.append("there is no GPU here: nothing was planned")
        return fitted

    card = here(device) if on_gpu else named(cast(str, gpu))
    if on_gpu:
        wanted = named(gpu).memory if gpu is not None and budget == "auto" else budget
        room = room_here(device, card, wanted, bytes_on(device, model, batch))
    else:
        room = room_on(card, budget)
    plan, notes = InferencePlan(), []
    try:
        said = _ask({"model": model, "batch": batch, "generate": generate, "to": to}, room, card, allow)
    except (NotPackable, NoAnswer) as error:
        if not on_gpu:
            raise
        notes = [f"could not be predicted: {error}", "it is run as it is, and memory is saved when it runs out"]
    else:
        if said["chosen"] is None:
            words, least = InferencePlan(**said["least"]).words(count, said["blocks"]), room.needed_for(said["reserved"])
            why = "".join(f"\n{note}" for note in said["notes"])
            raise FitError(f"nothing fits: what needs least is {words}, and it needs a budget of {text(least)}{why}", least)
        plan = InferencePlan(**said["chosen"])
        notes = [f"{text(said['reserved'])} of {text(room.limit)} predicted on {card.title}; {said['tried']} plans were tried", *said["notes"]]
    fitted = FitInference(model, device, plan, count, to, apply=on_gpu, fraction=room.fraction if on_gpu else None)
    fitted.notes += notes if on_gpu else [*notes, "there is no GPU here: parts are run on the CPU, and nothing else of the plan is done"]
    if not quiet:
        print(f"oomph.fit_inference: {fitted.plan}", file=sys.stderr)
    return fitted


def _ask(things: dict[str, Any], room: Room, card: Card, allow: tuple[str, ...]) -> dict[str, Any]:
    options = {"limit": room.usable, "host": host_room(), "allow": list(allow)}
    payload = pack(things, onto_gpu=True)
    return ask("oomph.fitting.inference:plan_in_child", payload, options, gpu=card.name, what="planning inference")


def plan_in_child(things: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """In the child: the first of the candidates that fits, cheapest first."""
    optimizers.copies_are_real = False
    return _Search(things, options).run()


class _Search:
    def __init__(self, things: dict[str, Any], options: dict[str, Any]) -> None:
        self.model, self.batch, self.generate, self.to = things["model"], things["batch"], things["generate"], things["to"]
        self.limit, self.host, self.allow = options["limit"], options["host"], options["allow"]
        self.progress = options["progress"]
        self.count, self.blocks = samples(self.batch), len(find_blocks(self.model))
        self.seen: dict[InferencePlan, int] = {}
        self.too_much_for_host: set[InferencePlan] = set()
        #: What pruning saved, by plan.
        self.saved: dict[InferencePlan, int] = {}
        self.notes: list[str] = []

    def run(self) -> dict[str, Any]:
        chosen = self.choose()
        least = min(self.seen, key=self.seen.__getitem__)
        answer = {"chosen": chosen and dataclasses.asdict(chosen), "least": dataclasses.asdict(least), "tried": len(self.seen)}
        if chosen in self.saved:
            self.notes.append(f"pruning saves {text(self.saved[chosen])} of weights, and changes results")
        return {**answer, "reserved": self.seen[chosen or least], "blocks": self.blocks, "notes": self.notes}

    def choose(self) -> InferencePlan | None:
        bases = [InferencePlan()]
        if "bf16-weights" in self.allow:
            bases.append(bases[-1].but(bf16_weights=True))
        if self.generate is not None:
            bases.append(bases[-1].but(cache="offloaded"))
            if "8bit-cache" in self.allow:
                bases.append(bases[-1].but(cache="quantized"))
        for bits in (8, 4):
            if f"{bits}bit-weights" in self.allow:
                bases.append(bases[-1].but(bits=bits))
        if "pruning" in self.allow:
            base = bases[-1].but(bits=0, pruned=True)
            why = why_not_semi_structured(self.model, torch.cuda.get_device_capability(), base.bf16_weights)
            if why is None:
                bases.append(base)
            else:
                self.notes.append(f"pruning saves nothing here: {why}")
        for base in bases:
            size = self.largest_size(base)
            if size is not None:
                return base.but(size=size)
        base = bases[-1].but(bits=0, pruned=False, streamed=self.blocks)
        if not self.blocks or (size := self.largest_size(base)) is None:
            return None
        # The fewer travel, the faster.
        low, high = 0, self.blocks
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.fits(base.but(size=size, streamed=middle)) else (middle, high)
        return base.but(size=size, streamed=high)

    def largest_size(self, base: InferencePlan) -> int | None:
        sizes = list(dict.fromkeys([0, *(-(-self.count // (1 << power)) for power in range(1, self.count.bit_length() + 1))]))
        if not self.fits(base.but(size=sizes[-1])):
            return None
        return next(size for size in sizes if self.fits(base.but(size=size)))

    def fits(self, plan: InferencePlan) -> bool:
        if plan not in self.seen:
            self.seen[plan] = self.measure(plan)
            with open(self.progress, "a") as file:
                file.write(".")
        return self.seen[plan] <= self.limit and plan not in self.too_much_for_host

    def measure(self, plan: InferencePlan) -> int:
        """What PyTorch reserves at most, in two parts and with the outputs of all."""
        device = torch.device("cuda", torch.cuda.current_device())
        fitted = FitInference(self.model, device, plan, self.count, self.to)
        try:
            if fitted._stream is not None and fitted._stream.bytes_on_host > self.host:
                self.too_much_for_host.add(plan)
            if fitted.pruning is not None:
                self.saved[plan] = fitted.pruning.saved
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            run = fitted._forward if self.generate is None else lambda part: fitted._generate(part, _to_the_end(self.generate))
            outputs, sizes = fitted._in_parts(self.batch, run, only=2)
            peak = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
            if self.to is None:
                # Outputs of the other parts are there too, and once more, in one piece, when they are joined.
                each = bytes_on(device, outputs[0]) if isinstance(outputs[0], (Tensor, Mapping, tuple, list)) else 0
                parts = -(-self.count // (plan.size or self.count))
                peak += each * (max(0, parts - 2) + (parts if parts > 1 else 0))
            del outputs, sizes
            return peak
        finally:
            fitted.undo()


def _to_the_end(generate: dict[str, Any]) -> dict[str, Any]:
    """Values are not true on the virtual GPU: no sequence may end by chance before it is as long as it can be."""
    return {**generate, **({"min_new_tokens": generate["max_new_tokens"]} if "max_new_tokens" in generate else {})}
