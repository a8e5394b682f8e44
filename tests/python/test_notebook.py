"""The notebook in live kernels of two IPythons, on the virtual GPU: what a cell says, what holds memory, and that it comes back."""

import ast
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import COMMAND, PYTHON_2_11, ROOT
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

MIB = 1 << 20
# Seconds that a cell may take where the machine is busy.
SLOWEST = 120

# Current IPython with a current PyTorch, and what Colab has.
PYTHONS = {"current": sys.executable, "colab": str(PYTHON_2_11)}
# By what a program knows Colab.
ON_COLAB = {"COLAB_RELEASE_TAG": "release-colab", "COLAB_GPU": "1"}


def version_of(python):
    """As its environment has it written down: the tests have it in their names, before anything runs."""
    (version,) = re.findall(r"^version(?:_info)? *= *(\d+\.\d+)", (pathlib.Path(python).parents[1] / "pyvenv.cfg").read_text(), re.MULTILINE)
    return version


SETUP = """
import gc, json, sys
import torch

def block(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

def allocated():
    return torch.cuda.memory_allocated()

block(1)
"""


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}


def on_a_virtual_gpu(python, *program):
    """What runs a program on a virtual T4."""
    return [COMMAND, "run", "--quiet", "--gpu", "t4", "--no-recording", "--python", python, *program]


class Cell:
    """What came of a cell: streams, displayed data, the traceback, and in which order it came."""

    def __init__(self):
        self.stdout, self.stderr, self.shown, self.result, self.traceback, self.order = "", "", [], None, "", []

    @property
    def said(self):
        """Everything that was shown under the cell besides what it printed."""
        return "\n".join(data["text/plain"] for data in self.shown)


class Kernel:
    """A live kernel."""

    def __init__(self, python, **environment):
        command = on_a_virtual_gpu(python, "-m", "ipykernel_launcher", "-f", "{connection_file}")
        self.manager = KernelManager()
        self.manager._kernel_spec = KernelSpec(argv=command, display_name="virtual", language="python")
        self.manager.start_kernel(env={**ENVIRONMENT, **environment})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)

    def stop(self):
        # Asked to end, not killed: what is killed here would leave the kernel itself behind.
        self.manager.shutdown_kernel()
        self.client.stop_channels()

    def run(self, code, fails=None):
        """Runs a cell. It must not fail, unless the error's name is given."""
        # Else an older kernel drops what comes right after an error.
        sent = self.client.execute(textwrap.dedent(code).strip("\n"), stop_on_error=False)
        cell = Cell()
        while True:
            message = self.client.get_iopub_msg(timeout=SLOWEST)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            cell.order.append(kind)
            if kind == "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
            elif kind == "display_data":
                cell.shown.append(content["data"])
            elif kind == "execute_result":
                cell.result = content["data"]
            elif kind == "error":
                cell.traceback = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        # IPython 9 prints groups of exceptions instead of sending them.
        assert self._reply(sent).get("ename") == fails, cell.traceback or cell.stdout
        return cell

    def value(self, expression):
        """The value of an expression, by way of JSON."""
        sent = self.client.execute("", user_expressions={"value": f"json.dumps({expression})"}, stop_on_error=False)
        answer = self._reply(sent)["user_expressions"]["value"]
        assert answer["status"] == "ok", answer
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def _reply(self, sent):
        while True:
            reply = self.client.get_shell_msg(timeout=SLOWEST)
            if reply["parent_header"].get("msg_id") == sent:
                return reply["content"]

    @property
    def allocated(self):
        return self.value("allocated()")


@pytest.fixture(scope="module", params=list(PYTHONS), ids=lambda name: f"{name}-{version_of(PYTHONS[name])}")
def kernel(request):
    started = Kernel(PYTHONS[request.param], **(ON_COLAB if request.param == "colab" else {}))
    started.on = request.param
    started.run(SETUP)
    yield started
    started.stop()


