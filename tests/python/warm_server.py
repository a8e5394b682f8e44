"""A Python that has imported PyTorch on the virtual GPU, and forks once for each program that is sent to it. See `warm`.

To a program it looks like a Python of its own: PyTorch is not among its modules until the program imports it, and is there at once then. CUDA is not
initialised before: the card is read from the program's environment.
"""

import contextlib
import faulthandler
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


class Again(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the PyTorch that is in memory to the first who imports it, in the way of an import: hooks that wait for one are called."""

    def __init__(self, torch, first=None):
        self.torch, self.first = torch, first
        self.kept = torch.__spec__, torch.__loader__

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        # A loader for each search: those who wait put their own function into it.
        loader, places = Again(self.torch, first=self), list(self.torch.__path__)
        return importlib.util.spec_from_file_location(name, self.torch.__file__, loader=loader, submodule_search_locations=places)

    def create_module(self, spec):
        return self.torch

    def exec_module(self, module):
        module.__spec__, module.__loader__ = self.kept
        if self.first in sys.meta_path:
            sys.meta_path.remove(self.first)


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


def next_program(door):
    """Waits for programs, and returns in each process that is forked for one. Tells who asked how it ended; who goes away has it ended."""
    running = {}
    while True:
        asking = [client for client, _ in running.values() if client is not None]
        ready, _, _ = select.select([0, door, *running, *asking], [], [])
        if 0 in ready:
            # The tests are over, or were killed.
            os._exit(0)
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
                door.close()
                for one, _ in running.values():
                    if one is not None:
                        one.close()
                for process in running:
                    os.close(process)
                client.close()
                return asked, files
            for file in files:
                os.close(file)
            if pid is None:
                client.close()
                continue
            running[os.pidfd_open(pid)] = client, pid
            tell(client, b"%d\n" % pid)


def become(asked, files):
    """This process is the program's from here on."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
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


def serve(path):
    """Gives the text of a program and its namespace, in the process that is to run it."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen(16)
    tell_environment(os.path.dirname(path))
    import torch

    assert not torch.cuda.is_initialized()
    asked, files = next_program(door)
    del sys.modules["torch"]
    sys.meta_path.insert(0, Again(torch))
    return become(asked, files)
