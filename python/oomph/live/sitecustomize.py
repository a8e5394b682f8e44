"""Python imports this in every process that ``oomph run`` has started, before the program. It makes room for the
environment's own ``sitecustomize``, and has oomph wait for PyTorch."""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_environments_own() -> None:
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _wait_for_torch(folder: str) -> None:
    sys.path.insert(0, folder)
    try:
        from _oomph_live import startup

        startup.wait()
    except Exception as error:
        # Nothing of ours may stop the program.
        print(f"oomph: nothing will be recorded: {error}", file=sys.stderr)
    finally:
        sys.path.remove(folder)


_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [place for place in sys.path if os.path.abspath(place) != _here]
_wait_for_torch(_here)
_run_the_environments_own()
