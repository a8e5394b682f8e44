"""What lives inside a running program: its recorder, and what frees memory after an out-of-memory.

``oomph run`` puts a copy of this package into every Python process of the program (``startup``); ``oomph.record`` uses
it in the process that calls it. It needs nothing but the standard library and the PyTorch that is there.

Annotations cost nothing there: what only they need is imported under ``TYPE_CHECKING``, a False of the module's own. To import ``typing`` takes longer than
any of these modules.
"""
