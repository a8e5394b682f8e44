"""Outputs of the parts of a batch, made into the output of the whole: what a model gives is tensors in tuples, lists and mappings of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from oomph.fitting.errors import NotSplittable


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


def moved_to(output: Any, device: str) -> Any:
    """The same output, with its tensors on another device."""
    if isinstance(output, Tensor):
        return output.to(device)
    if isinstance(output, Mapping):
        entries = {key: moved_to(value, device) for key, value in output.items()}
        kind: Any = type(output)
        return kind(**entries) if hasattr(output, "to_tuple") else kind(entries)
    if isinstance(output, (tuple, list)):
        entries_list = [moved_to(value, device) for value in output]
        return type(output)(*entries_list) if hasattr(output, "_fields") else type(output)(entries_list)
    return output
