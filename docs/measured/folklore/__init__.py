"""The tips that people pass on about GPU memory, each with an experiment, a verdict, and the condition under which that verdict is right.

``docs/measured/folklore.py`` runs them and writes ``docs/folklore.md``. Importing this needs neither PyTorch nor a GPU: experiments import what they need."""

# Each adds its tips, in this order.
from folklore import letting_go, graphs, training, allocator, precision, loading, smaller, articles, keras  # noqa: I001
from folklore.tip import TIPS, NotHere, Tip

GROUPS = tuple(module.GROUP for module in (letting_go, graphs, training, allocator, precision, loading, smaller, articles, keras))

__all__ = ["GROUPS", "TIPS", "NotHere", "Tip"]
