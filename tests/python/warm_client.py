"""Stands in for a Python: sends what it is asked to run to a `warm_server`, and is all that whoever started it sees of it. See `warm`.

What a server cannot do as a Python of its own would (other flags, other libraries before it, limits, variables that are read when a process starts),
the real Python does, in this process's place.
"""

import os
import sys

# By `warm`: the Python that this stands in for, the server's socket, and the environment that the server was started in.
PYTHON, SOCKET, ENVIRONMENT = "", "", {}
# By `warm_server`: what a server may have imported beside PyTorch. Those before import those after them.
LIBRARIES, COMPILER = (), ""

# Read by libraries when they are imported. PyTorch is not among them.
READ_BY_LIBRARIES = ("HF_HUB_OFFLINE", "HF_HOME", "XDG_CACHE_HOME", "HOME", "TMPDIR", "RANK", "LOCAL_RANK")
# Read by what is imported after PyTorch, or not before CUDA is initialised.
READ_LATER = {
    "OOMPH_PREDICT",
    "OOMPH_RUN",
    "OOMPH_VIRTUAL_GPU",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "TRITON_LIBCUDA_PATH",
    "PYTHONPATH",
    "PYTEST_CURRENT_TEST",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "COLUMNS",
    "LINES",
    "_",
    "HF_HUB_OFFLINE",
    "HF_HOME",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "HOME",
    # Each process of pytest-xdist has another.
    "PYTEST_XDIST_WORKER",
    # Set by polars, Ray and Lightning where a test has imported them.
    "_RJEM_MALLOC_CONF",
    "RAY_CLIENT_MODE",
    "RAY_AUTH_MODE",
    "RAY_USAGE_STATS_ENABLED",
    "PYTHONBREAKPOINT",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
}


def libraries(environment):
    """What comes before all others in a process, by name: the same files lie in another folder each time."""
    names = [os.path.basename(path) for path in environment.get("LD_PRELOAD", "").replace(" ", ":").split(":") if path]
    return list(dict.fromkeys(names))


def asked_of_a_server(words):
    """What a server is to run; None if it cannot."""
    import resource

    environment = dict(os.environ)
    different = {name for name in {*environment, *ENVIRONMENT} if environment.get(name) != ENVIRONMENT.get(name)}
    places = [place for place in environment.get("PYTHONPATH", "").split(":") if place]
    imported = [os.path.join(place, name) for place in places for name in ("usercustomize.py", "torch", "numpy", *LIBRARIES)]
    limited = any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU))
    unknown = different - READ_LATER
    if unknown:
        # Whoever wonders why the tests take longer finds it beside the socket.
        with open(os.path.join(os.path.dirname(SOCKET), "cold"), "a") as file:
            file.write(" ".join(sorted(unknown)) + "\n")
    if unknown or limited or libraries(environment) != libraries(ENVIRONMENT) or any(map(os.path.exists, imported)):
        return None
    asked = {"folder": os.getcwd(), "environment": environment, "python": sys.argv[0], "script": None, "code": None, "faulthandler": False}
    if words[:2] == ["-X", "faulthandler"]:
        asked["faulthandler"], words = True, words[2:]
    if words[:1] == ["-c"]:
        return {**asked, "code": words[1], "words": ["-c", *words[2:]]}
    if words and not words[0].startswith("-"):
        return {**asked, "script": os.path.abspath(words[0]), "words": words}
    return None


def door_for(asked):
    """The socket of the server that has imported what the program imports."""
    predicted = "OOMPH_PREDICT" in asked["environment"]
    path, text = asked["script"], asked["code"] or ""
    if predicted:
        import json

        task = json.loads(asked["environment"]["OOMPH_PREDICT"])
        # A rank is told later which one it is.
        path, text = None if task.get("world") else task.get("target"), ""
    if path:
        try:
            with open(os.path.join(asked["folder"], path), encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError):
            # Whoever runs it will say so.
            pass
    as_imported = all(asked["environment"].get(name) == ENVIRONMENT.get(name) for name in READ_BY_LIBRARIES)
    for library in LIBRARIES if as_imported else ():
        if f"import {library}" in text or f"from {library}" in text:
            return f"{SOCKET}-{library}"
    # A program imports PyTorch's compiler at the latest in the first step of its optimizer, and oomph.fit when it tries checkpoints. A prediction leaves
    # it out.
    compiles = "oomph.fit" in text or (not predicted and "torch" in text)
    return f"{SOCKET}-{COMPILER}" if compiles else SOCKET


def run(asked):
    """Sends it, passes signals on, and ends as it ended. Returns if there is no server any more."""
    import json
    import signal
    import socket

    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(door_for(asked))
    except OSError:
        return
    data = json.dumps(asked).encode()
    socket.send_fds(server, [b"%d\n" % len(data)], [0, 1, 2])
    server.sendall(data)
    answer = server.makefile("rb")
    begun = answer.readline()
    if not begun:
        # It could not import what it was for.
        return
    pid = int(begun)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: os.kill(pid, number))
    code = json.loads(answer.read())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def main(words):
    asked = asked_of_a_server(words)
    if asked is not None:
        run(asked)
    # Who asks it where it is must come back to this file.
    if words[:1] == ["-c"]:
        words[1] = f"import sys; sys.executable = {sys.argv[0]!r}\n{words[1]}"
    os.execv(PYTHON, [PYTHON, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
