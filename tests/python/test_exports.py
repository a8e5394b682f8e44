"""What other programs read: TensorBoard's event files, by TensorBoard's own reader, traces in Chrome's format, and profiles of RAM for speedscope and pprof."""

import gzip
import io
import json
import lzma
import pickle
import subprocess
import sys
import textwrap
from collections import defaultdict

import pytest
import synthetic
from conftest import FIXTURES, ROOT

GIB = 1 << 30
RECORDINGS = {
    "out_of_memory": ROOT / "examples" / "out_of_memory.pickle.xz",
    **{
        name: FIXTURES / "h200" / f"{name}.pickle.xz"
        for name in ("annotated", "expandable_oom", "streams", "cudagraph", "late", "plain_context_none", "plain_segments_only", "compiled")
    },
    "t5_lengths": FIXTURES / "settings" / "t5_lengths.pickle.xz",
    "torch2_0": FIXTURES / "shapes" / "torch2_0_history.pickle",
}
# What the trace format knows, of which these are used: complete slices, counters, instants, metadata.
PHASES = {"X", "C", "i", "M"}
HOSTILE = 'a"b\\c</script><b>&amp;\n\t\x01\x7f\u202e\u2028é🙂'


@pytest.fixture
def report(oomph, tmp_path):
    """Makes a page with exports; gives what the command said."""

    def run(*arguments):
        code, _, err = oomph("report", *arguments, "-o", tmp_path / "page.html", "--force")
        assert code in (0, 1), err
        return err

    return run


@pytest.fixture
def trace(report, tmp_path):
    """The trace of recordings."""

    def run(*paths):
        out = tmp_path / "trace.json"
        report(*paths, "--chrome-trace", out)
        return json.loads(out.read_text(encoding="utf-8"))

    return run


