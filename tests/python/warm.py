"""Pythons that have imported PyTorch already. An import takes two seconds of a processor, and hundreds of programs make one.

For each Python a process (`warm_server`) imports PyTorch on the virtual GPU, and forks for each program; others do that with one large library more. What stands in for that Python
(`warm_client`) is a file that can be given to `oomph predict --python`, or started: it sends its words, environment and files to the server. Whatever needs
a process of its own from its start gets one: see there. Tests of how a process starts, or is ended, name the real Python.
"""

import contextlib
import fcntl
import os
import pathlib
import subprocess
import time
import zlib
from dataclasses import dataclass

from warm_server import COMPILER, LIBRARIES

HERE = pathlib.Path(__file__).resolve().parent
# Before tests import what sets variables of its own.
AT_FIRST = dict(os.environ)

# Given by -c, as oomph gives a program: no line of it is taken for the program's own, and errors are reported without it.
SERVER = f"""
import sys
sys.path[0] = {str(HERE)!r}
import warm_server
text, main = warm_server.serve(sys.argv[1])
try:
    exec(text, main.__dict__)
except SystemExit:
    raise
except BaseException as error:
    error.__traceback__ = error.__traceback__.tb_next
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)
"""


class Warm:
    """Gives a warm Python for a real one. Its server is started when it is first asked for, and serves all processes of the tests that name the same folder."""

    def __init__(self, command, folder):
        self.command, self.folder, self.used = command, folder, {}

    def __call__(self, python):
        python = str(python)
        if python not in self.used:
            folder = self.folder / f"{zlib.crc32(python.encode()):08x}"
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.used[python] = joined(folder) or self.start(python, folder)
        return str(self.used[python].client)

    def start(self, python, folder):
        for name in ("python", "door", *(f"door-{library}" for library in (*LIBRARIES, COMPILER)), "environment", "in-use"):
            (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / "in-use")
        reader = os.open(folder / "in-use", os.O_RDONLY | os.O_NONBLOCK)
        used = Used(folder / "python", os.open(folder / "in-use", os.O_WRONLY))
        # With the card under it, and nothing of oomph inside: that comes with a program.
        bare = ["env", "-u", "OOMPH_RUN", "-u", "PYTHONPATH", python, "-c", SERVER, folder / "door"]
        words = ["run", "--quiet", "--no-recording", "--gpu", "t4", "--python", python, *bare]
        with open(folder / "said", "w") as said:
            used.server = subprocess.Popen([self.command, *map(str, words)], stdin=reader, stdout=said, stderr=said, env=AT_FIRST)
        os.close(reader)
        until = time.monotonic() + 60
        while not (folder / "environment").exists():
            if used.server.poll() is not None or time.monotonic() > until:
                used.server.kill()
                os.close(used.writer)
                raise AssertionError((folder / "said").read_text())
            time.sleep(0.01)
        text = (HERE / "warm_client.py").read_text()
        given = f"PYTHON, SOCKET, ENVIRONMENT = {python!r}, {str(folder / 'door')!r}, {(folder / 'environment').read_text()}"
        text = text.replace('PYTHON, SOCKET, ENVIRONMENT = "", "", {}', given)
        text = text.replace('LIBRARIES, COMPILER = (), ""', f"LIBRARIES, COMPILER = {tuple(LIBRARIES)!r}, {COMPILER!r}")
        used.client.write_text(f"#!{python} -IS\n{text}")
        used.client.chmod(0o755)
        return used

    def end(self):
        for used in self.used.values():
            os.close(used.writer)
            # Another process of the tests may use it still.
            if used.server is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    used.server.wait(1)


@dataclass
class Used:
    """A server that this process uses. It ends when the last who uses it is gone, in whatever way: it reads from them, and finds an end."""

    client: pathlib.Path
    writer: int
    server: subprocess.Popen | None = None


def joined(folder):
    """A server that is there already; None if nobody reads, or its start failed."""
    client = folder / "python"
    try:
        return Used(client, os.open(folder / "in-use", os.O_WRONLY | os.O_NONBLOCK)) if client.exists() else None
    except OSError:
        return None
