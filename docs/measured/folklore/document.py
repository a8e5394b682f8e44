"""docs/folklore.md from the numbers: the words of the tips, the sizes of the run, and whether each verdict holds. Measures nothing."""

import json
import pathlib

from folklore import GROUPS, TIPS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RESULTS = HERE / "results.jsonl"
DOCUMENT = ROOT / "docs" / "folklore.md"
# How rows name what `mem_get_info` and `nvidia-smi` count: PyTorch's memory, the context, other processes.
WHOLE_CARD = "in use on the card"


# What comes before the rows of a group.
BEFORE = {
    "The articles' examples, run": [
        "Five articles of January 2025, three examples each, in the words of their titles: *How can I maximize GPU memory usage in Google Colab?*, *How can I increase CUDA GPU memory in Google Colab?*,",
        "*How can Google Colab memory issues be resolved?*, *Why is Colab PRO running out of GPU memory when allocating a float tensor?*, *How can PyTorch effectively manage GPU memory?* The files say what had to be mended;",
        "three had to be. The second example of the second article is [below](#increase-2-tensorflow).",
        "",
    ],
    "TensorFlow": ["On the CPU: what the structure of a program shows. What TensorFlow would hold on a GPU was not measured.", ""],
}


class Size(int):
    """Bytes, written with three digits and a unit unless a format asks for the number."""

    def __format__(self, spec):
        return int.__format__(self, spec) if spec else size(self)


def size(count):
    count = int(count)
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5 or unit == "GiB":
            break
        value /= 1024
    if unit == "B":
        return f"{count} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def filled(template, numbers):
    """The template with its numbers; empty where one of them was not measured."""
    try:
        return template.format_map({name: Size(number) if isinstance(number, int) else number for name, number in numbers.items()})
    except KeyError:
        return ""


def shown(tip, row):
    """The numbers of a row, in its words. On a virtual card the whole card was not measured: that is noted beside such a number."""
    text = filled(tip.shows, row["numbers"])
    return text.replace(WHOLE_CARD, f"{WHOLE_CARD} (modelled)") if row["where"]["kind"] == "virtual" else text


def results(path=RESULTS):
    """What was measured, by tip."""
    return {row["tip"]: row for row in map(json.loads, path.read_text().splitlines())}


def outcome(tip, row):
    """``as expected``, ``not on this card``, or why it was not run."""
    if row is None or "numbers" not in row:
        return "not run"
    try:
        return "as expected" if tip.holds(row["numbers"]) else "not on this card"
    except KeyError as missing:
        return f"not on this card: {missing} was not measured"


def truth(folder):
    return [json.loads(line) for line in (ROOT / "fixtures" / folder / "truth.jsonl").read_text().splitlines()]


def quoted(case, counter="allocated_bytes.all.peak"):
    """What an H200 counted for a recording of fixtures/h200."""
    number = next(row["stats"][counter] for row in truth("h200") if row["case"] == case)
    return size(number) if "bytes" in counter else f"{number}"


def under(setting, *cases):
    """What an H200 reserved with a setting in the programs of fixtures/settings: in these cases, and in how many it was less or more than with the defaults, by 1 % at least."""
    reserved = {}
    for row in truth("settings"):
        reserved.setdefault(row["case"], {})[row["conf"]] = row["reserved"]
    both = {case: (by[""], by[setting]) for case, by in reserved.items() if "" in by and setting in by and case != "bert_var16-expandable_segments_True"}
    less = sum(new < 0.99 * old for old, new in both.values())
    more = sum(new > 1.01 * old for old, new in both.values())
    named = ", ".join(f"`{case}` {size(both[case][0])} → {size(both[case][1])}" for case in cases)
    return f"{named} reserved; of [{len(both)} programs](measured/settings.md) {less} took less, {more} more"


quoted.under = under


def machine(row):
    """In words, what produced a row."""
    where = row["where"]
    software = ", ".join(f"{name} {where[key]}" for name, key in (("torch", "torch"), ("TensorFlow", "tensorflow"), ("NumPy", "numpy"), ("Python", "python")) if where.get(key))
    if where["kind"] == "virtual":
        place = f"PyTorch's own allocator on oomph's virtual {where['gpu']}"
    elif where["kind"] == "gpu":
        place = where["gpu"] + (f", driver {where['driver']}" if where.get("driver") else "")
    else:
        place = f"{where['cores']} cores, no GPU used"
    return f"{place}; {software}; {where['date']}"