@pytest.fixture
def tensorboard(report, tmp_path):
    """Runs by name, as TensorBoard reads them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def run(*paths):
        folder = tmp_path / "runs"
        report(*paths, "--tensorboard", folder)
        runs = {}
        for path in sorted(folder.iterdir()):
            (file,) = path.iterdir()
            assert file.name.startswith("events.out.tfevents.")
            runs[path.name] = accumulator.EventAccumulator(str(path)).Reload()
        return runs

    return run


def in_bytes(series):
    """Steps and bytes of a series in GiB: exact, because GiB are a power of two."""
    return [(event.step, event.value * GIB) for event in series]


# --- TensorBoard ---


@pytest.mark.parametrize("name", RECORDINGS)
def test_tensorboard_reads_the_numbers_of_explain(name, tensorboard, explain):
    (device,) = explain(RECORDINGS[name])["devices"]
    (run,) = tensorboard(RECORDINGS[name]).values()
    assert device["peak"]["reserved"] < 8 * GIB, "a float has 24 binary digits"
    for peak in ("allocated", "reserved"):
        at = device["peak_at"][peak]
        assert in_bytes(run.Scalars(f"peak_gib/{peak}")) == [(at["event"], at["bytes"])]
        series = in_bytes(run.Scalars(f"memory_gib/{peak}"))
        assert max(value for _, value in series) == at["bytes"]
        assert (at["event"], at["bytes"]) in series, "no sample is taken beside the peak"
        steps = [step for step, _ in series]
        assert steps == sorted(set(steps))
        assert len(series) == min(1000, device["events"] + 1)
    ((event, requested),) = in_bytes(run.Scalars("peak_gib/requested"))
    assert event == device["peak_at"]["requested"]["event"]
    assert requested == pytest.approx(device["peak"]["requested"], rel=2**-24)

    moment = device["peak_at"]["allocated"]["event"]
    kinds = [tag for tag in run.Tags()["scalars"] if tag.startswith("memory_by_kind_gib/")]
    reported = {tag.split("/")[1]: dict(in_bytes(run.Scalars(tag)))[moment] for tag in kinds}
    expected = {row["kind"]: row["bytes"] for row in device["at_peak"]["by_kind"]}
    assert {kind: value for kind, value in reported.items() if value} == expected


@pytest.mark.parametrize("name", ["out_of_memory", "annotated", "streams", "t5_lengths"])
def test_tensorboard_reads_the_training_steps(name, tensorboard, explain):
    (device,) = explain(RECORDINGS[name])["devices"]
    (run,) = tensorboard(RECORDINGS[name]).values()
    for tag, key in (("allocated_peak", "allocated_peaks"), ("allocated_at_start", "allocated_at_start")):
        expected = list(enumerate(device["steps"][key], start=1))
        assert in_bytes(run.Scalars(f"steps_gib/{tag}")) == expected


def test_tensorboard_shows_pictures_and_findings(tensorboard, explain):
    image = pytest.importorskip("PIL.Image")
    reported = explain(RECORDINGS["out_of_memory"])
    (run,) = tensorboard(RECORDINGS["out_of_memory"]).values()
    (tag,) = run.Tags()["images"]
    assert tag == "pictures/segments at the allocated peak"
    (event,) = run.Images(tag)
    assert event.encoded_image_string.startswith(b"\x89PNG\r\n\x1a\n")
    picture = image.open(io.BytesIO(event.encoded_image_string))
    picture.load()
    assert picture.size == (event.width, event.height) == (1200, 480)
    colours = {colour: count for count, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert colours[(0x86, 0xBC, 0xB6)] > 100_000, "most of it is activations"
    assert "\n- teal: activations, " in run.SummaryMetadata(tag).summary_description
    (event,) = run.Tensors("findings")
    (text,) = event.tensor_proto.string_val
    for finding in reported["findings"]:
        assert finding["code"] in text.decode()
    metadata = run.SummaryMetadata("findings")
    assert metadata.plugin_data.plugin_name == "text"


def test_devices_and_recordings_of_one_name_are_runs_of_their_own(tensorboard, explain, tmp_path):
    both = explain(FIXTURES / "shapes" / "two_devices.pickle")["devices"]
    runs = tensorboard(FIXTURES / "shapes" / "two_devices.pickle")
    assert list(runs) == [f"shapes-two_devices.pickle-device{device['ordinal']}" for device in both]
    for run, device in zip(runs.values(), both):
        assert in_bytes(run.Scalars("peak_gib/reserved"))[0][1] == device["peak"]["reserved"]


def test_ranks_keep_apart_and_running_again_replaces(tensorboard, tmp_path):
    paths = []
    for rank in (0, 1):
        (tmp_path / f"rank{rank}").mkdir()
        paths.append(tmp_path / f"rank{rank}" / "mem.pickle")
        paths[-1].write_bytes((FIXTURES / "shapes" / "protocol4.pickle").read_bytes())
    assert list(tensorboard(*paths)) == ["rank0-mem.pickle", "rank1-mem.pickle"]
    # The fixture asserts that there is one file in each.
    assert list(tensorboard(*paths)) == ["rank0-mem.pickle", "rank1-mem.pickle"]


# --- Chrome's format ---


def assert_valid(trace):
    """As both viewers want it: known phases, names, times that do not go back on a counter, slices inside each other on a thread."""
    names, slices, last = {}, defaultdict(list), {}
    for event in trace["traceEvents"]:
        assert event["ph"] in PHASES
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            names[event["name"], event["pid"], event["tid"]] = event["args"]
            continue
        assert isinstance(event["ts"], int) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            key = event["pid"], event["name"]
            assert event["ts"] >= last.get(key, 0)
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
            last[key] = event["ts"]
    tids = [thread for _, thread in slices]
    assert len(tids) == len(set(tids)), "Perfetto names threads by their number alone"
    for (process, thread), ranges in slices.items():
        assert ("process_name", process, 0) in names
        assert ("thread_name", process, thread) in names
        assert ranges == sorted(ranges, key=lambda one: one[0])
        stack = []
        for begin, end in ranges:
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], "two slices of a thread overlap"
            stack.append(end)
            assert len(stack) <= 512, "Perfetto draws no more"


def counters(trace, process=1):
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C" and event["pid"] == process:
            found[event["name"]].append((event["ts"], event["args"]))
    return found


def of_category(trace, category):
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_trace_is_valid_and_says_what_explain_says(name, trace, explain):
    (device,) = explain(RECORDINGS[name])["devices"]
    written = trace(RECORDINGS[name])
    assert_valid(written)
    found = counters(written)
    assert max(args["bytes"] for _, args in found["reserved"]) == device["peak"]["reserved"]
    assert max(args["allocated"] for _, args in found["memory"]) == device["peak"]["allocated"]
    for (_, before), (_, after) in zip(found["memory"], found["memory"][1:]):
        assert before != after, "a counter is written where it changes"
    by_kind = max((args for _, args in found["allocated"]), key=lambda args: sum(args.values()))
    expected = {row["kind"]: row["bytes"] for row in device["at_peak"]["by_kind"]}
    assert {kind.replace(" ", "_"): value for kind, value in by_kind.items() if value} == expected

    (about,) = written["otherData"]["processes"]
    slices = of_category(written, "allocation")
    assert len(slices) + about["allocations_left_out"] == about["allocations"]
    assert all(event["args"]["bytes"] * 1000 >= device["peak"]["allocated"] for event in slices)
    assert about["counters_within_bytes"] == 0
    ooms = [(event["args"]["size"], event["args"]["fatal"]) for event in of_category(written, "oom")]
    assert ooms == [(oom["size"], oom["fatal"]) for oom in device["ooms"]]
    steps = [event["args"]["allocated_peak"] for event in of_category(written, "step")]
    assert steps == (device["steps"]["allocated_peaks"] if device["steps"] else [])


def test_large_allocations_carry_their_line_and_stack(trace, explain):
    (device,) = explain(RECORDINGS["out_of_memory"])["devices"]
    written = trace(RECORDINGS["out_of_memory"])
    at_peak = counters(written)["memory"]
    peak = next(ts for ts, args in at_peak if args["allocated"] == device["peak"]["allocated"])
    alive = [event for event in of_category(written, "allocation") if event["ts"] <= peak < event["ts"] + event["dur"]]
    line = device["at_peak"]["by_line"][0]
    label = f"{'/'.join(line['file'].split('/')[-2:])}:{line['line']} {line['function']}"
    mine = [event for event in alive if event["name"] == label]
    assert mine and all(event["args"]["stack"][0] for event in mine)
    assert any(any(label == call for call in event["args"]["stack"]) for event in mine)
    # Its many small ones are not there.
    assert 0.9 < sum(event["args"]["bytes"] for event in alive) / device["peak"]["allocated"] < 1


def test_a_trace_may_be_compressed(report, trace, tmp_path):
    plain = trace(RECORDINGS["streams"])
    report(RECORDINGS["streams"], "--chrome-trace", tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())) == plain


def test_recordings_are_processes_of_one_trace(trace, explain):
    paths = [RECORDINGS["streams"], FIXTURES / "shapes" / "two_devices.pickle"]
    written = trace(*paths)
    assert_valid(written)
    devices = [device for path in paths for device in explain(path)["devices"]]
    assert [one["process"] for one in written["otherData"]["processes"]] == [1, 2, 3]
    for process, device in enumerate(devices, start=1):
        reserved = [args["bytes"] for _, args in counters(written, process)["reserved"]]
        assert max(reserved) == device["peak"]["reserved"]


def test_without_times_events_stand_for_microseconds(trace, explain):
    (device,) = explain(RECORDINGS["torch2_0"])["devices"]
    assert device["seconds"] is None
    written = trace(RECORDINGS["torch2_0"])
    (about,) = written["otherData"]["processes"]
    assert "no times" in about["clock"]
    memory = counters(written)["memory"]
    assert next(ts for ts, args in memory if args["allocated"] == device["peak"]["allocated"]) == device["peak_at"]["allocated"]["event"]


def test_strangers_names_survive(trace, tensorboard, tmp_path):
    program = synthetic.Program(file=f"/home/{HOSTILE}/{HOSTILE}.py")
    program.annotate(HOSTILE, "START")
    synthetic.train(program)
    program.annotate(HOSTILE, "END")
    program.annotate("lone \ud800 surrogate", "MARK")
    program.out_of_memory(999, 1, program.line(99, HOSTILE))
    path = program.dump(tmp_path / 'a"b\\c <img src=x onerror=alert(1)>.pickle')
    written = trace(path)
    assert_valid(written)
    ranges = [event["name"] for event in of_category(written, "annotation") if event["ph"] == "X"]
    assert HOSTILE in ranges
    (mark,) = (event["name"] for event in of_category(written, "annotation") if event["ph"] == "i")
    assert mark.startswith("lone ") and mark.endswith(" surrogate")
    mark.encode()  # A lone surrogate is no text: something else stands there.
    stacks = {call for event in of_category(written, "allocation") for call in event["args"]["stack"]}
    # A slash divides a path, even this one, and a path is shown by its last two parts.
    assert any(call.endswith(f"{HOSTILE.split('/')[1]}.py:15 training_step") for call in stacks)
    (name,) = (event["args"]["name"] for event in written["traceEvents"] if event["name"] == "process_name")
    assert name.endswith(path.name)
    (folder,) = tensorboard(path)
    assert "/" not in folder and "<" not in folder and '"' not in folder


def test_a_recording_that_ends_in_the_middle_is_exported_too(trace, tensorboard, tmp_path):
    whole = lzma.decompress(RECORDINGS["annotated"].read_bytes())
    path = tmp_path / "cut.pickle"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises((EOFError, pickle.UnpicklingError)):
        pickle.loads(path.read_bytes())
    assert_valid(trace(path))
    assert tensorboard(path)


# --- RAM: speedscope and pprof ---

ARRAYS = """
    import numpy as np

    def table(size):
        return np.ones(size, dtype=np.uint8)

    def both():
        return table(50_000_000), np.zeros(1_500_000)

    kept = both()
    """


@pytest.fixture(scope="module")
def ram(oomph, tmp_path_factory):
    """The recording of a program with two arrays."""
    folder = tmp_path_factory.mktemp("ram")
    (folder / "load.py").write_text(textwrap.dedent(ARRAYS))
    done = subprocess.run([oomph.binary, "run", "--ram", "--python", sys.executable, "load.py"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder / "load-ram.oomph"


def varints(data):
    """All numbers of a packed field."""
    numbers, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value, shift = 0, 0
    assert shift == 0, "cut off"
    return numbers


def message(data):
    """The fields of a protocol buffer: numbers, and bytes, by field."""
    fields, at = defaultdict(list), 0

    def number():
        nonlocal at
        begin = at
        while data[at] & 0x80:
            at += 1
        at += 1
        return varints(data[begin:at])[0]

    while at < len(data):
        key = number()
        assert key & 7 in (0, 2)
        value = number()
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
            assert at <= len(data)
        fields[key >> 3].append(value)
    return fields


def heap(path):
    """Samples of a pprof profile: frames (function, file, line) outermost first, blocks, bytes, the recording's name."""
    profile = message(gzip.decompress(path.read_bytes()))
    texts = [text.decode() for text in profile[6]]
    assert texts[0] == "" and len(texts) == len(set(texts))
    types = [tuple(texts[kind[field][0]] for field in (1, 2)) for kind in map(message, profile[1])]
    assert types == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    functions = {function[1][0]: function for function in map(message, profile[5])}
    locations = {location[1][0]: location for location in map(message, profile[4])}
    mappings = {mapping[1][0] for mapping in map(message, profile[3])}
    assert len(functions) == len(profile[5]) and len(locations) == len(profile[4])
    assert all(set(location[2]) <= mappings for location in locations.values())
    samples = []
    for sample in map(message, profile[2]):
        frames = []
        for location in varints(sample[1][0]):
            (line,) = map(message, locations[location][4])
            function = functions[line[1][0]]
            frames.append((texts[function[2][0]], texts[function[4][0]], line[2][0]))
        blocks, size = varints(sample[2][0])
        (label,) = map(message, sample[3])
        assert texts[label[1][0]] == "recording"
        samples.append((frames[::-1], blocks, size, texts[label[2][0]]))
    return samples


