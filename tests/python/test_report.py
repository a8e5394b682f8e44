"""The page of `oomph report` in a real browser: it shows the numbers of the other verbs, asks for nothing, and runs nothing of a stranger's.

Every recording of the fixtures is opened. Whatever a test does, its page must be silent: no warning, no error, no request.
"""

import html
import json
import os
import re

import pytest
from browser import Opened, bytes_in_words, change_in_words, chromium
from conftest import FIXTURES, ROOT
from synthetic import CALL, LINEAR, Program, train

H200 = FIXTURES / "h200"
SHAPES = FIXTURES / "shapes"


def recordings():
    """Every recording of a real program, every shape, and some of those under other settings."""
    yield from sorted(H200.glob("*.xz"))
    yield from sorted(path for path in SHAPES.iterdir() if path.name in json.loads((SHAPES / "expected.json").read_text()))
    yield from sorted((FIXTURES / "settings").glob("*.xz"))[::6]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def written(oomph, tmp_path_factory):
    """Writes a page with these words after `oomph report`; gives its path. The same words are written once."""
    folder, pages = tmp_path_factory.mktemp("pages"), {}

    def write(*words):
        if words not in pages:
            page = folder / f"{len(pages)}.html"
            code, _, err = oomph("report", "--quiet", *words, "-o", page, cwd=folder)
            assert code == 0, err
            pages[words] = page
        return pages[words]

    return write


