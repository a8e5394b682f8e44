"""How far a long pass over data has come, as a bar. When and where a line is shown is ``oomph._progress``'s."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oomph._progress import ProgressLine, where_it_is_seen
from oomph._sizes import text

# Called with what is done ("profiling", "loading", "writing"), and how many of how many bytes or rows are behind.
Progress = Callable[[str, int, int], None]

_BAR_WIDTH = 30


@contextmanager
def shown(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """What to hand to the native side: the caller's function, a bar on a terminal, or nothing."""
    if callable(progress):
        yield progress
        return
    line = ProgressLine() if progress is False else where_it_is_seen()
    try:
        # Without a bar the native side need not count.
        yield None if type(line) is ProgressLine else _bar(line)
    finally:
        line.close()


def _bar(line: ProgressLine) -> Progress:
    def draw(doing: str, done: int, total: int) -> None:
        if not total:
            return
        share = min(done / total, 1.0)
        filled = int(share * _BAR_WIDTH)
        line.say(f"{doing:>9} {'█' * filled}{'░' * (_BAR_WIDTH - filled)} {share:4.0%}  {text(done)} of {text(total)}, {line.seconds:.0f} s")

    return draw
