"""Caches of keys and values (of transformers) that models pass into their blocks in training, where nobody has a use for them."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch.utils import _pytree as pytree


def without_caches(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The same arguments without empty caches, as transformers leaves them out; and whether there is one with something in it, which decides what is computed.

    A forward adds copies of keys and values to its cache, and would do so again when it is computed again.
    """
    caches = _Caches(block)
    args, kwargs = pytree.tree_map(caches.without, (args, kwargs), is_leaf=caches.is_cache)
    return args, kwargs, caches.filled


class _Caches:
    def __init__(self, block: nn.Module) -> None:
        module = sys.modules.get("transformers.cache_utils")
        self._kind = getattr(module, "Cache", ()) if module is not None else ()
        self._block = block
        self.filled = False

    def is_cache(self, value: Any) -> bool:
        return isinstance(value, self._kind)

    def without(self, value: Any) -> Any:
        if not self.is_cache(value):
            return value
        self.filled = self.filled or self._length(value) > 0
        return value if self.filled else None

    def _length(self, cache: Any) -> int:
        layers = {index for inner in self._block.modules() if isinstance(index := getattr(inner, "layer_idx", None), int)}
        lengths = (int(cache.get_seq_length(layer)) for layer in layers or {0})
        return max(lengths)