@pytest.fixture
def see(browser, written):
    """Opens the page of these words, and holds it to its silence when the test is over. Options are those of a browser's context."""
    contexts, all_opened = [], []

    def open_page(*words, path=None, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        opened = Opened.new(context).goto(path or written(*words))
        all_opened.append(opened)
        return opened

    yield open_page
    for context, opened in zip(contexts, all_opened):
        opened.hold_to_silence()
        context.close()


@pytest.fixture(scope="module")
def kept_page(browser):
    """One page for all who only look, so high that everything is in sight: a context of one's own takes as long as opening a file."""
    with browser.new_context(viewport={"width": 1280, "height": 8000}) as context:
        yield Opened.new(context)


@pytest.fixture
def look(kept_page, written):
    """Opens the page of these words where the one before was, which is held to its silence."""

    def turn(*words, path=None):
        kept_page.hold_to_silence()
        return kept_page.goto(path or written(*words))

    yield turn
    kept_page.hold_to_silence()


def chosen(opened, **state):
    """Waits until the reader's choice is this."""
    opened.until("(wanted) => Object.entries(wanted).every(([key, value]) => window.oomph.store.state[key] === value)", state)


# --- every recording --------------------------------------------------------------------------------------

NUMBERS = """() => {
  const memory = window.oomph.memory(), { head, page } = memory, at = head.peak.allocated.moment;
  const kindOf = (kind) => page.kinds[kind].key;
  return {
    head, at, count: memory.count,
    lines: memory.linesAt(at).map((one) => ({ ...memory.lines[one.line], bytes: one.bytes, count: one.count, kind: kindOf(one.kind) })),
    kinds: memory.kindsAt(at).map(({ kind, bytes, count }) => ({ kind: kindOf(kind), bytes, count })),
    waste: memory.wasteAt(at),
    allocated: memory.allocatedAt(at), reserved: memory.reservedAt(head.peak.reserved.moment),
    alive: memory.aliveAt(at).length,
    flame: ["own", "python", "all"].map((show) => memory.flameAt(at, show).bytes),
    segments: memory.segmentsAt(at).reduce((sum, { size }) => sum + size, 0),
  };
}"""

# What is written for the reader, in one question.
WORDS = """(subject) => {
  const text = (selector) => document.querySelector(selector).innerText;
  return {
    answer: ["allocated", "reserved", "requested"].map((name) => text(`#answer-${subject} [data-number=${name}]`)),
    summary: text("#peak .peak-summary strong"),
    rows: [...document.querySelectorAll("#peak .peak-table tbody tr[data-line] td:first-child")].map((cell) => cell.innerText.trim()),
    sentence: text("#allocator .allocator-sentence strong").trim(),
  };
}"""


def key_of(row):
    """A line as both know it: what is reported of it, and what it holds."""
    real = row.get("real", row.get("place") == "line")
    place = (row["file"], row["line"], row["function"], row["own"]) if real else ()
    return place, row["through"] or "", row["bytes"], row["count"], row["kind"]


def assert_same_numbers(seen, device):
    """What the page's memory answers is what `oomph explain` says."""
    peak, waste, at_peak = device["peak"], device["reserved_at_peak"], device["at_peak"]
    head = seen["head"]
    assert head["events"] == device["events"]
    assert {name: head["peak"][name]["bytes"] for name in peak} == peak
    assert (seen["allocated"], seen["reserved"]) == (peak["allocated"], peak["reserved"])
    assert sorted(map(key_of, seen["lines"])) == sorted(map(key_of, at_peak["by_line"]))
    assert sorted(tuple(row.values()) for row in seen["kinds"]) == sorted((row["kind"], row["bytes"], row["count"]) for row in at_peak["by_kind"])
    assert seen["waste"] == head["waste"] == waste
    assert seen["segments"] == waste["reserved"]
    assert seen["flame"] == [peak["allocated"]] * 3
    assert seen["alive"] == sum(row["count"] for row in at_peak["by_kind"])
    steps = device["steps"]
    assert (head["steps"] or {}).get("peaks") == (steps and steps["allocated_peaks"])
    assert [oom["size"] for oom in head["ooms"]] == [oom["size"] for oom in device["ooms"]]


@pytest.mark.parametrize("recording", list(recordings()), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_recording_is_shown_with_the_numbers_of_explain(look, explain, recording):
    reported = explain(recording)
    opened = look("--what-if", "never", recording)
    devices = reported["devices"]
    heads = opened.run("JSON.parse(document.getElementById('oomph-page').textContent).subjects")
    assert [head["device"] for head in heads] == [device["ordinal"] for device in devices]
    for subject, device in enumerate(devices):
        if len(devices) > 1:
            opened.page.get_by_label("Shown:").select_option(str(subject))
            chosen(opened, subject=subject)
        seen = opened.run(NUMBERS)
        assert_same_numbers(seen, device)
        opened.framed()
        # The same in words: the answer, the table and its sum, the allocator's sentence.
        shown = opened.run(WORDS, subject)
        assert shown["answer"] == [bytes_in_words(device["peak"][name]) for name in ("allocated", "reserved", "requested")]
        assert bytes_in_words(device["peak"]["allocated"]) in shown["summary"]
        held = sorted((row["bytes"] for row in device["at_peak"]["by_line"]), reverse=True)
        assert shown["rows"] == [bytes_in_words(size) for size in held[:25]]
        assert shown["sentence"] == f"{bytes_in_words(device['reserved_at_peak']['reserved'])} reserved"
    findings = " ".join(opened.texts("#answer summary"))
    if len(devices) == 1:
        for finding in reported["findings"]:
            assert finding["code"] in findings and finding["title"] in " ".join(findings.split()), finding["code"]


def test_a_file_that_is_no_recording_makes_no_page(oomph, tmp_path):
    page = tmp_path / "page.html"
    code, _, err = oomph("report", ROOT / "README.md", "-o", page)
    assert code == 2 and err.startswith("error: ") and not page.exists()


# --- the timeline -----------------------------------------------------------------------------------------

CHART = "[role=slider][aria-label='Moment of the timeline']"


@pytest.fixture
def plain(see):
    """A short training run with steps: 660 events."""
    return see(H200 / "plain.pickle.xz")


def place(opened, selector, share):
    """A point of an element: this share of its width, in the middle of its height."""
    opened.page.locator(selector).first.scroll_into_view_if_needed()
    box = opened.page.locator(selector).first.bounding_box()
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2


def width(opened):
    state = opened.state
    return state["to"] - state["from"]


def test_dragging_zooms_and_a_double_click_shows_all(plain):
    mouse, over = plain.page.mouse, f"{CHART} .u-over"
    mouse.move(*place(plain, over, 0.25))
    mouse.down()
    mouse.move(*place(plain, over, 0.5), steps=5)
    mouse.up()
    plain.until("() => window.oomph.store.state.to < 660")
    state = plain.state
    assert state["from"] == pytest.approx(165, abs=5) and state["to"] == pytest.approx(330, abs=5)
    assert f"Events {state['from']} to {state['to']} of 660" in plain.text("#timeline .toolbar")
    # With Shift the view moves along.
    mouse.move(*place(plain, over, 0.5))
    plain.page.keyboard.down("Shift")
    mouse.down()
    mouse.move(*place(plain, over, 0.25), steps=5)
    mouse.up()
    plain.page.keyboard.up("Shift")
    plain.until("(from) => window.oomph.store.state.from > from", state["from"])
    assert width(plain) == state["to"] - state["from"]
    moment = plain.state["moment"]
    mouse.dblclick(*place(plain, over, 0.7))
    chosen(plain, **{"from": 0, "to": 660, "moment": moment})


def test_the_wheel_zooms_where_it_points(plain):
    over = f"{CHART} .u-over"
    plain.page.mouse.move(*place(plain, over, 0.5))
    plain.page.mouse.wheel(0, -400)
    plain.until("() => window.oomph.store.state.to - window.oomph.store.state.from < 600")
    state = plain.state
    assert state["from"] < 330 < state["to"]
    assert (330 - state["from"]) == pytest.approx(state["to"] - 330, abs=20)
    plain.page.mouse.wheel(0, 3000)
    chosen(plain, **{"from": 0, "to": 660})


def test_a_click_chooses_the_moment_that_all_views_show(plain):
    plain.page.mouse.click(*place(plain, f"{CHART} .u-over", 0.02))
    peak = plain.run("window.oomph.memory().head.peak.allocated.moment")
    plain.until("(peak) => window.oomph.store.state.moment !== peak", peak)
    moment = plain.state["moment"]
    assert moment == pytest.approx(13, abs=4)
    plain.drawn()
    allocated, reserved, lines = plain.run("(at) => { const m = window.oomph.memory(); return [m.allocatedAt(at), m.reservedAt(at), m.linesAt(at).length]; }", moment)
    assert allocated < plain.run("window.oomph.memory().head.peak.allocated.bytes")
    assert f"{bytes_in_words(allocated)} allocated" in plain.text("#timeline .readout")
    assert plain.text("#peak .peak-summary strong") == bytes_in_words(allocated)
    assert len(plain.texts("#peak .peak-table tbody tr[data-line]")) == min(25, lines)
    assert plain.texts("#allocator .allocator-sentence strong") == [f"{bytes_in_words(reserved)} reserved", f"{bytes_in_words(allocated)} in use"]
    assert f"Allocations alive after event {moment}" in plain.text("#allocations caption")
    assert plain.page.locator(CHART).get_attribute("aria-valuenow") == str(moment)
    plain.page.get_by_role("button", name="Peak", exact=True).click()
    chosen(plain, moment=peak)


def test_what_is_under_the_mouse_is_told(plain):
    plain.page.mouse.move(*place(plain, f"{CHART} .u-over", 0.5))
    plain.until("() => !document.querySelector('#timeline .tip').hidden")
    tip = " ".join(plain.text("#timeline .tip").split())
    number = int(re.match(r"After event (\d+)", tip)[1])
    assert number == pytest.approx(330, abs=4)
    allocated, kinds = plain.run("(at) => { const m = window.oomph.memory(); return [m.allocatedAt(at), m.kindsAt(at).map(({ bytes }) => bytes)]; }", number)
    assert f"{bytes_in_words(allocated)} allocated" in tip
    assert all(bytes_in_words(size) in tip for size in kinds)
    plain.page.mouse.move(5, 5)
    plain.until("() => document.querySelector('#timeline .tip').hidden")


def test_groups_are_hidden_and_shown_again(plain):
    picture = lambda: plain.page.locator(f"{CHART} canvas").first.screenshot()
    shown = picture()
    group = plain.page.locator("#timeline .legend-list button").first
    group.click()
    assert group.get_attribute("aria-pressed") == "false" and picture() != shown
    group.click()
    plain.page.mouse.move(5, 5)
    assert group.get_attribute("aria-pressed") == "true" and picture() == shown


def test_the_strip_below_moves_the_view(plain):
    plain.page.locator(CHART).focus()
    for _ in range(2):
        plain.page.keyboard.press("+")
    plain.until("() => window.oomph.store.state.to - window.oomph.store.state.from < 200")
    size = width(plain)
    plain.page.mouse.click(*place(plain, "#timeline .overview", 0.9))
    plain.until("() => window.oomph.store.state.from > 400")
    assert width(plain) == size and plain.state["from"] < 595 < plain.state["to"]


def test_links_lead_to_the_parts_of_the_page(plain):
    links = plain.page.locator("nav.contents a")
    targets = [link.get_attribute("href") for link in links.all()]
    assert targets == ["#answer", "#timeline", "#peak", "#allocator", "#what-if", "#allocations"]
    for target, link in zip(targets, links.all()):
        link.click()
        plain.until("(target) => document.querySelector(target).getBoundingClientRect().top < innerHeight", target)
    assert plain.page.locator("#allocations").is_visible()


def test_the_keyboard_does_what_the_mouse_does(plain):
    peak = plain.state["moment"]
    plain.page.locator(CHART).focus()
    press = plain.page.keyboard.press
    press("Home")
    chosen(plain, moment=0)
    press("End")
    chosen(plain, moment=660)
    press("Shift+ArrowLeft")
    chosen(plain, moment=659)
    press("p")
    chosen(plain, moment=peak)
    press("+")
    plain.until("() => window.oomph.store.state.to - window.oomph.store.state.from < 660")
    zoomed = plain.state
    assert zoomed["from"] <= peak <= zoomed["to"] and width(plain) == pytest.approx(330, abs=2)
    press("-")
    chosen(plain, **{"from": 0, "to": 660})
    # Steps: n and N go from one to the next, s zooms to it.
    begins = plain.run("window.oomph.memory().head.steps.begins")
    press("Home")
    for begin in begins:
        press("n")
        chosen(plain, moment=begin + 1)
    press("N")
    chosen(plain, moment=begins[-2] + 1)
    press("s")
    plain.until("() => window.oomph.store.state.to < 660")
    assert plain.state["from"] <= begins[-2] and plain.state["to"] >= begins[-1] and width(plain) < 400
    press("Escape")
    chosen(plain, **{"from": 0, "to": 660})
    before = plain.state["moment"]
    press("ArrowRight")
    plain.until("(before) => window.oomph.store.state.moment > before", before)
    # What is chosen is said to those who cannot see.
    plain.until("() => document.querySelector('[role=status].visually-hidden').textContent.includes('allocated')")
    assert "reserved" in plain.page.locator(CHART).get_attribute("aria-valuetext")


def test_annotations_are_reached_without_a_mouse(see):
    opened = see(H200 / "annotated.pickle.xz")
    opened.page.locator(CHART).focus()
    opened.page.keyboard.press("Home")
    ranges = opened.run("window.oomph.memory().annotations")
    assert {one["name"] for one in ranges} >= {"my step 0", "my step 1", "my step 2"}
    reached = []
    for _ in range(len(ranges)):
        opened.page.keyboard.press("r")
        reached.append(opened.state["moment"])
    assert reached == sorted(reached) and len(set(reached)) > 3
    opened.until("() => window.oomph.store.state.moment > 0")
    # The innermost is reported.
    assert "in “Optimizer.step#Adam.step”" in opened.page.locator(CHART).get_attribute("aria-valuetext")
    opened.page.locator(".annotations summary").click()
    button = opened.page.locator(".annotations button", has_text="my step 1")
    button.click()
    step = next(one for one in ranges if one["name"] == "my step 1")
    opened.until("(step) => { const {from, to} = window.oomph.store.state; return from <= step.from && to >= step.to && to - from < 660; }", step)


def test_a_moment_out_of_view_is_told_and_found_again(plain):
    plain.run("window.oomph.store.set({ moment: 600 })")
    plain.run("window.oomph.store.set({ from: 0, to: 100 })")
    plain.until("() => !document.querySelector('.away').hidden")
    assert "The chosen moment, 600, is right of this view" in plain.text(".away")
    plain.until("() => document.getElementById('allocator-moment').value === '600'")
    plain.page.locator(".away button").click()
    plain.until("() => { const {from, to} = window.oomph.store.state; return from <= 600 && 600 <= to; }")


def test_a_recording_of_nothing_says_so(see, tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('{"segments": [], "device_traces": [[]]}')
    opened = see(empty)
    assert "there is no event and no segment in this file" in opened.text("#answer")
    assert opened.run("document.documentElement.dataset.ready") == "true"


def test_the_timeline_is_stacked_by_kind_or_by_line(plain, explain):
    device = explain(H200 / "plain.pickle.xz")["devices"][0]
    legend = lambda: " ".join(" ".join(plain.texts("#timeline .legend-list")).split())
    for kind in device["at_peak"]["by_kind"]:
        assert bytes_in_words(kind["bytes"]) in legend()
    plain.page.get_by_role("radio", name="Source line").check()
    chosen(plain, by="line")
    plain.drawn()
    for line in device["at_peak"]["by_line"][:5]:
        assert bytes_in_words(line["bytes"]) in legend()
    assert "record_cases.py:48 loop" in legend()


def test_every_column_of_the_timeline_is_the_most_of_its_moments(plain):
    """At any zoom: nothing is sampled away."""
    wrong = plain.run("""() => {
      const memory = window.oomph.memory(), wrong = [];
      for (const [from, to, columns] of [[0, memory.head.events, 100], [0, memory.head.events, 7], [200, 230, 1000], [17, 593, 64]]) {
        const { starts, allocated, reserved, groups } = memory.timeline("kind", from, to, columns);
        starts.forEach((start, i) => {
          const end = i + 1 < starts.length ? starts[i + 1] : to + 1;
          let [most, taken] = [0, 0];
          for (let moment = start; moment < end; moment++) {
            most = Math.max(most, memory.allocatedAt(moment));
            taken = Math.max(taken, memory.reservedAt(moment));
          }
          const sum = groups.reduce((total, { bytes }) => total + bytes[i], 0);
          if (allocated[i] !== most || reserved[i] !== taken || sum !== most) wrong.push([from, to, columns, i]);
        });
      }
      return wrong;
    }""")
    assert wrong == []


def test_what_happened_is_marked(see):
    """Annotations, out of memory and the limit are named under and in the chart."""
    annotated = see(H200 / "annotated.pickle.xz")
    annotations = annotated.run("window.oomph.memory().annotations")
    annotated.page.locator("#timeline .annotations summary").click()
    assert annotated.texts("#timeline .annotations button") == list(dict.fromkeys(one["name"] for one in annotations)) != []
    first = next(one for one in annotations if one["to"] is not None)
    annotated.page.locator("#timeline .annotations").get_by_role("button", name=first["name"], exact=True).click()
    annotated.until(
        "({ from, to }) => window.oomph.store.state.from <= from && to <= window.oomph.store.state.to && window.oomph.store.state.to < window.oomph.memory().head.events", first
    )
    died = see(H200 / "real_oom.pickle.xz")
    ooms = died.run("window.oomph.memory().head.ooms")
    assert ooms and "out of memory" in died.text("#answer").lower()
    died.page.locator("#allocator").get_by_role("button", name=re.compile("^Out of memory")).click()
    chosen(died, moment=ooms[0]["moment"])
    died.drawn()
    assert f"A request of {bytes_in_words(ooms[0]['size'])} failed here" in died.text("#allocator .allocator-failed")
    limited = see(H200 / "plain.pickle.xz", "--memory", "1GiB")
    head = limited.run("window.oomph.memory().head")
    assert head["limit"]["bytes"] == 1 << 30
    assert head["limit"]["text"] in " ".join(limited.text("#timeline .legend-list").split())


# --- what is held -----------------------------------------------------------------------------------------


def test_a_search_filters_lines_and_marks_calls(plain, explain):
    rows = explain(H200 / "plain.pickle.xz")["devices"][0]["at_peak"]["by_line"]
    wanted = [row for row in rows if row.get("function") == "loop"]
    assert 0 < len(wanted) < len(rows)
    plain.page.locator("#peak").scroll_into_view_if_needed()
    plain.page.fill("#peak-search", "LOOP")
    assert len(plain.texts("#peak .peak-table tbody tr[data-line]")) == len(wanted)
    held = sum(row["bytes"] for row in wanted)
    assert plain.text("#peak .peak-found").startswith(f"{len(wanted)} of {len(rows)} lines match: {bytes_in_words(held)}")
    assert plain.page.locator(".flame-node.is-match").count() > 0
    plain.page.fill("#peak-search", "no such line")
    assert plain.texts("#peak .peak-table tbody tr") == ["No line matches."]
    plain.page.fill("#peak-search", "")
    assert len(plain.texts("#peak .peak-table tbody tr[data-line]")) == len(rows)


def test_lines_are_sorted_by_any_column_and_open_into_stacks(plain):
    plain.page.locator("#peak").scroll_into_view_if_needed()
    head = plain.page.locator("#peak .peak-table thead")
    head.get_by_role("button", name="Blocks").click()
    counts = [int(text.replace(",", "")) for text in plain.texts("#peak .peak-table tbody tr[data-line] td:nth-child(3)")]
    assert counts == sorted(counts, reverse=True)
    assert head.locator("th[aria-sort=descending]").inner_text() == "Blocks"
    head.get_by_role("button", name="Blocks").click()
    assert [int(text) for text in plain.texts("#peak .peak-table tbody tr[data-line] td:nth-child(3)")] == sorted(counts)
    toggle = plain.page.locator("#peak .expand", has_text="record_cases.py:48 loop").first
    toggle.click()
    frames = plain.texts("#peak tr.stacks .frames li")
    assert any("record_cases.py:48" in frame for frame in frames)
    assert plain.page.locator("#peak .expand[aria-expanded=true]").count() == 1


def test_the_flame_graph_zooms_by_mouse_and_by_keyboard(plain):
    plain.page.locator("#peak").scroll_into_view_if_needed()
    plain.page.get_by_label("Python frames").check()
    boxes = plain.page.locator(".flame-node")
    plain.until("() => document.querySelectorAll('.flame-node').length > 5")
    root = boxes.first.get_attribute("aria-label")
    assert bytes_in_words(plain.run("window.oomph.memory().head.peak.allocated.bytes")) in root
    plain.page.locator(".flame-node[aria-level='2']").first.click()
    assert plain.page.locator(".flame-crumbs").is_visible()
    wide = plain.page.locator(".flame-node[aria-level='2']").first.bounding_box()["width"]
    assert wide == pytest.approx(boxes.first.bounding_box()["width"], abs=3)
    plain.page.keyboard.press("ArrowDown")
    plain.page.keyboard.press("Enter")
    assert plain.page.locator(".flame-crumbs button").count() == 2
    plain.page.keyboard.press("Escape")
    plain.page.keyboard.press("Escape")
    assert not plain.page.locator(".flame-crumbs").is_visible()


def test_source_is_quoted_where_it_is_at_hand_and_never_with_the_switch(see, oomph, tmp_path):
    program = Program(str(tmp_path / "train.py"))
    train(program)
    source = tmp_path / "train.py"
    source.write_text("\n" * 14 + "hidden = self.layer(secret_sauce)\n")
    recording = program.dump(tmp_path / "snapshot.pickle")

    def page(*options, modified=0, folder=tmp_path):
        os.utime(source, (modified, modified))
        path = tmp_path / "page.html"
        code, _, err = oomph("report", *options, recording, "--force", "-o", path, cwd=folder)
        assert code == 0, err
        return path

    quoted = see(path=page())
    assert "hidden = self.layer(secret_sauce)" in quoted.texts("#peak td.source")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "hidden = self.layer(secret_sauce)" in see(path=page("--source", tmp_path, folder=elsewhere)).texts("#peak td.source")
    # The text is in the page's columns, compressed: what is not shown is looked for in all that the page knows.
    known = "window.oomph.memory().lines.map(({ source }) => source).join('')"
    assert see(path=page("--no-source")).run(known) == ""
    assert see(path=page(folder=elsewhere)).run(known) == "", "not below this folder"
    assert see(path=page(modified=2_000_000_000)).run(known) == "", "changed since the recording"


# --- every allocation -------------------------------------------------------------------------------------

ALLOCATIONS = "#allocations tbody tr.row [data-allocation]"


@pytest.mark.parametrize("name", ["plain", "lstm", "cudagraph"])
def test_every_allocation_is_reached(see, explain, name):
    opened = see("--what-if", "never", H200 / f"{name}.pickle.xz")
    (device,) = explain(H200 / f"{name}.pickle.xz")["devices"]
    section = opened.page.locator("#allocations")
    section.scroll_into_view_if_needed()
    section.get_by_label("In the timeline’s view").check()
    found = []
    while True:
        found += opened.run('() => [...document.querySelectorAll("#allocations tbody tr.row [data-allocation]")].map((one) => Number(one.dataset.allocation))')
        if section.get_by_role("button", name="Next").is_disabled():
            break
        section.get_by_role("button", name="Next").click()
    complete = device["completeness"]
    assert len(found) == opened.run("window.oomph.memory().count") == complete["allocations"] + complete["blocks_from_before"]
    assert sorted(found) == list(range(len(found)))
    assert f"–{len(found):,} of {len(found):,}," in opened.text("#allocations [role=status]")


def test_an_allocation_tells_its_stack_and_its_birth_can_be_chosen(plain):
    section = plain.page.locator("#allocations")
    section.scroll_into_view_if_needed()
    search = section.get_by_label("Search allocations")
    search.fill("loop parameters")
    none = plain.text("#allocations [role=status]")
    search.fill("record_cases.py:48")
    some = plain.text("#allocations [role=status]")
    assert none != some and re.match(r"1–\d+ of \d+, ", some)
    assert all("record_cases.py:48" in text for text in plain.texts("#allocations tbody tr.row .label"))
    search.press("Tab")
    plain.page.locator(ALLOCATIONS).first.press("Enter")
    index = int(plain.page.locator(ALLOCATIONS).first.get_attribute("data-allocation"))
    frames = plain.run("(index) => window.oomph.memory().stackOf(index).length", index)
    assert len(plain.texts("#allocations tr.detail .stack li")) == frames > 3
    born = plain.run("(index) => window.oomph.memory().born[index]", index)
    plain.page.get_by_role("button", name="Choose its birth as the moment").click()
    chosen(plain, moment=born)


# --- the allocator ----------------------------------------------------------------------------------------


def test_the_slider_moves_through_time_and_every_byte_is_accounted_for(see):
    opened = see(H200 / "fragment_oom.pickle.xz")
    opened.page.locator("#allocator").scroll_into_view_if_needed()
    slider = opened.page.locator("#allocator-moment")
    for moment in (0, 60, 131):
        slider.fill(str(moment))
        chosen(opened, moment=moment)
        opened.drawn()
        waste = opened.run("(at) => window.oomph.memory().wasteAt(at)", moment)
        assert opened.texts("#allocator .allocator-sentence strong") == [f"{bytes_in_words(waste['reserved'])} reserved", f"{bytes_in_words(waste['allocated'])} in use"]
        for account in ("holes", "cached"):
            assert opened.text(f"#allocator [data-account={account}] b") == bytes_in_words(waste[account])
        free = sum(waste[name] for name in ("pending", "holes", "cached", "other_streams", "private_pools"))
        assert waste["reserved"] == waste["allocated"] + free
        blocks = opened.run(
            """(at) => {
          const sums = { used: 0, pending: 0, hole: 0, cached: 0, "other stream": 0, private: 0 };
          for (const { address, size, blocks } of window.oomph.memory().segmentsAt(at)) {
            let next = address;
            for (const block of blocks) {
              if (block.address !== next) throw new Error("blocks must follow one another");
              next += block.size;
              sums[block.state] += block.size;
            }
            if (next !== address + size) throw new Error("blocks must fill their segment");
          }
          return sums;
        }""",
            moment,
        )
        assert list(blocks.values()) == [waste[name] for name in ("allocated", "pending", "holes", "cached", "other_streams", "private_pools")]
    slider.focus()
    opened.page.keyboard.press("ArrowLeft")
    chosen(opened, moment=130)
    opened.page.keyboard.press("Home")
    chosen(opened, moment=0)
    # By themselves, and to a stop.
    opened.page.get_by_role("button", name="Play").click()
    opened.until("() => window.oomph.store.state.moment > 5")
    opened.page.get_by_role("button", name="Pause").click()


def test_the_map_tells_of_blocks_and_the_table_of_segments(see):
    opened = see(H200 / "fragment_oom.pickle.xz")
    opened.page.locator("#allocator").scroll_into_view_if_needed()
    opened.page.locator("#allocator details.allocator-table summary").click()
    segments = opened.run("window.oomph.memory().segmentsAt(window.oomph.store.state.moment).length")
    opened.until("(segments) => document.querySelectorAll('#allocator .allocator-table tbody tr').length === segments", segments)
    opened.page.locator("#allocator .allocator-panel .map").first.focus()
    opened.page.keyboard.press("ArrowRight")
    reported = opened.text("#allocator .allocator-details")
    assert re.search(r"Segment \d+ of \d+: .* at 0x[0-9a-f]+", reported), reported
    assert "record_cases.py:202" in opened.text("#allocator .allocator-keepers")


# --- what if, before and after, ranks ---------------------------------------------------------------------


@pytest.mark.parametrize("name, options", [("fragment_oom", []), ("fragment_oom", ["--memory", "600MiB"]), ("plain", ["--gpu", "t4"])])
def test_what_if_is_what_tune_says(see, oomph, name, options):
    recording = H200 / f"{name}.pickle.xz"
    code, out, err = oomph("tune", "--format", "json", *options, recording)
    assert code in (0, 1), err
    reported = json.loads(out)
    opened = see(*options, recording)
    found = opened.run("window.oomph.memory().head.what_if")
    assert found["lower_bound"] == reported["lower_bound"]
    assert found["paste"] == (reported["best"] and reported["best"]["line"])
    assert [(one["conf"], one["recorded"], one["least"], one["peak_reserved"]) for one in found["trials"]] == [
        (one["conf"], one["recorded"], one["least_memory"], one["peak"]["reserved"]) for one in reported["trials"]
    ]
    assert [one["conf"] for one in found["trials"] if one["best"]] == ([reported["best"]["conf"]] if reported["best"] else [])
    if "fits" in reported["trials"][0]:
        assert [one["fit"] for one in found["trials"]] == [one["fits"] for one in reported["trials"]]
    opened.page.locator("#what-if").scroll_into_view_if_needed()
    rows = opened.page.locator("#what-if tbody tr")
    assert rows.count() == len(reported["trials"])
    for row, trial in zip(rows.all(), reported["trials"]):
        text = row.inner_text()
        assert bytes_in_words(trial["peak"]["reserved"]) in text and (trial["conf"] or "PyTorch's defaults") in text
    if found["paste"]:
        assert opened.text("#what-if .paste code") == found["paste"]
        opened.page.locator("#what-if .copy").click()
        opened.until("() => /Copied|Selected/.test(document.querySelector('#what-if .copy').textContent)")
    # Another trial can be drawn.
    opened.page.locator("#what-if tbody input[type=checkbox]:not(:checked)").first.check()
    opened.drawn()


BEFORE, AFTER = H200 / "seed_fragment4.pickle.xz", H200 / "seed_fragment4-cap0.55.pickle.xz"


@pytest.mark.parametrize("before, after", [(BEFORE, AFTER), (H200 / "plain.pickle.xz", H200 / "fused.pickle.xz")])
def test_two_recordings_are_compared_as_diff_does(see, oomph, before, after):
    code, out, err = oomph("diff", "--format", "json", before, after)
    assert code in (0, 1), err
    (reported,) = json.loads(out)["devices"]
    opened = see("--as", "diff", "--what-if", "never", before, after)
    (found,) = opened.run("window.oomph.page.diff")
    heads = opened.run("window.oomph.page.subjects")
    for side in ("before", "after"):
        assert {name: heads[found[side]]["peak"][name]["bytes"] for name in reported[side]} == reported[side]
    changed = lambda rows: sorted((row["before"], row["after"]) for row in rows if row["before"] != row["after"])
    assert changed(found["lines"]) == changed(reported["by_line"]) and changed(found["lines"])
    assert sorted((row["key"], *pair) for row in found["kinds"] for pair in [(row["before"], row["after"])] if pair[0] != pair[1]) == sorted(
        (row["kind"], row["before"], row["after"]) for row in reported["by_kind"] if row["before"] != row["after"]
    )
    by = reported["after"]["reserved"] - reported["before"]["reserved"]
    assert change_in_words(by) in opened.text("#diff [data-peak=reserved]")
    most = max(reported["by_line"], key=lambda row: abs(row["grown"]))
    first = opened.page.locator("#diff .diff-table").last.locator("tbody tr").first
    assert change_in_words(most["grown"]) in first.inner_text() and f":{most['line']} {most['function']}" in first.inner_text()
    opened.page.fill("#diff-search", "no such line")
    assert "No line matches." in opened.text("#diff")


def test_ranks_are_small_multiples_with_the_worst_first(see, explain):
    files = [H200 / f"{name}.pickle.xz" for name in ("plain", "fused", "foreach")]
    peaks = [explain(file)["devices"][0]["peak"] for file in files]
    opened = see("--as", "ranks", "--what-if", "never", *files)
    worst = max(range(3), key=lambda rank: peaks[rank]["allocated"])
    assert opened.run("window.oomph.page.worst") == opened.state["subject"] == worst
    cards = opened.page.locator("#ranks .rank-card")
    assert cards.count() == 3 and "worst" in cards.first.inner_text()
    opened.until("() => document.querySelectorAll('#ranks .rank-picture svg').length === 3")
    numbers = opened.texts("#ranks .rank-card b")
    assert numbers == [bytes_in_words(peak) for peak in sorted((peak["allocated"] for peak in peaks), reverse=True)]
    other = (worst + 1) % 3
    opened.page.locator(f"#ranks .rank-card[data-subject='{other}']").click()
    chosen(opened, subject=other)
    assert opened.page.locator(f"#answer-{other}").is_visible() and not opened.page.locator(f"#answer-{worst}").is_visible()
    opened.drawn()
    assert opened.text("#peak .peak-summary strong") == bytes_in_words(peaks[other]["allocated"])
    assert sorted(opened.texts("#ranks .rank-table tbody th button")) == sorted(file.name for file in files)


# --- light, dark, paper -----------------------------------------------------------------------------------

LIGHTNESS = """(selector) => {
  const [r, g, b] = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/[\\d.]+/g).map(Number);
  return (r + g + b) / 765;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_systems_colours_are_taken_until_others_are_chosen(see, scheme):
    opened = see(H200 / "plain.pickle.xz", color_scheme=scheme)
    other = {"light": "dark", "dark": "light"}
    for theme in (scheme, other[scheme]):
        assert opened.run("document.documentElement.dataset.theme") == theme
        lightness = opened.run(LIGHTNESS, "body")
        assert lightness > 0.8 if theme == "light" else lightness < 0.3
        opened.page.get_by_role("button", name=f"Change to the {other[theme]} theme").click()
    # Back where it was; what the system changes to is not heard any more.
    opened.page.emulate_media(color_scheme=other[scheme])
    assert opened.run("document.documentElement.dataset.theme") == scheme


CONTRAST = """() => {
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const backgroundOf = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const { backgroundColor, backgroundImage } = getComputedStyle(at);
      const [r, g, b, a = 1] = parts(backgroundColor);
      if (backgroundImage !== "none") return null;
      if (a === 1) return [r, g, b];
      if (a > 0) return null;
    }
    return [255, 255, 255];
  };
  const weak = [];
  for (const element of document.querySelectorAll("body *")) {
    const has = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== "");
    if (!has || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || element.closest("svg, [hidden], :disabled, .visually-hidden")) continue;
    const style = getComputedStyle(element), background = backgroundOf(element), colour = parts(style.color);
    if (background === null || (colour[3] ?? 1) < 1) continue;
    const [light, dark] = [luminance(colour), luminance(background)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) weak.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}: ${element.textContent.slice(0, 30)}`);
  }
  return [...new Set(weak)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(see, scheme):
    """The contrast that WCAG asks for, 4.5 to 1, wherever text stands on one colour."""
    opened = see(H200 / "fragment_oom.pickle.xz", color_scheme=scheme)
    opened.drawn()
    assert opened.run(CONTRAST) == []


def test_it_prints(see):
    opened = see(H200 / "fragment_oom.pickle.xz", color_scheme="dark")
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
    assert opened.run("document.documentElement.dataset.theme") == "dark"
    opened.page.emulate_media(media="print")
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert opened.run(LIGHTNESS, "body") > 0.9
    # Controls are of no use on paper; the findings and what is held are.
    assert not opened.page.locator(".theme-toggle").is_visible()
    assert not opened.page.get_by_role("button", name="Zoom in").is_visible()
    assert opened.page.locator("#answer-0").is_visible() and opened.page.locator("#peak .peak-table").is_visible()
    assert opened.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("milliseconds", [0, 20, 40, 60, 80])
def test_it_prints_before_all_is_drawn(see, milliseconds):
    """Somebody prints at once. Dark, since paper is light: all is drawn anew, before it was laid out."""
    opened = see(H200 / "fragment_oom.pickle.xz", color_scheme="dark")
    opened.page.reload(wait_until="domcontentloaded")
    opened.page.wait_for_timeout(milliseconds)
    opened.page.emulate_media(media="print")
    opened.run("dispatchEvent(new Event('beforeprint'))")
    opened.ready()
    opened.until("() => document.querySelector('.map canvas')?.height > 0")
    assert opened.run("document.querySelector('.map canvas').height") < 2000
    assert opened.page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("wide", [360, 768, 1920])
def test_no_width_makes_it_scroll_sideways(see, wide):
    opened = see(H200 / "bert_var16.pickle.xz", "--what-if", "never")
    opened.page.set_viewport_size({"width": wide, "height": 800})
    opened.drawn()
    assert opened.run("document.documentElement.scrollWidth") <= wide


def test_on_a_phone_the_line_is_in_sight(see):
    """Beside its bytes: what holds the memory is what the page is opened for."""
    opened = see(H200 / "bert_var16.pickle.xz", "--what-if", "never")
    opened.page.set_viewport_size({"width": 390, "height": 800})
    opened.drawn()
    for cell in ("thead th:nth-child(1)", "thead th:nth-child(5)", "tbody tr td:nth-child(1)", "tbody tr .place"):
        box = opened.page.locator(f".peak-table {cell}").first.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, (cell, box)
    assert box["width"] >= 150, box


# --- for everyone -----------------------------------------------------------------------------------------

# What a checker of accessibility asks first.
UNNAMED = """() => {
  const wrong = [];
  const text = (element) => element.innerText || element.textContent || "";
  const byIds = (ids) => ids.split(/\\s+/).map((id) => text(document.getElementById(id) ?? document.createElement("i"))).join(" ");
  const nameOf = (element) => (element.getAttribute("aria-label") || byIds(element.getAttribute("aria-labelledby") ?? "") ||
    [...(element.labels ?? [])].map(text).join(" ") || (element.matches("button, a, summary, [role=treeitem]") ? text(element) : "")).trim();
  const say = (what, element) => wrong.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  for (const element of document.querySelectorAll("input, select, textarea, button, a, summary, [tabindex='0'], [role=slider], [role=img], section, nav, [role=tree]")) {
    if (nameOf(element) === "") say("no name", element);
  }
  for (const table of document.querySelectorAll("#app table")) {
    if (table.caption === null || text(table.caption).trim() === "") say("no caption", table);
    if (table.querySelector("thead th[scope=col]") === null) say("no headers", table);
    for (const head of table.querySelectorAll("th")) {
      if (!["row", "col"].includes(head.scope)) say("no scope", head);
      if (text(head).trim() === "") say("empty header", head);
    }
  }
  for (const fieldset of document.querySelectorAll("fieldset")) {
    if (fieldset.querySelector("legend") === null) say("no legend", fieldset);
  }
  for (const image of document.querySelectorAll("img, #app svg")) {
    if (!image.closest("[aria-hidden=true]") && !image.hasAttribute("alt") && !image.hasAttribute("aria-label")) say("no alternative", image);
  }
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => wrong.push(`twice: ${id}`));
  for (const name of ["aria-controls", "aria-describedby", "aria-labelledby", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      if (!element.getAttribute(name).split(/\\s+/).every((id) => document.getElementById(id))) say(`${name} leads nowhere`, element);
    }
  }
  for (const slider of document.querySelectorAll("[role=slider]")) {
    if (!["aria-valuenow", "aria-valuemin", "aria-valuemax"].every((name) => slider.hasAttribute(name))) say("no value", slider);
  }
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map(({ tagName }) => Number(tagName[1]));
  levels.forEach((level, i) => level > (levels[i - 1] ?? 0) + 1 && wrong.push(`a heading of level ${level} after ${levels[i - 1] ?? "none"}`));
  if (document.documentElement.lang !== "en" || document.title === "") wrong.push("no language or title");
  return wrong;
}"""


@pytest.mark.parametrize(
    "words",
    [[H200 / "fragment_oom.pickle.xz"], ["--as", "diff", BEFORE, AFTER], ["--as", "ranks", BEFORE, AFTER, H200 / "plain.pickle.xz"], [SHAPES / "two_devices.pickle"]],
    ids=["one", "diff", "ranks", "devices"],
)
def test_everything_has_a_name(see, words):
    opened = see(*words)
    opened.drawn()
    opened.page.locator("#peak .expand").first.click()
    opened.page.locator(ALLOCATIONS).first.click()
    opened.run("document.querySelectorAll('#app details').forEach((one) => { one.open = true; })")
    opened.drawn()
    assert opened.run(UNNAMED) == []


def test_the_tab_key_reaches_all_there_is_and_shows_where_it_is(see):
    opened = see(H200 / "fragment_oom.pickle.xz")
    opened.drawn()
    wanted = opened.run("""() => {
      const all = [...document.querySelectorAll("button, input, select, summary, a[href], [tabindex='0']")];
      const groups = new Set();
      return all.filter((element) => {
        if (element.disabled || !element.checkVisibility({ visibilityProperty: true })) return false;
        // Of radio buttons, the one that is chosen.
        return element.type !== "radio" || element.checked;
      }).map((element, i) => { element.dataset.tab = i; return i; }).length;
    }""")
    reached, unseen = set(), []
    for _ in range(wanted + 5):
        opened.page.keyboard.press("Tab")
        tab, outlined, what = opened.run("""() => {
          const at = document.activeElement, style = getComputedStyle(at);
          const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none";
          return [at.dataset.tab ?? null, outlined, at.outerHTML.slice(0, 100)];
        }""")
        if tab is not None:
            reached.add(int(tab))
            if not outlined:
                unseen.append(what)
    missing = [opened.run("(tab) => document.querySelector(`[data-tab='${tab}']`)?.outerHTML.slice(0, 100)", tab) for tab in range(wanted) if tab not in reached]
    assert missing == [] and unseen == []


# --- strangers' recordings --------------------------------------------------------------------------------

RUN = "window.ran=(window.ran||0)+1"
HOSTILE = [
    f"</script><script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f'"><svg onload={RUN}>',
    f"' autofocus onfocus='{RUN}",
    f"<!--<script>{RUN}//",
    f"javascript:{RUN}",
    "\u202etxet sdrawkcab\u202c",
    "a\u0000b\u001b[31mc\u2028d",
    "</style></title></textarea>",
    "&lt;b&gt;&amp;amp;",
    "${window.ran=1}`{{7*7}}",
]

