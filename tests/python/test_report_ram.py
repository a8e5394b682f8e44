"""The page of `oomph report` for RAM, alone and below the GPU's memory over the same time, in a real browser: it shows the numbers of `oomph explain`."""

import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from browser import Opened, bytes_in_words, chromium

MIB = 1 << 20
# Large arrays are recorded one by one: the numbers are exact.
LOAD = """
    import time
    import numpy as np

    def table(size):
        return np.ones(size, dtype=np.uint8)

    began, kept = time.monotonic(), [table(60 * 2**20)]
    time.sleep(0.4); between = time.monotonic() - began
    kept.append(np.ones(30 * 2**20, dtype=np.uint8))
    time.sleep(0.4)
    del kept[0]
    time.sleep(0.2)
    print(between, file=open("between", "w"))
    """
TRAIN = """
    import time
    import numpy as np
    import torch

    data = np.ones(80 * 2**20, dtype=np.uint8)
    time.sleep(0.3)
    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1)
    del data
    time.sleep(0.2)
    """
# Of less than a MiB each: such blocks are taken for one another where one follows the other at once.
PAUSES = """
    import time
    import numpy as np

    for turn in range(3):
        held = [np.ones(900_000, dtype=np.uint8) for _ in range(100)]
        time.sleep(0.3)
        held = None
        time.sleep(0.6)
    """
HOSTILE = "<img src=x onerror=window.ran=1>.py"


