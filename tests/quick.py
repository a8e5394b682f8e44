"""Runs the tests of the first tier that concern the files which changed: `make quick`.

    quick.py [--since REVISION] [--list] [FILE...]

Of a crate, its own tests, and those of Python that see what it does; of a Python file, the tests of its part of the package; of a test, itself.
What a change does elsewhere, `make test` says.
"""

import argparse
import pathlib
import subprocess
import sys

import tiers

ROOT = pathlib.Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
# Beginnings of paths, and the tests of tests/python that they concern; of several that fit, the longest counts.
CONCERNS = {
    "crates/oomph-attach/": "attach",
    "crates/oomph-cli/": "docs differential",
    "crates/oomph-cuda/": "bare grid predict predict_programs predict_values",
    "crates/oomph-data/": "data data_arrays data_share data_stream",
    "crates/oomph-doctor/": "doctor",
    "crates/oomph-explain/": "census scenarios diagnosis differential",
    "crates/oomph-explain/src/host/": "run_ram profile_ram",
    "crates/oomph-guard/": "guard",
    "crates/oomph-host/": "doctor host ram top",
    "crates/oomph-mcp/": "mcp",
    "crates/oomph-predict/": "predict predict_batches predict_phases predict_model spare",
    "crates/oomph-python/": "data package",
    "crates/oomph-ram/": "profile_ram run_ram",
    "crates/oomph-record/": "census inside run",
    "crates/oomph-replay/": "allocator_model differential",
    "crates/oomph-report/": "exports report report_ram docs",
    "crates/oomph-run/": "run guard",
    "crates/oomph-stage/": "bare predict run",
    "crates/oomph-symbols/": "run_ram",
    "crates/oomph-top/": "top",
    "crates/oomph-trace/": "attacks differential memory_viz",
    "docs/": "docs",
    "attacks/": "attacks",
    "fixtures/": "differential",
    "packaging/": "package release try_wheel",
    ".github/": "in_ci release",
    "python/oomph/": "said_once imports",
    "python/oomph/_doctor/": "doctor_loader",
    "python/oomph/data/": "data data_arrays data_share data_stream",
    "python/oomph/fitting/": "fit fit_inference fit_memory fit_optimizer fit_speed fit_split fit_tiles",
    "python/oomph/live/": "census inside run",
    "python/oomph/live/ram": "profile_ram run_ram",
    "python/oomph/models/": "predict_model",
    "python/oomph/notebook/": "notebook",
    "python/oomph/patching/": "fix patching",
    "python/oomph/pytest": "pytest_plugin",
    "python/oomph/_ram": "ram profile_ram",
    "python/oomph/sharding/": "fit_sharded",
    "python/oomph/virtual/": "predict predict_batches predict_phases predict_values",
    "tests/diagnosis/": "diagnosis",
    "tests/programs/": "predict_programs",
    "tests/real/": "real",
}
# Read as text, in moments.
ALWAYS = "modules imports said_once tiers"


def changed(since):
    """Files that differ from a revision, and those that git does not know yet."""
    asked = (["git", "diff", "--name-only", since], ["git", "ls-files", "--others", "--exclude-standard"])
    return sorted({line for words in asked for line in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()})


def concerned(files):
    """The crates and the files of tests that some files concern, and whether the page's script is among them."""
    crates, tests, page = set(), set(ALWAYS.split()), False
    for file in files:
        parts = file.split("/")
        page |= parts[0] == "web"
        if parts[0] == "crates" and (ROOT / "crates" / parts[1] / "Cargo.toml").exists():
            crates.add(parts[1])
        if file.startswith("tests/python/test_"):
            tests.add(parts[2].removeprefix("test_").removesuffix(".py"))
        beginnings = [beginning for beginning in CONCERNS if file.startswith(beginning)]
        if beginnings:
            tests.update(CONCERNS[max(beginnings, key=len)].split())
    there = [f"tests/python/test_{name}.py" for name in sorted(tests)]
    return sorted(crates), [path for path in there if (ROOT / path).exists()], page


def commands(crates, tests, page):
    """What is run, one after another."""
    # Python alone needs no compiler: a debug build of the command reads the package from the checkout.
    if crates or not (ROOT / "target" / "debug" / "oomph").exists():
        yield ["cargo", "build", "--locked"]
    if crates:
        skips = [word for name in tiers.of_rust() for word in ("--skip", name)]
        yield ["cargo", "test", "--quiet", "--locked", *(word for crate in crates for word in ("-p", crate)), "--", *skips]
    if page:
        yield ["make", "--no-print-directory", "web-test"]
    yield [str(PYTHON), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--first-tier", *tests]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="files to take as changed")
    parser.add_argument("--since", default="HEAD", metavar="REVISION", help="what differs from this has changed [HEAD]")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    arguments = parser.parse_args()
    files = arguments.files or changed(arguments.since)
    if not files:
        print(f"nothing differs from {arguments.since}")
        return 0
    for command in commands(*concerned(files)):
        print("+", " ".join(command), flush=True)
        if not arguments.list and (status := subprocess.run(command, cwd=ROOT).returncode):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
