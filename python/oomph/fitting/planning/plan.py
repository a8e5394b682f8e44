"""What is done to a step so that it fits: plain data, the same in the child that predicts it and in the process that applies it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

# The fields that are names of modules.
_NAMES = ("checkpoint", "offload", "selective", "lean", "tiled")


@dataclass(frozen=True)
class Plan:
    """One way to run the step. The default is the plain loop."""

    #: Samples in a part; 0 is the whole batch at once.
    micro: int = 0
    #: Blocks that are run again in the backward pass instead of being remembered.
    checkpoint: tuple[str, ...] = ()
    #: Blocks whose activations wait in host memory.
    offload: tuple[str, ...] = ()
    #: Blocks that keep what matrix products and attention made, and run cheap operations again in the backward pass.
    selective: tuple[str, ...] = ()
    #: Blocks that keep what attention made, and run the rest again in the backward pass.
    lean: tuple[str, ...] = ()
    #: Logits are made in pieces, inside the loss.
    defer_logits: bool = False
    #: The optimizer's kernels need no temporary copies.
    fused: bool = False
    #: The allocator maps memory piece by piece: no holes that nothing fits into.
    expandable: bool = False
    #: The share of the optimizer's state that lives in host memory and passes through the GPU.
    states_on_host: float = 0.0
    #: Parameters are updated within the backward pass, and their gradients freed as they come.
    release: bool = False
    #: "bfloat16" or "float16": autocast.
    autocast: str | None = None
    optimizer_8bit: bool = False
    bf16_weights: bool = False
    #: Pieces along the sequence that ``tiled`` modules are run in; 0 is all at once.
    tiles: int = 0
    #: Modules that treat each position of a sequence by itself.
    tiled: tuple[str, ...] = ()
    #: Liger's kernels, where there are some for the model.
    liger: bool = False
    #: The share of its activations that compiled code keeps; None is as the program has it.
    activation_budget: float | None = None
    #: Keys and values of grouped queries are repeated, where attention writes out its scores otherwise.
    repeat_groups: bool = False
    #: How parameters, gradients and the optimizer's state are shared out over ranks (``techniques.sharding``); nothing is whole on each.
    shard: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), **{name: list(getattr(self, name)) for name in _NAMES}}

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Plan:
        return cls(**{**given, **{name: tuple(given.get(name, ())) for name in _NAMES}})

    def but(self, **changes: Any) -> Plan:
        return dataclasses.replace(self, **changes)

    @property
    def exact(self) -> bool:
        return not (self.autocast or self.optimizer_8bit or self.bf16_weights or self.liger)


class Changeable(Protocol):
    """A plan of which another can be made."""

    def but(self, **changes: Any) -> Self: ...


AnyPlan = TypeVar("AnyPlan", bound=Changeable)


@dataclass(frozen=True)
class Measured(Generic[AnyPlan]):
    """What a plan took on the virtual GPU, and what a step is estimated to take."""

    plan: AnyPlan
    allocated: int
    reserved: int
    seconds: float
    #: Bytes that wait in host memory: optimizer state, activations.
    host: int = 0
    #: The largest block of all, where it was looked for.
    largest: int = 0
    #: Memory was short, be it only until the cache was freed.
    short: bool = False
    #: Seconds of a step on the card itself, where it was tried there.
    timed: float | None = None

    def to_dict(self) -> dict[str, Any]:
        plan: Any = self.plan
        return {**dataclasses.asdict(self), "plan": plan.to_dict() if isinstance(plan, Plan) else dataclasses.asdict(plan)}

    @staticmethod
    def from_dict(given: dict[str, Any]) -> Measured[Plan]:
        return Measured(**{**given, "plan": Plan.from_dict(given["plan"])})
