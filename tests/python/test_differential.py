"""oomph against Python's own reading of the same bytes."""

import collections
import json
import lzma
import pickle

import pytest
from conftest import FIXTURES

RECORDINGS = sorted((FIXTURES / "h200").glob("*.pickle.xz"))


def load(path):
    with lzma.open(path) as file:
        snapshot = pickle.load(file)
    return {"segments": snapshot, "device_traces": []} if isinstance(snapshot, list) else snapshot


def test_there_are_recordings():
    assert len(RECORDINGS) >= 40


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".pickle.xz"))
def test_counts_agree_with_pythons_unpickling(path, explain):
    snapshot = load(path)
    reported = explain(path)
    for ordinal, trace in enumerate(snapshot["device_traces"]):
        device = next(device for device in reported["devices"] if device["ordinal"] == ordinal)
        assert device["events"] == len(trace)
        assert device["actions"] == dict(collections.Counter(entry["action"] for entry in trace))
        assert len(device["ooms"]) == sum(entry["action"] == "oom" for entry in trace)
        assert [oom["size"] for oom in device["ooms"]] == [e["size"] for e in trace if e["action"] == "oom"]
    for device in reported["devices"]:
        blocks = [b for s in snapshot["segments"] if s["device"] == device["ordinal"] for b in s["blocks"]]
        assert device["live_blocks"] == sum(b["state"] != "inactive" for b in blocks)


@pytest.mark.parametrize("target", ["pickle", "json"])
@pytest.mark.parametrize("name", ["logits", "cudagraph", "streams", "expandable_oom", "annotated", "cpp_stacks", "late"])
def test_converted_snapshots_hold_the_same(name, target, oomph, tmp_path):
    path = FIXTURES / "h200" / f"{name}.pickle.xz"
    out = tmp_path / f"converted.{target}"
    code, _, err = oomph("convert", path, "-o", out)
    assert code == 0, err
    before = load(path)
    if target == "pickle":
        assert out.read_bytes()[:2] == b"\x80\x04"
        after = pickle.loads(out.read_bytes())
    else:
        after = json.loads(out.read_text())
        for segment in after["segments"]:
            segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    assert after["segments"] == before["segments"]
    assert after["allocator_settings"] == before["allocator_settings"]
    assert after["external_annotations"] == before["external_annotations"]
    assert len(after["device_traces"]) == len(before["device_traces"])
    for got, wanted in zip(after["device_traces"], before["device_traces"]):
        assert got == wanted


def test_converting_keeps_stacks_shared(oomph, tmp_path):
    """A snapshot whose stacks were written out each time would be many times larger."""
    path = FIXTURES / "h200" / "logits.pickle.xz"
    out = tmp_path / "converted.pickle"
    oomph("convert", path, "-o", out)
    with lzma.open(path) as file:
        assert out.stat().st_size < 1.05 * len(file.read())


@pytest.mark.parametrize("name", ["leak_history8-cap4.0", "ring", "two_devices"])
def test_own_format_explains_the_same(name, oomph, explain, tmp_path):
    path = FIXTURES / "h200" / f"{name}.pickle.xz"
    path = path if path.exists() else FIXTURES / "shapes" / f"{name}.pickle"
    out = tmp_path / "converted.oomph"
    code, _, err = oomph("convert", path, "-o", out)
    assert code == 0, err
    before, after = explain(path), explain(out)
    for reported in (before, after):
        reported.pop("file")
        reported.pop("format")
    assert after == before