ANNOTATION = f"<b onmouseover={RUN}>an annotation</b>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A recording all of whose names want to be run, in a file whose name wants it too."""
    program = Program(f"/home/{HOSTILE[0]}/{HOSTILE[1]}.py")
    for number, name in enumerate(HOSTILE):
        program.annotate(name, "START")
        program.alloc(8 * (number + 1), {**LINEAR, "name": name}, CALL, {"name": name, "filename": f"/home/user/{name}.py", "line": number + 1}, program.line(3, name))
        program.annotate(name, "END")
    program.annotate(ANNOTATION, "START")
    train(program, steps=2)
    program.annotate(ANNOTATION, "END")
    program.out_of_memory(4096, 10, program.line(7, HOSTILE[1]))
    return program.dump(tmp_path_factory.mktemp("hostile") / f"<img src=x onerror={RUN}>'\"&.pickle")


def printable(text):
    """What is shown of a name: characters that control something, or turn the direction of text, are replaced."""
    return re.sub("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", "\ufffd", text) if isinstance(text, str) else text


def assert_nothing_ran(opened, columns):
    assert opened.run("window.ran") is None
    assert opened.run("document.querySelectorAll('img, iframe, object, embed, link, base, form, [onerror], [onload], [onfocus], [autofocus]').length") == 0
    assert opened.run("document.querySelectorAll('script').length") == columns