def flames(path, profile=0):
    """Samples of a profile of speedscope's: frames outermost first, and bytes."""
    file = json.loads(path.read_text(encoding="utf-8"))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames, profile = file["shared"]["frames"], file["profiles"][profile]
    assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "bytes", 0)
    assert len(profile["samples"]) == len(profile["weights"])
    assert sum(profile["weights"]) == profile["endValue"]
    return [([frames[place] for place in stack], weight) for stack, weight in zip(profile["samples"], profile["weights"])]


# What is larger is no sample of small objects, of which one may fall on any line.
LARGE = 1 << 20


def test_profiles_of_ram_have_every_byte_under_its_stack(ram, oomph, explain, tmp_path):
    host = explain(ram)["host"]
    code, _, err = oomph("report", ram, "--speedscope", tmp_path / "ram.json", "--pprof", tmp_path / "ram.pb.gz", "-o", tmp_path / "ram.html")
    assert code == 0, err

    samples = flames(tmp_path / "ram.json")
    assert sum(weight for _, weight in samples) == host["asked"]
    script = str(ram.parent / "load.py")
    ((frames, weight),) = [one for one in samples if any((frame.get("file"), frame.get("line")) == (script, 5) for frame in one[0]) and one[1] > LARGE]
    assert weight == 50_000_000
    own = [frame["name"] for frame in frames if frame.get("file") == script]
    folder = ram.parent.name
    assert own == [f"{folder}/load.py:10 <module>", f"{folder}/load.py:8 both", f"{folder}/load.py:5 table"]
    assert frames[-1]["name"].startswith("_multiarray_umath.") and "/numpy/" in frames[-1]["file"], "the library that asked is innermost"
    assert "line" not in frames[-1]
    # Whatever is held was asked for.
    in_all = {json.dumps(stack): weight for stack, weight in flames(tmp_path / "ram.json", 1)}
    assert all(in_all[json.dumps(stack)] >= weight for stack, weight in samples)

    read = heap(tmp_path / "ram.pb.gz")
    assert sum(size for _, _, size, _ in read) == host["asked"]
    assert sum(blocks for _, blocks, _, _ in read) == sum(kind["blocks"] for kind in host["by_kind"])
    assert {name for _, _, _, name in read} == {str(ram)}
    ((frames, blocks, size, _),) = [one for one in read if ("table", script, 5) in one[0] and one[2] > LARGE]
    assert (blocks, size) == (1, 50_000_000)
    assert [frame for frame in frames if frame[1] == script] == [("<module>", script, 10), ("both", script, 8), ("table", script, 5)]
    ((_, blocks, size, _),) = [one for one in read if ("both", script, 8) in one[0] and ("table", script, 5) not in one[0] and one[2] > LARGE]
    assert (blocks, size) == (1, 12_000_000)


