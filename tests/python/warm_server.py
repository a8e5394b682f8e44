"""A Python that has imported PyTorch on the virtual GPU, and forks once for each program that is sent to it. See `warm`.

To a program it looks like a Python of its own: PyTorch is not among its modules until the program imports it, and is there at once then. CUDA is not
initialised before: the card is read from the program's environment. Programs that import one of a few large libraries are forked from a process that has
imported it too.
"""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import select
import signal
import site
import socket
import sys
import types

# What programs import beside PyTorch, and what of it they use. Each imports those below it too. Not among them is what looks at the card when it is
# imported, as bitsandbytes does: transformers' trainer, accelerate and peft bring it.
LIBRARIES = {
    "lightning": ["lightning.pytorch"],
    "transformers": [
        "transformers",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.llama.modeling_llama",
        "transformers.models.bert.modeling_bert",
    ],
    "torchvision": ["torchvision"],
}
COMPILER = "torch._dynamo"
# Variables that a library has set when it was imported: a program that imports it has them too.
SET_BY_IMPORTS = {}
# Not seen by a program until it imports them.
HIDDEN = ["torch", "lightning", "transformers", "torchvision"]


class Again(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a package that is in memory to the first who imports it, in the way of an import: hooks that wait for one are called."""

    def __init__(self, package, first=None):
        self.package, self.first = package, first
        self.kept = package.__spec__, package.__loader__

    def find_spec(self, name, path, target=None):
        if name != self.package.__name__:
            return None
        # A loader for each search: those who wait put their own function into it.
        loader, places = Again(self.package, first=self), list(self.package.__path__)
        return importlib.util.spec_from_file_location(name, self.package.__file__, loader=loader, submodule_search_locations=places)

    def create_module(self, spec):
        return self.package

    def exec_module(self, module):
        module.__spec__, module.__loader__ = self.kept
        if self.first in sys.meta_path:
            sys.meta_path.remove(self.first)
        # The others import it, and whoever waits for it is called then.
        importlib.import_module("torch")


def received(client):
    """What is asked for, with the three files of its input and output; None if whoever asked was killed meanwhile."""
    data, files, _, _ = socket.recv_fds(client, 1 << 16, 3)
    size, _, data = data.partition(b"\n")
    while size and len(data) < int(size):
        more = client.recv(1 << 16)
        if not more:
            return None, files
        data += more
    return json.loads(data) if size else None, files


def tell(client, data):
    """Whoever asked, if it is still there."""
    with contextlib.suppress(OSError):
        client.sendall(data)


def leave(doors, running):
    """In a process that was forked: what is the server's."""
    for door in doors:
        door.close()
    for process, (client, _) in running.items():
        os.close(process)
        if client is not None:
            client.close()


def next_program(doors):
    """Waits for programs, and returns in each process that is forked for one. Tells who asked how it ended; who goes away has it ended.

    Behind each of the other doors is a server of its own, forked when somebody first comes there: it imports what the door is named after.
    """
    door, running = doors.pop(None), {}
    while True:
        asking = [client for client, _ in running.values() if client is not None]
        ready, _, _ = select.select([0, door, *doors.values(), *running, *asking], [], [])
        if 0 in ready:
            # The tests are over, or were killed.
            for _, pid in running.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        for name in [name for name, other in doors.items() if other in ready]:
            other = doors.pop(name)
            if os.fork() == 0:
                leave([door, *doors.values()], running)
                door, doors, running = other, {}, {}
                import_all(name)
                break
            other.close()
        for process in [process for process in running if process in ready]:
            client, pid = running.pop(process)
            _, status = os.waitpid(pid, 0)
            os.close(process)
            if client is not None:
                tell(client, json.dumps(os.waitstatus_to_exitcode(status)).encode())
                client.close()
        for process, (client, pid) in running.items():
            if client in ready:
                client.close()
                running[process] = None, pid
                os.kill(pid, signal.SIGKILL)
        if door in ready:
            client, _ = door.accept()
            asked, files = received(client)
            pid = os.fork() if asked else None
            if pid == 0:
                leave([door, *doors.values()], running)
                client.close()
                return asked, files
            for file in files:
                os.close(file)
            if pid is None:
                client.close()
                continue
            running[os.pidfd_open(pid)] = client, pid
            tell(client, b"%d\n" % pid)


def import_all(library):
    """What programs import with it. Some of it may not be installed for this Python, or not fit its PyTorch."""
    before = dict(os.environ)
    for module in LIBRARIES.get(library, [library]):
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    SET_BY_IMPORTS.update((name, value) for name, value in os.environ.items() if before.get(name) != value)
    made_ready()


def made_ready():
    """To be forked: programs need not look at what is here when they collect garbage, nor have pages of their own for it."""
    assert not sys.modules["torch"].cuda.is_initialized()
    gc.collect()
    gc.freeze()


def become(asked, files):
    """This process is the program's from here on."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # What is left over at the end is to be found then: libraries count what leaks.
    atexit.register(gc.unfreeze)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update({**SET_BY_IMPORTS, **asked["environment"]})
    sys.executable = asked["python"]
    sys.argv = asked["words"]
    if asked["faulthandler"]:
        faulthandler.enable()
    # In the order of a start: what lies in those folders is imported before the program's own is on the path.
    sys.path[:1] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()
    sys.path.insert(0, os.path.dirname(os.path.abspath(asked["script"])) if asked["script"] else "")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if asked["script"]:
        main.__file__ = asked["script"]
        with open(asked["script"], "rb") as file:
            return compile(file.read(), asked["script"], "exec"), main
    return compile(asked["code"], "<string>", "exec"), main


def tell_environment(folder):
    """For those who ask, to compare theirs with. They may ask from now on; the answer comes when PyTorch is here."""
    part = os.path.join(folder, "part")
    with open(part, "w") as file:
        file.write(repr(dict(os.environ)))
    os.rename(part, os.path.join(folder, "environment"))


def opened(path):
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen(16)
    return door


def serve(path):
    """Gives the text of a program and its namespace, in the process that is to run it."""
    doors = {None: opened(path), **{name: opened(f"{path}-{name}") for name in (*LIBRARIES, COMPILER)}}
    tell_environment(os.path.dirname(path))
    import torch  # noqa: F401

    made_ready()
    asked, files = next_program(doors)
    for name in HIDDEN:
        if name in sys.modules:
            sys.meta_path.insert(0, Again(sys.modules.pop(name)))
    return become(asked, files)