def test_hostile_names_are_text(see, hostile, written, explain):
    columns = written(hostile).read_text().count("<script")
    opened = see(hostile)
    assert_nothing_ran(opened, columns)
    opened.page.get_by_role("radio", name="Source line").check()
    opened.page.get_by_label("all frames").check()
    opened.drawn()
    for button in opened.page.locator("#peak .expand").all()[:4]:
        button.click()
    opened.page.locator(ALLOCATIONS).first.click()
    opened.page.locator("#allocations").get_by_label("In the timeline’s view").check()
    opened.page.mouse.move(*place(opened, f"{CHART} .u-over", 0.6))
    opened.page.mouse.move(*place(opened, "#allocator .allocator-panel .map", 0.3))
    opened.drawn()
    assert_nothing_ran(opened, columns)
    shown = opened.run("document.querySelector('#app').textContent + document.querySelector('#answer').textContent")
    for name in (*HOSTILE, ANNOTATION):
        assert printable(name) in shown, name
    assert hostile.name in opened.text("#answer .head") and opened.run("document.title").startswith(str(hostile))
    # Words that run from right to left do not turn their neighbours around.
    assert opened.run("getComputedStyle(document.querySelector('#peak td')).unicodeBidi") == "isolate"
    (device,) = explain(hostile)["devices"]
    device["at_peak"]["by_line"] = [{key: printable(value) for key, value in row.items()} for row in device["at_peak"]["by_line"]]
    assert_same_numbers(opened.run(NUMBERS), device)