@pytest.fixture
def plain(kernel):
    """A kernel in which the package is imported but not loaded, and which holds nothing."""
    kernel.run("import oomph\n%reload_ext oomph\n%unload_ext oomph")
    kernel.run("torch._C._cuda_clearCublasWorkspaces()\noomph.free()")
    kernel.before = kernel.allocated
    return kernel


@pytest.fixture
def loaded(kernel):
    """A kernel in which it is loaded, and which holds nothing."""
    kernel.run("import oomph\n%reload_ext oomph")
    kernel.run("torch._C._cuda_clearCublasWorkspaces()\noomph.free()")
    kernel.before = kernel.allocated
    return kernel


def without_colours(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def holders(kernel):
    """What who() says: name -> (bytes, kind, how)."""
    return {name: rest for name, *rest in kernel.value("[(row.name, row.bytes, row.kind, row.how) for row in oomph.who().rows]")}


def colabs_python(**environment):
    """Which Python make takes for Colab's, and what it says."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run([shutil.which("make"), "-s", "colabs-python"], cwd=ROOT, env={**here, **environment}, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def test_versions_are_the_ones_that_are_meant(kernel):
    found = kernel.value("[__import__(name).__version__ for name in ('IPython', 'ipykernel', 'jupyter_client', 'torch')]")
    python = kernel.value("'%d.%d' % sys.version_info[:2]")
    assert python == version_of(PYTHONS[kernel.on])
    if kernel.on == "current":
        assert int(found[0].partition(".")[0]) >= 9
        return
    assert found[:3] == ["7.34.0", "6.17.1", "7.4.9"] and found[3].startswith("2.11.0+cu")
    chosen, said = colabs_python()
    # 3.13 as well, unless the machine has none; then make has said so.
    assert python == "3.13" or "no Python 3.13" in said, f"{chosen} is Colab's; make -B .venv-torch2.11/.ready takes it"


def test_where_there_is_no_python_of_colabs_the_tests_own_is_taken_and_that_is_said(tmp_path):
    nowhere = str(tmp_path)
    chosen, said = colabs_python(PATH=nowhere, HOME=nowhere, PYENV_ROOT=nowhere, UV_PYTHON_INSTALL_DIR=nowhere)
    assert version_of(ROOT / chosen) == version_of(ROOT / ".venv/bin/python")
    assert said == "" if version_of(ROOT / chosen) == "3.13" else said.startswith("no Python 3.13, as Colab has, is on this machine; in its place is Python 3.")


def test_importing_changes_nothing():
    script = """
        import sys
        before = set(sys.modules)
        import oomph
        assert not {"torch", "numpy", "IPython", "oomph.notebook", "oomph._who"} & (set(sys.modules) - before)
        assert {"who", "free", "predict"} <= set(dir(oomph))
        oomph.who, oomph.free
        assert "torch" not in sys.modules and "IPython" not in sys.modules
        print(oomph.who())
        print(oomph.free())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No GPU memory is held: this program does not use CUDA (yet)")
    assert "the C library's heap" in done.stdout


def test_the_black_box_knows_which_cell_runs(loaded):
    loaded.run("import oomph._black_box as box\nnotes, real = [], box.note\nbox.note = notes.append")
    loaded.run("# the third\n1 + 1")
    loaded.run("!echo secret")
    loaded.run("box.note = real")
    notes = loaded.value("notes")
    numbered = [note for note in notes if note]
    assert notes[0] == "" and re.fullmatch(r"cell \[\d+\]: # the third", numbered[0]) and re.fullmatch(r"cell \[\d+\]", numbered[1])


# --- what a failed cell held ------------------------------------------------------------------------------

SIMPLE = """
def failing():
    held = block(64)
    raise ValueError("no")
failing()
"""
CHAINED = """
def inner():
    held = block(64)
    raise ValueError("no")
def outer():
    try:
        inner()
    except ValueError as error:
        also_held = block(32)
        raise KeyError("wrapped") from error
outer()
"""
GROUP = """
def one():
    held = block(64)
    raise ValueError("no")
def all_of_them():
    errors = []
    for _ in range(2):
        try:
            one()
        except ValueError as error:
            errors.append(error)
    raise ExceptionGroup("some", errors)
all_of_them()
"""


@pytest.mark.parametrize(
    "code, error, held",
    [(SIMPLE, "ValueError", 64), (CHAINED, "KeyError", 96), (GROUP, "ExceptionGroup", 128)],
    ids=["one", "chained", "group"],
)
def test_a_failed_cell_keeps_its_variables_unless_oomph_is_loaded(plain, code, error, held):
    plain.run(code, fails=error)
    assert plain.allocated == plain.before + held * MIB
    freed = plain.value("[(row.name, row.allocated) for row in oomph.free().rows]")
    assert ["frames of the last errors", held * MIB] in freed
    assert plain.allocated == plain.before

    plain.run("%load_ext oomph")
    cell = plain.run(code, fails=error)
    assert plain.allocated == plain.before
    assert cell.said.splitlines()[0] == f"oomph: freed {held}{'.0' if held < 100 else ''} MiB of GPU memory that the failed cell's variables held"
    if error != "ExceptionGroup":  # Of which IPython 9 remembers no traceback.
        assert "raise " in without_colours(plain.run("%tb").traceback)


def test_a_failed_cell_that_held_nothing_is_not_spoken_of(loaded):
    assert loaded.run("1 / 0", fails="ZeroDivisionError").shown == []


def test_frames_stay_for_a_debugger(loaded):
    """What `%pdb on` sets is set by hand, since a debugger would wait for input."""
    code = """
        from types import SimpleNamespace
        def failing():
            held = block(64)
            raise ValueError("no")
        def after_failing(debugger):
            get_ipython()._call_pdb = debugger
            try:
                failing()
            except ValueError as error:
                get_ipython().events.trigger("post_run_cell", SimpleNamespace(error_in_exec=error, error_before_exec=None))
                get_ipython()._call_pdb = False
                return allocated()
    """
    loaded.run(code)
    assert loaded.value("after_failing(True)") == loaded.before + 64 * MIB
    assert loaded.value("after_failing(False)") == loaded.before


def test_generators_that_can_go_on_are_left_alone(loaded):
    code = """
        def patient():
            kept = block(64)
            try:
                raise ValueError("inside")
            except ValueError as error:
                yield error
            yield kept
        generator = patient()
        raise RuntimeError("outside") from next(generator)
    """
    loaded.run(code, fails="RuntimeError")
    assert loaded.allocated == loaded.before + 64 * MIB
    assert loaded.value("next(generator).numel()") == 64 * MIB
    loaded.run("del generator\noomph.free()")
    assert loaded.allocated == loaded.before


def test_after_an_out_of_memory_everything_is_free_again(loaded):
    cell = loaded.run(
        """
        def train(data):
            activations = block(1024)
            cycle = [activations]
            cycle.append(cycle)
            return block(20 << 10)
        kept = block(16)
        train(kept)
        """,
        fails="OutOfMemoryError",
    )
    assert loaded.allocated == loaded.before + 16 * MIB
    assert "1.00 GiB   98 %  traceback of the last error: activations in train() line 5" in cell.said
    assert "put %%oomph at the top of the cell" in cell.said
    assert "oomph: freed 1.00 GiB of GPU memory" in cell.said
    # And what is free can be had again.
    assert loaded.value("block(13 << 10).numel()") == 13 << 30
    loaded.run("del kept")


# --- what is held -----------------------------------------------------------------------------------------


def test_displayed_values_are_held_until_free_is_asked(plain):
    plain.run("shown = block(64)\nmine = block(16)\n_5000 = mine")
    plain.run("shown")
    plain.run("shown")
    plain.run("del shown")
    assert plain.allocated == plain.before + 80 * MIB
    plain.run("%reset -f out")
    assert plain.allocated == plain.before + 80 * MIB
    rows = plain.value("[(row.name, row.allocated) for row in oomph.free().rows]")
    assert ["displayed values (Out, _)", 64 * MIB] in rows
    assert plain.allocated == plain.before + 16 * MIB
    assert plain.value("_5000 is mine")
    plain.run("del mine, _5000")


def test_free_leaves_alone_what_it_is_told_to(plain):
    plain.run("shown = block(64)")
    plain.run("shown")
    plain.run("del shown")
    plain.run(SIMPLE, fails="ValueError")
    plain.run("oomph.free(outputs=False)")
    assert plain.allocated == plain.before + 64 * MIB
    plain.run(SIMPLE, fails="ValueError")
    plain.run("oomph.free(frames=False)")
    assert plain.allocated == plain.before + 64 * MIB
    plain.run("oomph.free()")
    assert plain.allocated == plain.before


def test_free_returns_the_cache(plain):
    plain.run("big = block(256)\ndel big")
    assert plain.value("torch.cuda.memory_reserved()") >= 256 * MIB
    shown = plain.run("oomph.free()").result
    assert plain.value("torch.cuda.memory_reserved()") < 256 * MIB
    assert "PyTorch's cache                   0 B    256 MiB" in shown["text/plain"]
    assert "<table>" in shown["text/html"]


def test_hiding_places_in_ipython_are_named(plain):
    plain.run("shown = block(64)")
    plain.run("shown")
    number = plain.value("max(Out)")
    (held,) = [row for name, row in holders(plain).items() if name == "shown"]
    assert held[0] == 64 * MIB and f"Out[{number}]" in held[2]
    plain.run("del shown")
    found = holders(plain)
    assert found[f"Out[{number}]"][:2] == [64 * MIB, "output"]
    plain.run(SIMPLE, fails="ValueError")
    assert holders(plain)["traceback of the last error: held in failing() line 3"][:2] == [64 * MIB, "traceback"]
    plain.run("oomph.free()")


def test_variables_are_named_by_path(plain):
    plain.run(
        """
        import functools, json.tool
        class Thing:
            __slots__ = ("inside",)
        class Settings:
            cache = block(1)
        def closing():
            big = block(2)
            return lambda: big
        @functools.lru_cache
        def remembered(mib):
            return block(mib)
        def counting():
            own = block(12)
            yield own
        history = [{"loss": None} for _ in range(13)]
        history[12]["loss"] = block(3)
        closed = closing()
        partial = functools.partial(print, block(4))
        remembered(5)
        thing = Thing()
        thing.inside = block(6)
        for item in [block(7), block(8)]:
            pass
        json.tool.stowed = block(10)
        several = {"a": block(11), "b": block(11)}
        generator = counting()
        next(generator)
        view = several["a"][:5]
        try:
            1 / 0
        except ZeroDivisionError as error:
            error.data = block(9)
            caught = error
        """
    )
    found = {re.sub(r" line \d+\)$", ")", name): rest for name, rest in holders(plain).items()}
    expected = {
        "history[12]['loss']": 3,
        "closed (closure: big)": 2,
        "partial.args[0]": 4,
        "remembered (lru_cache)": 5,
        "thing.inside": 6,
        "item": 8,
        "json.tool.stowed": 10,
        "Settings.cache": 1,
        "several": 22,
        "generator (own in counting())": 12,
        "caught.data": 9,
    }
    assert {name: found.get(name, [0])[0] / MIB for name in expected} == expected
    assert "2 tensors, the largest several['" in found["several"][2] and "also held by view" in found["several"][2]
    plain.run("del history, closed, partial, remembered, thing, item, json.tool.stowed, Settings, several, generator, view, caught")
    plain.run("oomph.free()")
    assert plain.allocated == plain.before


def test_names_are_no_markup(plain):
    plain.run("markup = {'<script>': block(4)}")
    shown = plain.run("oomph.who()").result
    assert "markup['<script>']" in shown["text/plain"]
    assert "<script>" not in shown["text/html"] and "markup[&#x27;&lt;script&gt;&#x27;]" in shown["text/html"]
    plain.run("del markup")


def test_models_and_optimizers_are_told_by_what_they_hold(plain):
    plain.run(
        """
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(block(1).view(torch.float32).view(-1, 1024)[:8].clone()).sum().backward()
        optimizer.step()
        """
    )
    rows = plain.value("[(row.name, row.kind, row.bytes) for row in oomph.who().rows if row.name in ('model', 'optimizer')]")
    assert {(name, kind): size for name, kind, size in rows} == {
        ("model", "parameters"): 4 * MIB,
        ("model", "gradients"): 4 * MIB,
        ("optimizer", "optimizer state"): 8 * MIB,
    }
    assert "1.0M parameters; also held by optimizer" in holders_text(plain)
    plain.run("del model")
    # The optimizer holds all of it still.
    assert sum(size for size, *_ in plain.value("[(row.bytes,) for row in oomph.who().rows if row.name == 'optimizer']")) == 16 * MIB
    plain.run("del optimizer\noomph.free()")


def holders_text(kernel):
    return kernel.run("print(oomph.who())").stdout


def test_a_live_graph_is_named_as_the_holder(plain):
    plain.run(
        """
        weight = block(64).view(torch.float32).requires_grad_()
        loss = (weight.exp().sin()).sum()
        """
    )
    found = holders(plain)
    assert found["weight"] == [64 * MIB, "tensor", "16777216 float32"]
    assert found["loss (graph)"] == [64 * MIB, "graph", "16777216 float32, kept for a backward pass"]
    assert found["loss"][2] == "scalar float32, with its graph"
    assert sum(row[0] for row in found.values()) == plain.allocated
    plain.run("del weight, loss")


def test_a_graph_that_is_gone_holds_nothing(plain):
    """After a backward pass a loss holds itself. What is held is named by the graph that holds it: of a loss that was copied to the CPU, or behind the hooks of a checkpoint."""
    plain.run(
        """
        from torch.utils.checkpoint import checkpoint
        weight = block(16).view(torch.float32).requires_grad_()
        loss = weight.exp().sum()
        loss.backward()
        history = [weight.sin().cos().sum().cpu() for _ in range(2)]
        inner = checkpoint(torch.cos, weight + 1, use_reentrant=False).sum()
        """
    )
    found = holders(plain)
    assert "loss (graph)" not in found and found["loss"] == [512, "tensor", "scalar float32"]
    assert found["history (graphs)"] == [32 * MIB, "graph", "2 tensors, the largest 4194304 float32, kept for a backward pass"]
    assert found["inner (graph)"] == [16 * MIB, "graph", "4194304 float32, kept for a backward pass"]
    assert "not visible to Python" not in found
    # Its leaves it does hold.
    plain.run("del weight, history, inner")
    rows = plain.value("[(row.name, row.bytes, row.how) for row in oomph.who().rows if row.name.startswith('loss')]")
    assert sorted(rows) == [["loss", 512, "scalar float32"], ["loss (graph)", 16 * MIB, "4194304 float32, a leaf of it"], ["loss (graph)", 16 * MIB, "gradients"]]
    plain.run("del loss")
    assert plain.allocated == plain.before


def test_garbage_in_cycles_is_named_and_collected(plain):
    plain.run(
        """
        gc.collect()
        gc.disable()
        class Node:
            pass
        def make():
            node = Node()
            node.itself = node
            node.data = {"tensor": block(64)}
        make()
        """
    )
    found = holders(plain)
    assert found["garbage in cycles (Node)"][:2] == [64 * MIB, "garbage in cycles"]
    # To look is not to touch.
    assert plain.allocated == plain.before + 64 * MIB
    rows = plain.value("[(row.name, row.allocated) for row in oomph.free().rows]")
    assert ["garbage in cycles", 64 * MIB] in rows
    plain.run("gc.enable()")


def test_looking_keeps_nothing_alive_and_survives_strange_objects(plain):
    plain.run(
        """
        class Strange:
            def __getattr__(self, name):
                raise SystemExit(name)
            def __eq__(self, other):
                raise SystemExit("eq")
            def __hash__(self):
                return 1
            def __iter__(self):
                raise SystemExit("iter")
            @property
            def __class__(self):
                raise SystemExit("class")
        class StrangeList(list):
            def __iter__(self):
                raise SystemExit("iter")
            def __len__(self):
                raise SystemExit("len")
        strange = Strange()
        object.__setattr__(strange, "own", block(1))
        strange_list = StrangeList([strange, block(2)])
        keyed = {Strange(): block(3)}
        gc.collect()
        gc.disable()
        def look():
            local = block(64)
            kept = locals()
            names = [row.name for row in oomph.who().rows]
            assert kept["local"] is local, "a function's own locals() are not touched"
            del kept["local"]
            before = torch.cuda.memory_allocated()
            del local, kept
            return names, before - torch.cuda.memory_allocated()
        names, freed = look()
        gc.enable()
        """
    )
    names, freed = plain.value("(names, freed)")
    assert {"strange.own", "strange_list[1]", "keyed[Strange]"} <= set(names)
    assert any(name.startswith("local in look() line") for name in names)
    assert freed == 64 * MIB
    plain.run("del strange, strange_list, keyed")


def test_a_script_has_names_too(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import torch, oomph
            kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            def train():
                local = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
                print(oomph.who())
            train()
        """)
    )
    done = subprocess.run(on_a_virtual_gpu(sys.executable, str(script)), capture_output=True, text=True, env=ENVIRONMENT, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "64.0 MiB   67 %  kept" in done.stdout
    assert "32.0 MiB   33 %  local in train() line 6" in done.stdout


# --- the line after a cell --------------------------------------------------------------------------------


def test_a_cell_that_changes_memory_gets_a_line(loaded):
    loaded.run("torch.cuda.reset_peak_memory_stats()")
    cell = loaded.run("kept = block(512)\nblock(1024)[:0].shape[0]")
    (said,) = cell.shown
    found = re.fullmatch(
        r"oomph: GPU 512 MiB of 14\.6 GiB \(\+512 MiB, peak 1\.50 GiB\) · RAM \S+ [MG]iB of \S+ [MGT]iB \([^)]*\) · \d+\.\d s",
        said["text/plain"],
    )
    assert found, said["text/plain"]
    assert said["text/plain"] in said["text/html"]
    assert loaded.run("del kept").said.startswith("oomph: GPU 0 B of 14.6 GiB (-512 MiB")


def test_pytorchs_own_peak_is_not_disturbed(loaded):
    loaded.run("torch.cuda.reset_peak_memory_stats()\nkept = block(256)\ndel kept")
    loaded.run("kept = block(64)")
    assert loaded.value("torch.cuda.max_memory_allocated()") == loaded.before + 256 * MIB
    loaded.run("del kept")


def test_ram_is_told_as_well(loaded):
    cell = loaded.run("words = b'x' * (200 << 20)")
    assert re.search(r"RAM \S+ [MG]iB of \S+ [GT]iB \(\+20\d MiB", cell.said), cell.said
    assert re.search(r"\(-20\d MiB[,)]", loaded.run("del words").said)


def test_a_quiet_cell_gets_no_line(loaded):
    for code in ("1 + 1", "x = 5", "y = block(1)\ndel y", "print('hello')"):
        assert loaded.run(code).shown == []


def test_it_can_be_told_to_be_quiet_or_off(loaded):
    loaded.run("%oomph quiet")
    assert loaded.run("kept = block(64)").shown == []
    assert "freed 64.0 MiB" in loaded.run(SIMPLE, fails="ValueError").said
    loaded.run("%oomph off")
    assert loaded.run(SIMPLE, fails="ValueError").shown == []
    assert loaded.allocated == loaded.before + 128 * MIB
    status = loaded.run("%oomph status").stdout
    assert "GPU 0: 128 MiB allocated, 1" in status and "oomph is off" in status and "RAM: " in status
    loaded.run("%oomph on")
    assert "oomph: GPU 192 MiB" in loaded.run("more = block(64)").said
    assert "who, free, report, status, on, quiet or off" in loaded.run("%oomph nonsense").stdout
    assert "more" in loaded.run("%oomph who").result["text/plain"]
    assert "64.0 MiB" in loaded.run("%oomph free").result["text/plain"]
    loaded.run("del kept, more")


def test_help_is_a_question_mark_away(loaded):
    payload = loaded.value("get_ipython().object_inspect('%oomph')['docstring']")
    assert "%oomph who       what holds GPU memory now, by variable name" in payload


def test_unloading_undoes_everything(plain):
    state = """dict(
        magics=[kind for kind in ("line", "cell") if "oomph" in get_ipython().magics_manager.magics[kind]],
        hooks=[str(hook) for hooks in get_ipython().events.callbacks.values() for hook in hooks if "oomph" in str(hook)],
        threads=[thread.name for thread in __import__("threading").enumerate() if "oomph" in thread.name],
        limits=__import__("resource").getrlimit(__import__("resource").RLIMIT_DATA),
    )"""
    state = " ".join(state.split())
    before = plain.value(state)
    assert (before["magics"], before["hooks"], before["threads"]) == ([], [], [])
    plain.run("%load_ext oomph")
    during = plain.value(state)
    assert during["magics"] == ["line", "cell"] and len(during["hooks"]) == 2 and during["threads"]
    plain.run("%unload_ext oomph")
    assert plain.value(state) == before
    assert plain.run("kept = block(64)\ndel kept\nkept = block(64)").shown == []
    plain.run("del kept")


# --- %%oomph ----------------------------------------------------------------------------------------------


def test_a_cell_is_explained_with_a_picture(loaded):
    cell = loaded.run("%%oomph\nfirst = block(48)\nsecond = block(80)\nsecond.numel()")
    explained = cell.shown[0]
    assert cell.result["text/plain"] == str(80 * MIB)
    assert "Peak  128 MiB allocated" in explained["text/plain"]
    page = explained["text/html"]
    assert page.startswith('<div class="oomph">') and "<svg" in page and "peak 128 MiB allocated" in page
    assert "http" not in page and "<script" not in page and "src=" not in page
    assert loaded.value("first.numel() + second.numel()") == 128 * MIB
    # The page of the same cell, in a frame of its own.
    shown = loaded.run("%oomph report").result
    frame = shown["text/html"]
    assert frame.startswith('<iframe sandbox="allow-scripts') and frame.endswith("</iframe>") and "<script" not in frame
    page = html.unescape(frame.partition('srcdoc="')[2].rpartition('"')[0])
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n") and "128 MiB" in page and "block(48)" not in page
    assert "oomph.report of " in shown["text/plain"]
    loaded.run("del first, second")


def test_a_cell_that_runs_out_is_explained_after_its_traceback(loaded):
    cell = loaded.run("%%oomph\ndef grow():\n    held = block(128)\n    return block(20 << 10)\ngrow()", fails="OutOfMemoryError")
    explained = cell.shown[0]["text/plain"]
    assert "error OM303: Out of memory: one tensor of 20.0 GiB is made at In[" in explained
    # Cells have the numbers that people know, not the files that IPython pretends them to be.
    assert "ipykernel_" not in explained and "ipython-input" not in explained
    assert cell.order.index("error") < cell.order.index("display_data")
    assert "return block(20 << 10)" in without_colours(cell.traceback)
    assert loaded.allocated == loaded.before
    assert "one tensor of 20.0 GiB" in loaded.run("%oomph report").result["text/html"]
    assert "there is no such file" in loaded.run("%oomph report nowhere.oomph").stdout


def traceback_of(cell):
    """Its lines that say where, without numbers of cells."""
    lines = [line for line in without_colours(cell.traceback).splitlines() if re.match(r"Cell In|File |/|~|  File |  Cell In", line)]
    return [re.sub(r"In\[\d+\]|ipykernel_\d+/\d+", "", line).replace("<cell line: 0>()", "<module>") for line in lines]


def test_an_error_in_an_explained_cell_is_an_error(loaded):
    code = "def inverse(of):\n    return 1 / of\ninverse(0)"
    cell = loaded.run(f"%%oomph\n{code}", fails="ZeroDivisionError")
    assert cell.shown == []
    again = loaded.run("%tb")
    # As without the magic: two frames of the cell's own. Then they are cleared.
    without = traceback_of(loaded.run(code, fails="ZeroDivisionError"))
    assert len(without) == 2 and traceback_of(cell) == without
    assert traceback_of(again) == [line.replace("(of)", "(***failed resolving arguments***)") for line in without]
    broken = loaded.run("%%oomph\nx =", fails="SyntaxError")
    assert len(traceback_of(broken)) == 1 and "_magics" not in broken.traceback and "x =" in without_colours(broken.traceback)
    # One that comes up while the cell runs has the line that led to it.
    inside = loaded.run("%%oomph\nexec('a b')", fails="SyntaxError")
    plain = traceback_of(loaded.run("exec('a b')", fails="SyntaxError"))
    assert "_magics" not in inside.traceback and "exec('a b')" in without_colours(inside.traceback)
    assert len(traceback_of(inside)) == len(plain), (inside.traceback, plain)
    assert "Peak" not in loaded.run(SIMPLE, fails="ValueError").said
    assert loaded.value("get_ipython().custom_exceptions") == []


def test_what_colab_says_below_an_import_error_stays(loaded):
    """Its shell has a handler for these errors, as google.colab._shell_customizations does it."""
    loaded.run(
        """
        def handle_error(shell, kind, error, traceback, tb_offset=None):
            lines = shell.InteractiveTB.structured_traceback(kind, error, traceback, tb_offset=tb_offset)
            shell._showtraceback(kind, error, [*lines, "", "NOTE: If your import is failing"])
        get_ipython().set_custom_exc((ImportError,), handle_error)
        """
    )
    for code in ("import nowhere", "%%oomph\nimport nowhere"):
        cell = loaded.run(code, fails="ModuleNotFoundError")
        assert cell.traceback.endswith("\n\nNOTE: If your import is failing")
    assert "NOTE" not in loaded.run("%%oomph\n1 / 0", fails="ZeroDivisionError").traceback
    assert loaded.value("[kind.__name__ for kind in get_ipython().custom_exceptions]") == ["ImportError"]
    loaded.run("get_ipython().set_custom_exc((), None)")


def test_an_out_of_memory_in_an_explained_cell_shows_what_functions_were_called_with(loaded):
    """IPython reads arguments out of the frames, which are not cleared before it has, whatever the error passes on its way."""
    code = "def grow(gib):\n    with torch.no_grad():\n        return block(gib << 10)\ngrow(20)"
    cell = loaded.run(f"%%oomph\n{code}", fails="OutOfMemoryError")
    shown = without_colours(cell.traceback)
    assert "failed resolving arguments" not in shown
    assert len(traceback_of(cell)) == 3 and "grow(gib)" in shown and "block(mib)" in shown
    assert loaded.allocated == loaded.before


def test_what_the_magics_do_not_take_is_said_in_a_line(loaded):
    loaded.run("ran = False")
    cell = loaded.run("%%oomph who --all\nran = True", fails="UsageError")
    assert cell.traceback == "" or "_magics" not in cell.traceback
    assert "%%oomph takes no words, and got 'who --all'" in cell.stderr + cell.traceback and not loaded.value("ran")
    cell = loaded.run("%oomph report 'cell.oomph", fails="UsageError")
    assert "%oomph report 'cell.oomph: a quotation mark is not closed" in cell.stderr + cell.traceback and "shlex" not in cell.traceback


# --- once the recorder is in the process, to its end --------------------------------------------------------


def test_an_out_of_memory_during_a_recording_is_explained_by_it(loaded, tmp_path):
    loaded.run(f"recording = oomph.record({str(tmp_path / 'cells.oomph')!r}, quiet=True)\nkept = block(8)")
    cell = loaded.run("block(20 << 10)", fails="OutOfMemoryError")
    loaded.run("recording.stop()\ndel recording, kept")
    assert "error OM303: Out of memory: one tensor of 20.0 GiB is made at In[" in cell.said
    assert cell.order.index("error") < cell.order.index("display_data")
