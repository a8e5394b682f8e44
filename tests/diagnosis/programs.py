"""The diagnosis programs: each runs out of a T4's memory for one known reason, and says which, on which line, and what mends it.

A program's head says its cause (``# cause: no_grad_missing``), where the case is from (``# from: pytorch/pytorch#6351``) and what it does. Marks at
the end of lines say the rest, and are taken off before the program runs, so that line numbers stay:

    total += loss  #? #! total += loss.item()

``#?``  the headline may name this line.
``#!``  the cured program has this in its place; on a line of its own it is added there; ``#!-`` takes the line out.

``# cause: none`` is a program without a fault that looks as if it had one. ``# kind: notebook``: cells are apart by ``# %%``.
"""

import dataclasses
import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
CELL = re.compile(r"^# %%.*$")


@dataclasses.dataclass(frozen=True)
class Program:
    """One program, in both forms."""

    name: str
    causes: tuple[str, ...]
    source: str
    what: str
    arguments: tuple[str, ...]
    is_notebook: bool
    faulty: str
    cured: str | None
    lines: frozenset[int]
    held_out: bool

    @property
    def has_fault(self):
        return self.causes != ("none",)

    @property
    def framework(self):
        first = self.name.split("_")[0]
        if self.is_notebook:
            return "notebook"
        return first if first in ("trainer", "lightning", "accelerate", "transformers") else "plain"

    def write(self, folder, text):
        """The program as a file that can be run."""
        path = pathlib.Path(folder) / (self.name + (".ipynb" if self.is_notebook else ".py"))
        path.write_text(_notebook(text) if self.is_notebook else text)
        return path

    def is_right(self, line, file=""):
        """Whether a headline that names this line of this file names the right one. A notebook's lines are counted in their cell."""
        if not self.is_notebook:
            return line in self.lines
        number, first = 1, 1
        cell = re.search(r"\[(\d+)\]$", file)
        for at, text in enumerate(self.faulty.split("\n"), start=1):
            if CELL.match(text):
                number, first = number + 1, at + 1
            if cell and number == int(cell.group(1)) and at - first + 1 == line and at in self.lines:
                return True
        return False


def all_programs():
    """Every program, those that were kept aside last."""
    for folder in ("programs", "held_out"):
        for path in sorted((HERE / folder).glob("*.py")):
            yield read(path)


def read(path):
    path = pathlib.Path(path)
    text = path.read_text()
    head = dict(re.findall(r"(?m)^# (\w+): (.*?)\s*$", text))
    faulty, cured, lines = [], [], set()
    for number, line in enumerate(text.split("\n"), start=1):
        code, mark, cure = line.partition("#!")
        if "#?" in code:
            lines.add(number)
        code = code.replace("#?", "").rstrip()
        faulty.append(code)
        indent = line[: len(line) - len(line.lstrip())]
        cured.append(code if not mark else indent + ("pass" if cure.strip() == "-" else cure.strip()))
    causes = tuple(cause.strip() for cause in head["cause"].split("|"))
    return Program(
        name=path.stem,
        causes=causes,
        source=head.get("from", ""),
        what=head.get("what", ""),
        arguments=tuple(head.get("args", "").split()),
        is_notebook=head.get("kind") == "notebook",
        faulty="\n".join(faulty),
        cured=None if causes == ("none",) else "\n".join(cured),
        lines=frozenset(lines),
        held_out=path.parent.name == "held_out",
    )


def _notebook(text):
    cells = [[]]
    for line in text.split("\n"):
        if CELL.match(line):
            cells.append([])
        else:
            cells[-1].append(line)
    return json.dumps(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {},
            "cells": [
                {"cell_type": "code", "id": str(number), "metadata": {}, "outputs": [], "execution_count": None, "source": "\n".join(lines)} for number, lines in enumerate(cells)
            ],
        }
    )
