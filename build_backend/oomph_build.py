"""How the wheel is built: maturin packs the command, and this adds the extension module ``oomph._native``.

Maturin puts either a command or an extension into a wheel, not both (PyO3/maturin#368). So the extension is built here, by cargo, in the profile and for the target
that maturin is set to use, and laid into the folder that ``[tool.maturin] data`` names: its ``platlib`` is unpacked beside the package. All else is maturin's.

``pip install .`` and ``python -m build`` come here by themselves; nothing else should.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import maturin
from maturin import get_requires_for_build_editable, get_requires_for_build_sdist, get_requires_for_build_wheel

__all__ = ["build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist", "get_requires_for_build_wheel"]
__all__ += ["prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel"]

ROOT = pathlib.Path(__file__).resolve().parents[1]
# As pyproject.toml has it; git ignores it. Maturin asks for it whatever it does.
DATA = ROOT / "dist" / "wheel-data"
CRATE = "oomph-python"
# What maturin builds: in one call with the extension module, so that what both are made of is compiled once.
COMMAND = "oomph-cli"

Settings = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    with _data() as data:
        _add_extension(data, config_settings)
        return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    with _data() as data:
        _add_extension(data, config_settings)
        return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    with _data():
        return maturin.build_sdist(sdist_directory, config_settings)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    with _data():
        return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


@contextlib.contextmanager
def _data() -> Iterator[pathlib.Path]:
    """The folder that maturin takes data from, for as long as it runs: empty, whatever a build that was killed has left."""
    DATA.parent.mkdir(parents=True, exist_ok=True)
    with _alone(DATA.with_suffix(".lock")):
        shutil.rmtree(DATA, ignore_errors=True)
        DATA.mkdir()
        try:
            yield DATA
        finally:
            shutil.rmtree(DATA, ignore_errors=True)


@contextlib.contextmanager
def _alone(path: pathlib.Path) -> Iterator[None]:
    """One build at a time in this checkout: the folder is one, and maturin takes the command away while it packs it. The lock goes with its process."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build in this folder", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_extension(data: pathlib.Path, config_settings: Settings) -> None:
    library = _build(maturin.get_maturin_pep517_args(config_settings))
    place = data / "platlib" / "oomph" / "_native.abi3.so"
    place.parent.mkdir(parents=True)
    shutil.copyfile(library, place)


def _build(maturin_arguments: list[str]) -> pathlib.Path:
    """Builds the extension, and the command as maturin will ask for it; gives the library's path."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--profile", default="release")
    parser.add_argument("--target")
    parser.add_argument("--target-dir")
    switches = ("--locked", "--offline", "--frozen")
    for switch in switches:
        parser.add_argument(switch, action="store_true")
    asked, _ = parser.parse_known_args(maturin_arguments)
    command = ["cargo", "build", "--package", CRATE, "--package", COMMAND, "--profile", asked.profile, "--message-format", "json-render-diagnostics"]
    command += [switch for switch in switches if getattr(asked, switch[2:])]
    for name in ("target", "target_dir"):
        if value := getattr(asked, name):
            command += [f"--{name.replace('_', '-')}", value]
    # Where there is no cargo, maturin's hook has had one installed.
    environment = maturin._get_env() or os.environ
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: building {CRATE} and {COMMAND} failed")
    built = [message for line in done.stdout.splitlines() if (message := json.loads(line))["reason"] == "compiler-artifact"]
    return next(pathlib.Path(file) for artifact in built for file in artifact["filenames"] if "oomph_native" in file)
