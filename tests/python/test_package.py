"""The wheel: it carries the command, and `python -m oomph` finds it; it carries the extension module, which needs nobody."""

import os
import re
import subprocess
import sys
import tarfile
import textwrap
import zipfile

import pytest

from conftest import COMMAND, FIXTURES, ROOT

# The test profile: command and extension are already built, and only packed here.
PROFILE = "--profile dev --locked"


def build(folder, *what, source=ROOT, **environment):
    """What the build backend makes of the sources, as pip would call it, with the maturin that is here."""
    hooks = "import sys; sys.path.insert(0, 'build_backend'); import oomph_build; print(getattr(oomph_build, sys.argv[1])(sys.argv[2]))"
    here = {**os.environ, "MATURIN_PEP517_ARGS": PROFILE, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", **environment}
    folder.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", hooks, *what, str(folder)], cwd=source, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wheels"), "build_wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment that has the wheel and nothing else that data goes through."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "uv", "venv", "-q", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run([sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python), str(wheel)], check=True)
    return python


def inside(python, program, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OOMPH", "PYTHON"))}
    return subprocess.run([str(python), "-c", program, *map(str, arguments)], capture_output=True, text=True, env=environment)


def test_the_wheel_is_for_every_python_from_3_10(wheel):
    assert re.fullmatch(r"oomph-[\d.]+-(py3-none|cp310-abi3)-\w+\.whl", wheel.name)


def test_the_wheel_carries_the_command(installed):
    recording = FIXTURES / "h200" / "eval_grad.pickle.xz"
    command = installed.parent / "oomph"
    for words in ([str(command)], [str(installed), "-m", "oomph"]):
        done = subprocess.run([*words, "explain", str(recording)], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "OM202" in done.stdout
    assert inside(installed, "import oomph; print(oomph.find_oomph())").stdout.strip() == str(command)


def test_the_wheel_carries_the_extension_module(installed):
    done = inside(installed, "import oomph; from oomph._extension import load_native; print(load_native().__file__)")
    assert done.stdout.strip().endswith("site-packages/oomph/_native.abi3.so"), done.stderr


def test_data_needs_none_of_the_packages_that_take_it(installed, tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("id,city\n" + "".join(f"{row},{'Rome' if row % 2 else 'Oslo'}\n" for row in range(1000)))
    program = """
        import array, importlib.util, sys
        import oomph
        assert not any(importlib.util.find_spec(name) for name in ("numpy", "pandas", "polars", "pyarrow", "scipy", "torch"))
        profile = oomph.data.profile(sys.argv[1])
        print(profile.rows, profile["id"].exact.type, profile["city"].exact.type)
        loaded = oomph.data.load(sys.argv[1])
        print(loaded.nbytes < profile.bytes.now, loaded["city"].categories)
        print(sum(len(batch) for batch in oomph.data.stream(sys.argv[1], batch=300)))
        print(oomph.data.profile(array.array("d", range(100))).columns[0].exact.type)
        print(oomph.data.shrink(sys.argv[1], sys.argv[2]).rows)
    """
    done = inside(installed, textwrap.dedent(program), table, tmp_path / "small.parquet")
    assert done.stdout.splitlines() == ["1000 int16 dictionary[int8]", "True ['Oslo', 'Rome']", "1000", "int8", "1000"], done.stderr


def test_the_extension_module_is_not_linked_to_one_python(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("_native.abi3.so"))
        library = archive.extract(name, tmp_path)
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needed and "libpython" not in needed


def test_a_library_of_another_version_is_refused(tmp_path):
    program = "import oomph._extension as extension; extension.VERSION = '9.9'; extension.load_native()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert re.search(r"ImportError: \S+liboomph_native\.so is of oomph [\d.]+, and the package \S+ of 9\.9", done.stderr), done.stderr


def test_an_sdist_has_all_that_a_wheel_is_made_of(tmp_path):
    sdist = build(tmp_path, "build_sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    # That cargo finds every member and the lock file holds; what build scripts and `include_str!` read is beside them.
    reported = subprocess.run(["cargo", "metadata", "--locked", "--offline", "--format-version", "1"], cwd=source, capture_output=True, text=True)
    assert reported.returncode == 0, reported.stderr
    assert (source / "build_backend" / "oomph_build.py").is_file()
    for tracked in subprocess.run(["git", "ls-files", "crates", "python"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        assert (source / tracked).is_file() or not (ROOT / tracked).is_file(), tracked


# A build of the wheel, but for what is built: it says that it has begun, and ends when a line comes.
HOLD = """
import pathlib, sys
sys.path.insert(0, 'build_backend')
import oomph_build
oomph_build.DATA = pathlib.Path(sys.argv[1]) / "wheel-data"
with oomph_build._data() as data:
    found = sorted(path.name for path in data.iterdir())
    (data / "platlib" / "oomph").mkdir(parents=True)
    print(found, flush=True)
    sys.stdin.readline()
    assert (data / "platlib" / "oomph").is_dir()
"""


def test_two_builds_in_one_checkout_wait_for_each_other_and_a_killed_one_breaks_none(tmp_path):
    def begin():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, text=True, **pipes)

    with begin() as killed:
        assert killed.stdout.readline() == "[]\n"
        killed.kill()
    assert (tmp_path / "wheel-data" / "platlib").exists(), "it left what it had"
    with begin() as first:
        assert first.stdout.readline() == "[]\n", "what was left is gone"
        with begin() as second:
            assert second.stderr.readline() == "waiting for another build in this folder\n"
            assert first.communicate("\n") == ("", "") and first.returncode == 0
            assert second.communicate("\n") == ("[]\n", "") and second.returncode == 0
    assert not (tmp_path / "wheel-data").exists()
