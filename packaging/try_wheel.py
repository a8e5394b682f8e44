"""Tries a wheel as its users meet it: in a fresh environment of each Python, on this machine or in the root file system of another distribution.

    python packaging/try_wheel.py dist/oomph-*.whl python3.10 /opt/python3.14/bin/python3 /srv/jammy:/usr/bin/python3

A word with a colon is a root file system and a Python in it, for chroot (root alone can; the mounts are in a namespace that ends with each command). There is no Rust on the
path, and nothing of the user's. What is installed comes from PyPI: the wheel and what it needs by pip, as its users do, PyTorch and IPython by uv, whose cache is shared. Writes a
table in Markdown to stdout and what goes on to stderr; the exit code is 1 if a step fails. Needs the standard library of Python 3.10 and uv; how the wheel is built is not for here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = ("out_of_memory.pickle.xz", "orders.csv", "train_gpt2.py")
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
MB = 1_000_000
# No step takes longer, where the machine is busy.
SLOWEST = 600

# What sort of Python it is.
ASK = """
import os, platform, sys, sysconfig
print(platform.python_version() + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))
print(os.confstr("CS_GNU_LIBC_VERSION"))
print(platform.freedesktop_os_release()["PRETTY_NAME"])
"""

# What installing has written: files of the package and its command, in bytes.
WEIGH = """
from importlib.metadata import files
print(sum(file.locate().stat().st_size for file in files("oomph")))
"""

DATA = """
import oomph
loaded = oomph.data.load("orders.csv")
assert len(loaded) == len(open("orders.csv").readlines()) - 1, len(loaded)
print("loaded", len(loaded), "rows in", loaded.nbytes, "bytes")
"""

NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in ("%load_ext oomph", "import oomph; print(oomph.who())", "1 / 0", "%unload_ext oomph"):
    done = shell.run_cell(cell)
    assert done.success == (cell != "1 / 0"), cell
"""


@dataclass(frozen=True)
class Step:
    """A command, and what must come of it."""

    name: str
    command: tuple[str, ...]
    code: int
    # Must be found in what it prints.
    says: str


STEPS = (
    Step("version", ("oomph", "--version"), 0, r"^oomph \d+\.\d+\.\d+"),
    Step("as a module", ("python", "-m", "oomph", "--version"), 0, r"^oomph \d+\.\d+\.\d+"),
    Step("explain", ("oomph", "explain", "out_of_memory.pickle.xz"), 1, r"^error OM202: Out of memory"),
    Step("data", ("python", "-c", DATA), 0, r"^loaded \d+ rows"),
)
WITH_PYTORCH = (
    Step("predict", ("oomph", "predict", "--gpu", "t4", "train_gpt2.py"), 1, r"^does not fit: it needs 25\.\d GiB"),
    Step("notebook", ("python", "-c", NOTEBOOK), 0, r"^No GPU memory is held"),
)
# A free-threaded Python is told so, by the command as by the package; that it is said in one line, not by a crash, is what is asked.
REFUSED = (
    Step("version", ("oomph", "--version"), 2, r"\Aerror: oomph needs a Python with the global interpreter lock"),
    Step("data", ("python", "-c", DATA), 1, r"^ImportError: oomph needs a Python with the global interpreter lock"),
)


@dataclass
class Row:
    """What came of one Python. Seconds and peak MB by step; `wrong` is what did not come as it must."""

    python: str
    libc: str
    system: str
    torch: str = ""
    installed: int = 0
    took: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Failed(Exception):
    """What a trial cannot go on without."""


class Place:
    """Where commands run: this machine, or a root file system. Paths below `shared` are the same in both, so that uv can link from its cache."""

    def __init__(self, word: str, shared: pathlib.Path) -> None:
        root, colon, python = word.rpartition(":")
        self.root = pathlib.Path(root).resolve() if colon else None
        self.shared = shared
        if self.root:
            self.python = python
        else:
            found = shutil.which(word)
            if not found:
                raise SystemExit(f"error: {word}: there is no such Python")
            self.python = str(pathlib.Path(found).absolute())

    def inside(self, command: list[str], folder: pathlib.Path) -> list[str]:
        """The command as this machine starts it, in that folder."""
        if not self.root:
            return ["env", "-C", str(folder), *command]
        mounts = [f"mount --make-rprivate / && mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev"]
        for path in (self.shared, pathlib.Path("/etc/resolv.conf"), pathlib.Path("/etc/hosts")):
            there = self.root / path.relative_to("/")
            if path.is_dir():
                there.mkdir(parents=True, exist_ok=True)
            elif not there.exists():
                there.touch()
            mounts.append(f"mount --bind {path} {there}")
        script = f"{' && '.join(mounts)} && exec chroot {self.root} env -C {folder} {shlex.join(command)}"
        return ["unshare", "--mount", "sh", "-c", script]


