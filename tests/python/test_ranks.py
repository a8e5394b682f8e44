"""Many recordings of one run: who did the same, who stands out, whose death it was, and a page that draws few of them."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import generate_ranks  # noqa: E402

MIB = 1 << 20
RANKS = 66


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """All alike, but one that leaks, one with larger activations, and one that dies: the ranks of the benchmark, fewer and shorter."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate_ranks, "LARGER", 30)
        patch.setattr(generate_ranks, "DIES", 40)
        generate_ranks.write(folder, RANKS, 9000)
    return sorted(folder.iterdir(), key=lambda path: int(re.search(r"\d+", path.name)[0]))


def explained(oomph, ranks, *options):
    code, out, _ = oomph("explain", *options, *ranks)
    return code, out


def test_the_one_that_died_is_named_first_and_then_who_stands_out(oomph, ranks):
    code, out = explained(oomph, ranks)
    out = " ".join(out.replace(f"{ranks[0].parent}/", "").split())
    assert code == 1
    assert out.startswith(
        "rank40.pickle ran out of memory, asking for 4.00 GiB at user/train.py:18 evaluate; the 65 others did not. With that it would hold 4.00 GiB more than they do"
    )
    assert "rank17.pickle stands out from the 63 like rank0.pickle: 240 MiB more of activations at user/train.py:15 forward (560 MiB instead of 320 MiB)" in out
    assert "rank30.pickle stands out from the 63 like rank0.pickle: 160 MiB more of activations at user/train.py:15 forward (480 MiB instead of 320 MiB)" in out
    assert "rank[0-16,18-29,31-39,41-65].pickle 63 0 368 MiB 416 MiB no" in out
    assert "The worst is rank40.pickle:" in out


def test_who_did_the_same_is_said_to_scripts(oomph, ranks):
    found = json.loads(explained(oomph, ranks, "--format", "json")[1])
    assert len(found["recordings"]) == RANKS
    groups = found["groups"]
    assert [len(group["members"]) for group in groups] == [63, 1, 1, 1]
    assert groups[0]["stands_out"] is None
    by_file = {Path(group["worst"]["file"]).stem: group["stands_out"] for group in groups[1:]}
    (larger,) = (one for one in by_file["rank30"]["differences"] if one["what"] == "held")
    assert (larger["kind"], larger["here"], larger["there"], larger["line_bytes"]) == ("activations", 480 * MIB, 320 * MIB, 160 * MIB)
    assert (larger["line"]["line"], larger["line"]["function"]) == (15, "forward")
    assert by_file["rank40"]["differences"][0]["what"] == "died"
    assert by_file["rank30"]["beside"] == 0


def test_a_page_of_many_draws_one_of_those_that_did_the_same(oomph, ranks, tmp_path):
    page = tmp_path / "ranks.html"
    code, _, err = oomph("report", "-o", page, *ranks)
    assert code == 0, err
    assert "4 of 66 recordings are drawn" in err
    text = page.read_text()
    held = json.loads(re.search(r'<script type="application/json" id="oomph-page">(.*?)</script>', text)[1])
    assert held["mode"] == "ranks"
    drawn = {Path(one["file"]).stem: one["alike"] for one in held["subjects"]}
    assert set(drawn) == {"rank0", "rank17", "rank30", "rank40"}
    assert drawn["rank0"]["count"] == 62 and drawn["rank0"]["names"].endswith("/rank[1-16,18-29,31-39,41-65].pickle")
    assert drawn["rank17"] is None
    assert Path(held["subjects"][held["worst"]]["file"]).stem == "rank40"
    assert "The worst of 66 recordings is " in text and "the 65 others did not" in text


def test_one_that_cannot_be_read_does_not_lose_the_others(oomph, ranks, tmp_path):
    bad = tmp_path / "rank99.pickle"
    bad.write_bytes(b"\x80\x04nothing")
    code, _, err = oomph("report", "-o", tmp_path / "ranks.html", bad, *ranks)
    assert code == 2 and "rank99.pickle" in err
    assert "4 of 66 recordings are drawn" in err


def test_few_ranks_have_a_row_each(oomph, ranks):
    out = explained(oomph, [ranks[0], ranks[17], ranks[1]])[1]
    rows = [line.split() for line in out.splitlines() if re.match(r"\S+rank\d+\.pickle  ", line)]
    assert [row[1:4] for row in rows] == [["0", "368", "MiB"], ["0", "608", "MiB"], ["0", "368", "MiB"]]
