"""Another user of the same machine, and a stranger's folder, cannot have their code run as you."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import pytest
from conftest import COMMAND

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has the shared folders that this is about")

# Users that own nothing. Only root can be two of them; who is not root is the one that is attacked, and the attacks that need another are left to root.
VICTIM, ATTACKER = 64_001, 64_002
IS_ROOT = os.geteuid() == 0
LIBRARY = "liboomph_record.so"


@contextlib.contextmanager
def shared_folder():
    """A folder where everybody writes and nobody may take away what is another's, as /tmp is. pytest's own are closed to other users."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="oomph-test-shared-"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def shared():
    with shared_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def command():
    """The command where every user may run it: a checkout may be closed to others."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="oomph-test-command-"))
    folder.chmod(0o755)
    try:
        path = folder / "oomph"
        shutil.copy(COMMAND, path)
        path.chmod(0o755)
        yield str(path)
    finally:
        shutil.rmtree(folder)


def as_user(user, command, shared, *, umask=0o002, **more):
    """Runs it as this user, in one group with the other, with no home to write to."""
    other = {"user": user, "group": VICTIM, "extra_groups": []} if IS_ROOT else {}
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": str(shared)}
    return subprocess.run(command, env=environment, umask=umask, cwd="/", capture_output=True, text=True, timeout=60, **other, **more)


def test_the_recorders_library_is_kept_where_nobody_else_may_write(command, shared):
    """Without a home it lies in the shared folder, in one of this user's own."""
    done = as_user(VICTIM, [command, "run", "--library"], shared)
    assert done.returncode == 0, done.stderr
    library = pathlib.Path(done.stdout.strip())
    user = VICTIM if IS_ROOT else os.geteuid()
    assert library.parent.parent == shared / f"oomph-{user}"
    for path in (library.parent.parent, library.parent):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (user, 0o700), path
    assert stat.S_IMODE(library.stat().st_mode) & 0o022 == 0
    # It is found again, and made anew where it was spoilt.
    library.write_bytes(b"spoilt")
    again = as_user(VICTIM, [command, "run", "--library"], shared)
    assert again.stdout == done.stdout
    assert library.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.skipif(not IS_ROOT, reason="needs two users")
@pytest.mark.parametrize("way", ["folder", "link", "open"])
def test_a_folder_that_another_user_made_first_is_refused(command, shared, way):
    """The way in: be first in /tmp, wait for somebody without a home who records."""
    ours = shared / f"oomph-{VICTIM}"
    # What it is called: as oomph would call it.
    with shared_folder() as elsewhere:
        named = pathlib.Path(as_user(VICTIM, [command, "run", "--library"], elsewhere).stdout.strip())
        version = named.parent.name
    evil = shared / "evil"
    for path in (evil, evil / version):
        path.mkdir()
    (evil / version / LIBRARY).write_bytes(b"not oomph's")
    if way == "link":
        ours.symlink_to(evil)
        os.chown(ours, ATTACKER, VICTIM, follow_symlinks=False)
    else:
        evil.rename(ours)
    if way == "open":
        # Their own folder, but in one that others may rename it in.
        shared.chmod(0o777)
    root = evil if way == "link" else ours
    for path in (root, root / version, root / version / LIBRARY):
        path.chmod(0o777)
        os.chown(path, VICTIM if way == "open" else ATTACKER, VICTIM)
    # What was taken before, by anybody's name for it.
    (shared / "oomph" / version).mkdir(parents=True)
    (shared / "oomph" / version / LIBRARY).write_bytes(b"not oomph's")

    done = as_user(VICTIM, [command, "run", "--library"], shared)
    library = pathlib.Path(done.stdout.strip())
    try:
        # It lies in another place that nobody else can change.
        assert done.returncode == 0 and shared not in library.parents, done
        assert library.read_bytes()[:4] == b"\x7fELF"
        assert (library.parent.parent.stat().st_uid, stat.S_IMODE(library.parent.parent.stat().st_mode)) == (VICTIM, 0o700)
    finally:
        if library.parent.parent.name == f"oomph-{VICTIM}":
            shutil.rmtree(library.parent.parent)
    assert (root / version / LIBRARY).read_bytes() == b"not oomph's"


