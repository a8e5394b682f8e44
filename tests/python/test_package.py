"""The wheel: one library has the command, which `oomph` and `python -m oomph` run, and what the package calls; it needs nobody."""

import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest
from conftest import COMMAND, FIXTURES, ROOT

sys.path.insert(0, str(ROOT / "packaging"))
import archive
import check_wheel


def build(folder, hook, source=ROOT):
    """What the build backend makes of the sources, as pip would call it, with the maturin that is here. The quickest profile whose command carries all it needs."""
    hooks = "import sys, maturin; print(getattr(maturin, sys.argv[1])(sys.argv[2]))"
    here = {**os.environ, "MATURIN_PEP517_ARGS": "--profile demo --locked", "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    folder.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-c", hooks, hook, str(folder)], cwd=source, env=here, capture_output=True, text=True)
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
    assert re.fullmatch(r"oomph-[\d.]+-cp310-abi3-\w+\.whl", wheel.name)


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


def test_what_the_libraries_ask_of_the_c_library_is_read_and_held_to_a_limit(wheel):
    asked = check_wheel.asked(wheel)
    assert set(asked) == {"oomph/_native.abi3.so", *(f"liboomph_{name}.so in oomph/_native.abi3.so" for name in ("cuda", "guard", "ram", "record"))}
    # All are linked on this machine, against its C library.
    assert all((2, 2) < version <= tuple(map(int, platform.libc_ver()[1].split("."))) for version in asked.values()), asked
    assert check_wheel.problems(19_000_000, dict.fromkeys(asked, (2, 28))) == []
    assert check_wheel.problems(20_000_001, {**dict.fromkeys(asked, (2, 17)), "oomph/_native.abi3.so": (2, 29)}) == [
        "20,000,001 bytes are more than 20,000,000",
        "oomph/_native.abi3.so needs glibc 2.29, newer than 2.28",
    ]
    assert check_wheel.problems(1, {"oomph/_native.abi3.so": (2, 17)}) == ["0 libraries lie in others, not 4"]


def test_ctrl_c_ends_the_command_at_once(installed, tmp_path):
    recording = tmp_path / "pipe"
    os.mkfifo(recording)
    with subprocess.Popen([str(installed.parent / "oomph"), "explain", str(recording)], stderr=subprocess.PIPE) as waiting:
        # It opens the pipe, so it is in the command: it waits for bytes then.
        with open(recording, "wb"):
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(timeout=20) == -signal.SIGINT
        assert b"Traceback" not in waiting.stderr.read()


def test_the_command_takes_words_that_are_no_text(installed):
    done = subprocess.run([str(installed.parent / "oomph"), "explain", b"no-such-\xff.oomph"], capture_output=True)
    assert done.returncode == 2 and b"no-such-" in done.stderr and b"Traceback" not in done.stderr


def test_a_free_threaded_python_is_refused_in_one_sentence(tmp_path):
    """The interpreter that runs the tests says that it is one: there is none here, and what it would do with the library is crash."""
    program = "import sys, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; from oomph._command import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    sentence = f"error: oomph needs a Python with the global interpreter lock, and {sys.executable} is free-threaded: install it into another\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def test_an_archive_is_the_same_whenever_it_is_made(tmp_path):
    command = tmp_path / "oomph"
    command.write_bytes(b"\x7fELF and the rest")
    first = archive.pack(command, "x86_64-unknown-linux-musl", tmp_path / "first")
    os.utime(command, (0, 0))
    second = archive.pack(command, "x86_64-unknown-linux-musl", tmp_path / "second")
    assert first.read_bytes() == second.read_bytes() and re.fullmatch(r"oomph-[\d.]+-x86_64-unknown-linux-musl\.tar\.gz", first.name)
    with tarfile.open(first) as packed:
        modes = {Path(entry.name).name: entry.mode for entry in packed}
    assert modes["oomph"] == 0o755 and modes["LICENSE-MIT"] == 0o644


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
    for tracked in subprocess.run(["git", "ls-files", "crates", "python"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        assert (source / tracked).is_file() or not (ROOT / tracked).is_file(), tracked
