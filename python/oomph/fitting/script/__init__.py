"""``oomph fit script.py``: a script is watched until it has stepped, its step is read from its source, planned, and the lines to change are written."""
