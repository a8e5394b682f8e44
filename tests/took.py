"""What a run of the tests took: each part is run by this, and at the end the table is printed.

    took.py begin                 forget what was noted before
    took.py PART COMMAND...       run a command, and note the wall time and the processor time of it and all its children
    took.py end                   print what the parts took, the slowest tests, how fast this machine is, and how many tests passed

Notes lie in target/took. Parts of one name are added up; those that ran side by side have more than the whole between them.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time
import xml.etree.ElementTree

NOTES = pathlib.Path(__file__).resolve().parents[1] / "target" / "took"
# As CONTRIBUTING.md names them, in the order in which they run.
PARTS = ("fetching", "compiling", "lint", "page", "Rust", "Python", "canary")
# What pytest and nextest write of each test.
RESULTS = {"Python": NOTES / "python.xml", "Rust": NOTES.parent / "nextest" / "default" / "junit.xml"}
SLOWEST = 10


def note(part, command):
    began = time.time()
    status = subprocess.run(command).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    NOTES.mkdir(parents=True, exist_ok=True)
    taken = {"part": part, "wall": time.time() - began, "processor": used.ru_utime + used.ru_stime}
    (NOTES / f"{part}-{os.getpid()}.json").write_text(json.dumps(taken))
    return status if status >= 0 else 128 - status


def results(path):
    """Each test of a file of results: its name, its seconds, and whether it passed, failed or was skipped."""
    if not path.exists():
        return
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        yield f"{case.get('classname', '')}::{case.get('name')}", float(case.get("time") or 0), outcome


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def machine():
    """Seconds of this machine for a fixed loop of Python, at its best of three: figures of two machines can be compared by it."""
    best = float("inf")
    for _ in range(3):
        began, total = time.perf_counter(), 0
        for number in range(3_000_000):
            total += number & 7
        best = min(best, time.perf_counter() - began)
    return best


def end():
    began = NOTES / "began"
    notes = [json.loads(path.read_text()) for path in sorted(NOTES.glob("*.json"))]
    print(f"\n{'':12}{'wall':>8}{'processor':>11}")
    for part in PARTS:
        of_it = [row for row in notes if row["part"] == part]
        if of_it:
            print(f"{part:12}{clock(sum(row['wall'] for row in of_it)):>8}{sum(row['processor'] for row in of_it):>9.0f} s")
    if began.exists():
        whole = time.time() - float(began.read_text())
        print(f"{'in all':12}{clock(whole):>8}{sum(row['processor'] for row in notes):>9.0f} s")
    tests = [row for path in RESULTS.values() for row in results(path)]
    if tests:
        print(f"\nThe {SLOWEST} slowest tests:")
        for name, seconds, _ in sorted(tests, key=lambda row: -row[1])[:SLOWEST]:
            print(f"{seconds:8.1f} s  {name}")
    load = os.getloadavg()[0]
    print(f"\nThis machine: {os.cpu_count()} cores, a load of {load:.1f}; 3 million additions in Python take {machine():.2f} s.")
    if any(row["part"] == "Rust" for row in notes) and not RESULTS["Rust"].exists():
        print("The Rust tests are not counted below: cargo counts them above, and cargo-nextest is not installed.")
    count = {kind: sum(outcome == kind for *_, outcome in tests) for kind in ("passed", "failed", "skipped")}
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 0


def main(words):
    if words == ["begin"]:
        for path in [*NOTES.glob("*.json"), *RESULTS.values()]:
            path.unlink(missing_ok=True)
        NOTES.mkdir(parents=True, exist_ok=True)
        (NOTES / "began").write_text(str(time.time()))
        return 0
    if words == ["end"]:
        return end()
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    return note(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
