"""What part of a prediction goes to following values: samples of py-spy in lineage.py, gradients.py and philox.py, of all.

pip install py-spy
python docs/measured/lineage_cost.py --oomph target/debug/oomph [--python PYTHON] PROGRAM...
"""

import argparse
import os
import re
import subprocess
import tempfile

PROGRAMS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/programs"))
FOLLOWING = re.compile(r"_oomph_virtual/(lineage|gradients|philox)\.py")
SAMPLE = re.compile(r"(.*) (\d+)$")


def share(command, program):
    """Percent of the samples, and how many there are."""
    with tempfile.NamedTemporaryFile("r", errors="replace") as found:
        spy = ["py-spy", "record", "--rate", "200", "--subprocesses", "--format", "raw", "--output", found.name, "--"]
        subprocess.run([*spy, *command, program], cwd=PROGRAMS, capture_output=True)
        samples = [sample.groups() for sample in map(SAMPLE.match, found) if sample]
    every = sum(int(count) for _, count in samples)
    return 100 * sum(int(count) for stack, count in samples if FOLLOWING.search(stack)) / max(1, every), every


def host_bytes(command, program):
    said = subprocess.run([*command, "-vv", program], cwd=PROGRAMS, capture_output=True, text=True).stderr
    return int(re.search(r"values were computed on the host bytes=(\d+)", said).group(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--python", default="python3")
    parser.add_argument("programs", nargs="+")
    options = parser.parse_args()
    command = [os.path.abspath(options.oomph), "predict", "--gpu", "h200", "--python", options.python, "--no-recording"]
    for program in options.programs:
        percent, samples = share(command, program)
        print(f"| `{program}` | {percent:.1f} % | {samples:,} | {host_bytes(command, program):,} |", flush=True)
