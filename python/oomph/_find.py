"""Where the command is."""

import os
import sys
import sysconfig


def find_oomph() -> str:
    """The path of the command that this package carries, or of the one that ``OOMPH_COMMAND`` names.

    Raises FileNotFoundError, with the places that were searched, if it is not there.
    """
    named = os.environ.get("OOMPH_COMMAND")
    if named and os.path.isfile(named):
        return named
    name = "oomph.exe" if os.name == "nt" else "oomph"
    folders = [
        sysconfig.get_path("scripts"),
        # pip install --user, and pip install --target
        sysconfig.get_path("scripts", scheme=sysconfig.get_preferred_scheme("user")),
        os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin"),
        os.path.dirname(sys.executable),
    ]
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"the command {name} is in none of {', '.join(folders)}; is oomph installed?")
