"""Predictions where NVIDIA's libraries are not installed, and where only a build of PyTorch without CUDA is: what is stood in for, and what is fetched."""

import hashlib
import http.server
import io
import json
import os
import pty
import subprocess
import sys
import threading
import zipfile

import pytest
from bare import without_libraries
from conftest import COMMAND, ROOT


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    return without_libraries(tmp_path_factory.mktemp("bare") / "environment", sys.executable)


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


# --- without NVIDIA's libraries ---------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["plain_loop.py", "lstm.py"])
def test_programs_without_convolutions_take_the_same_bytes(predict, bare_python, program):
    full, bare = predict("--until", "steps", program), predict("--until", "steps", program, python=bare_python)
    assert (full.code, bare.code) == (0, 0), bare.err
    for key in ("peak", "total", "fits", "steps", "unmodelled_calls", "uncertain"):
        assert bare.reported[key] == full.reported[key], key
    assert bare.reported["steps"] == 3


def test_workspaces_are_estimated_and_libraries_say_what_pytorch_was_built_with(predict, bare_python, script):
    path = script("""
import torch
conv = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda")
conv(torch.zeros(32, 64, 56, 56, device="cuda")).sum().backward()
print("SAYS", torch.backends.cudnn.version(), torch.cuda.nccl.version(), torch.version.cuda)
maps = open("/proc/self/maps").read()
print("LOADED", sorted({line.split("/")[-1] for line in maps.splitlines() if "/nvidia/" in line}))
""")
    full, bare = (predict(path, gpu="a100-80gb", python=python) for python in (None, bare_python))
    said = [next(line for line in one.err.splitlines() if line.startswith("SAYS")) for one in (full, bare)]
    assert said[0] == said[1]
    assert "LOADED []\n" in bare.err and "libcudnn" in full.err
    full, bare = full.reported, bare.reported
    assert full["estimated"] is None and full["uncertain"] == []
    # One more copy of what it reads and writes; the gradient of the filter has the same tensors.
    tensors = 4 * (2 * 32 * 64 * 56 * 56 + 64 * 64 * 9)
    most = tensors * 25 // 10
    assert bare["estimated"] == {"low": bare["total"] - 2 * tensors, "high": bare["total"] + 2 * most - tensors}
    assert bare["estimated"]["low"] <= full["total"] <= bare["estimated"]["high"]
    (doubt,) = bare["uncertain"]
    assert doubt["what"] == "estimate" and doubt["count"] == 2
    assert doubt["why"].startswith("no cuDNN to ask: workspaces are estimated, and the total is ")
    assert bare["unmodelled_calls"] == []


# --- where PyTorch is built without CUDA ------------------------------------------------------------------

WHEEL = f"torch-2.15.0-cp{sys.version_info.major}{sys.version_info.minor}-cp{sys.version_info.major}{sys.version_info.minor}-manylinux_2_28_x86_64.whl"


class Index:
    """A package index on loopback, whose one wheel is `wheel`, with the checksum that is said of it."""

    def __init__(self, wheel):
        self.wheel, self.name, self.asked, self.cut = wheel, WHEEL, [], 0
        self.digest = hashlib.sha256(wheel).hexdigest()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                index.asked.append(self.path)
                if self.path == "/simple/torch/":
                    file = {"filename": index.name, "url": f"/files/{index.name}", "hashes": {"sha256": index.digest}, "size": len(index.wheel)}
                    self.answer(json.dumps({"files": [file]}).encode(), "application/vnd.pypi.simple.v1+json")
                else:
                    self.answer(index.wheel, "application/zip", index.cut)

            def answer(self, body, kind, cut=0):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) - cut])

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/simple"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fetches(self):
        return [path for path in self.asked if path.startswith("/files/")]


