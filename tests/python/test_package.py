"""The wheel: it carries the command, and `python -m oomph` finds it."""

import subprocess
import sys

from conftest import FIXTURES, ROOT


def test_the_wheel_carries_the_command(tmp_path):
    wheels = tmp_path / "wheels"
    # The test profile: the command is already built, and only packed here.
    subprocess.run(
        [sys.executable, "-m", "maturin", "build", "-q", "--profile", "dev", "--locked", "-o", str(wheels)],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = wheels.glob("oomph-*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "uv", "venv", "-q", str(venv)], check=True)
    python = venv / "bin" / "python"
    subprocess.run([sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python), str(wheel)], check=True)
    recording = FIXTURES / "h200" / "eval_grad.pickle.xz"
    for command in ([str(venv / "bin" / "oomph")], [str(python), "-m", "oomph"]):
        done = subprocess.run([*command, "explain", str(recording)], capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "OM202" in done.stdout
    found = subprocess.run([str(python), "-c", "import oomph; print(oomph.find_oomph())"], capture_output=True, text=True)
    assert found.stdout.strip() == str(venv / "bin" / "oomph")
