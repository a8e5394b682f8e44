"""``oomph.fit``: makes a training step fit a GPU, with the same result.

A child process on a virtual GPU runs the step as it is and then with candidates of what can be done about it (``planning``), by the same code
that is applied here (``techniques``, ``losses``, ``running``). The fastest that fits is kept, and while it runs, an out-of-memory leads one rung down. ``fit`` and
``inference`` are the two that people call; ``adapters`` are for the loops of others, ``script`` is ``oomph fit``. Nothing here is imported before it is asked for: importing oomph must not need PyTorch.
"""
