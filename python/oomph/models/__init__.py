"""``oomph predict --model``: a model that is known by its name alone.

``prepare`` reads the model's ``config.json``, and writes the script (from ``scripts``) and a checkpoint without data; ``sizes`` tries batches and sequences with the script's own
functions. Both run in one process of the user's Python, on the virtual GPU, for the crate ``oomph-predict`` (``model.rs``). Of cards they know how many bytes there are.
"""
