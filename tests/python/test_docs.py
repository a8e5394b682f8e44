"""The documents tell the truth: every console block is run, and every line of it must be printed."""

import os
import pathlib
import re
import subprocess

import pytest
from conftest import ROOT

DOCUMENTS = ["README.md", "SECURITY.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


def commands():
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                yield pytest.param(command, shown, id=f"{document}: {command}")


@pytest.mark.parametrize("command, shown", list(commands()))
def test_what_is_shown_is_printed(command, shown, oomph):
    folder = pathlib.Path(oomph.binary).parent
    environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
    environment.pop("COLUMNS", None)
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env=environment)
    printed = (done.stdout + done.stderr).split("\n")
    missing = [line for line in shown.split("\n") if line.strip() not in ("", "…", "...") and line not in printed]
    assert not missing, f"not printed: {missing}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_nothing_is_left_to_fill_in(document):
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    assert not re.findall(r"^[A-Z_]{4,}$|TODO|FIXME", text, flags=re.MULTILINE)


def test_there_are_commands_to_check():
    assert len(list(commands())) >= 10


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    folder = (ROOT / document).parent
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("http") or (folder / link).exists(), link


def test_every_rule_is_in_the_readme(oomph):
    _, table, _ = oomph("rule", "--format", "markdown")
    assert table.strip() in (ROOT / "README.md").read_text()
