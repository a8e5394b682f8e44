"""The state of a fit in a folder, by torch.distributed.checkpoint: whole or sharded, from any number of ranks to any other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from oomph.fitting.errors import FitError


def save_state(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    import torch.distributed.checkpoint as checkpoint

    with _said(f"{path} cannot be written"):
        checkpoint.save({**_state_of(model, optimizer, bool(optimizer.state)), "steps": torch.tensor(steps)}, checkpoint_id=path)


def load_state(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """In place; gives how many steps had been made."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

    with _said(f"{path} cannot be loaded: it is no folder that fit.save wrote for this model and this kind of optimizer"):
        saved = checkpoint.FileSystemReader(path).read_metadata().state_dict_metadata
        # Before the first step an optimizer has no state.
        has_state = any(name.startswith("optimizer.") for name in saved)
        was_empty = not optimizer.state
        try:
            # It is read into what is there, so the optimizer's state must be there: PyTorch makes it.
            state: dict[str, Any] = {**_state_of(model, optimizer, has_state), "steps": torch.tensor(0)}
            ways = [_way(group) for group in optimizer.param_groups]
            checkpoint.load(state, checkpoint_id=path)
            set_model_state_dict(model, state["model"])
            if has_state:
                for group, way in zip(state["optimizer"]["param_groups"], ways):
                    group.update(way)
                with _the_same_objects(optimizer):
                    set_optimizer_state_dict(model, optimizer, state["optimizer"])
            else:
                optimizer.state.clear()
        except BaseException:
            if was_empty:
                optimizer.state.clear()
            raise
    return int(state["steps"])


def _way(group: dict[str, Any]) -> dict[str, Any]:
    """How an optimizer steps, as against what it does: that of the plan stays, whatever was saved."""
    return {name: group[name] for name in ("foreach", "fused") if name in group}


@contextlib.contextmanager
def _the_same_objects(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """An optimizer that loads has other groups and another state afterwards. Schedulers, and an optimizer that this one steps for, hold those that were there."""
    groups, state = optimizer.param_groups, optimizer.state
    members = list(groups)
    yield
    for group, loaded in zip(members, optimizer.param_groups):
        if loaded is not group:
            group.clear()
            group.update(loaded)
    groups[:] = members
    loaded_state = dict(optimizer.state)
    state.clear()
    state.update(loaded_state)
    optimizer.param_groups, optimizer.state = groups, state


def _state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, with_optimizer: bool) -> dict[str, Any]:
    """Of an optimizer without state, PyTorch would make one by a step, which counts from then on."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    of_model = {"model": get_model_state_dict(model)}
    return {**of_model, "optimizer": get_optimizer_state_dict(model, optimizer)} if with_optimizer else of_model


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    # What went wrong on any rank is a BaseException there.
    except (Exception, CheckpointException) as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise FitError(f"{what} ({type(error).__name__}: {reason})") from error
