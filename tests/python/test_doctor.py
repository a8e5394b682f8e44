"""`oomph doctor` on machines of several kinds: without a GPU, with the virtual one, with a driver that is wrong, shared, and under a limit."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

import oomph as package
import pytest
from conftest import ROOT
from test_ram import control_group

GIB, MIB = 1 << 30, 1 << 20
FAKE_NVML = ROOT / "crates" / "oomph-host" / "tests" / "nvml" / "fake_nvml.c"
# What decides about findings and is not the test's.
NOT_OURS = re.compile(r"PYTORCH|CUDA|NVIDIA|OMP_|XLA|TF_|MALLOC|LD_|FAKE_NVML|OOMPH_|SLURM|COLAB|KAGGLE|KUBERNETES|JPY|VIRTUAL_ENV|COLUMNS|NO_COLOR")


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """A driver's library that says what the environment tells it to."""
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, FAKE_NVML], check=True)
    return library


@pytest.fixture
def python(tmp_path):
    """An interpreter that answers as it is reported, and has nothing else in common with Python."""

    def make(torch="2.11.0+cu128", cuda="12.8", **more):
        installed = [{"folder": "/nowhere/torch", "version": torch, "cuda": cuda, "hip": None}] if torch else []
        answer = {
            "version": "3.11.7", "executable": "/nowhere/python", "is_environment": True, "is_conda": False, "has_pip": True, "machine": "x86_64",
            "torch": installed, "packages": {}, "torch_requires": [], "toolkit_requires": [], "oomph": None, **more,
        }  # fmt: skip
        (tmp_path / "answer.json").write_text(json.dumps(answer))
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\ncat '{tmp_path}/answer.json'\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


@pytest.fixture
def doctor(oomph, tmp_path):
    """Runs it in an environment of its own; gives the exit code and what --format json says, or the text."""

    def run(*words, nvml="/nowhere/libnvidia-ml.so.1", python=None, format="json", env=None, **options):
        environment = {name: value for name, value in os.environ.items() if not NOT_OURS.search(name)}
        environment.update({"OOMPH_NVML": str(nvml), "OOMPH_GPUS": "/nowhere", **(env or {})})
        chosen = ["--python", python] if python else []
        code, out, err = oomph("doctor", "--format", format, *chosen, *words, env=environment, cwd=tmp_path, **options)
        assert code in (0, 1), err
        return code, json.loads(out) if format == "json" else out

    return run


def of(reported, check):
    return [finding for finding in reported["findings"] if finding["check"] == check]


