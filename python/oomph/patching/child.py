"""What ``oomph explain --fix`` runs: a request on stdin, the change on stdout, both JSON.

The request has ``file`` (where it lies), ``cell`` (of a notebook, from 1), ``shown`` (its path in the diff), and what ``reading.Request`` has. The answer has
``changes``, best first, each with ``source`` (the new text of the file or the cell), ``diff`` (to be read) and ``patch`` (to be applied; null for a notebook that is laid out in a way
of its own), or ``refused``: why there is no change.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .diff import unified
from .notebook import Notebook
from .patches import changes
from .reading import Request
from .source import NoPatch


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"changes": _changes(asked)}
    except NoPatch as why:
        return {"refused": str(why)}


def _changes(asked: dict[str, Any]) -> list[dict[str, Any]]:
    file, shown = asked["file"], asked["shown"]
    request = Request(asked["cause"], asked["line"], asked.get("function", ""), asked.get("name"), asked.get("also", []))
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            text = opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise NoPatch(f"the file cannot be read: {error}") from error
    if asked.get("cell") is None:
        diffs = [(new, unified(shown, text, new)) for new in changes(text, "", request)]
        return [{"source": new, "diff": diff, "patch": diff} for new, diff in diffs]
    notebook = Notebook(text, asked["cell"])
    if not notebook.is_plain:
        raise NoPatch("the cell has magics or shell commands")
    found = []
    for new in changes(notebook.source, notebook.before, request):
        whole = notebook.changed(new)
        diff = unified(f"{shown}[{asked['cell']}]", notebook.source, new)
        found.append({"source": new, "diff": diff, "patch": whole and unified(shown, text, whole)})
    return found


def main() -> None:
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