PROGRAM = """
import json, os, pathlib, sys, time
places = [place for name in ("PYTHONPATH", "LD_PRELOAD") for place in os.environ.get(name, "").split(os.pathsep) if "oomph" in place]
out = pathlib.Path(sys.argv[1])
(out / "part").write_text(json.dumps(places))
os.rename(out / "part", out / "places")
for _ in range(600):
    if (out / "go").exists():
        break
    time.sleep(0.05)
"""

CHANGE = """
import os, pathlib, sys
changed = []
for place in sys.argv[1:]:
    for root, _, files in os.walk(place):
        for name in files + ["sitecustomize.py"]:
            try:
                with open(os.path.join(root, name), "a") as file:
                    file.write("# mine")
                changed.append(os.path.join(root, name))
            except OSError:
                pass
    try:
        pathlib.Path(place, "sitecustomize.py").write_text("raise SystemExit")
        changed.append(place)
    except OSError:
        pass
print(changed)
"""


@pytest.mark.parametrize("mode", [0o1777, 0o777], ids=["as in /tmp", "anybody may rename"])
def test_nobody_else_may_change_what_is_put_under_a_program(command, shared, mode):
    """With a shared group and a umask that lets it write, a member could have rewritten `sitecustomize.py` before it is read; and in a folder where anybody
    may rename, put another folder in its place."""
    shared.chmod(mode)
    out = shared / "out"
    out.mkdir()
    out.chmod(0o777)
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    other = {"user": VICTIM, "group": VICTIM, "extra_groups": []} if IS_ROOT else {}
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": str(shared)}
    line = [command, "run", "-o", str(out / "it.oomph"), "--", python, "-c", PROGRAM, str(out)]
    with subprocess.Popen(line, env=environment, umask=0o000, cwd=out, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **other) as running:
        end = time.monotonic() + 30
        while not (out / "places").exists() and running.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        try:
            assert (out / "places").exists(), running.stderr.read() if running.poll() is not None else "it did not start"
            places = json.loads((out / "places").read_text())
            assert places, "nothing was put under it"
            staged = {folder for place in places for folder in pathlib.Path(place, "x").parents if re.fullmatch(r"oomph-\w{6}", folder.name)}
            assert staged
            for folder in staged:
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
                assert (folder.parent == shared) == (mode == 0o1777), folder
            if IS_ROOT:
                tried = as_user(ATTACKER, [python, "-c", CHANGE, *map(str, [*places, *staged])], shared)
                assert tried.stdout == "[]\n", tried
        finally:
            (out / "go").touch()


def test_a_prediction_has_the_path_that_python_has(oomph, tmp_path):
    """`python -c` has the current folder first, `python script.py` the script's: a `json.py` in a stranger's checkout is not imported."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there, tmp_path / "more"):
        folder.mkdir()
    for name in ("json", "os", "io", "socket", "typing"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(3)\n")
    (there / "script.py").write_text("import sys\nwith open(sys.argv[1], 'w') as file:\n    file.write(repr(sys.path))\n")
    # Through a link: Python looks where the file lies.
    (here / "link.py").symlink_to(there / "script.py")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "more")}
    environment.pop("PYTHONSAFEPATH", None)
    subprocess.run([sys.executable, "link.py", tmp_path / "truth"], cwd=here, env=environment, check=True)
    line = [oomph.binary, "predict", "--gpu", "t4", "--no-recording", "--python", sys.executable, "link.py", str(tmp_path / "found")]
    done = subprocess.run(line, cwd=here, env=environment, capture_output=True, text=True)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert (tmp_path / "found").exists(), done.stderr
    assert (tmp_path / "found").read_text() == (tmp_path / "truth").read_text()
