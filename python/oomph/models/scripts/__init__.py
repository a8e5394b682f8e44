"""The scripts that ``oomph predict --model`` runs and prints, one a way to use a model. They need nothing of oomph.

Each is as it is printed, but for the name of the model, the sizes and the class (``prepare`` puts them in), and has what ``sizes`` calls: ``load(name)`` gives what is trained or run,
``batch(what, batch, sequence)`` the tokens, ``step(what, tokens)`` takes a step. ``load`` gives a tuple whose first is the model.
"""
