"""Rewrites a few lines of a script so that it no longer runs out of memory, and shows that as a diff.

``source`` knows a file and makes edits, ``reading`` and ``tensors`` say what is in it, ``patches`` lists the causes and their functions (a module for each sort), ``diff`` and ``notebook``
write the difference, ``child`` is what the command ``oomph explain --fix`` runs. Nothing here executes or imports the script, and nothing but the standard library is needed.
"""
