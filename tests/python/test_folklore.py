"""The folklore: some of its experiments on the virtual GPU, to the byte; and the document says what was measured, no more and no less."""

import json
import re
import subprocess
import sys

import pytest
from conftest import ROOT

MEASURED = ROOT / "docs" / "measured"
SCRIPT = MEASURED / "folklore.py"
GIB, MIB = 1 << 30, 1 << 20

# At the end: the scripts there have names that others may have too.
sys.path.append(str(MEASURED))
from folklore import GROUPS, TIPS, document  # noqa: E402

RESULTS = document.results()
TEXT = document.DOCUMENT.read_text()

# Experiments whose bytes are certain: sizes of tensors, and PyTorch's rounding to 512 bytes and 2 MiB.
CERTAIN = {
    "del-frees": {"allocated_before": GIB, "allocated_after": 0, "reserved_before": GIB, "reserved_after": GIB, "reserved_again": GIB, "second": GIB},
    "empty-cache-in-a-handler": {"inside": GIB, "after": 0},
    "empty-cache-against-oom": {"cached": 600 * MIB, "largest": 100 * MIB, "got": 800 * MIB, "retries": 1, "ooms": 0},
    "elementwise-operations": {"named": 4 * GIB, "expression": 3 * GIB, "inplace": GIB, "after": 0},
    "float-tensor-1-no-backward": {"held": 400_556_032, "last": 400_556_032, "ooms": 0},
    "manage-1-del": {"peak": 8 * GIB, "held": 0, "kept": 0, "inplace_peak": 4 * GIB},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory, oomph):
    """Those experiments, run by the script: their rows, and what it said."""
    folder = tmp_path_factory.mktemp("folklore")
    results, written = folder / "results.jsonl", folder / "folklore.md"
    words = ["--oomph", oomph.binary, "--gpu", "h200", "--only", ",".join(CERTAIN), "--results", results, "--document", written]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return document.results(results), written.read_text()


@pytest.mark.parametrize("name", CERTAIN)
def test_pytorchs_allocator_gives_these_bytes(measured, name):
    numbers = measured[0][name]["numbers"]
    assert {key: numbers[key] for key in CERTAIN[name]} == CERTAIN[name]
    assert document.outcome(TIPS[name], measured[0][name]) == "as expected"


def test_what_is_in_use_on_the_card_is_what_pytorch_reserved_and_the_context(measured):
    numbers = measured[0]["del-frees"]["numbers"]
    assert numbers["used_before"] == numbers["used_after"] > GIB


def test_times_are_left_out_where_they_mean_nothing(measured):
    rows, text = measured
    assert not [key for row in rows.values() for key in row["numbers"] if key.endswith("_ms")]
    assert all(row["where"]["kind"] == "virtual" for row in rows.values())
    assert "virtual NVIDIA H200" in text and "Times: not measured here" in text


def test_the_document_is_what_the_numbers_say():
    assert document.write(RESULTS) == TEXT, "python docs/measured/folklore.py --write"


@pytest.mark.parametrize("name", TIPS)
def test_every_tip_has_a_row_and_its_verdict_holds(name):
    tip = TIPS[name]
    rows = [line for line in TEXT.splitlines() if line.startswith(f'| <a id="{name}"></a>')]
    assert len(rows) == 1
    assert tip.says in rows[0] and tip.why in rows[0] and tip.oomph in rows[0]
    row = RESULTS[name]
    if "numbers" in row:
        assert tip.holds(row["numbers"])
        assert f"| **{tip.verdict}** |" in rows[0]
        assert document.shown(tip, row) in rows[0] and document.shown(tip, row)
    else:
        assert row["not_run"] in rows[0] and "| **not run** |" in rows[0]
        assert f"**{tip.verdict}**" not in rows[0]


