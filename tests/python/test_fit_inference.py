"""Inference that fits: parts give what the whole gives, weights travel, an out-of-memory loses nothing, weights take less."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]

from oomph.fitting.errors import FitError, NotSplittable  # noqa: E402
from oomph.fitting.inference import fit_inference  # noqa: E402
from oomph.fitting.planning.inference_plan import InferencePlan  # noqa: E402
from oomph.fitting.running.inference import FitInference  # noqa: E402
from oomph.fitting.running.outputs import join, pad_and_join  # noqa: E402
from oomph.fitting.techniques.weight_stream import WeightStream  # noqa: E402
from oomph.fitting.techniques.weights import bf16_weights, prune, quantize_weights, weight_bytes, why_not_semi_structured  # noqa: E402
from torch import nn  # noqa: E402

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(x))) * self.scale


class Net(nn.Module):
    def __init__(self, width=32, blocks=6):
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.fails_above = None
        self.calls = []

    def forward(self, x):
        self.calls.append(len(x))
        if self.fails_above is not None and len(x) > self.fails_above:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


class Pair(NamedTuple):
    one: torch.Tensor
    two: torch.Tensor


def test_outputs_of_parts_are_joined():
    one, two = torch.ones(2, 3), torch.zeros(1, 3)
    assert torch.equal(join([one, two], [2, 1]), torch.cat([one, two]))
    joined = join([{"a": (one, one), "n": None, "k": 3}, {"a": (two, two), "n": None, "k": 3}], [2, 1])
    assert joined["n"] is None and joined["k"] == 3 and joined["a"][1].shape == (3, 3)
    assert join([Pair(one, one), Pair(two, two)], [2, 1]).two.shape == (3, 3)
    assert join([["x", "y"], ["z"]], [2, 1]) == ["x", "y", "z"]
    with pytest.raises(NotSplittable, match="leave the labels out"):
        join([torch.tensor(1.0), torch.tensor(2.0)], [2, 1])
    padded = pad_and_join([torch.tensor([[1, 2]]), torch.tensor([[3, 4, 5], [6, 7, 8]])], 9)
    assert padded.tolist() == [[1, 2, 9], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("streamed", [0, 1, 4, 6])
def test_parts_and_travelling_weights_give_what_the_whole_gives(net, streamed):
    net.train()
    x = torch.randn(10, 16)
    whole = net(x).detach()
    names, parameters = list(net.state_dict()), [id(p) for p in net.parameters()]
    fitted = FitInference(net, CPU, InferencePlan(size=3, streamed=streamed), 10)
    net.calls.clear()
    for _ in range(2):
        torch.testing.assert_close(fitted(x), whole, rtol=1e-5, atol=1e-6)
    assert net.calls == [3, 3, 3, 1] * 2 and not net.training
    assert "4 parts of 3" in fitted.plan
    fitted.undo()
    fitted.undo()
    assert net.training and list(net.state_dict()) == names and [id(p) for p in net.parameters()] == parameters
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in net.blocks)
    assert torch.equal(net(x), whole)


def test_more_or_fewer_weights_may_travel(net):
    x = torch.randn(4, 16)
    whole = net(x).detach()
    stream = WeightStream(net, CPU, 2)
    one = sum(t.nbytes for t in [*net.blocks[0].parameters(), *net.blocks[0].buffers()])
    for count in (2, 6, 0, 3):
        stream.stream(count)
        assert count * one <= stream.bytes_on_host <= count * (one + 8192)
        with torch.inference_mode():
            assert torch.equal(net(x), whole)
    stream.undo()
    assert torch.equal(net(x), whole)


def test_weights_that_others_share_stay(net):
    net.blocks[2].wide.weight = net.blocks[0].wide.weight
    x = torch.randn(4, 16)
    whole = net(x).detach()
    stream = WeightStream(net, CPU, 6)
    with torch.inference_mode():
        assert torch.equal(net(x), whole)
    stream.undo()
    assert net.blocks[2].wide.weight is net.blocks[0].wide.weight


def test_out_of_memory_leads_down_and_loses_nothing(net):
    x = torch.randn(10, 16)
    whole = net(x).detach()
    fitted = FitInference(net, CPU, InferencePlan(), 10)
    net.calls.clear()
    net.fails_above = 3
    torch.testing.assert_close(fitted(x), whole, rtol=1e-5, atol=1e-6)
    assert net.calls == [10, 5, 3, 3, 3, 1]
    assert len(fitted.history) == 2 and "parts of 3" in fitted.history[-1]
    net.fails_above = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fitted(x)
    assert fitted.chosen.streamed == 6
    net.fails_above = None
    torch.testing.assert_close(fitted(x), whole, rtol=1e-5, atol=1e-6)
    fitted.undo()
    assert torch.equal(net(x), whole)


def test_an_error_of_the_program_is_passed_on(net):
    fitted = FitInference(net, CPU, InferencePlan(size=2, streamed=6), 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fitted(torch.zeros(4, 5))
    assert fitted(torch.zeros(4, 16)).shape == (4, 3)


class Writer(Net):
    """Generates as many tokens as the first number of a row says."""

    generation_config = type("Config", (), {"pad_token_id": None, "eos_token_id": [7, 8]})()

    def generate(self, input_ids, max_new_tokens, **options):
        self.calls.append((len(input_ids), options))
        if self.fails_above is not None and len(input_ids) > self.fails_above:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        longest = min(max_new_tokens, int(input_ids[:, 0].max()))
        return torch.cat([input_ids, torch.ones(len(input_ids), longest, dtype=torch.long)], dim=1)


def test_generation_runs_in_parts_and_is_padded():
    model = Writer()
    ids = torch.tensor([[1, 0], [1, 0], [3, 0]])
    fitted = FitInference(model, CPU, InferencePlan(size=2), 3)
    assert fitted.generate({"input_ids": ids}, max_new_tokens=5).tolist() == [[1, 0, 1, 7, 7], [1, 0, 1, 7, 7], [3, 0, 1, 1, 1]]
    assert fitted.generate(ids, max_new_tokens=2, pad_token_id=0).tolist() == [[1, 0, 1, 0], [1, 0, 1, 0], [3, 0, 1, 1]]
    model.calls.clear()
    model.fails_above = 0
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fitted.generate(ids, max_new_tokens=2)
    assert model.calls[:3] == [(2, {}), (1, {}), (1, {"cache_implementation": "offloaded"})]


def test_what_is_allowed_must_be_known(net):
    with pytest.raises(FitError, match="what can be allowed is 'bf16-weights'"):
        fit_inference(net, torch.zeros(2, 16), allow=["magic"])
    with pytest.raises(FitError, match="max_new_tokens"):
        fit_inference(net, torch.zeros(2, 16), generate={})


# -- weights


def test_bf16_weights_stay_the_optimizers(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    parameters, before = list(net.parameters()), weight_bytes(net)
    done = bf16_weights(net, optimizer)
    assert (done.bytes_before, done.bytes_after, done.saved) == (before, before // 2, before // 2)
    assert all(now is was and now.dtype == torch.bfloat16 for now, was in zip(net.parameters(), parameters))
    optimizer.zero_grad()
    output = net(torch.randn(4, 16))
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    value = parameters[0].detach().clone()
    optimizer.step()
    assert optimizer.state[parameters[0]]["exp_avg"].dtype == torch.bfloat16
    assert not torch.equal(value, parameters[0])
    trained = parameters[0].detach().float()
    done.undo()
    done.undo()
    assert torch.equal(parameters[0], trained) and weight_bytes(net) == before
    net(torch.randn(4, 16)).sum().backward()
    optimizer.step()


def test_pruning_says_that_zeros_save_nothing(net):
    weight = net.first.weight
    before, values, names = weight_bytes(net), weight.detach().clone(), set(net.state_dict())
    done = prune(net, 0.25)
    assert done.saved == 0 and weight_bytes(net) == before and "zeros save no memory" in done.note
    assert net.first.weight is weight and (weight == 0).sum() == weight.numel() // 4 and set(net.state_dict()) == names
    done.undo()
    assert torch.equal(net.first.weight, values)
    with pytest.raises(FitError, match="no linear layer has fp16 or bf16"):
        prune(net, semi_structured=True)
    with pytest.raises(FitError, match="between 0 and 1"):
        prune(net, 2)


def test_it_says_why_no_weights_can_be_left_out(net):
    assert why_not_semi_structured(net, (7, 5)).endswith("compute capability 8.0 or newer, and this one has 7.5")
    assert why_not_semi_structured(net, (8, 0), halved=True) == "no linear layer has fp16 or bf16 weights in multiples of 64"
    wide = Net(64, 1)
    assert why_not_semi_structured(wide, (8, 0)).endswith("in multiples of 64, but some would with weights in bf16")
    assert why_not_semi_structured(wide, (8, 0), halved=True) is None and why_not_semi_structured(wide.half(), (9, 0)) is None


def test_without_a_quantiser_it_says_what_to_install(net, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(FitError, match="pip install torchao"):
        quantize_weights(net)
    with pytest.raises(FitError, match="8 or 4 bits"):
        quantize_weights(net, bits=3)


@pytest.mark.parametrize("bits, share, error", [(8, 0.52, 0.03), (4, 0.32, 0.3)])
def test_fewer_bits_are_nearly_the_same(bits, share, error):
    pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).bfloat16()
    x = torch.randn(8, 256, dtype=torch.bfloat16)
    with torch.inference_mode():
        exact = model(x)
        layers = list(model)
        done = quantize_weights(model, bits)
        assert done.bytes_after < share * done.bytes_before and done.bytes_after == weight_bytes(model)
        assert (model(x) - exact).abs().max() < error * exact.abs().max()
        done.undo()
        assert list(model) == layers and torch.equal(model(x), exact)


# -- on a GPU

ON_GPU = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch
from test_fit_inference import Net
from oomph.fitting.errors import FitError
from oomph.fitting.planning.inference_plan import InferencePlan
from oomph.fitting.running.inference import FitInference
from oomph.fitting.techniques.weights import prune, quantize_weights

MiB = 1 << 20
out = {}
model = Net(1024, 8)
device = torch.device("cuda:0")
x = torch.empty(64, 16)
with torch.inference_mode():
    model.cuda()(x.cuda())  # cuBLAS takes its workspace.
base = torch.cuda.memory_allocated()
out["weights"] = sum(t.nbytes for t in model.state_dict().values()) // MiB
model.cpu()
fitted = FitInference(model, device, InferencePlan(streamed=8), 64)
idle = torch.cuda.memory_allocated()
peaks = []
for _ in range(3):
    torch.cuda.reset_peak_memory_stats()
    fitted(x)
    peaks.append((torch.cuda.max_memory_allocated() - idle) // MiB)
out["peaks"], out["left"] = peaks, (torch.cuda.memory_allocated() - idle) // MiB
out["pinned"] = model.blocks[3].wide.weight.is_pinned()
fitted.undo()
out["back"] = model.blocks[3].wide.weight.device.type

# What is left is not enough for the weights: the model is on the GPU in part, and a real out-of-memory leads there.
fitted = FitInference(model, device, InferencePlan(), 64)
torch.cuda.empty_cache()
hog = torch.empty(torch.cuda.mem_get_info()[0] - 24 * MiB, dtype=torch.uint8, device="cuda")
big = torch.empty(4096, 16)
out["shape"] = list(fitted(big).shape)
out["parts"] = fitted.chosen.size
del hog
fitted.undo()

model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()).half().cuda()
try:
    done = prune(model, semi_structured=True)
    out["sparse"] = [done.bytes_before, done.bytes_after]
except FitError as error:
    out["sparse"] = str(error)
print(json.dumps(out))
"""