def test_hostile_names_are_text_in_a_comparison_and_among_ranks(see, hostile, written, tmp_path):
    other = Program(f"/home/user/{HOSTILE[2]}.py")
    train(other, steps=3)
    other = other.dump(tmp_path / f"{RUN};alert(1)<script>.pickle")
    for how in ("diff", "ranks"):
        words = ("--as", how, hostile, other)
        opened = see(*words)
        opened.drawn()
        assert_nothing_ran(opened, written(*words).read_text().count("<script"))
        assert other.name in opened.text("body")


def test_what_can_be_read_of_an_attack_is_shown_in_silence(look, oomph, tmp_path):
    """Contradictions, numbers without sense, strings of every kind: a page, or an error and no page."""
    shown = 0
    for path in sorted((ROOT / "attacks").iterdir()):
        if path.name.split("_")[0] not in ("contradiction", "devices", "number", "shared", "string"):
            continue
        page = tmp_path / f"{path.name}.html"
        code, _, err = oomph("report", "-q", "--what-if", "never", path, "-o", page)
        assert code in (0, 2) and page.exists() == (code == 0) and "panicked" not in err, path.name
        if code == 0:
            shown += 1
            opened = look(path=page)
            assert opened.run("window.ran") is None and opened.page.locator(".failure[role=alert]").count() == 0, path.name
    assert shown > 20


