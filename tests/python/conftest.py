"""What the tests share: the command as built, and the fixtures."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"


@pytest.fixture(scope="session")
def oomph():
    """Runs the command; gives (exit code, stdout, stderr)."""
    binary = os.environ.get("OOMPH", str(ROOT / "target" / "debug" / "oomph"))

    def run(*arguments, **options):
        done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=120, **options)
        return done.returncode, done.stdout, done.stderr

    run.binary = binary
    return run


@pytest.fixture(scope="session")
def explain(oomph):
    """Explains a recording; gives what --format json says."""

    def run(path):
        code, out, err = oomph("explain", "--format", "json", path)
        assert code in (0, 1), err
        return json.loads(out)

    return run
