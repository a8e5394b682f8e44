"""PyTorch's own reader, memory_viz, on what oomph writes; and oomph on what memory_viz writes."""

import json
import lzma
import pickle
import subprocess
import sys

import pytest
from conftest import FIXTURES

_memory_viz = pytest.importorskip("torch.cuda._memory_viz")


@pytest.mark.parametrize("name", ["plain", "logits", "cudagraph", "expandable_oom", "plain_protocol5"])
def test_memory_viz_says_the_same_of_a_converted_snapshot(name, oomph, tmp_path):
    path = FIXTURES / "h200" / f"{name}.pickle.xz"
    converted = tmp_path / "converted.pickle"
    code, _, err = oomph("convert", path, "-o", converted)
    assert code == 0, err
    with lzma.open(path) as file:
        before = pickle.load(file)
    after = pickle.loads(converted.read_bytes())
    assert _memory_viz.segsum(after) == _memory_viz.segsum(before)
    assert _memory_viz.trace(after) == _memory_viz.trace(before)
    # The input of its flame graphs (the drawing itself would fetch a script).
    assert list(_memory_viz._frames_fmt(after["segments"][0]["frames"])) == list(_memory_viz._frames_fmt(before["segments"][0]["frames"]))


def test_memory_viz_command_reads_a_converted_snapshot(oomph, tmp_path):
    converted = tmp_path / "converted.pickle"
    oomph("convert", FIXTURES / "h200" / "plain.pickle.xz", "-o", converted)
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(converted), "-o", str(page)], check=True)
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize("plot", ["trace_plot", "segment_plot"])
def test_oomph_reads_memory_viz_pages(plot, explain, tmp_path):
    path = FIXTURES / "h200" / "plain.pickle.xz"
    with lzma.open(path) as file:
        snapshot = pickle.load(file)
    page = tmp_path / "page.html"
    page.write_text(getattr(_memory_viz, plot)(snapshot))
    reported, expected = explain(page), explain(path)
    assert reported["devices"] == expected["devices"]


def test_oomph_reads_torchs_json(explain, tmp_path):
    with lzma.open(FIXTURES / "h200" / "plain.pickle.xz") as file:
        snapshot = pickle.load(file)
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(snapshot))
    assert explain(path)["devices"] == explain(FIXTURES / "h200" / "plain.pickle.xz")["devices"]
