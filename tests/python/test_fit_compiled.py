"""Compiled models under oomph.fit: what is compiled is known, keeps less under a budget that prediction has chosen, and computes the same.

On the CPU, Inductor's graphs are run as they are: its passes and its partitioner do all they do, and no C++ is compiled. On the virtual GPU it makes its own code.
"""

import copy

import pytest

torch = pytest.importorskip("torch")
import oomph  # noqa: E402
from oomph.fitting.planning.payload import pack, unpack  # noqa: E402
from oomph.fitting.planning.plan import Measured, Plan  # noqa: E402
from oomph.fitting.planning.search import Facts, Search  # noqa: E402
from oomph.fitting.techniques.blocks import find_blocks  # noqa: E402
from oomph.fitting.techniques.checkpoints import checkpoint_blocks  # noqa: E402
from oomph.fitting.techniques.compiled import BUDGETS, Compiled, budgets_for, compiled_modules, inside_compiled, is_of_one_graph  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Block(nn.Module):
    def __init__(self, width, drop):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(drop)

    def forward(self, x):
        return x + self.drop(self.down(self.drop(nn.functional.gelu(self.up(self.norm(x))))))


class Net(nn.Module):
    def __init__(self, width=32, layers=2, drop=0.0):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, drop) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def settings(monkeypatch):
    """PyTorch's settings for compiled code, with graphs that are run as they are."""
    import torch._functorch.config as settings
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._inductor import compile_fx

    made = compile_fx.compile_fx
    monkeypatch.setattr(compile_fx, "compile_fx", lambda *args, **kwargs: made(*args, **{**kwargs, "inner_compile": lambda graph, *_, **__: make_boxed_func(graph.forward)}))
    torch._dynamo.reset()
    yield settings
    assert settings.activation_memory_budget == 1.0
    torch._dynamo.reset()


INPUT = torch.linspace(-2, 2, 8 * 16 * 32).view(8, 16, 32)


def mean_square(model, batch):
    return model(batch).square().mean()


def trained(plan, drop=0.0, compiled=torch.compile):
    """The gradients of a step under a plan, and the bytes that it kept for the backward pass."""
    torch.manual_seed(0)
    plain = Net(drop=drop)
    model = compiled(plain)
    own = {parameter.data_ptr() for parameter in model.parameters()} | {INPUT.data_ptr()}
    kept = {}

    def keep(tensor):
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    fit = oomph.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=INPUT, loss=mean_square, plan=plan, quiet=True)
    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        fit.backward(INPUT)
    fit.close()
    return torch.cat([parameter.grad.flatten() for parameter in plain.parameters()]), sum(kept.values())


def in_place(model):
    model.compile()
    return model


@pytest.mark.parametrize("compiled", (torch.compile, in_place))
def test_a_budget_keeps_less_with_the_same_gradients(settings, compiled):
    expected, _ = trained(Plan(), compiled=lambda model: model)
    same, whole = trained(Plan(), compiled=compiled)
    found = [trained(Plan(activation_budget=budget), compiled=compiled) for budget in (0.4, 0.1)]
    torch.testing.assert_close(same, expected)
    for gradients, _ in found:
        torch.testing.assert_close(gradients, expected)
    kept = [kept for _, kept in found]
    assert kept[1] < kept[0] <= 0.4 * whole and kept[1] <= 0.12 * whole
    assert (settings.activation_memory_budget, torch._inductor.config.joint_custom_post_pass) == (1.0, None)


def test_random_numbers_are_drawn_once(settings):
    # As numbers: PyTorch draws those of a dropout that it computes again anew.
    with torch._inductor.config.patch(fallback_random=True):
        expected, whole = trained(Plan(), drop=0.5)
        gradients, kept = trained(Plan(activation_budget=0.1), drop=0.5)
    torch.testing.assert_close(gradients, expected)
    assert kept < 0.6 * whole
    # As Inductor draws them, from a seed for each of four dropouts, eight bytes long: the seeds are kept.
    assert trained(Plan(activation_budget=0.1), drop=0.5)[1] == trained(Plan(activation_budget=0.1))[1] + 4 * 8


def test_a_pass_of_the_programs_own_is_called_too(settings):
    called = []
    own = called.append
    with torch._inductor.config.patch(joint_custom_post_pass=own):
        trained(Plan(activation_budget=0.4))
        assert len(called) == 1 and torch._inductor.config.joint_custom_post_pass is own