@pytest.fixture
def on_gpu(on_virtual_gpu):
    def run(gpu, program=ON_GPU):
        done = on_virtual_gpu("-c", program, ROOT / "python", Path(__file__).parent, gpu=gpu)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


PRUNED = """
import json, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch
from test_fit_inference import Net
from oomph.fitting.planning.inference_plan import InferencePlan
from oomph.fitting.running.inference import FitInference

model, device = Net(1024, 8).bfloat16(), torch.device("cuda:0")
x = torch.empty(64, 16, dtype=torch.bfloat16)
weight = model.blocks[3].wide.weight
torch.cuda.reset_peak_memory_stats()
fitted = FitInference(model, device, InferencePlan(pruned=True), 64)
MiB = 1 << 20
out = {"held": torch.cuda.memory_allocated() // MiB, "peak": torch.cuda.max_memory_allocated() // MiB, "saved": fitted.pruning.saved // MiB}
out["shape"] = list(fitted(x).shape)
fitted.undo()
out["back"] = [model.blocks[3].wide.weight is weight, weight.device.type, list(weight.shape)]
print(json.dumps(out))
"""


def test_pruned_weights_never_are_on_the_gpu_in_full(on_gpu):
    out = on_gpu("a100-40gb", PRUNED)
    assert out == {"held": 72, "peak": out["peak"], "saved": 56, "shape": [64, 3], "back": [True, "cpu", [4096, 1024]]}
    assert 72 <= out["peak"] < 120