def test_a_page_that_was_changed_does_not_run(see, written, tmp_path, browser):
    """The policy names its script by its bytes: what somebody adds to a page that is mailed around is not run."""
    text = written(H200 / "plain.pickle.xz").read_text()
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace('<div id="app">', f"<script>{RUN}</script><img src=http://127.0.0.1:9/x.png onerror='{RUN}'><div id=\"app\">"))
    with browser.new_context() as context:
        opened = Opened.new(context)
        opened.page.goto(changed.as_uri())
        opened.ready()
        assert opened.run("window.ran") is None
        assert any("Content Security Policy" in text for text in opened.said)


def test_a_page_that_was_cut_says_so_and_keeps_its_answer(written, tmp_path, browser):
    """As a mail or a full disk leaves it."""
    text = written(H200 / "plain.pickle.xz").read_text()
    cut = tmp_path / "cut.html"
    damaged, count = re.subn(r'(id="c0-born">[^<]{10})[^<]*', r"\1", text)
    assert count == 1
    cut.write_text(damaged)
    with browser.new_context() as context:
        opened = Opened.new(context)
        opened.page.goto(cut.as_uri())
        assert opened.text("[role=alert]") == "The charts could not be drawn: a column of the page ends early: the file is incomplete"
        assert opened.page.locator("#answer-0 [data-number=allocated]").inner_text() == "98.4 MiB"
        assert opened.page.locator(".static-picture svg").is_visible()


