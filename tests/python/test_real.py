"""The suite of scripts of other people (tests/real), as far as it needs neither a network nor a GPU."""

import importlib.util
import re
from pathlib import Path

import tomllib

REAL = Path(__file__).parents[1] / "real"
MEASURED = REAL.parents[1] / "docs/measured/real.md"


def suite():
    with open(REAL / "scripts.toml", "rb") as file:
        listed = tomllib.load(file)
    return listed["repositories"], listed["script"]


def test_every_script_has_a_repository_and_a_commit():
    repositories, scripts = suite()
    assert len(scripts) >= 40 and len({script["name"] for script in scripts}) == len(scripts)
    assert {script["repository"] for script in scripts} <= set(repositories)
    assert [name for name, one in repositories.items() if not re.fullmatch("[0-9a-f]{40}", one["commit"])] == []


def test_every_script_is_in_the_table_and_its_ends_are_counted():
    _, scripts = suite()
    rows = [line for line in MEASURED.read_text().splitlines() if line.startswith("| [")]
    assert [re.match(r"\| \[(\w+)\]", row).group(1) for row in rows] == [script["name"] for script in scripts]
    ends = [row.rstrip(" |").rpartition("| ")[2] for row in rows]
    text = MEASURED.read_text()
    assert f"reserved within 3 %: {ends.count('right')}," in text
    counted = {end: ends.count(end) for end in ("in the range", "not known", "wrong")}
    assert all(f"**{end[0].upper()}{end[1:]}** ({count})" in text for end, count in counted.items()), counted


def judge(card, row):
    spec = importlib.util.spec_from_file_location("real", REAL / "real.py")
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    script = {"repository": "a/b", "run": "train.py --fast", "folder": "c"}
    return real.judged("name", script, card, row)


def test_a_prediction_is_held_against_all_that_the_card_gave():
    card = [{"allocated": 1000, "reserved": 2000}, {"allocated": 1010, "reserved": 2100}]
    row = {"fits": True, "allocated": 1005, "reserved": 2150, "total": 3000}
    line, end = judge(card, row)
    assert end == "right" and line[0] == "[name](https://github.com/a/b/blob/{commit}/c/train.py)"
    assert line[1:7] == ["1,000 to 1,010", "1,005", "+0.00 %", "2,000 to 2,100", "2,150", "+2.38 %"]
    assert judge(card, {**row, "reserved": 2500})[1] == "wrong"
    assert judge(card, {**row, "reserved": 2500, "estimated": {"low": 2400, "high": 3000}})[1] == "in the range"
    assert judge(card, {**row, "reserved": 2500, "estimated": {"low": 2550, "high": 3000}})[1] == "wrong"
    assert judge(card, {**row, "allocated": 900, "estimated": {"low": 1, "high": 9000}})[1] == "wrong"
    assert judge(card, {"fits": None, "error": "why"}) == (
        ["[name](https://github.com/a/b/blob/{commit}/c/train.py)", "1,000 to 1,010", "", "", "2,000 to 2,100", "", "", "not known: why"],
        "not known",
    )
