"""``oomph.report``: the page that ``oomph report`` writes, shown where it is asked for: in a notebook, or saved to a file."""

from __future__ import annotations

import html
import os
import subprocess
import warnings
from typing import Any

from oomph._find import find_oomph
from oomph._sizes import text

# Notebooks keep what they show, and become slow when that is much.
_LARGEST_SHOWN = 20 << 20


class ReportError(RuntimeError):
    """No page could be made; the message says why."""


class Report:
    """A page. Shows itself in a notebook; :meth:`save` writes it to a file."""

    def __init__(self, recordings: list[str], options: list[str], height: int) -> None:
        self.recordings, self.height = recordings, height
        self._options = options
        self._page: str | None = None

    @property
    def html(self) -> str:
        """The whole page. It needs no network and nothing beside it."""
        if self._page is None:
            command = [find_oomph(), "report", *self._options, "-o", "-", "--", *self.recordings]
            ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
            said = ran.stderr.strip()
            if not ran.stdout:
                raise ReportError(said.removeprefix("error: ") or f"the command oomph failed with {ran.returncode}")
            # A recording of several that cannot be read does not lose the others.
            if ran.returncode != 0:
                warnings.warn(said, stacklevel=2)
            self._page = ran.stdout
        return self._page

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file, over one that is there. It is whole or not there."""
        path = os.path.abspath(os.fspath(path))
        beside = f"{path}.{os.getpid()}.tmp"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(self.html)
            os.replace(beside, path)
        finally:
            if os.path.exists(beside):
                os.remove(beside)

    def __repr__(self) -> str:
        return f'oomph.report of {", ".join(self.recordings)}: .save("report.html") writes the page'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        page = self.html
        if len(page) > _LARGEST_SHOWN:
            note = f'the page has {text(len(page))}, which is much for a notebook: .save("report.html") writes it to a file'
            return {"text/plain": note, "text/html": f"<p>{html.escape(note)}</p>"}
        # In a frame of its own: neither its styles nor its script meet the notebook's. It may run its script and nothing else.
        frame = f'<iframe sandbox="allow-scripts allow-downloads" title="oomph report" style="width:100%;height:{self.height}px;border:0" srcdoc="{html.escape(page)}"></iframe>'
        return {"text/plain": repr(self), "text/html": frame}


def report(
    *recordings: Any,
    gpu: str | None = None,
    memory: str | int | None = None,
    limit: str | int | None = None,
    compare: bool | None = None,
    what_if: bool | None = None,
    source: bool | str | os.PathLike[str] = True,
    height: int = 900,
) -> Report:
    """The page of one recording, of two to compare (before, after), or of several ranks.

    Recordings are paths, or what ``oomph.record`` gave. ``gpu``, ``memory`` and ``limit`` draw in what there is and tune for it; ``compare``
    says whether two are before and after (by default they are, unless their names differ in a rank only); ``what_if`` whether other
    allocator settings are tried; ``source`` a folder whose files may be quoted (by default the current one), or False for none.

    >>> oomph.report("train.oomph")  # doctest: +SKIP
    """
    if not recordings:
        raise TypeError('which recording? oomph.report("train.oomph")')
    options: list[str] = []
    for name, value in (("--gpu", gpu), ("--memory", memory), ("--limit", limit)):
        if value is not None:
            options += [name, str(value)]
    if compare is not None:
        options += ["--as", "diff" if compare else "ranks"]
    if what_if is not None:
        options += ["--what-if", "always" if what_if else "never"]
    if source is False:
        options.append("--no-source")
    elif source is not True:
        options += ["--source", os.fspath(source)]
    return Report([_path(each) for each in recordings], options, height)


def _path(recording: Any) -> str:
    live = getattr(recording, "_live", None)
    if live is not None and live.active:
        live.recorder.flush()
    return os.fspath(getattr(recording, "path", recording))
