"""Which card, and how much of it there is for the step."""

from __future__ import annotations

import functools
import gc
import json
import subprocess
from dataclasses import dataclass
from typing import Any, cast

import torch

from oomph._find import find_oomph
from oomph._sizes import size_in_bytes, text
from oomph.fitting.errors import FitError
from oomph.fitting.pieces import pieces

_MIB = 1 << 20


@dataclass(frozen=True)
class Card:
    """A card of the catalogue."""

    name: str
    title: str
    memory: int
    context: int
    capability: tuple[int, int]
    multiprocessors: int


@functools.cache
def catalogue() -> tuple[Card, ...]:
    return _cards()


def _cards(*name: str) -> tuple[Card, ...]:
    """What the command says of one card or of all: it knows short names, and cards of the user's own."""
    ran = subprocess.run([find_oomph(), "gpus", "--format", "json", *name], capture_output=True, text=True)
    if ran.returncode != 0:
        raise FitError(ran.stderr.strip().removeprefix("error: "))
    return tuple(
        Card(gpu["name"], gpu["title"], gpu["memory"], gpu["context"], cast("tuple[int, int]", tuple(map(int, gpu["compute_capability"].split(".")))), gpu["sms"])
        for gpu in json.loads(ran.stdout)["gpus"]
    )


def named(name: str) -> Card:
    (card,) = _cards("--", name)
    return card


def here(device: torch.device) -> Card:
    """The card of this process, or of those in the catalogue the one that is most like it."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    cards = [card for card in catalogue() if card.title == properties.name]
    cards = cards or [card for card in catalogue() if card.capability == capability]
    cards = cards or [card for card in catalogue() if card.capability[0] == capability[0]] or list(catalogue())
    return min(cards, key=lambda card: abs(card.memory - properties.total_memory))


@dataclass(frozen=True)
class Room:
    """What PyTorch may reserve for the step, and what is kept free of it."""

    #: The budget as it was meant: the whole card's, its context included.
    budget: int
    #: What PyTorch may reserve, what others hold in this process taken off.
    limit: int
    #: Kept free: an estimate of what the prediction may be off, and of what CUDA loads later.
    margin: int
    #: The share of the card that the allocator is held to; None where the card itself is the limit.
    fraction: float | None

    @property
    def usable(self) -> int:
        return self.limit - self.margin

    def needed_for(self, reserved: int, largest: int = 0) -> int:
        """The least budget in which a plan that reserves so much, in blocks of at most ``largest``, would be accepted. A little is added: holes may lie elsewhere."""
        besides = self.budget - self.limit
        for_later = self.margin - _margin(self.budget)
        reserved += reserved // 50
        margin = max(_margin(round((reserved + besides) * 1.03)) + for_later, largest)
        return -(-(reserved + margin + besides) // _MIB) * _MIB


def asked_for(budget: Any) -> str | int:
    """The budget as it was given, "auto" or in bytes; refused if it is no size."""
    if budget == "auto":
        return "auto"
    if isinstance(budget, bool) or not isinstance(budget, (str, int, float)):
        raise FitError(f'budget={budget!r} is no size: give "auto", or a size such as "14GiB"')
    try:
        return int(size_in_bytes(budget))  # type: ignore[arg-type]  # of a float it gives a float
    except (ValueError, OverflowError) as error:
        raise FitError(f"budget={budget!r}: {error}") from None


def room_on(card: Card, budget: str | int) -> Room:
    """On a card that is not here: all of it, or a budget."""
    whole = card.memory if budget == "auto" else size_in_bytes(budget)
    return Room(whole, whole - card.context, _margin(whole), None)


def room_here(device: torch.device, card: Card, budget: str | int, own: int) -> Room:
    """On the card of this process; ``own`` is what the model, the optimizer and the example hold on it already."""
    # Unreachable tensors must not count as another program's memory: weights that were tied after they were made, for instance.
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    reserved, others = torch.cuda.memory_reserved(device), max(0, torch.cuda.memory_allocated(device) - own)
    there = free + reserved
    if budget == "auto" or size_in_bytes(budget) >= total:
        # Kernels that have not been used yet are loaded later, into the same memory.
        return Room(there + card.context, there - others, _margin(there) + 192 * _MIB, None)
    wanted = size_in_bytes(budget)
    if wanted - card.context > there:
        raise FitError(f"the budget is {text(wanted)}, but only {text(there)} of this card are free for PyTorch")
    return Room(wanted, wanted - card.context - others, _margin(wanted), min(1.0, (wanted - card.context) / total))


def _margin(budget: int) -> int:
    return max(64 * _MIB, budget // 50)


def half_of(capability: tuple[int, int]) -> str:
    """The 16-bit type that the card is made for."""
    return "bfloat16" if capability >= (8, 0) else "float16"


def bytes_on(device: torch.device, *things: Any) -> int:
    """What tensors inside these take of the card, each storage once."""
    storages: dict[int, int] = {}

    def look(thing: Any, depth: int) -> None:
        if isinstance(thing, torch.Tensor):
            for piece in pieces(thing) if thing.device == device else ():
                storage = piece.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
            if thing.is_leaf and thing.grad is not None:
                look(thing.grad, depth)
        elif isinstance(thing, torch.nn.Module):
            for tensor in [*thing.parameters(), *thing.buffers()]:
                look(tensor, depth)
        elif isinstance(thing, torch.optim.Optimizer):
            look(list(thing.state.values()), depth)
        elif depth < 6 and hasattr(thing, "values") and callable(thing.values):
            look(list(thing.values()), depth + 1)
        elif depth < 6 and isinstance(thing, (list, tuple, set)):
            for one in thing:
                look(one, depth + 1)

    look(things, 0)
    return sum(-(-size // 512) * 512 for size in storages.values())