# --- elsewhere than in a browser of its own ---------------------------------------------------------------


def test_without_javascript_the_answer_is_there(see, written, browser, explain):
    recording = H200 / "fragment_oom.pickle.xz"
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(written(recording).as_uri())
        text = " ".join(page.locator("body").inner_text().split())
        for finding in explain(recording)["findings"]:
            assert finding["code"] in text and finding["title"] in text
            for fix in finding["fixes"]:
                assert (fix["code"] or fix["text"]) in text
        assert page.locator(".static-picture svg").is_visible()
        assert "need JavaScript" in text


@pytest.mark.parametrize("sandbox", [None, "allow-scripts"], ids=["plain", "sandboxed"])
def test_in_a_frame_of_a_notebook(browser, written, tmp_path, sandbox):
    """As a notebook shows it: <iframe srcdoc>, which may be cut off from everything."""
    text = written(H200 / "plain.pickle.xz").read_text()
    host = tmp_path / "notebook.html"
    limits = "" if sandbox is None else f'sandbox="{sandbox}"'
    host.write_text(f'<!doctype html><title>notebook</title><iframe {limits} width=1000 height=800 srcdoc="{html.escape(text)}"></iframe>')
    with browser.new_context(viewport={"width": 1100, "height": 850}) as context:
        opened = Opened.new(context)
        opened.page.goto(host.as_uri())
        frame = opened.page.frame_locator("iframe")
        frame.locator("#allocations tbody tr").first.wait_for(state="attached")
        assert frame.locator("#peak .peak-summary strong").inner_text() == "98.4 MiB"
        frame.locator(CHART).focus()
        opened.page.keyboard.press("End")
        frame.locator(f"{CHART}[aria-valuenow='660']").wait_for()
        frame.get_by_role("button", name=re.compile("^Change to the")).click()
        assert opened.said == [] and [url for url in opened.requests if url not in (host.as_uri(), "about:srcdoc")] == []