def head(rows):
    kinds = {}
    for name, row in rows.items():
        if "where" in row and name in TIPS:
            kinds.setdefault(row["where"]["kind"], row)
    lines = ["# The folklore, measured", ""]
    lines += [
        "What people tell each other about GPU memory, and the code of five articles about it: each tip is a small experiment in a process of its own,",
        "with a verdict and the numbers behind it. *Allocated* is what tensors take, *reserved* what PyTorch has taken from the card for them and its cache. Random data throughout.",
        "",
    ]
    if "virtual" in kinds:
        lines.append(
            f"- **Memory: {machine(kinds['virtual'])}.** Kernels do nothing there; the allocator does what it does on the card ([to the byte in most of 97 programs](measured/predictions.md)). **Times: not measured here.**"
        )
        lines.append(f"- *{WHOLE_CARD.capitalize()} (modelled)* is what PyTorch took and the CUDA context, whose size on the virtual card is a constant of its catalogue: it was not measured.")
    if "gpu" in kinds:
        lines.append(f"- **Memory and times: {machine(kinds['gpu'])}.** Times are medians of 15 steps or more after 5, the GPU waited for.")
    if "host" in kinds:
        lines.append(f"- RAM, and what needs no GPU: {machine(kinds['host'])}.")
    lines.append("- *In another program* quotes what was measured on an H200 earlier, with torch 2.11.0+cu130, on 2026-11-15: peaks of [recordings](../fixtures/h200/README.md) from `truth.jsonl`, or the page that is named.")
    checked = [outcome(TIPS[name], row) for name, row in rows.items() if name in TIPS and "numbers" in row]
    expected = checked.count("as expected")
    lines += [
        "",
        f"Each verdict is a condition on its numbers, which the script checks: {expected} of {len(checked)} are as expected."
        + ("" if expected == len(checked) else " The others say *not on this card*."),
        "",
        "    python docs/measured/folklore.py                                             # on a GPU",
        "    python docs/measured/folklore.py --oomph target/release/oomph --gpu h200     # on a virtual one",
        "",
    ]
    return lines


def top(rows):
    lines = ["## The ten that matter most", ""]
    for tip in sorted((tip for tip in TIPS.values() if tip.rank), key=lambda tip: tip.rank):
        row = rows.get(tip.name, {})
        text = filled(tip.headline, row.get("numbers", {}))
        lines.append(f"{tip.rank}. {text or tip.says} [{tip.verdict}](#{tip.name})")
    return [*lines, ""]


def line(tip, row, common):
    """One row of the table."""
    numbers = (row or {}).get("numbers")
    cells = []
    if numbers is None:
        cells.append(f"not run: {(row or {}).get('not_run', 'not tried')}")
    else:
        cells += [text for text in (shown(tip, row), filled(tip.times, numbers)) if text]
        if row["where"]["kind"] not in (common, "host") or "tensorflow" in row["where"]:
            cells.append(f"({machine(row)})")
    if tip.card:
        cells.append(f"*In another program:* {tip.card(quoted)}")
    found = outcome(tip, row)
    # What was not run has no verdict.
    verdict = {"as expected": f"**{tip.verdict}**", "not run": "**not run**"}.get(found, f"{tip.verdict}; **{found}**")
    # An address for each row, since the ten at the top lead to theirs.
    return f'| <a id="{tip.name}"></a>{tip.says} | {verdict} | {tip.done} | {"<br>".join(cells)} | {tip.why} | {tip.oomph} |'


def write(rows):
    """The whole document."""
    common = "gpu" if any(row.get("where", {}).get("kind") == "gpu" for row in rows.values()) else "virtual"
    lines = [*head(rows), *top(rows)]
    for group in GROUPS:
        lines += [f"## {group}", "", *BEFORE.get(group, []), "| the tip | verdict | what was done | numbers | why | what oomph does |", "|---|---|---|---|---|---|"]
        lines += [line(tip, rows.get(tip.name), common) for tip in TIPS.values() if tip.group == group]
        lines.append("")
    lines += [
        "## What is not here",
        "",
        "- Tips whose whole point is time (`cudnn.benchmark`, `torch.compile`, channels last) have no row.",
        "- Other processes on a shared card, and a notebook service that hands out smaller cards: no program can change that. `oomph top` and `oomph doctor` show it.",
        "- The numbers are of small networks, so that anyone can run them. How much a tip saves in *your* program is what `oomph predict`, `oomph tune` and `oomph.fit` are for.",
        "",
    ]
    return "\n".join(lines)