def test_recordings_of_ram_are_profiles_of_one_file(ram, oomph, tmp_path):
    again = tmp_path / "again-ram.oomph"
    again.write_bytes(ram.read_bytes())
    code, _, err = oomph("report", ram, again, "--speedscope", tmp_path / "ram.json.gz", "--pprof", tmp_path / "ram.pb.gz", "-o", tmp_path / "ram.html")
    assert code == 0, err
    file = json.loads(gzip.decompress((tmp_path / "ram.json.gz").read_bytes()))
    names = [profile["name"] for profile in file["profiles"]]
    assert [name.split(": ")[0] for name in names] == [str(ram)] * 2 + [str(again)] * 2
    assert file["profiles"][0]["weights"] == file["profiles"][2]["weights"]
    held = defaultdict(int)
    for _, _, size, name in heap(tmp_path / "ram.pb.gz"):
        held[name] += size
    assert held[str(ram)] == held[str(again)] == file["profiles"][0]["endValue"]


def test_of_ram_there_is_no_trace_and_what_to_type_is_said(ram, tmp_path, oomph):
    code, out, err = oomph("report", ram, "--chrome-trace", tmp_path / "trace.json", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert "show the memory of GPUs, and this is RAM" in err and "hint: for a flame graph: --speedscope" in err
    assert not list(tmp_path.iterdir())


def test_of_a_gpu_there_is_no_profile_of_ram(oomph, tmp_path):
    for option in ("--speedscope", "--pprof"):
        code, _, err = oomph("report", RECORDINGS["streams"], option, tmp_path / "profile", "-o", tmp_path / "page.html")
        assert code == 2 and "no RAM" in err and "oomph run --ram" in err
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--speedscope", "--pprof"])
def test_profiles_of_ram_are_written_over_nothing(option, ram, oomph, tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    code, _, err = oomph("report", ram, option, mine)
    assert code == 2 and "exists already (--force writes over it)" in err
    assert mine.read_text() == "mine"
    before = ram.read_bytes()
    code, _, err = oomph("report", ram, option, ram, "--force")
    assert code == 2 and "this is what is read" in err
    assert ram.read_bytes() == before
    assert oomph("report", ram, option, mine, "--force", cwd=tmp_path)[0] == 0
    assert mine.read_bytes() != b"mine"