class Trial:
    """One Python: a fresh environment in a folder of its own."""

    def __init__(self, place: Place, folder: pathlib.Path, uv: str, cache: pathlib.Path) -> None:
        self.place, self.folder = place, folder
        # Where a root file system sees it as well.
        self.uv = shutil.copy(uv, folder / "uv")
        self.bin = folder / "environment" / "bin"
        self.environment = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "SSL_CERT_FILE": str(folder / "certificates.crt"),
            "PIP_CERT": str(folder / "certificates.crt"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "UV_CACHE_DIR": str(cache),
            "UV_PYTHON_DOWNLOADS": "never",
        }

    def run(self, *command: str) -> tuple[int, str, float, float]:
        """The exit code, what was said, seconds, and MB of the largest process: no less than this one has, which it began as."""
        began = time.monotonic()
        with tempfile.TemporaryFile() as said:
            words = ["timeout", str(SLOWEST), *self.place.inside(list(command), self.folder)]
            # Not by shell or PATH of the user; wait4 has what the process and those below it took.
            started = subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(started.pid, 0)
            started.returncode = os.waitstatus_to_exitcode(status)
            took = time.monotonic() - began
            said.seek(0)
            return started.returncode, said.read().decode(errors="replace"), took, usage.ru_maxrss * 1024 / MB

    def must(self, *command: str) -> str:
        code, said, _, _ = self.run(*command)
        if code != 0:
            raise Failed(f"{shlex.join(command)} ended with {code}\n{said}")
        return said

    def begin(self) -> Row:
        shutil.copy(CERTIFICATES, self.folder / "certificates.crt")
        for name in EXAMPLES:
            shutil.copy(ROOT / "examples" / name, self.folder)
        python, libc, system = self.must(self.place.python, "-c", ASK).splitlines()
        self.must(self.place.python, "-m", "venv", str(self.bin.parent))
        if (cargo := self.run("sh", "-c", "command -v cargo rustc"))[0] == 0:
            raise Failed(f"{cargo[1].strip()} is on the path: what is tried here is a machine without Rust")
        return Row(python, libc, system)

    def step(self, row: Row, step: Step) -> None:
        code, said, seconds, most = self.run(*step.command)
        row.took[step.name] = seconds, most
        if code != step.code or not re.search(step.says, said, re.MULTILINE):
            row.wrong.append(step.name)
            print(f"{row.python}: {step.name} ended with {code}, and not with {step.code} and {step.says!r}:\n{said}", file=sys.stderr)

    def install(self, row: Row, wheel: str) -> None:
        self.step(row, Step("install", ("python", "-m", "pip", "install", "-q", "--no-cache-dir", wheel), 0, ""))
        row.installed = int(self.must("python", "-c", WEIGH))

    def install_with_uv(self, *packages: str) -> None:
        self.must(str(self.uv), "pip", "install", "-q", "--python", str(self.bin / "python"), *packages)


def tried(word: str, wheel: pathlib.Path, torch: str, uv: str, cache: pathlib.Path) -> Row:
    # Environments are beside uv's cache: it links what is on one mount.
    with scratch(cache.parent) as folder:
        trial = Trial(Place(word, cache.parent), folder, uv, cache)
        row = Row(word, "", "")
        try:
            row = trial.begin()
            print(f"{row.python} ({row.libc}, {row.system})", file=sys.stderr, flush=True)
            go_through(trial, row, str(shutil.copy(wheel, folder)), torch)
        except Failed as error:
            print(f"{row.python}: {error}", file=sys.stderr)
            row.wrong.append("not tried to the end")
        return row


def go_through(trial: Trial, row: Row, wheel: str, torch: str) -> None:
    trial.install(row, wheel)
    for step in REFUSED if row.python.endswith("t") else STEPS:
        trial.step(row, step)
    if row.python.endswith("t") or not torch:
        return
    trial.install_with_uv(torch, "ipython")
    row.torch = trial.must("python", "-c", "import torch; print(torch.__version__)").split()[-1]
    for step in WITH_PYTORCH:
        trial.step(row, step)


@contextlib.contextmanager
def scratch(shared: pathlib.Path) -> Iterator[pathlib.Path]:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="try-wheel-", dir=shared))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def table(rows: list[Row], wheel: pathlib.Path) -> str:
    steps = ["install", *dict.fromkeys(step.name for step in (*STEPS, *WITH_PYTORCH))]
    lines = [f"`{wheel.name}`, {wheel.stat().st_size / MB:.1f} MB. Seconds, and MB of the largest process:", ""]
    lines.append("| Python | C library | system | torch | installed | " + " | ".join(steps) + " | |")
    lines.append("|---|---|---|---|---:|" + "---:|" * len(steps) + "---|")
    for row in rows:
        cells = [f"{row.took[step][0]:.1f} s, {row.took[step][1]:.0f} MB" if step in row.took else "" for step in steps]
        outcome = f"**wrong: {', '.join(row.wrong)}**" if row.wrong else "refused, as it must be" if row.python.endswith("t") else "passed"
        lines.append(f"| {row.python} | {row.libc} | {row.system} | {row.torch} | {row.installed / MB:.1f} MB | {' | '.join(cells)} | {outcome} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("python", nargs="+", help="an interpreter, or a root file system and an interpreter in it: FOLDER:/usr/bin/python3")
    parser.add_argument("--torch", default="torch", metavar="REQUIREMENT", help="which PyTorch predict is tried with; '' for none")
    parser.add_argument("--uv", default=str(ROOT / ".venv" / "bin" / "uv"), help="by default that of the tests' environment")
    asked = parser.parse_args()
    cache = pathlib.Path(subprocess.run([asked.uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    rows = [tried(word, asked.wheel, asked.torch, asked.uv, cache) for word in asked.python]
    print(table(rows, asked.wheel))
    return 1 if any(row.wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
