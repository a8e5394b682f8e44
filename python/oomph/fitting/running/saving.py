"""The state of a fit in a folder, by torch.distributed.checkpoint: whole or sharded, from any number of ranks to any other."""

from __future__ import annotations

from typing import Any

import torch

from oomph.fitting.errors import FitError


def save_state(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    import torch.distributed.checkpoint as checkpoint

    checkpoint.save({**_state_of(model, optimizer), "steps": torch.tensor(steps)}, checkpoint_id=path)


def load_state(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """In place; gives how many steps had been made."""
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import set_state_dict

    # It is read into what is there, so the optimizer's state must be there: PyTorch makes it.
    state: dict[str, Any] = {**_state_of(model, optimizer), "steps": torch.tensor(0)}
    try:
        checkpoint.load(state, checkpoint_id=path)
    except Exception as error:
        raise FitError(f"{path} cannot be loaded: it is no folder that fit.save wrote for this model and this kind of optimizer ({type(error).__name__}: {error})") from error
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["steps"])


def _state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}
