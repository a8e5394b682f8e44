"""How the notebook speaks: a line in small print, and explanations that the command writes.

Nothing here needs a network or a script; what the command writes as HTML is one fragment that escapes everything.
"""

from __future__ import annotations

import html
import os
import subprocess
from typing import Any

from oomph._find import find_oomph

_SMALL = "font-size:smaller;opacity:.75;white-space:pre-wrap;margin:0"


def say(text: str) -> None:
    """Says something under a cell, apart from what the cell printed."""
    from IPython.display import display

    bundle = {"text/plain": text, "text/html": f'<pre style="{_SMALL}">{html.escape(text)}</pre>'}
    display(bundle, raw=True)


def show_table(lines: list[str]) -> None:
    """Shows rows of text, each as wide as it is."""
    from IPython.display import display

    said = "\n".join(lines)
    display({"text/plain": said, "text/html": f'<pre style="white-space:pre;overflow-x:auto;margin:0">{html.escape(said)}</pre>'}, raw=True)


class Explained:
    """The explanation of a recording, for people: text where there is only text, else with a picture."""

    def __init__(self, recording: str) -> None:
        self.recording = recording

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    def __repr__(self) -> str:
        return self.text()

    def text(self) -> str:
        return _explain(self.recording, "text")

    def html(self) -> str:
        return _explain(self.recording, "html")

    def show(self) -> None:
        from IPython.display import display

        display(self)


def _explain(recording: str, format: str) -> str:
    command = [find_oomph(), "explain", "--quiet", "--color", "never", "--format", format, recording]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"})
    # 1 means that there are findings.
    said = ran.stdout if ran.returncode in (0, 1) else ran.stderr
    return said.rstrip("\n") if format == "text" or ran.returncode in (0, 1) else f"<pre>{html.escape(said)}</pre>"
