"""Calls back once a module has been imported."""

import importlib.abc
import importlib.util
import sys


class AfterImport(importlib.abc.MetaPathFinder):
    """Waits for one module: the program decides when it is imported, and may set variables before."""

    def __init__(self, name, callback):
        self.name, self.callback = name, callback
        self.looking = False

    def find_spec(self, name, path, target=None):
        if name != self.name or self.looking:
            return None
        # Libraries look for a module long before they import it: each search gets a loader that calls back.
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self.callback(module)

        spec.loader.exec_module = exec_module
        return spec


def after_import(name, callback):
    """Calls back with the module: at once where it is here already."""
    if name in sys.modules:
        callback(sys.modules[name])
    else:
        sys.meta_path.insert(0, AfterImport(name, callback))
