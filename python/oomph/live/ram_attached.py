"""Records the RAM of a process that ran already when the command put this into it (``oomph run --ram --attach``), for as long as the command is there.

The command has made a folder, and this file is in it, with the library, ``ram_library.py`` and

- ``task``: how long the recording may become, and its path;
- ``command``: a file that the command holds locked until it ends, in whatever way;
- ``answer``: what became of it, for the command to read.

Boundary: run as text in the main thread, which goes on at once: a thread of its own does the work, and waits. There is no oomph in this process, and nothing of this is imported by name.
"""

import _signal
import _thread
import os

FOLDER = os.path.dirname(os.path.abspath(__file__))
# Frames of code by this name are no lines of the program's.
NAME = "<oomph>"


def begin():
    if isinstance(_thread.start_new_thread, type(len)):
        _thread.start_new_thread(attend, ())
    else:
        say("its threads are another library's (gevent or eventlet), and what waits in one would hold up all of them")


def attend():
    # The program's signals are for its own threads.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        say(record())
    except Exception as error:
        say(f"{type(error).__name__}: {error}")


def record():
    import fcntl

    with open(beside("command")) as command:
        names = {"__name__": NAME}
        with open(beside("ram_library.py"), encoding="utf-8") as text:
            exec(compile(text.read(), NAME, "exec"), names)
        with open(beside("task"), "rb") as task:
            most, path = task.read().split(b" ", 1)
        library = names["loaded"](lambda: beside("liboomph_ram.so"))
        library.oomph_ram_leave_out(NAME.encode())
        if library.oomph_ram_attach() != 0:
            return names["NOT_HERE"]
        failed = library.oomph_ram_start(path, int(most))
        if failed:
            return f"errno {failed}"
        stop_watching = names["watch_loading"](library)
        say("began")
        fcntl.flock(command, fcntl.LOCK_SH)
        library.oomph_ram_stop()
        stop_watching()
        return "ended"


def beside(name):
    return os.path.join(FOLDER, name)


def say(answer):
    """Whole or not at all. If the command has gone, so has its folder."""
    try:
        with open(beside("answer.new"), "w") as file:
            file.write(answer)
        os.replace(beside("answer.new"), beside("answer"))
    except OSError:
        pass


if __name__ == "__main__":
    begin()
