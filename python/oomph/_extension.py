"""Where the extension module ``oomph._native`` is, and that it belongs to this package.

The wheel has it beside this file. A checkout has it beside the command that was built, and a script that ``oomph predict`` runs has a copy of the package that came
out of the command: its library is that of whatever oomph is installed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType

from oomph._find import find_oomph
from oomph._version import VERSION

NAME = "oomph._native"
_IN_A_WHEEL = "_native.abi3.so"
_BY_CARGO = "liboomph_native.so"


def load_native() -> ModuleType:
    """The extension module. Raises ImportError, with the places that were searched, if it is not there or not of this version."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        # Its objects are laid out differently: the library would crash, not fail.
        raise ImportError(f"oomph needs a Python with the global interpreter lock, and {sys.executable} is free-threaded: install it into another", name=NAME)
    looked = []
    for path in _places():
        looked.append(path)
        if os.path.isfile(path):
            return _load(path)
    raise ImportError(f"the extension module of oomph is in none of {', '.join(looked)}; is oomph installed?", name=NAME)


def _places() -> Iterator[str]:
    """In the order they are believed."""
    named = os.environ.get("OOMPH_NATIVE")
    if named:
        # A file that is named is the only candidate.
        yield named
        return
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, _IN_A_WHEEL)
    try:
        yield os.path.join(os.path.dirname(os.path.realpath(find_oomph())), _BY_CARGO)
    except FileNotFoundError:
        pass
    for folder in sys.path:
        place = os.path.join(os.path.abspath(folder), "oomph")
        if place != here and os.path.isdir(place):
            yield os.path.join(place, _IN_A_WHEEL)


def _load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    theirs = getattr(module, "VERSION", "an unknown version")
    if theirs != VERSION:
        raise ImportError(f"{path} is of oomph {theirs}, and the package {os.path.dirname(__file__)} of {VERSION}: install one of them anew", name=NAME, path=path)
    sys.modules[NAME] = module
    return module