def test_the_page_is_the_same_bytes_each_time(oomph, tmp_path):
    for name in ("one", "two"):
        code, _, err = oomph("report", "-q", H200 / "plain.pickle.xz", "-o", tmp_path / name)
        assert code == 0, err
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# --- pictures ---------------------------------------------------------------------------------------------

# With OOMPH_PICTURES=1 they go where the documents have them.
PICTURES = ROOT / "docs" / "pictures" if os.environ.get("OOMPH_PICTURES") else None
LARGEST = 100_000


def picture(opened, folder, name, selector=None):
    """A small PNG: charts have few colours."""
    from PIL import Image

    target = folder / f"{name}.png"
    if selector is not None:
        opened.page.locator(selector).scroll_into_view_if_needed()
    opened.drawn()
    (opened.page if selector is None else opened.page.locator(selector)).screenshot(path=target, animations="disabled")
    with Image.open(target) as image:
        # Of the ways to choose 256 colours, the one that keeps those of small areas: a swatch must be what it stands for.
        nearer = 4 if PICTURES else 0
        image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=nearer, dither=Image.Dither.NONE).save(target, optimize=True)
    assert 5_000 < target.stat().st_size < LARGEST, target


def test_pictures_for_the_documents(see, oomph, tmp_path):
    folder = PICTURES or tmp_path
    folder.mkdir(parents=True, exist_ok=True)

    def page(*words, **options):
        """With names as somebody types them who stands in the folder of the recordings."""
        path = tmp_path / "page.html"
        code, _, err = oomph("report", "-q", "--force", *words, "-o", path, cwd=(ROOT / "examples" if "out_of_memory" in words[0] else H200))
        assert code == 0, err
        return see(path=path, **{"color_scheme": "light", **options})

    died = page("out_of_memory.pickle.xz")
    picture(died, folder, "report")
    for view in ("timeline", "peak"):
        picture(died, folder, view, f"#{view}")
    picture(page("out_of_memory.pickle.xz", color_scheme="dark"), folder, "report-dark")
    fragmented = page("seed_fragment4.pickle.xz")
    fragmented.page.get_by_role("button", name="Reserved peak").click()
    picture(fragmented, folder, "allocator", "#allocator")
    picture(page("fragment_oom.pickle.xz"), folder, "what-if", "#what-if")
    picture(page("plain.pickle.xz", "accumulate.pickle.xz", "--as", "diff"), folder, "diff", "#diff")
    picture(page("plain.pickle.xz", "fused.pickle.xz", "foreach.pickle.xz", "accumulate.pickle.xz", "--as", "ranks"), folder, "ranks", "#ranks")
