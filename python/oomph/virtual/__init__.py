"""What runs inside a program on the virtual GPU. ``oomph predict`` carries these files and starts them; no API.

- ``child``: starts the program, records it, stops it, writes down what happened.
- ``values``: keeps true what the program computes to steer itself.
- ``reads``: notices where it steers by a value that is not known.
- ``philox``: the random numbers that the card would have drawn.
- ``backward``: gives allocations of the backward pass the forward line that caused them.
- ``ranks``: one rank of many, without the others.
- ``objects``: what ranks send each other as Python objects.

Types cost nothing there: what only they need is imported under ``TYPE_CHECKING``, which is False in each module, and not ``typing``'s where nothing else needs ``typing``.
An attribute that is None until the program has come so far, and is used only later, has ``| Any`` in its type.
"""
