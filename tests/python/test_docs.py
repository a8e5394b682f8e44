"""The documents tell the truth: every console block is run, and every line of it must be printed."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]


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
    # The Python that has PyTorch is the one that runs the tests.
    environment = dict(os.environ, PATH=f"{folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
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


def anchors(path):
    """What can be linked to in a document: its headings, as they are turned into anchors, and anchors of its own."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    folder = (ROOT / document).parent
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if link.startswith("http"):
            continue
        target = folder / link if link else ROOT / document
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{link}#{anchor}"


def test_the_reference_is_what_the_code_says(oomph):
    done = subprocess.run([sys.executable, "docs/reference/make.py", "--check", "--oomph", oomph.binary], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: make reference writes it anew"


def test_every_document_is_in_the_index():
    """docs/README.md lists what there is; a guide that it does not list is found by nobody."""
    index = (ROOT / "docs" / "README.md").read_text()
    for document in DOCUMENTS:
        name = pathlib.PurePosixPath(document)
        if name.parts[0] == "docs" and name.name != "README.md":
            assert f"({name.relative_to('docs')})" in index, f"{document} is not in docs/README.md"


# Made from the code, whose parts may say the same to their own readers.
GENERATED = {f"docs/reference/{name}.md" for name in ("commands", "doctor", "json", "python", "rules")} | {"docs/folklore.md"}


def said(document, words):
    """Every run of so many words of a document's prose, within a paragraph, an item or a cell."""
    text = re.sub(r"```.*?```", "\n\n", (ROOT / document).read_text(), flags=re.DOTALL)
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*\d])|\|", re.sub(r"\]\([^)]*\)", "]", text)):
        found = re.findall(r"[\w.'-]+", part.lower())
        yield from (" ".join(found[i : i + words]) for i in range(len(found) - words + 1))


def test_nothing_is_said_twice():
    """Each fact has one place, and others link to it: no dozen words in a row stand in two documents, unless both are made from the code."""
    places = {}
    for document in DOCUMENTS:
        for run in said(document, 12):
            places.setdefault(run, set()).add(document)
    assert not {run: sorted(where) for run, where in places.items() if len(where) > 1 and not where <= GENERATED}


def test_the_readme_is_short_and_names_every_verb(oomph):
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 200
    _, help_text, _ = oomph("--help")
    verbs = re.findall(r"^  ([a-z]+)  ", help_text.partition("Commands:")[2].partition("Options:")[0], re.MULTILINE)
    assert len(verbs) >= 18, verbs
    for verb in verbs:
        assert verb == "help" or f"`oomph {verb}" in text, f"{verb} is not in README.md"


def test_the_house_is_as_drawn():
    """The table of ARCHITECTURE.md has every crate, with the crates of ours that it really depends on."""
    metadata = json.loads(subprocess.run(["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"], cwd=ROOT, capture_output=True, check=True).stdout)
    ours = {package["name"] for package in metadata["packages"]}
    real = {package["name"]: {one["name"] for one in package["dependencies"] if one["name"] in ours and one["kind"] != "dev"} for package in metadata["packages"]}
    drawn = {}
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `oomph-") and len(cells) == 4:
            drawn[cells[0].strip("`")] = {f"oomph-{name}" for name in re.findall(r"`([a-z]+)`", cells[3])}
    assert drawn == real
    # Arrows point one way: there is an order in which every crate comes after those that it uses.
    built = set()
    while left := ours - built:
        ready = {name for name in left if real[name] <= built}
        assert ready, f"these use each other: {sorted(left)}"
        built |= ready


def test_zero_shares_out_the_optimizers_state_and_nothing_else(predict):
    """As docs/guides/several-gpus.md says: with two ranks, all parameters and half of Adam's state on each."""
    predicted = predict("--ranks", "2", "train_ranks.py", "--how", "zero", "--batch-size", "1", gpu="t4", cwd=ROOT / "examples")
    assert predicted.code == 0, predicted.err
    parameters = 124_439_808 * 4
    ranks = [{kind["kind"]: kind["bytes"] for kind in one["kinds"]} for one in predicted.reported["predictions"]]
    assert len(ranks) == 2
    for held in ranks:
        assert held["parameters"] == pytest.approx(parameters, rel=0.01)
        assert held["optimizer_state"] == pytest.approx(parameters, rel=0.05)
    assert sum(held["optimizer_state"] for held in ranks) == pytest.approx(2 * parameters, rel=0.01)