def wheel(**files):
    """A wheel of a PyTorch that is none: enough to be found, not to run."""
    held = {
        "torch/__init__.py": "from .version import __version__\n",
        "torch/version.py": "from typing import Optional\n\n__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n",
        "torch/lib/libtorch_cuda.so": "not a library\n",
        "torch/lib/libfoo.a": "not needed\n",
        "torch/test/test_foo.py": "not needed\n",
        **files,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in held.items():
            archive.writestr(name, text)
    return out.getvalue()


@pytest.fixture
def index():
    made = Index(wheel())
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def cpu(tmp_path, index, oomph, script):
    """Predicts with a PyTorch that says that it has no CUDA, an index of our own and an empty cache."""
    package = tmp_path / "site" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .version import __version__\n")
    (package / "version.py").write_text("__version__ = '2.15.0+cpu'\ncuda = None\n")
    path = script("import importlib.util\nprint('FOUND', importlib.util.find_spec('torch').origin)\nimport torch\n")
    # What else is configured here is not asked.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_")) and not name.lower().endswith("_proxy")}
    env |= {"PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_INDEX_URL": index.address}

    def run(*options, verb="predict"):
        return oomph(verb, "--gpu", "t4", "--python", sys.executable, *options, path, cwd=tmp_path, env=env)

    run.env, run.path, run.kept = env, path, tmp_path / "cache" / "oomph" / "torch"
    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.mark.parametrize("verb", ["predict", "fit", "run"])
def test_the_cuda_build_is_fetched_once_and_used_from_then_on(cpu, index, verb):
    code, out, err = cpu("--fetch-torch", "--yes", verb=verb)
    assert f"fetching PyTorch 2.15.0 with CUDA: 1 MB from 127.0.0.1 into {cpu.kept}" in err
    assert names(cpu.kept) == [f"2.15.0-{TAG}"]
    kept = cpu.kept / f"2.15.0-{TAG}"
    assert f"FOUND {kept}/torch/__init__.py" in out + err
    assert set(names(kept / "torch")) - {"__pycache__"} == {"__init__.py", "lib", "version.py"}
    assert names(kept / "torch" / "lib") == ["libtorch_cuda.so"]
    assert kept.stat().st_mode & 0o777 == 0o700 and len(index.fetches()) == 1
    again = cpu(verb=verb)
    assert f"FOUND {kept}/torch/__init__.py" in again[1] + again[2]
    assert "fetching PyTorch" not in again[2] and len(index.asked) == 2


def test_without_the_option_the_hint_names_it(cpu, index):
    code, out, err = cpu()
    assert (code, out, index.asked) == (2, "", [])
    assert "(2.15.0+cpu) is built without CUDA" in err and "hint: " in err and "oomph predict --fetch-torch" in err


def test_nothing_is_fetched_where_nobody_can_be_asked(cpu, index):
    code, out, err = cpu("--fetch-torch")
    assert (code, out, index.asked) == (2, "", [])
    assert "there is no terminal to ask on" in err and "hint: add --yes" in err


@pytest.mark.parametrize(("answer", "fetched"), [("y", 1), ("", 0), ("n", 0)])
def test_on_a_terminal_it_asks_first_and_no_answer_is_no(cpu, index, answer, fetched):
    ours, theirs = pty.openpty()
    words = [COMMAND, "predict", "--gpu", "t4", "--fetch-torch", "--python", sys.executable, cpu.path]
    process = subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=cpu.env, cwd=cpu.path.parent)
    os.close(theirs)
    said = b""
    while b"[y/N] " not in said:
        said += os.read(ours, 1000)
    assert f"PyTorch 2.15.0 with CUDA: 1 MB from 127.0.0.1 into {cpu.kept}. Fetch it?" in said.decode().replace("\r\n", "")
    os.write(ours, answer.encode() + b"\n")
    try:
        while part := os.read(ours, 1000):
            said += part
    except OSError:
        pass  # The other end is closed.
    assert process.wait(60) == 2 and process.stdout.read() == b""
    os.close(ours)
    process.stdout.close()
    assert len(index.fetches()) == fetched and len(names(cpu.kept)) == fetched
    assert (b"nothing was fetched" in said) == (not fetched)


def without_cuda(index):
    index.wheel = wheel().replace(b"libtorch_cuda.so", b"libtorch_none.so")
    index.digest = hashlib.sha256(index.wheel).hexdigest()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda index: setattr(index, "digest", "0" * 64), "its SHA-256 is another"),
        (lambda index: setattr(index, "cut", 10), "broke off after"),
        (lambda index: setattr(index, "name", WHEEL.replace("2.15.0", "2.14.0")), "127.0.0.1 has no wheel of torch 2.15.0 for Python"),
        (without_cuda, "is no build with CUDA"),
    ],
    ids=["checksum", "broken", "version", "no-cuda"],
)
def test_what_cannot_be_used_leaves_nothing(cpu, index, spoil, why):
    # PyPI, which is asked for what the index does not have, is not to be reached here.
    cpu.env["https_proxy"] = "http://127.0.0.1:9"
    spoil(index)
    code, out, err = cpu("--fetch-torch", "--yes")
    assert (code, out) == (2, "") and "the CUDA build of PyTorch could not be fetched: " in err and why in err
    assert names(cpu.kept) == []


def test_two_that_fetch_at_once_do_no_harm(cpu, index):
    words = [COMMAND, "predict", "--gpu", "t4", "--fetch-torch", "--yes", "--python", sys.executable, cpu.path]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=cpu.env, cwd=cpu.path.parent, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert all(f"FOUND {cpu.kept}/2.15.0-{TAG}/torch/__init__.py" in one for one in said), said
    assert names(cpu.kept) == [f"2.15.0-{TAG}"]


def test_an_option_that_goes_with_a_virtual_card_is_refused_without_one(oomph, script):
    code, _, err = oomph("run", "--fetch-torch", script("print(1)\n"))
    assert code == 2 and "--fetch-torch is for a virtual card: name one with --gpu" in err


def test_a_password_in_an_indexs_address_is_not_shown(tmp_path):
    command = [sys.executable, str(ROOT / "python/oomph/_fetch.py"), "get", "http://me:secret@127.0.0.1:1/torch.whl", "0" * 64, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout) == {"error": "127.0.0.1: [Errno 111] Connection refused"} and "secret" not in done.stderr
