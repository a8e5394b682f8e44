"""Pythons that have imported PyTorch already. An import takes two seconds of a processor, and hundreds of programs make one.

For each Python one process (`warm_server`) imports PyTorch on the virtual GPU, and forks for each program. What stands in for that Python
(`warm_client`) is a file that can be given to `oomph predict --python`, or started: it sends its words, environment and files to the server. Whatever needs
a process of its own from its start gets one: see there. Tests of how a process starts, or is ended, name the real Python.
"""

import contextlib
import os
import pathlib
import subprocess
import time

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
    """Gives a warm Python for a real one. Its server is started when it is first asked for."""

    def __init__(self, command, folder):
        self.command, self.folder, self.started = command, folder, {}

    def __call__(self, python):
        python = str(python)
        if python not in self.started:
            self.started[python] = self.start(python, self.folder / str(len(self.started)))
        return self.started[python][0]

    def start(self, python, folder):
        folder.mkdir()
        door = folder / "door"
        # With the card under it, and nothing of oomph inside: that comes with a program.
        bare = ["env", "-u", "OOMPH_RUN", "-u", "PYTHONPATH", python, "-c", SERVER, door]
        words = ["run", "--quiet", "--no-recording", "--gpu", "t4", "--python", python, *bare]
        with open(folder / "said", "w") as said:
            server = subprocess.Popen([self.command, *map(str, words)], stdin=subprocess.PIPE, stdout=said, stderr=said, env=AT_FIRST)
        until = time.monotonic() + 60
        while not (folder / "environment").exists():
            assert server.poll() is None and time.monotonic() < until, (folder / "said").read_text()
            time.sleep(0.01)
        client = folder / "python"
        text = (HERE / "warm_client.py").read_text()
        given = f"PYTHON, SOCKET, ENVIRONMENT = {python!r}, {str(door)!r}, {(folder / 'environment').read_text()}"
        client.write_text(f"#!{python} -IS\n" + text.replace('PYTHON, SOCKET, ENVIRONMENT = "", "", {}', given))
        client.chmod(0o755)
        return str(client), server

    def end(self):
        for _, server in self.started.values():
            # It ends when nobody can write to it any more: also where nobody comes to say so.
            server.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()
            server.wait()