def cards_on_bus():
    return sum(
        (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith("0x03") for device in pathlib.Path("/sys/bus/pci/devices").glob("*")
    )


# --- a machine without a GPU ------------------------------------------------------------------------------


@pytest.mark.skipif(cards_on_bus() > 0, reason="there is a GPU here")
def test_without_a_gpu_nothing_is_wrong(doctor, python):
    code, reported = doctor(python=python("2.11.0+cpu", None))
    (driver,) = of(reported, "driver")
    assert (driver["level"], driver["title"]) == ("note", "there is no NVIDIA GPU here")
    assert reported["gpus"] == [] and reported["driver"] is None
    # Unless this very machine is short of something.
    assert (code, reported["wrong"]) == (int(bool(of_level(reported, "wrong"))), len(of_level(reported, "wrong")))
    assert not [finding for finding in of_level(reported, "wrong") if finding["about"] in ("torch", "driver", "packages", "allocator", "oomph")]


def of_level(reported, level):
    return [finding for finding in reported["findings"] if finding["level"] == level]


def test_a_build_with_cuda_on_a_machine_without_a_gpu_is_no_fault(doctor, python):
    _, reported = doctor(python=python())
    assert [finding["level"] for finding in of(reported, "torch-build")] == ["fine"]


def test_numbers_of_the_machine_are_the_kernels(doctor, python):
    _, reported = doctor(python=python())
    meminfo = dict(re.findall(r"(\w+):\s+(\d+) kB", pathlib.Path("/proc/meminfo").read_text()))
    assert reported["machine"]["ram"]["total"] == int(meminfo["MemTotal"]) << 10
    there = os.statvfs("/dev/shm")
    assert reported["machine"]["shm"]["total"] == there.f_blocks * there.f_frsize


# --- PyTorch ----------------------------------------------------------------------------------------------


def test_the_installed_pytorch_is_read_and_not_imported(doctor):
    import torch

    began = time.monotonic()
    _, reported = doctor(python=sys.executable)
    took = time.monotonic() - began
    (found,) = reported["python"]["torch"]
    assert (found["version"], found["cuda"]) == (torch.__version__, torch.version.cuda)
    assert reported["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    if torch.version.cuda:
        assert reported["python"]["architectures"] == torch._C._cuda_getArchFlags().split()
    assert not of(reported, "torch-twice") and not [f for f in of(reported, "packages") if f["level"] == "wrong"]
    # Importing takes seconds; this is a busy machine's time for reading files.
    assert took < 20


def test_a_driver_that_is_too_old_for_pytorch_is_wrong(doctor, nvml, python):
    env = {"FAKE_NVML_DRIVER": "550.54.14", "FAKE_NVML_CUDA": "12040"}
    code, reported = doctor(nvml=nvml, python=python("2.11.0+cu130", "13.0"), env=env)
    (finding,) = of(reported, "torch-and-driver")
    assert code == 1 and finding["level"] == "wrong"
    assert finding["title"] == "PyTorch 2.11.0+cu130 is built for CUDA 13.0, driver 550.54.14 can do 12.4"
    assert "580.65.06" in finding["means"] and finding["command"].endswith("/whl/cu126")
    # Within a major version any driver of that generation does.
    _, reported = doctor(nvml=nvml, python=python("2.11.0+cu128", "12.8"), env=env)
    assert of(reported, "torch-and-driver") == []


def test_what_is_to_be_typed_is_for_what_the_environment_has(doctor, nvml, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
    chosen = tmp_path / "venv" / "bin" / "python"

    def command():
        _, text = doctor(nvml=nvml, python=chosen, format="text")
        return re.search(r"^ +(.+) --index-url", text, re.MULTILINE)[1]

    assert command() == f"uv pip install --python {chosen} --force-reinstall torch"
    (site / "torchvision-0.26.0+cpu.dist-info").mkdir()
    (site / "pip").mkdir()
    (site / "pip" / "__main__.py").write_text("")
    assert command() == f"{chosen} -m pip install --force-reinstall torch torchvision"


def test_a_build_without_cuda_beside_a_gpu_is_wrong(doctor, nvml, python):
    code, reported = doctor(nvml=nvml, python=python("2.11.0+cpu", None))
    assert code == 1 and of(reported, "torch-build")[0]["title"] == "PyTorch 2.11.0+cpu is built without CUDA, and there is a GPU"


def test_an_environment_that_sees_the_systems_pytorch_beside_its_own_is_a_note(doctor, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    system = tmp_path / "system"
    for folder, version in ((site, "2.11.0"), (system, "2.4.0")):
        (folder / "torch").mkdir(parents=True)
        (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    # As the folders of the system come: after the environment's.
    (site / "system.pth").write_text(f"{system}\n")
    chosen = tmp_path / "venv" / "bin" / "python"
    _, reported = doctor(python=chosen)
    (finding,) = of(reported, "torch-twice")
    assert finding["level"] == "note" and finding["means"].startswith("2.11.0 is imported; 2.4.0 is hidden by it.")
    # What PYTHONPATH puts before the environment's own is another matter.
    _, reported = doctor(python=chosen, env={"PYTHONPATH": str(system)})
    assert [finding["level"] for finding in of(reported, "torch-twice")] == ["wrong"]


def test_a_file_that_hides_pytorch_is_wrong(doctor, python, tmp_path):
    (tmp_path / "torch.py").write_text("")
    code, reported = doctor(python=python())
    assert code == 1 and of(reported, "torch-build")[0]["title"] == "torch.py in this folder is imported instead of PyTorch"


def test_modules_of_the_current_folder_are_not_run(doctor, tmp_path):
    for name in ("json.py", "ast.py", "os.py", "torch.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    _, reported = doctor(python=sys.executable)
    assert reported["python"]["version"] and not (tmp_path / "ran").exists()


def test_a_python_that_is_not_there_is_an_error(oomph):
    code, out, err = oomph("doctor", "--python", "/nowhere/python")
    assert (code, out) == (2, "") and "/nowhere/python" in err


@pytest.mark.parametrize("answer", ["", "nonsense", "[]", '{"version": 3}', "x" * 100_000])
def test_a_python_that_answers_nonsense_is_an_error(oomph, python, tmp_path, answer):
    path = python()
    (tmp_path / "answer.json").write_text(answer)
    code, out, err = oomph("doctor", "--python", path)
    assert (code, out) == (2, "") and "its answer was not understood" in err


def test_settings_that_this_version_refuses_are_wrong(doctor, python):
    code, reported = doctor(python=python("2.10.0"), env={"PYTORCH_ALLOC_CONF": "large_segment_size_mb:64"})
    (finding,) = of(reported, "allocator-settings")
    assert code == 1 and finding["title"] == "PyTorch 2.10.0 refuses PYTORCH_ALLOC_CONF=large_segment_size_mb:64"
    assert finding["fix"] == "PyTorch has large_segment_size_mb from 2.11 on"
    _, reported = doctor(python=python("2.9.1"), env={"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert [f["title"] for f in of(reported, "allocator-variable")] == ["PYTORCH_ALLOC_CONF is not read by PyTorch 2.9.1"]
    _, reported = doctor(python=python(), env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128"})
    finding = of(reported, "allocator-trouble")[0]
    assert finding["level"] == "wrong" and "2.11.0+cu128" in finding["means"]


# --- a driver that is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("error, title", [(18, "the driver was updated without a restart"), (4, "this user may not use the GPU"), (9, "the driver is installed, but not loaded")])
def test_a_driver_that_does_not_answer_says_why(doctor, nvml, python, error, title):
    code, reported = doctor(nvml=nvml, python=python(), env={"FAKE_NVML_ERROR": str(error)})
    (finding,) = of(reported, "driver")
    assert finding["title"].startswith(title)
    # A driver without a card is no fault; one that refuses is.
    is_wrong = error != 9 or cards_on_bus() > 0
    assert finding["level"] == ("wrong" if is_wrong else "note")
    assert code == 1 or not is_wrong
    assert finding["command"] and reported["gpus"] == []


@pytest.mark.parametrize("error", [17, 4, 9])
def test_a_job_that_has_not_asked_for_a_gpu_is_told_how(doctor, nvml, python, error):
    env = {"FAKE_NVML_ERROR": str(error), "SLURM_JOB_ID": "77"}
    _, reported = doctor(nvml=nvml, python=python(), env=env)
    (finding,) = of(reported, "driver")
    assert (finding["level"], finding["command"]) == ("note", "srun --gres=gpu:1 …")
    _, reported = doctor(nvml=nvml, python=python(), env={**env, "SLURM_GPUS_ON_NODE": "1"})
    assert "srun" not in of(reported, "driver")[0]["command"]


def test_a_gpu_that_the_system_blocks_is_told_in_words(doctor, nvml, python):
    _, reported = doctor(nvml=nvml, python=python(), env={"FAKE_NVML_ERROR": "17"})
    assert of(reported, "driver")[0]["title"] == "a control group keeps this process from the GPU"


def test_a_library_that_is_none_is_told(doctor, python, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    _, reported = doctor(nvml=tmp_path / "libnvidia-ml.so.1", python=python())
    assert of(reported, "driver") and reported["gpus"] == []


# --- cards ------------------------------------------------------------------------------------------------


def test_what_is_usable_of_each_card(doctor, nvml, python, oomph):
    _, reported = doctor(nvml=nvml, python=python())
    _, catalogue, _ = oomph("gpus", "--format", "json")
    contexts = {card["title"]: card["context"] for card in json.loads(catalogue)["gpus"]}
    first, second = reported["gpus"]
    assert (first["name"], second["name"]) == ("NVIDIA H200", "NVIDIA GeForce RTX 4090")
    for card in reported["gpus"]:
        assert card["free"] == card["total"] - card["used"] - card["reserved"]
        assert card["usable"] == card["free"] - card["context"]
        assert card["context"] == contexts.get(card["name"], 400 * MIB)
    assert (reported["driver"], reported["driver_cuda"], first["compute_capability"]) == ("580.95.05", "13.0", "9.0")


def test_hidden_cards_are_told(doctor, nvml, python):
    code, reported = doctor(nvml=nvml, python=python(), env={"CUDA_VISIBLE_DEVICES": ""})
    assert code == 1 and of(reported, "visible-devices")[0]["title"] == "CUDA_VISIBLE_DEVICES= hides all 2 GPUs"
    _, reported = doctor(nvml=nvml, python=python(), env={"CUDA_VISIBLE_DEVICES": "GPU-fa4e0000-0000-0000-0000-000000000001"})
    assert of(reported, "visible-devices")[0]["title"] == "CUDA_VISIBLE_DEVICES=1: programs see 1 of 2 GPUs"
    assert "fa4e" not in json.dumps(reported)


def test_a_card_that_is_listed_twice_leaves_none(doctor, nvml, python):
    """As PyTorch counts them."""
    _, reported = doctor(nvml=nvml, python=python(), env={"CUDA_VISIBLE_DEVICES": "1,0,1"})
    finding = of(reported, "visible-devices")[0]
    assert (finding["level"], finding["title"]) == ("wrong", 'CUDA_VISIBLE_DEVICES=1,0,1 names GPU "1" twice')
    script = "import torch; print(torch.cuda._parse_visible_devices())"
    ran = subprocess.run([sys.executable, "-c", script], env={**os.environ, "CUDA_VISIBLE_DEVICES": "1,0,1"}, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_cards_that_programs_do_not_see_decide_nothing(doctor, nvml, python):
    full, empty = f"{24 * GIB},{24 * GIB},0,NVIDIA GeForce RTX 4090", f"{24 * GIB},0,0,NVIDIA GeForce RTX 4090"
    env = {"FAKE_NVML_CARDS": ";".join([full] * 3 + [empty] + [full] * 4), "CUDA_VISIBLE_DEVICES": "3"}
    _, reported = doctor(nvml=nvml, python=python(), env=env)
    assert len(reported["gpus"]) == 8
    assert [(finding["about"], finding["level"]) for finding in of(reported, "card")] == [("GPU 3", "fine"), ("GPUs", "fine")]
    assert of(reported, "card")[1]["title"].endswith("and 4 more") and of(reported, "unaccounted-memory") == []
    _, reported = doctor(nvml=nvml, python=python(), env={**env, "CUDA_VISIBLE_DEVICES": "0"})
    assert [(finding["about"], finding["level"]) for finding in of(reported, "card")] == [("GPU 0", "wrong"), ("GPUs", "fine")]


@contextlib.contextmanager
def dead():
    """A process that has ended and that nobody has fetched."""
    process = subprocess.Popen(["true"])
    wait_for_state(process.pid, "Z")
    try:
        yield process.pid
    finally:
        process.wait()


@contextlib.contextmanager
def stopped(*command):
    process = subprocess.Popen(command or ["sleep", "600"])
    process.send_signal(signal.SIGSTOP)
    wait_for_state(process.pid, "T")
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_for_state(pid, state):
    until = time.monotonic() + 60
    while pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < until
        time.sleep(0.01)


# In a container with numbers of its own the driver gives the host's.
on_the_machine = pytest.mark.skipif(os.readlink("/proc/self/ns/pid") != "pid:[4026531836]", reason="processes have numbers of their own here")


@on_the_machine
def test_a_shared_card_with_dead_and_stopped_processes(doctor, nvml, python):
    with dead() as zombie, stopped() as halted:
        env = {
            "FAKE_NVML_CARDS": f"{24 * GIB},{20 * GIB},0,NVIDIA GeForce RTX 4090",
            "FAKE_NVML_PROCESSES": f"0,{zombie},{6 * GIB};0,{halted},{4 * GIB};0,{os.getpid()},{2 * GIB}",
        }
        code, reported = doctor(nvml=nvml, python=python(), env=env)
        _, text = doctor(nvml=nvml, python=python(), env=env, format="text")
    assert code == 1
    first, second = of(reported, "dead-processes")
    assert (first["level"], second["level"]) == ("wrong", "wrong")
    assert first["command"] is None and first["fix"].startswith("its parent (")
    assert first["title"].endswith("is dead and holds 6.00 GiB") and second["title"].endswith("is stopped and holds 4.00 GiB")
    (processes,) = [card["processes"] for card in reported["gpus"]]
    assert {process["bytes"]: process["state"] for process in processes if process["bytes"] > 2 * GIB} == {6 * GIB: "Z", 4 * GIB: "T"}
    assert len(processes) == 3 and all(process["yours"] for process in processes)
    # 20 GiB are used, 12 GiB by processes.
    (unaccounted,) = of(reported, "unaccounted-memory")
    assert unaccounted["title"] == "8.00 GiB are used by no process that can be seen"
    # People see who; programs do not.
    assert f"(pid {zombie}) is dead and holds 6.00 GiB" in text and f"kill -KILL {halted}" in text
    assert not re.search(rf"\b({zombie}|{halted})\b", json.dumps(reported))


@on_the_machine
def test_a_card_for_one_process_that_has_one(doctor, nvml, python):
    env = {"FAKE_NVML_EXCLUSIVE": "1", "FAKE_NVML_MIG": "0", "FAKE_NVML_PROCESSES": f"1,{os.getpid()},{GIB}"}
    code, reported = doctor(nvml=nvml, python=python(), env=env)
    levels = {finding["about"]: finding["level"] for finding in of(reported, "card-mode")}
    assert code == 1 and levels == {"GPU 0": "note", "GPU 1": "wrong"}


# --- the virtual GPU --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_virtual(oomph):
    """`oomph run --gpu t4 oomph doctor`: the command itself runs over the virtual driver."""

    def run(*words):
        environment = {name: value for name, value in os.environ.items() if not NOT_OURS.search(name)}
        command = ["run", "--gpu", "t4", "--no-recording", "--python", sys.executable, oomph.binary, "doctor", "--python", sys.executable]
        return oomph(*command, *words, env=environment, cwd=ROOT)

    return run


def test_on_the_virtual_gpu(on_virtual, oomph):
    code, out, err = on_virtual("--format", "json")
    assert out, err
    reported = json.loads(out)
    _, catalogue, _ = oomph("gpus", "t4", "--format", "json")
    (t4,) = json.loads(catalogue)["gpus"]
    (card,) = reported["gpus"]
    assert (card["name"], card["virtual"], card["total"], card["compute_capability"]) == (t4["title"], True, t4["memory"], t4["compute_capability"])
    assert card["usable"] == pytest.approx(t4["usable"], abs=t4["context"] + 2 * MIB)
    # Nothing that oomph itself puts under the program is held against it.
    about = {finding["check"] for finding in reported["findings"] if finding["level"] == "wrong"}
    assert not about & {"driver", "card", "other-libraries", "visible-devices", "unaccounted-memory", "torch-and-driver", "torch-and-card"}
    assert of(reported, "other-libraries") == []
    assert code == int(reported["wrong"] > 0)


def test_deep_goes_through_all_stages_on_the_virtual_gpu(on_virtual):
    _, out, err = on_virtual("--deep", "--format", "json")
    assert out, err
    (finding,) = of(json.loads(out), "torch-says")
    assert finding["level"] == "fine" and finding["title"].startswith("PyTorch sees Tesla T4 with 14."), finding


# A PyTorch that comes as far as it is reported, and then fails as it is reported.
FAKE_TORCH = """
import os, types

def reach(stage):
    if os.environ["FAKE_TORCH_FAILS_AT"] == stage:
        exec(os.environ["FAKE_TORCH_FAILS_WITH"])

class Tensor:
    def fill_(self, value): reach("kernel")
    def cpu(self): reach("copy")

reach("import")
from torch import version
cuda = types.SimpleNamespace(
    init=lambda: reach("driver"), device_count=lambda: 1, mem_get_info=lambda index: reach("context") or (1 << 30, 2 << 30),
    get_device_name=lambda index: "Tesla T4", synchronize=lambda index: None,
)
def empty(count, device):
    reach("allocation")
    return Tensor()
"""


@pytest.fixture
def fails_at(doctor, nvml, tmp_path):
    """Asks a PyTorch that fails at a stage; gives what it says of that."""
    (tmp_path / "path" / "torch").mkdir(parents=True)
    (tmp_path / "path" / "torch" / "__init__.py").write_text(FAKE_TORCH)
    (tmp_path / "path" / "torch" / "version.py").write_text("__version__ = '2.11.0+cu128'\ncuda = '12.8'\nhip = None\n")

    def run(stage, how="raise RuntimeError('CUDA error: it broke\\nFor debugging consider')", format="text"):
        env = {"PYTHONPATH": str(tmp_path / "path"), "FAKE_TORCH_FAILS_AT": stage, "FAKE_TORCH_FAILS_WITH": how}
        _, reported = doctor("--deep", nvml=nvml, python=sys.executable, format=format, env={**env, "COLUMNS": "300"})
        return reported

    return run


@pytest.mark.parametrize(
    "stage, words",
    [
        ("import", "PyTorch cannot be imported"),
        ("driver", "PyTorch cannot start CUDA"),
        ("context", "PyTorch cannot make a context on cuda:0"),
        ("allocation", "PyTorch's first allocation fails on cuda:0"),
        ("kernel", "PyTorch's first kernel fails on cuda:0"),
        ("copy", "PyTorch's first copy back from the device fails on cuda:0"),
    ],
)
def test_deep_names_the_stage_that_failed(fails_at, stage, words):
    assert f"{words}: RuntimeError: CUDA error: it broke\n" in fails_at(stage)
    # A crash leaves no words but where it was.
    died = fails_at(stage, "os.kill(os.getpid(), 11)")
    assert f"{words}: it ended with signal: 11 (SIGSEGV)" in died


@pytest.mark.parametrize(
    "stage, how, hidden",
    [
        ("import", "raise ImportError('/home/alice/x.so: undefined symbol: y')", "ImportError: undefined symbol"),
        ("driver", "raise RuntimeError('CUDA unknown error - alice')", "RuntimeError: unknown error"),
        ("kernel", "raise RuntimeError('CUDA error: no kernel image is available')", "RuntimeError: no kernel image"),
        ("kernel", "raise RuntimeError('alice')", "RuntimeError"),
        ("copy", "os.kill(os.getpid(), 11)", "it ended with signal: 11 (SIGSEGV)"),
    ],
)
def test_deep_gives_the_same_advice_in_every_format(fails_at, stage, how, hidden):
    (finding,) = of(fails_at(stage, how, "json"), "torch-says")
    text, markdown = fails_at(stage, how), fails_at(stage, how, "markdown")
    # Signals may leave a core behind, and say so.
    assert re.search(rf": {re.escape(hidden)}( \(core dumped\))?$", finding["title"])
    assert "alice" not in json.dumps(finding) + markdown
    assert finding["fix"] in text and finding["fix"] in markdown and f"`{finding['command']}`" in markdown
    assert finding["command"].replace("python ", f"{sys.executable} ") in text


def test_deep_is_fine_where_nothing_fails(fails_at):
    assert "PyTorch sees Tesla T4 with 1.00 GiB of 2.00 GiB free" in fails_at("nowhere")


IN_FORCE = "import torch; torch.zeros(1, device='cuda'); print(torch.cuda.memory._snapshot()['allocator_settings']['max_split_size'] >> 20)"


@pytest.mark.parametrize(
    "variables, value",
    [(("HIP",), 30), (("HIP", ""), 30), (("CUDA", "HIP"), 40), (("CUDA", "HIP", ""), 40), (("",), 50)],
)
def test_the_variable_that_is_said_to_be_read_is_the_one_that_pytorch_reads(oomph, doctor, variables, value):
    sizes = {"CUDA": 40, "HIP": 30, "": 50}
    settings = {f"PYTORCH_{name}_ALLOC_CONF".replace("__", "_"): f"max_split_size_mb:{sizes[name]}" for name in variables}
    environment = {name: value for name, value in os.environ.items() if not NOT_OURS.search(name)}
    code, out, err = oomph("run", "--gpu", "t4", "--no-recording", sys.executable, "-c", IN_FORCE, env={**environment, **settings}, cwd=ROOT)
    assert (code, out.split()) == (0, [str(value)]), err
    _, reported = doctor(python=sys.executable, env=settings)
    (read,) = [finding["title"] for finding in of(reported, "allocator-settings")]
    assert read.endswith(f"=max_split_size_mb:{value}")
    ignored = {finding["title"].split("=")[0] for finding in of(reported, "allocator-variable")}
    assert ignored == set(settings) - {read.split("=")[0]}


# --- limits -----------------------------------------------------------------------------------------------


def test_a_control_group_with_a_small_limit(doctor, python):
    with control_group(4 * GIB) as folder:
        enter = folder / "cgroup.procs"
        _, reported = doctor(python=python(), preexec_fn=lambda: enter.write_text("0"))
    finding = of(reported, "ram")[0]
    assert reported["machine"]["group"]["limit"] == 4 * GIB
    assert finding["level"] == "note" and re.match(r"(3\.\d+|4\.00) GiB of 4\.00 GiB left \(the control group's limit", finding["title"])


def test_a_control_group_that_leaves_too_little(doctor, python):
    with control_group(300 * MIB) as folder:
        enter = folder / "cgroup.procs"
        code, reported = doctor(python=python(), preexec_fn=lambda: enter.write_text("0"))
    assert code == 1 and of(reported, "ram")[0]["level"] == "wrong"
    assert "of 300 MiB left" in of(reported, "ram")[0]["title"]


def test_limits_of_the_shell_are_told(doctor, nvml, python):
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    code, reported = doctor(nvml=nvml, python=python(), preexec_fn=limit)
    assert reported["limits"]["open_files"] == 256
    assert [finding["title"] for finding in of(reported, "process-limits")] == ["a process may open 256 files (ulimit -n)"]


# --- places -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variable, value, place, word",
    [("COLAB_RELEASE_TAG", "release-colab", "colab", "Colab"), ("KAGGLE_KERNEL_RUN_TYPE", "Interactive", "kaggle", "Kaggle"), ("SLURM_JOB_ID", "7", "slurm", "Slurm")],
)
def test_places_are_recognised(doctor, python, variable, value, place, word):
    _, reported = doctor(python=python(), env={variable: value})
    assert place in reported["surroundings"]
    assert any(finding["title"].startswith(f"{word}: ") for finding in of(reported, "surroundings"))


# --- nothing private --------------------------------------------------------------------------------------


@on_the_machine
@pytest.mark.parametrize("format", ["json", "markdown"])
def test_nothing_private_is_in_a_report(doctor, nvml, tmp_path, format):
    secret = "XSECRETX"
    home = tmp_path / f"home-{secret}"
    folder = home / f"cuda-{secret}"
    folder.mkdir(parents=True)
    (folder / "libcudart.so.12").write_text("")
    (folder / "libnvJitLink.so.12").write_text("")
    own = folder / f"run-{secret}"
    shutil.copy(shutil.which("sleep"), own)
    # A Python of the user's, whose answer names places too.
    answer = {
        "version": "3.11.7", "executable": f"{home}/venv/bin/python", "is_environment": True, "is_conda": False, "has_pip": True, "machine": "x86_64",
        "torch": [{"folder": f"{home}/venv/torch", "version": "2.5.0+cu124", "cuda": "12.4", "hip": None}, {"folder": f"{folder}/torch", "version": "2.1.0", "cuda": None, "hip": None}],
        "packages": {"torch": ["2.5.0"]}, "torch_requires": ["nvidia-nccl-cu12==2.21.5"], "toolkit_requires": [], "oomph": "0.0.1",
    }  # fmt: skip
    (home / "answer.json").write_text(json.dumps(answer))
    python = home / "python"
    python.write_text(f"#!/bin/sh\ncat '{home}/answer.json'\n")
    python.chmod(0o755)
    with stopped(str(own), "600") as pid:
        env = {
            "HOME": str(home),
            "MY_TOKEN": secret,
            "AWS_SECRET_ACCESS_KEY": secret,
            "LD_LIBRARY_PATH": str(folder),
            "PYTHONPATH": str(folder),
            "CUDA_VISIBLE_DEVICES": "GPU-fa4e0000-0000-0000-0000-000000000000",
            "PYTORCH_ALLOC_CONF": f"{home}/conf",
            "OMP_NUM_THREADS": f"/{secret}",
            "FAKE_NVML_PROCESSES": f"0,{pid},{18 * GIB};0,{os.getpid()},{GIB}",
        }
        code, out = doctor(nvml=nvml, python=python, env=env, format=format)
        _, text = doctor(nvml=nvml, python=python, env=env, format="text")
    shown = out if isinstance(out, str) else json.dumps(out)
    assert code == 1 and "is stopped and holds 18.0 GiB" in shown and "2 installations" in shown
    for private in (secret, str(home), str(tmp_path), os.path.expanduser("~") + "/", "fa4e0000", f"pid {pid}"):
        assert private not in shown, private
    for name in (os.environ.get("USER") or "root", socket.gethostname(), str(pid)):
        assert not re.search(rf"\b{re.escape(name)}\b", shown), name
    # People at the machine see the names.
    assert secret in text


@pytest.mark.parametrize("format", ["json", "markdown"])
def test_only_what_is_known_is_told_of_versions_settings_and_errors(doctor, python, tmp_path, format):
    folder = tmp_path / "John Q Public"
    folder.mkdir()
    (folder / "y.so").write_text("not a library")
    env = {"PYTORCH_ALLOC_CONF": "alice-smith.acme.example-token-AKIA1234"}
    packages = {"torch": ["2.11.0"], "nvidia-acme-secret": ["1.0"], "triton": ["3.6.0+alice"]}
    code, out = doctor(nvml=folder / "y.so", python=python("2.11.0+alice@buildhost.acme.internal", packages=packages), env=env, format=format)
    shown = out if isinstance(out, str) else json.dumps(out, ensure_ascii=False)
    assert code == 1 and "PyTorch 2.11.0+… refuses" in shown
    for private in ("alice", "acme", "AKIA", "John", "Public", " Q "):
        assert private not in shown, private


@pytest.mark.parametrize("value", ["expandable_segments:True," * 9 + "max_split_size_mb:64", "/home/alice/conf", "expandable_segments:True," * 8 + "expandable_segments:True"])
def test_what_is_hidden_changes_no_level_and_no_exit_code(doctor, python, value):
    for format in ("json", "markdown", "text"):
        code, out = doctor(python=python(), env={"PYTORCH_ALLOC_CONF": value}, format=format)
        if format == "json":
            wrong = out["wrong"]
            assert wrong == len(of_level(out, "wrong"))
        else:
            (first,) = re.findall(r"^\W*(Nothing|\d+) (?:things? )?(?:is|are) ?wrong", out)[:1]
            assert (0 if first == "Nothing" else int(first)) == wrong
        assert code == int(wrong > 0)


# --- how it looks -----------------------------------------------------------------------------------------


def test_json_has_the_documented_keys(doctor, nvml, python):
    _, reported = doctor(nvml=nvml, python=python(), env={"FAKE_NVML_PROCESSES": f"0,{os.getpid()},{GIB}"})
    assert list(reported)[0] == "schema_version"
    assert set(reported) == {
        "schema_version", "wrong", "findings", "oomph", "surroundings", "driver", "driver_cuda", "gpus", "machine", "limits", "python", "settings",
    }  # fmt: skip
    assert all(set(finding) == {"check", "about", "level", "title", "means", "fix", "command"} for finding in reported["findings"])
    card = reported["gpus"][0]
    assert set(card) == {
        "index", "name", "virtual", "total", "used", "reserved", "free", "context", "usable", "compute_capability", "mig", "exclusive", "processes",
    }  # fmt: skip
    assert set(card["processes"][0]) == {"user", "yours", "name", "state", "kind", "bytes"}
    assert set(reported["python"]) == {"version", "virtual_environment", "conda", "torch", "architectures", "packages", "oomph"}
    documented = (ROOT / "docs" / "reference" / "json.md").read_text().partition("## doctor")[2]
    keys = {*reported, *(f"gpus[].{key}" for key in card), *(f"python.{key}" for key in reported["python"])} - {"schema_version"}
    for key in keys:
        assert f"`{key}`" in documented, key


def test_text_fits_a_screen_and_says_what_is_wrong_first(doctor, nvml, python):
    env = {"COLUMNS": "80", "FAKE_NVML_CARDS": f"{24 * GIB},0,0,NVIDIA GeForce RTX 4090", "CUDA_VISIBLE_DEVICES": "3"}
    code, text = doctor(nvml=nvml, python=python(), env=env, format="text")
    lines = text.splitlines()
    assert code == 1 and re.match(r"\d+ things? (is|are) wrong", lines[0])
    assert len(lines) <= 24, text
    assert all(len(line) <= 80 or line.startswith("    ") for line in lines), text
    assert lines.index(next(line for line in lines if line.startswith("wrong"))) == 2
    assert any(re.match(r"GPUs +hidden from programs: GPU 0 \(NVIDIA GeForce RTX 4090", line) for line in lines)


def test_what_a_stranger_called_a_card_or_a_process_moves_no_cursor(doctor, nvml, python):
    env = {"FAKE_NVML_CARDS": f"{24 * GIB},0,0,\x1b[2J\x1b]0;evil\x07card\u202e", "PYTORCH_ALLOC_CONF": "\x1b[31mred"}
    for format in ("text", "markdown", "json"):
        _, shown = doctor(nvml=nvml, python=python(), env=env, format=format)
        shown = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", shown), repr(shown)


def test_checks_are_listed_and_documented(oomph):
    code, out, _ = oomph("doctor", "--checks", "--format", "json")
    names = [check["check"] for check in json.loads(out)["checks"]]
    assert code == 0 and len(names) >= 20 and "torch-and-driver" in names
    _, out, _ = oomph("doctor", "--checks", "--format", "markdown")
    assert out.strip() in (ROOT / "docs" / "reference" / "doctor.md").read_text()
    _, out, _ = oomph("doctor", "--checks")
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == names


# --- from Python ------------------------------------------------------------------------------------------


def test_from_python_it_is_an_object_that_shows_itself(oomph, monkeypatch):
    monkeypatch.setenv("OOMPH_COMMAND", oomph.binary)
    monkeypatch.setenv("OOMPH_NVML", "/nowhere")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    checkup = package.doctor()
    assert not checkup.is_fine and "debugging" in [finding["check"] for finding in checkup.wrong]
    assert checkup.told["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING is set" in repr(checkup)
    assert checkup._repr_html_().startswith("<pre>") and "\x1b" not in checkup.text
