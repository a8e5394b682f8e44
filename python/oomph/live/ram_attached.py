"""Records the RAM of a process that ran already when the command put this into it (``oomph run --ram --attach``), for as long as the command is there.

The command has made a folder, and this file is in it, with the library, ``ram_library.py`` and

- ``task``: ``record``, how long the recording may become, and its path; or ``end``;
- ``command``: a file that the command holds locked until it ends, in whatever way: the library looks;
- ``answer``: what became of the task, for the command to read.

Boundary: run as text in the main thread, which goes on at once: a thread of its own does the work, and ends. There is no oomph in this process, and nothing of this is imported by name.
"""

import _signal
import _thread
import os

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
# Frames of code by this name are no lines of the program's.
NAME = "<oomph>"


def begin() -> None:
    # An error that a handler of the program's signals raises is the program's: handlers run in the main thread.
    if isinstance(_thread.start_new_thread, type(len)):
        _thread.start_new_thread(attend, ())
    else:
        say("its threads are another library's (gevent or eventlet), which would hold it up")


def attend() -> None:
    # The program's signals are for its own threads.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
    try:
        say(done())
    except Exception as error:
        say(f"{type(error).__name__}: {error}")


def done() -> str:
    import ctypes

    names: dict[str, Any] = {"__name__": NAME}
    with open(beside("ram_library.py"), encoding="utf-8") as text:
        exec(compile(text.read(), NAME, "exec"), names)
    with open(beside("task"), "rb") as task:
        what, most, path = task.read().split(b" ", 2)
    library = names["loaded"](lambda: beside("liboomph_ram.so"))
    if what == b"end":
        library.oomph_ram_stop()
        return "ended"
    library.oomph_ram_leave_out(NAME.encode())
    if library.oomph_ram_attach() != 0:
        return names["NOT_HERE"]
    failed = library.oomph_ram_start(path, int(most))
    if failed:
        return f"errno {failed}"
    library.oomph_ram_while(os.fsencode(beside("command")))
    names["watch_loading"](library)
    return f"began {ctypes.cast(library.oomph_ram_stop, ctypes.c_void_p).value}"


def beside(name: str) -> str:
    return os.path.join(FOLDER, name)


def say(answer: str) -> None:
    """A line is whole. If the command has gone, so has its folder."""
    try:
        with open(beside("answer"), "w") as file:
            file.write(answer + "\n")
    except OSError:
        pass


if __name__ == "__main__":
    begin()
