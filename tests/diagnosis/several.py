"""Runs several diagnosis programs one after another in one process, each with a recording of its own: ``several.py FOLDER PROGRAM...``.

Importing PyTorch takes longer than most of them. What one leaves behind is freed before the next begins.
"""

import gc
import sys
import types

import oomph


def run(path, recording):
    import torch

    main = types.ModuleType("__main__")
    main.__file__ = path
    with open(path) as file:
        text = file.read()
    started, keeper = sys.modules["__main__"], oomph.record(recording, quiet=True)
    sys.modules["__main__"], sys.argv = main, [path]
    try:
        exec(compile(text, path, "exec"), main.__dict__)
    except torch.cuda.OutOfMemoryError:
        # Here, while it is what goes through this frame: the program has died of it.
        keeper.stop()
    finally:
        keeper.stop()
        sys.modules["__main__"] = started
    main.__dict__.clear()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


if __name__ == "__main__":
    folder, *programs = sys.argv[1:]
    for program in programs:
        run(f"{folder}/{program}.py", f"{folder}/{program}.oomph")
        gc.collect()
        sys.modules["torch"].cuda.empty_cache()
