"""``oomph.fit``: makes a training step fit a GPU, with the same result.

A child process on a virtual GPU runs the step as it is and then with candidates of what can be done about it (``search``), by the same code
that is applied here (``batches``, ``checkpoints``, ``activations``, ``cross_entropy``, ``optimizers``, ``weights``). The fastest that fits is kept, and while it
runs, an out-of-memory leads one rung down. Nothing here is imported before it is asked for: importing oomph must not need PyTorch.
"""
