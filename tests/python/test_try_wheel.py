"""The trial of the wheel, without a wheel: that it would notice, that nothing of the user's goes in, and that nothing stays."""

import importlib.util
import os
import pathlib
import sys

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def trials():
    spec = importlib.util.spec_from_file_location("try_wheel", ROOT / "packaging" / "try_wheel.py")
    module = sys.modules["try_wheel"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trial(trials, tmp_path):
    uv = tmp_path / "its uv"
    uv.write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    return trials.Trial(trials.Place(sys.executable, tmp_path), folder, str(uv), tmp_path / "cache")


def row(trials):
    return trials.Row("3.10.1", "glibc 2.31", "Debian")


@pytest.mark.parametrize(
    "program, passes",
    [("print('first'); print('found 3'); exit(1)", True), ("print('found 3')", False), ("print('lost 3'); exit(1)", False), ("import os; os.abort()", False)],
    ids=["as it must be", "another code", "other words", "a crash"],
)
def test_a_step_passes_by_its_code_and_its_words(trials, trial, program, passes, capfd):
    found = row(trials)
    trial.step(found, trials.Step("step", (sys.executable, "-c", program), 1, r"^found \d"))
    assert found.wrong == ([] if passes else ["step"])
    assert found.took["step"][0] > 0 and found.took["step"][1] > 5
    assert ("3.10.1: step ended with" in capfd.readouterr().err) is not passes
    assert ("**wrong: step**" in trials.table([found], pathlib.Path(__file__))) is not passes


def test_nothing_of_the_users_goes_in(trial, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    monkeypatch.setenv("OOMPH_COMMAND", "elsewhere")
    code, said, _, _ = trial.run(sys.executable, "-c", "import os; print(os.getcwd(), *sorted(os.environ))")
    assert code == 0, said
    folder, *names = said.split()
    assert folder == str(trial.folder) and not {"PYTHONPATH", "OOMPH_COMMAND"} & set(names)
    # The environment's own commands first; cargo's folder is not there.
    assert trial.environment["PATH"].split(":")[0] == str(trial.bin) and "cargo" not in trial.environment["PATH"]


def test_what_cannot_be_tried_is_a_row_and_leaves_nothing(trials, tmp_path):
    cache, uv, broken = tmp_path / "cache" / "uv", tmp_path / "uv", tmp_path / "python"
    cache.mkdir(parents=True)
    uv.write_text("")
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    found = trials.tried(str(broken), tmp_path / "oomph.whl", "", str(uv), cache)
    assert found.python == str(broken) and found.wrong == ["not tried to the end"]
    assert os.listdir(cache.parent) == ["uv"]


def test_a_root_file_system_is_mounted_in_a_namespace_of_its_own(trials, tmp_path):
    place = trials.Place(f"{tmp_path / 'root'}:/usr/bin/python3", tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "root" / "etc").mkdir(parents=True)
    words = place.inside([place.python, "-c", "print('a b')"], tmp_path / "cache" / "folder")
    assert place.python == "/usr/bin/python3" and words[:2] == ["unshare", "--mount"]
    assert words[-1].startswith("mount --make-rprivate / && ")
    assert words[-1].endswith(f"exec chroot {tmp_path / 'root'} env -C {tmp_path / 'cache' / 'folder'} /usr/bin/python3 -c 'print('\"'\"'a b'\"'\"')'")