def test_what_nobody_measured_of_the_whole_card_is_marked():
    whole = [name for name, tip in TIPS.items() if "{used" in tip.shows]
    assert whole == ["del-frees", "empty-cache-once", "restart-the-runtime", "pinned-memory"]
    for name in whole:
        row = RESULTS[name]
        assert document.WHOLE_CARD in TIPS[name].shows
        for kind in ("gpu", "virtual"):
            reported = document.shown(TIPS[name], {**row, "where": {**row["where"], "kind": kind}})
            assert ("in use on the card (modelled)" in reported) == (kind == "virtual")


def test_all_that_needs_a_gpu_was_measured_on_one():
    for name, row in RESULTS.items():
        if TIPS[name].needs == "gpu":
            assert row["where"]["kind"] == "gpu" and row["where"]["gpu"] == "NVIDIA H200", name
    assert "modelled" not in TEXT and "Times: not measured here" not in TEXT


def test_a_verdict_says_no_more_than_was_measured():
    """Where the truth depends on what was not tried, the row says so."""
    assert {name: TIPS[name].verdict for name in ("threads", "garbage-collection-threshold", "int8-weights", "empty-cache-against-oom")} == {
        "threads": "true, but",
        "garbage-collection-threshold": "true, but",
        "int8-weights": "true, but",
        "empty-cache-against-oom": "does nothing",
    }
    for name in ("empty-cache-once", "empty-cache-against-oom"):
        assert "PyTorch's allocator" in TIPS[name].why and "cuBLAS, NCCL" in TIPS[name].why
    same = {**RESULTS["garbage-collection-threshold"]["numbers"]}
    same["both_reserved"] = same["limited_reserved"]
    assert not TIPS["garbage-collection-threshold"].holds(same)


def test_few_are_not_run_and_none_is_lost():
    assert list(RESULTS) == list(TIPS)
    assert [name for name, row in RESULTS.items() if "numbers" not in row] == ["tensorflow-memory-growth"]
    assert {tip.group for tip in TIPS.values()} == set(GROUPS)


def test_every_example_of_the_articles_has_a_row():
    examples = sorted((MEASURED / "folklore" / "seeds").glob("*.py"))
    assert len(examples) == 15
    for path in examples:
        assert path.stem.replace("_", "-") in TIPS
        assert f"(measured/folklore/seeds/{path.name})" in TEXT
        compile(path.read_text(), path.name, "exec")
        assert re.search(r'^""".*Example \d\.\n\n(As written\.|Mended: .*)\n"""', path.read_text()), path.name


def test_the_ten_that_matter_lead_to_their_rows():
    ranks = sorted(tip.rank for tip in TIPS.values() if tip.rank)
    assert ranks == list(range(1, 11))
    for name in re.findall(r"\(#([a-z0-9-]+)\)", TEXT):
        assert f'<a id="{name}"></a>' in TEXT


def test_rules_that_are_named_exist(oomph):
    _, rules, _ = oomph("rule")
    named = set(re.findall(r"OM\d\d\d", TEXT))
    assert len(named) >= 8
    assert all(code in rules for code in named)


def test_a_verdict_that_its_numbers_contradict_is_an_error(tmp_path):
    changed = {name: json.loads(json.dumps(row)) for name, row in RESULTS.items()}
    changed["inference-mode"]["numbers"]["inference_mode_peak"] += 512
    results, written = tmp_path / "results.jsonl", tmp_path / "folklore.md"
    results.write_text("".join(json.dumps(row) + "\n" for row in changed.values()))
    done = subprocess.run([sys.executable, SCRIPT, "--write", "--results", results, "--document", written], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    row = next(line for line in written.read_text().splitlines() if '<a id="inference-mode">' in line)
    assert "false; **not on this card**" in row


def test_sizes_have_three_digits():
    given = {0: "0 B", 512: "512 B", 1024: "1.00 KiB", 20 * MIB: "20.0 MiB", 400_000_000: "381 MiB", 1023 * MIB: "1.00 GiB", 150 * GIB: "150 GiB"}
    assert {count: document.size(count) for count in given} == given
