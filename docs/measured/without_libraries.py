"""Predictions of tests/programs with NVIDIA's libraries and without: the table of without-nvidia-libraries.md.

    python3 docs/measured/without_libraries.py --python .venv-torch2.11/bin/python

Each program is predicted twice on a virtual card, with the interpreter as it is and in an environment of links that lacks the libraries
(tests/python/bare.py). Nothing is downloaded. Programs whose packages are not installed are left out, and named.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))

from bare import without_libraries  # noqa: E402

PROGRAMS = ROOT / "tests" / "programs"


def predict(oomph, python, gpu, name):
    """What is predicted, or the last line of what went wrong."""
    words = [oomph, "predict", "--no-recording", "--format", "json", "--gpu", gpu, "--python", python]
    words += ["--ranks", "2"] if name in ("ddp.py", "fsdp2.py") else []
    words += ["--module"] if name == "package_demo" else []
    done = subprocess.run([*words, name], cwd=PROGRAMS, capture_output=True, text=True)
    if not done.stdout:
        return None, (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    reported = json.loads(done.stdout)
    return reported["predictions"][0] if "predictions" in reported else reported, None


def row(oomph, pythons, gpu, name):
    full, bare = (predict(oomph, python, gpu, name) for python in pythons)
    if full[0] is None or bare[0] is None:
        return None, full[1] or bare[1]
    (full, _), (bare, _) = full, bare
    if full["ended"] == "failed" and bare["ended"] == "failed":
        return None, full["error"].splitlines()[0]
    estimated = bare.get("estimated")
    range_ = f"{estimated['low']:,} to {estimated['high']:,}" if estimated else ""
    same = "yes" if full["total"] == bare["total"] and full["peak"] == bare["peak"] else "no"
    cells = [f"`{name}`", f"{full['peak']['allocated']:,}", f"{bare['peak']['allocated']:,}", f"{full['total']:,}", f"{bare['total']:,}", same, range_]
    return "| " + " | ".join(cells) + " |", None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the interpreter of an environment with PyTorch and NVIDIA's libraries")
    parser.add_argument("--oomph", default=str(ROOT / "target" / "debug" / "oomph"))
    parser.add_argument("--gpu", default="a100-80gb")
    parser.add_argument("programs", nargs="*")
    arguments = parser.parse_args()
    python, oomph = (pathlib.Path(path).absolute() for path in (arguments.python, arguments.oomph))
    names = arguments.programs or sorted(path.name for path in PROGRAMS.iterdir() if path.suffix in (".py", ".ipynb") and path.name != "grid.py" or path.name == "package_demo")
    left_out = []
    print("| program | allocated with | without | total with | without | same bytes | range that is said without |\n|---|---:|---:|---:|---:|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        bare = without_libraries(pathlib.Path(folder) / "bare", python)
        for name in names:
            line, why = row(oomph, (python, bare), arguments.gpu, name)
            if line is None:
                left_out.append(f"`{name}` ({why})")
            else:
                print(line, flush=True)
    print(f"\nLeft out: {', '.join(left_out) or 'none'}.")


if __name__ == "__main__":
    main()