def recorded(oomph, folder, name, source, *options):
    (folder / name).write_text(textwrap.dedent(source))
    done = subprocess.run([oomph.binary, "run", "--ram", *options, "--python", sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def ram(oomph, tmp_path_factory):
    """The recording of a program with two arrays, the first of which goes."""
    folder = tmp_path_factory.mktemp("ram")
    recorded(oomph, folder, "load.py", LOAD)
    return folder / "load-ram.oomph"


@pytest.fixture(scope="module")
def both(oomph, tmp_path_factory):
    """The folder of a program of which the memory of the GPU and RAM were recorded, as train.oomph and train-ram.oomph."""
    folder = tmp_path_factory.mktemp("both")
    recorded(oomph, folder, "train.py", TRAIN, "--gpu", "t4")
    assert (folder / "train.oomph").exists() and (folder / "train-ram.oomph").exists()
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def see(browser, oomph, tmp_path):
    """Makes a page of recordings and opens it; gives it with what the command said. Its silence is held to in the end."""
    all_opened = []

    def open_page(*words, **options):
        page = tmp_path / f"{len(all_opened)}.html"
        code, _, err = oomph("report", *words, "-o", page)
        assert code == 0, err
        opened = Opened.new(browser.new_context(viewport={"width": 1280, "height": 3000}, **options)).goto(page)
        opened.drawn()
        all_opened.append(opened)
        return opened, err

    yield open_page
    for opened in all_opened:
        opened.hold_to_silence()
        opened.page.context.close()


def about(mib):
    """A pattern of so many MiB in words: a sample of small objects, of which there are some in every line and kind, may be among them."""
    return rf"\b{mib}\.[0-4]\d* MiB"


def within(value, error):
    return bytes_in_words(value) + (f" ± {bytes_in_words(error)}" if error else "")


NUMBERS = """() => {
  const memory = window.oomph.memory(), { head, page } = memory, at = head.peak.allocated.moment;
  const scale = { from: window.oomph.store.state.from, to: window.oomph.store.state.to };
  return {
    events: head.events, axis: window.oomph.store.state.axis, scale,
    peak: head.peak.allocated.bytes, taken: head.peak.reserved.bytes, held: memory.allocatedAt(at), error: memory.errorAt(at),
    kinds: memory.kindsAt(at).map(({ kind, bytes, count, error }) => [page.kinds[kind].key, bytes, count, error]),
    lines: memory.linesAt(at).map(({ line, bytes, count, error }) => {
      const { file, line: number, function: name } = memory.lines[line];
      return [`${file}:${number} ${name}`, bytes, count, error];
    }),
    flame: memory.flameAt(at, "all").bytes,
    counted: Math.max(...memory.counts.own),
  };
}"""


def by_name(rows):
    """Bytes and blocks by name; the errors are sums of squares, in another order."""
    return {name: (size, blocks, pytest.approx(error, abs=2)) for name, size, blocks, error in rows}


def test_a_page_of_ram_has_the_numbers_of_explain(see, ram, explain):
    host = explain(ram)["host"]
    opened, _ = see(ram, "--source", ram.parent)
    seen = opened.run(NUMBERS)
    assert (seen["peak"], seen["held"], seen["flame"]) == (host["asked"],) * 3
    assert seen["taken"] == seen["counted"] == host["anonymous"]
    assert by_name(seen["kinds"]) == by_name([row["kind"], row["bytes"], row["blocks"], row["error"]] for row in host["by_kind"])
    told = [[f"{row['place']['file']}:{row['place']['line']} {row['place']['function']}", row["bytes"], row["blocks"], row["error"]] for row in host["lines"] if row["place"]]
    assert by_name(row for row in seen["lines"] if not row[0].startswith(":")) == by_name(told)
    assert seen["error"] == pytest.approx(host["error"], abs=2)
    # In words: the answer, the table, the kinds.
    asked = within(host["asked"], host["error"])
    assert opened.text("[data-number=asked]") == opened.text("#peak .peak-summary strong") == asked
    assert opened.text("[data-number=counted]") == bytes_in_words(seen["taken"])
    assert asked in opened.text("h1")
    rows = [" ".join(row.split()) for row in opened.texts("#peak .peak-table tbody tr[data-line]")]
    table = next(row for row in rows if "load.py:6 table" in row)
    assert re.match(about(60), table) and "return np.ones(size, dtype=np.uint8)" in table
    assert re.match(about(30), next(row for row in rows if "load.py:10 <module>" in row))
    imported = next((size, error) for name, size, _, error in seen["lines"] if name.endswith("load.py:3 <module>"))
    assert any(row.startswith(within(*imported)) and "± " in row and "load.py:3 <module>" in row for row in rows)
    # It goes by time, and has nothing that only GPUs have.
    assert (seen["axis"], seen["scale"]["from"]) == ("time", 0) and seen["scale"]["to"] > 1_000_000
    assert opened.page.locator("#allocator, #what-if").count() == 0
    assert not opened.page.get_by_role("radio", name="Events").is_visible()
    assert "asked for" in opened.text("#timeline .readout") and "counted by the kernel" in opened.text("#timeline .readout")
    # What was held for a second is as wide as that: of the picture's columns, those between the two arrays are those of the time that the program saw between them.
    held = opened.run(
        "() => { const m = window.oomph.memory(), { to } = window.oomph.store.state; const t = m.timeline('kind', 0, to, 1000, window.oomph.scale()); return [t.allocated, t.reserved, t.files].map((all) => [...all]); }"
    )
    first, second = 60 * MIB, 90 * MIB
    columns = sum(1 for value in held[0] if first <= value < second)
    assert columns / 1000 * seen["scale"]["to"] / 1e6 == pytest.approx(float((ram.parent / "between").read_text()), abs=0.05)
    assert max(held[0]) == host["asked"] and max(held[1]) == seen["taken"] and max(held[2]) > MIB


def marks(opened):
    """Where the chosen moment is marked, in pixels, in every chart that is there."""
    return opened.run("[...document.querySelectorAll('#timeline .moment-mark')].filter((one) => !one.hidden && one.offsetParent).map((one) => one.getBoundingClientRect().left)")


def test_the_gpu_and_ram_are_drawn_over_the_same_time(see, both):
    opened, said = see(both / "train.oomph")
    assert "train-ram.oomph is of the same run" in said
    page = opened.run(
        "({ mode: window.oomph.page.mode, subjects: window.oomph.page.subjects.map(({ file, ram, beside, seconds }) => ({ file, ram: ram !== null, beside, seconds })) })"
    )
    gpu, host = page["subjects"]
    assert page["mode"] == "together" and (gpu["ram"], host["ram"]) == (False, True)
    # RAM is recorded from the start of the program: the GPU's memory begins after the array, and the pause.
    assert host["beside"] == {"subject": 0, "offset": 0}
    assert gpu["beside"]["subject"] == 1 and gpu["beside"]["offset"] > 300_000
    end = opened.state["to"]
    assert end == pytest.approx(max(gpu["beside"]["offset"] + gpu["seconds"] * 1e6, host["seconds"] * 1e6), abs=2)
    assert opened.texts("#timeline .beside-heading") == [f"RAM over the same time: {host['file']}, RAM"]
    left, below = marks(opened)
    assert left == pytest.approx(below, abs=0.6)
    # A click into the chart of RAM, while the data is there and the GPU is not used yet, chooses that moment in both.
    over = opened.page.locator("#timeline .beside .u-over")
    box = over.bounding_box()
    share = (gpu["beside"]["offset"] - 150_000) / end
    over.click(position={"x": share * box["width"], "y": box["height"] / 2})
    opened.until("() => window.oomph.memory().allocatedAt(window.oomph.store.state.moment) === 0")
    opened.drawn()
    for left in marks(opened):
        assert left - box["x"] == pytest.approx(share * box["width"], abs=2)
    assert re.search(about(80), next(one for one in opened.texts("#timeline .beside .legend-list button") if "arrays" in one))
    # Both say the time that was clicked, which is none of an event's.
    clicked = opened.state["at"] / 1e6
    assert [float(re.search(r"([\d.]+) s\b", text)[1]) for text in opened.texts("#timeline .readout")] == [pytest.approx(clicked, abs=0.1)] * 2
    # Then RAM is chosen, and the view and the time stay.
    opened.page.get_by_role("radio", name="Source line").check()
    opened.page.locator("#timeline .beside-heading button").click()
    opened.until("() => window.oomph.store.state.subject === 1")
    opened.drawn()
    assert (opened.state["from"], opened.state["to"]) == (0, end)
    assert [left - box["x"] for left in marks(opened)] == [pytest.approx(share * box["width"], abs=2)] * 2
    assert "The GPU’s memory over the same time" in opened.text("#timeline .beside-heading")
    assert any("train.py:6 <module>" in row and re.search(about(80), row) for row in opened.texts("#peak .peak-table tbody tr[data-line]"))
    assert re.search(about(80), next(one for one in opened.texts("#timeline > .legend-list button") if "train.py:6" in one))
    assert not opened.page.locator("#allocator").is_visible()
    # Both are zoomed at once, and by events there is one of them.
    opened.page.locator("#timeline > .chart").click(position={"x": 300, "y": 100})
    opened.page.keyboard.press("+")
    opened.until("(end) => window.oomph.store.state.to - window.oomph.store.state.from < 0.6 * end", end)
    opened.drawn()
    assert len({round(left) for left in marks(opened)}) == 1
    opened.page.get_by_label("Shown:").select_option("0")
    opened.until("() => window.oomph.store.state.subject === 0")
    opened.page.get_by_role("radio", name="Events").check()
    opened.drawn()
    assert not opened.page.locator("#timeline .beside").is_visible()
    assert opened.state["to"] <= opened.run("window.oomph.memory().head.events")


def test_what_was_recorded_at_another_time_is_not_drawn_together(see, both, ram, tmp_path):
    opened, said = see(both / "train.oomph", ram)
    assert "load-ram.oomph was recorded at another time" in said
    assert "was recorded at another time: the two are not drawn together" in opened.text("#timeline .beside")
    assert not opened.page.locator("#timeline .beside .chart").is_visible() and opened.state["axis"] == "events"
    for name, source in (("train.oomph", both / "train.oomph"), ("train-ram.oomph", ram)):
        shutil.copy(source, tmp_path / name)
    opened, said = see(tmp_path / "train.oomph")
    assert "train-ram.oomph was recorded at another time, and is left out" in said
    assert opened.run("window.oomph.page.subjects.length") == 1


def test_processes_are_listed_and_two_programs_are_compared(see, both, ram, tmp_path, explain):
    names = ["train-ram.oomph", "train-ram-77.oomph", "after-ram.oomph"]
    for name, source in zip(names, (ram, both / "train-ram.oomph", both / "train-ram.oomph")):
        shutil.copy(source, tmp_path / name)
    small, large, after = (tmp_path / name for name in names)
    asked = [explain(path)["host"]["asked"] for path in (small, large)]
    opened, _ = see(small, large)
    assert opened.run("window.oomph.page.mode") == "ranks" and opened.text("#ranks h2") == "Processes"
    assert opened.text("h1").startswith(f"Most RAM of 2 processes: {large}")
    table = [" ".join(row.split()) for row in opened.texts(".compared tr")]
    assert len(table) == 3 and table[1].startswith(f"{large} {bytes_in_words(asked[1])}") and table[2].startswith(f"{small} {bytes_in_words(asked[0])}")
    opened, _ = see(small, after)
    assert opened.run("window.oomph.page.mode") == "diff"
    assert "of RAM asked for before" in opened.text("h1")
    peaks = [" ".join(row.split()) for row in opened.texts("#diff .diff-peaks tbody tr")]
    assert len(peaks) == 2 and peaks[0].startswith(f"asked for {bytes_in_words(asked[0])} {bytes_in_words(asked[1])}")
    assert any("load.py:6 table" in row and re.search(about(60), row) for row in opened.texts("#diff .diff-table tbody tr"))


def test_a_strangers_names_are_text(see, oomph, tmp_path):
    recorded(oomph, tmp_path, HOSTILE, LOAD)
    (recording,) = tmp_path.glob("*-ram.oomph")
    opened, _ = see(recording)
    for name in ("Source line", "all frames"):
        opened.page.get_by_role("radio", name=name).check()
    opened.drawn()
    assert opened.run("window.ran") is None and opened.run("document.querySelectorAll('img, [onerror]').length") == 0
    assert HOSTILE in opened.run("document.querySelector('#app').textContent")


def test_what_is_freed_before_a_pause_is_not_held_in_it(oomph, see, tmp_path):
    recorded(oomph, tmp_path, "pauses.py", PAUSES)
    opened, _ = see(tmp_path / "pauses-ram.oomph")
    held = opened.run("() => { const m = window.oomph.memory(), { to } = window.oomph.store.state; return [...m.timeline('kind', 0, to, 2000, window.oomph.scale()).allocated]; }")
    # What was held before the first of them is there in each pause again.
    high = [value >= max(held) - 30 * MIB for value in held]
    rises = sum(1 for before, after in zip(high, high[1:]) if after and not before)
    falls = sum(1 for before, after in zip(high, high[1:]) if before and not after)
    assert (rises, falls) == (3, 3)