def test_what_is_compiled_is_known():
    whole, blocks, plain = torch.compile(Net()), Net(), Net()
    blocks.layers[0] = torch.compile(blocks.layers[0])
    blocks.layers[1].compile(fullgraph=True)
    assert inside_compiled(whole, find_blocks(whole)) == ["_orig_mod.layers.0", "_orig_mod.layers.1"]
    assert list(compiled_modules(blocks)) == ["layers.0", "layers.1"]
    assert inside_compiled(blocks, ["layers.0", "layers.1", "layers.0._orig_mod.up", "layers.1.up"]) == ["layers.0._orig_mod.up", "layers.1.up"]
    assert (is_of_one_graph(whole), is_of_one_graph(blocks), is_of_one_graph(plain)) == (False, True, False)
    assert (budgets_for(whole), budgets_for(blocks), budgets_for(plain)) == (BUDGETS, BUDGETS, ())
    # Other backends do not keep random numbers, or do not know a budget.
    assert budgets_for(torch.compile(Net(), backend="aot_eager")) == ()
    with pytest.raises(oomph.FitError, match="not compiled by Inductor"):
        oomph.fit(plain, torch.optim.SGD(plain.parameters(), lr=0.1), batch=INPUT, loss=mean_square, plan=Plan(activation_budget=0.4), quiet=True)


def test_only_budgets_below_the_programs_own_are_tried(settings):
    with settings.patch(activation_memory_budget=0.5):
        assert budgets_for(torch.compile(Net())) == (0.4, 0.2, 0.1)


def test_modules_compiled_in_place_arrive_as_such():
    model = Net()
    model.layers[1].compile(fullgraph=True, dynamic=False)
    things = unpack(pack({"model": model, "compiled": Compiled.of(model)}))
    sent = things["model"]
    assert compiled_modules(sent) == {}
    things["compiled"].restore(sent)
    assert list(compiled_modules(sent)) == ["layers.1"] and is_of_one_graph(sent)
    assert Compiled.of(Net()) is None


@pytest.mark.parametrize("theirs", [None, "own", "own/virtual-gpu"])
def test_what_is_compiled_for_a_virtual_gpu_is_not_found_by_programs_on_a_card(predict, tmp_path, theirs):
    (tmp_path / "train.py").write_text("import os, torch\ntorch.zeros(1, device='cuda')\nopen('said', 'w').write(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n")
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / theirs) if theirs else "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert predict("train.py", cwd=tmp_path, env=variables).code == 0
    assert (tmp_path / "said").read_text() == str(tmp_path / ("own/virtual-gpu" if theirs else "cache/oomph/inductor/virtual-gpu"))


def test_a_block_that_is_compiled_in_place_stays_compiled_under_a_checkpoint():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = Net()
    expected = torch.autograd.grad(mean_square(model, INPUT), list(model.parameters()))
    for layer in model.layers:
        layer.compile(backend=backend, fullgraph=True)
    code = [layer._compiled_call_impl for layer in model.layers]
    around = checkpoint_blocks(model, find_blocks(model))
    found = torch.autograd.grad(mean_square(model, INPUT), list(model.parameters()))
    assert graphs and list(compiled_modules(model)) == ["layers.0", "layers.1"]
    torch.testing.assert_close(found, expected)
    around.undo()
    assert [layer._compiled_call_impl for layer in model.layers] == code
    assert copy.deepcopy(model)(INPUT).shape == INPUT.shape
    torch._dynamo.reset()


def test_budgets_that_need_more_again_are_left_out():
    """A peak does not fall with the budget: these are Inductor's for a transformer of six layers on the virtual GPU, in MiB."""
    peaks = {None: 1896, 0.8: 1381, 0.6: 1332, 0.4: 1296, 0.2: 1053, 0.05: 1316, 0.01: 1972}
    run = []

    def search(limit):
        def measure(plan):
            run.append(plan.activation_budget)
            return Measured(plan, peaks[plan.activation_budget], peaks[plan.activation_budget], 0.0)

        facts = Facts(1, (), limit, 2 * limit, 0, splits=False, expands=False, fuses=False, hosts=False, budgets=tuple(peaks)[1:])
        return Search(facts, measure, lambda plan: 2 - (plan.activation_budget or 1), lambda plan: (0, 1))

    assert search(1000).budgets() == [0.8, 0.6, 0.2]
    assert search(1100).find().chosen.plan == Plan(activation_budget=0.2)
    assert search(1350).find().chosen.plan == Plan(activation_budget=0.6)
    run.clear()
    assert search(1900).find().chosen.plan == Plan() and set(run) == {None}
    assert search(1000).find().chosen is None


def test_a_model_that_is_compiled_is_planned_as_such():
    """In the child Inductor compiles for the virtual GPU; here nothing is compiled."""
    model = Net(width=64, layers=3)
    model.compile()
    with torch.compiler.set_stance("force_eager"):
        fit = oomph.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), batch=torch.zeros(1, 1 << 16, 64), loss=mean_square, gpu="t4", budget="680MiB", quiet=True)
    found = fit.plan.found
    assert fit.plan.chosen.activation_budget in BUDGETS and not fit.plan.chosen.checkpoint
    assert found.chosen.reserved <= fit.plan.room.limit < found.plain.reserved
    assert found.plain.allocated - found.chosen.allocated > 100 << 20
    assert "3 blocks are inside compiled code" in "\n".join(fit.plan.notes)
    assert "compiled code keeps at most" in str(fit.plan)
    assert Plan.from_dict(fit.plan.to_dict()["chosen"]) == fit.plan.chosen
    fit.close()