def test_on_a_gpu_two_blocks_are_there_at_a_time(on_gpu):
    out = on_gpu("t4")
    assert out["weights"] == 256
    # A block has 32 MiB; the next one comes while one runs.
    assert 64 <= min(out["peaks"]) and max(out["peaks"]) <= 68 and out["peaks"][1] == out["peaks"][2]
    assert out["left"] <= 1 and out["pinned"] and out["back"] == "cpu"
    assert out["shape"] == [4096, 3] and 0 < out["parts"] < 4096
    assert "compute capability 8.0" in out["sparse"]


@pytest.fixture
def planned_warm(warm, monkeypatch):
    """Plans are made by a Python that has imported PyTorch already."""
    monkeypatch.setattr(sys, "executable", warm(sys.executable))


@pytest.mark.usefixtures("planned_warm")
def test_a_plan_is_found_without_a_gpu(net, capsys):
    model = Net(1024, 8)  # 256 MiB of weights.
    example = torch.zeros(512, 64, 16)
    fitted = fit_inference(model, example, gpu="t4", budget="400MiB")
    assert 0 < fitted.chosen.streamed <= 8 and 0 < fitted.chosen.size <= 256
    assert "predicted on Tesla T4" in fitted.plan and "weights of" in capsys.readouterr().err
    fitted.undo()
    with pytest.raises(FitError, match="nothing fits") as refused:
        fit_inference(model, example, gpu="t4", budget="200MiB")
    assert 200 << 20 < refused.value.least < 400 << 20


@pytest.mark.usefixtures("planned_warm")
def test_pruning_is_planned_where_the_card_has_it(net):
    model, example = Net(1024, 8).bfloat16(), torch.zeros(64, 16, dtype=torch.bfloat16)  # 128 MiB of weights, 72 when they are pruned.
    fitted = fit_inference(model, example, gpu="a100-40gb", budget="600MiB", allow=["pruning"], quiet=True)
    assert fitted.chosen.pruned and not fitted.chosen.streamed
    assert "two of every four weights dropped (allowed)" in fitted.plan and "pruning saves 56.0 MiB of weights" in fitted.plan
    fitted.undo()
    with pytest.raises(FitError, match="pruning saves nothing here: .* compute capability 8.0 or newer, and this one has 7.5"):
        fit_inference(model, example, gpu="t4", budget="150MiB", allow=["pruning"], quiet=True)
