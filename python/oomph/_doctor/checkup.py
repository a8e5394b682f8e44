"""What ``oomph.doctor()`` says of this machine: what ``oomph doctor`` prints, and the same as data."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from typing import Any

from oomph._find import find_oomph


class Checkup:
    """What is true of this machine, for this interpreter and its environment.

    ``told`` is what ``oomph doctor --format json`` says (documented in docs/reference/json.md, with nothing private in it), ``text`` what it prints.
    """

    def __init__(self, told: dict[str, Any], text: str) -> None:
        self.told, self.text = told, text

    @property
    def wrong(self) -> list[dict[str, Any]]:
        """The findings that are wrong: ``about``, ``title``, ``means``, ``fix``, ``command``."""
        return [finding for finding in self.told["findings"] if finding["level"] == "wrong"]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"


def check_up() -> Checkup:
    """Runs the command twice, which takes a fraction of a second: once for people, with names, and once for programs, without."""

    def run(*options: str) -> str:
        command = [find_oomph(), "doctor", "--quiet", "--color", "never", "--python", sys.executable, *options]
        ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        if ran.returncode not in (0, 1):
            raise RuntimeError(ran.stderr.strip().removeprefix("error: ") or f"the command oomph failed with {ran.returncode}")
        return ran.stdout

    return Checkup(json.loads(run("--format", "json")), run().rstrip("\n"))
