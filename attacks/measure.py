"""Measure what the command takes for every attack, and write the table of SECURITY.md.

Usage:
    python attacks/measure.py OOMPH          explains every file, and prints the table
    python attacks/measure.py OOMPH --write  the same, into SECURITY.md

Files of crowds are also reported and tuned: the slowest of the three is what the table shows. Linux, Python 3.10 or newer, standard library only.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BEGIN, END = "<!-- attacks: made by attacks/measure.py -->\n", "<!-- end of attacks -->\n"
SECONDS = 60
OUTCOMES = {0: "read", 1: "read", 2: "refused"}


def verbs_for(name):
    return ("explain", "report", "tune") if name.startswith("crowd_") else ("explain",)


def measured(oomph, folder, names):
    """For each file: exit code of explain, most bytes, most seconds."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for verb in ("explain", "report", "tune"):
            these = [name for name in names if verb in verbs_for(name)]
            done = subprocess.run(
                [sys.executable, "-S", ROOT / "tests" / "python" / "measure.py", oomph, place, str(SECONDS), verb],
                input="\n".join(str(folder / name) for name in these),
                capture_output=True,
                text=True,
                check=True,
            )
            for name, line in zip(these, done.stdout.splitlines(), strict=True):
                code, _, memory, seconds = json.loads(line)
                first, most, longest = found.get(name, (code, 0, 0))
                found[name] = (first, max(most, memory), max(longest, seconds))
    return found


def size_in_words(size):
    for unit, digits in (("B", 0), ("KiB", 1), ("MiB", 1)):
        if size < 1024 or unit == "MiB":
            return f"{size:.{digits}f} {unit}"
        size /= 1024


def table(folder, found):
    rows = ["| file | size | peak memory | seconds | |", "|---|---:|---:|---:|---|"]
    for name, (code, memory, seconds) in found.items():
        size = size_in_words((folder / name).stat().st_size)
        rows.append(f"| `{name}` | {size} | {memory / 2**20:.1f} MiB | {seconds:.2f} | {OUTCOMES.get(code, f'exit {code}')} |")
    return "\n".join(rows) + "\n"


def main():
    if not 2 <= len(sys.argv) <= 3 or sys.argv[2:] not in ([], ["--write"]):
        sys.exit(__doc__)
    names = list(json.loads((HERE / "expected.json").read_text())["files"])
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-B", HERE / "make.py", made], check=True)
        rows = table(Path(made), measured(str(Path(sys.argv[1]).resolve()), Path(made), names))
    if sys.argv[2:]:
        page = ROOT / "SECURITY.md"
        before, rest = page.read_text().split(BEGIN)
        page.write_text(before + BEGIN + rows + END + rest.split(END)[1])
    else:
        print(rows, end="")


if __name__ == "__main__":
    main()
