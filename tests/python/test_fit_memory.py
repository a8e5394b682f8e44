"""What `oomph.fit` does about activations: the blocks it finds, that checkpointing and offloading change no bit, and what they save."""

import copy
import json
import pickle
import textwrap

import pytest

torch = pytest.importorskip("torch")
from oomph.fitting.techniques.activations import HostMemory, offload_blocks  # noqa: E402
from oomph.fitting.techniques.blocks import find_blocks, get_block  # noqa: E402
from oomph.fitting.techniques.checkpoints import checkpoint_blocks  # noqa: E402
from torch import nn  # noqa: E402

MIB = 1 << 20


pytestmark = pytest.mark.usefixtures("one_thread")


class Layer(nn.Module):
    """Has all that computing twice can get wrong: chance, statistics, vectors that each forward changes, and views."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.tame = nn.utils.parametrizations.spectral_norm(nn.Linear(width, 3 * width))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, hidden, *, scale, also=None):
        query, key, value = self.tame(self.norm(hidden)).chunk(3, dim=-1)
        mixed = self.out(torch.sigmoid(query) * torch.tanh(key) + value)
        return hidden + self.drop(mixed) * scale["by"], also


class Net(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.inside = nn.Linear(8, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.outside = nn.Linear(width, 1)

    def forward(self, given):
        hidden, scale = self.inside(given), {"by": torch.tensor(0.5)}
        for layer in self.layers:
            hidden, _ = layer(hidden, scale=scale, also=given)
        # A layer that is called twice in a forward.
        hidden, same = self.layers[0](hidden, scale=scale, also=hidden)
        return self.outside(hidden + 0.1 * same)


def trained(model, prepare=lambda model: (), steps=20, rows=300, given=lambda rows: torch.randn(rows, 8)):
    """Trains a copy of a model; gives its losses, and its state once all is undone."""
    model = copy.deepcopy(model)
    undo = prepare(model)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        out = model(given(rows))
        loss = (out if isinstance(out, torch.Tensor) else out.loss).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for each in undo:
        each.undo()
        each.undo()
    return losses, model.state_dict()


def assert_same(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for name, value in one[1].items():
        assert torch.equal(value, other[1][name]), name


def checkpointed(model):
    return (checkpoint_blocks(model, find_blocks(model)),)


def offloaded(model):
    return (offload_blocks(model, find_blocks(model)),)


def both(model):
    # In this order: what is put on first must not end up on the inside.
    return (offload_blocks(model, find_blocks(model)), checkpoint_blocks(model, find_blocks(model)))


# --- blocks -----------------------------------------------------------------------------------------------


def test_blocks_of_lists_and_sequentials():
    assert find_blocks(Net(depth=3)) == ["layers.0", "layers.1", "layers.2"]
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, batch_first=True), num_layers=2)
    assert find_blocks(encoder) == ["layers.0", "layers.1"]
    stages = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Layer(4), Layer(4)), nn.Sequential(Layer(4)))
    assert find_blocks(stages) == ["1.0", "1.1", "2.0"]
    assert find_blocks(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == []


def test_blocks_of_wrapped_models():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    wrapped = Wrapper(Net(depth=2))
    assert find_blocks(wrapped) == ["module.layers.0", "module.layers.1"]
    assert get_block(wrapped, "module.layers.1") is wrapped.module.layers[1]
    assert find_blocks(torch.compile(Net(depth=2), backend="eager")) == ["_orig_mod.layers.0", "_orig_mod.layers.1"]


def test_parts_of_a_block_are_no_blocks():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(4, 4)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 4)) for _ in range(4))

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.ModuleList([Layer(4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())])

    for kind in (Experts, Parts):
        kind.forward = lambda self, hidden: hidden
        assert find_blocks(nn.Sequential(kind(), kind())) == ["0", "1"]


def test_a_stage_is_its_blocks():
    class Down(nn.Module):
        def __init__(self):
            super().__init__()
            self.resnets = nn.ModuleList([Layer(4), Layer(4)])
            self.downsamplers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])

        def forward(self, hidden):
            return hidden

    model = nn.Module()
    model.down_blocks = nn.ModuleList([Down(), Down()])
    inner = ["resnets.0", "resnets.1", "downsamplers.0"]
    assert find_blocks(model) == [f"down_blocks.{stage}.{name}" for stage in (0, 1) for name in inner]


def test_only_blocks_that_gradients_go_through():
    model = Net(depth=4)
    model.inside.requires_grad_(False)
    for layer in model.layers[:2]:
        layer.requires_grad_(False)
    model.layers[3].requires_grad_(False)
    assert find_blocks(model) == ["layers.2", "layers.3"]


def test_blocks_of_torchvision():
    torchvision = pytest.importorskip("torchvision")
    with torch.device("meta"):
        resnet, vit = torchvision.models.resnet152(), torchvision.models.vit_l_16()
        efficient = torchvision.models.efficientnet_b0()
    assert find_blocks(resnet) == [f"layer{stage}.{block}" for stage, count in ((1, 3), (2, 8), (3, 36), (4, 3)) for block in range(count)]
    assert find_blocks(vit) == [f"encoder.layers.encoder_layer_{layer}" for layer in range(24)]
    assert "features.2.1" in find_blocks(efficient) and not any("block" in name for name in find_blocks(efficient))


# --- the same to the bit ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Net()
    return model, trained(model)


@pytest.mark.parametrize("prepare", [checkpointed, offloaded, both], ids=lambda prepare: prepare.__name__)
def test_twenty_steps_are_the_same(plain, prepare):
    model, expected = plain
    assert_same(trained(model, prepare), expected)


def test_undo_leaves_the_model_as_it_was(plain):
    model = copy.deepcopy(plain[0])
    before = [dict(vars(module)) for module in model.modules()]
    undone = both(model)
    assert [name for name, _ in model.named_modules()] == [name for name, _ in plain[0].named_modules()]
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model.layers[0].out))
    assert unpickled.weight.shape == model.layers[0].out.weight.shape
    for each in undone:
        each.undo()
    assert [dict(vars(module)).keys() for module in model.modules()] == [each.keys() for each in before]
    assert "forward" not in vars(model.layers[0])
    given = torch.randn(50, 8)
    assert torch.equal(copied.eval()(given), model.eval()(given))


def test_a_pickle_is_of_the_plain_model():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    applied = both(model)
    again = pickle.loads(pickle.dumps(model))
    given = torch.randn(3, 4)
    assert torch.equal(again(given), model(given))
    for each in applied:
        each.undo()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_count_each_batch_once(momentum):
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(inplace=True))
    model = nn.Sequential(block, nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(inplace=True)))
    given = lambda rows: torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last)
    expected = trained(model, steps=5, given=given)
    for prepare in (checkpointed, both):
        assert_same(trained(model, prepare, steps=5, given=given), expected)
    assert expected[1]["0.1.num_batches_tracked"] == 5


class ChangesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.ReLU(inplace=True)
        self.linear = nn.Linear(64, 64)

    def forward(self, hidden):
        return self.linear(self.first(hidden))


class AroundChanges(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = nn.Linear(8, 64)
        self.layers = nn.ModuleList(ChangesItsInput() for _ in range(3))

    def forward(self, given):
        hidden = self.inside(given)
        for layer in self.layers:
            # What is added is what the layer has made of it.
            hidden = torch.sin(layer(hidden) + hidden)
        return hidden


@pytest.mark.parametrize("prepare", [checkpointed, both], ids=lambda prepare: prepare.__name__)
def test_a_block_that_changes_its_input(prepare):
    model = AroundChanges()
    assert_same(trained(model, prepare), trained(model))


def test_autocast_and_eval(plain):
    def run(prepare):
        model = copy.deepcopy(plain[0]).eval()
        undo = prepare(model)
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.randn(300, 8)).float().square().mean()
        out.backward()
        for each in undo:
            each.undo()
        return [parameter.grad for parameter in model.parameters()]

    expected = run(lambda model: ())
    for prepare in (checkpointed, offloaded, both):
        for one, other in zip(run(prepare), expected):
            assert torch.equal(one, other)


@pytest.mark.parametrize("prepare", [checkpointed, offloaded, both], ids=lambda prepare: prepare.__name__)
def test_a_graph_that_is_kept_gives_the_same_twice(plain, prepare):
    model = copy.deepcopy(plain[0])
    undo = prepare(model)
    loss = model(torch.randn(300, 8)).square().mean()
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    # Undone with the graph still there.
    for each in undo:
        each.undo()
    second = torch.autograd.grad(loss, parameters)
    for one, other in zip(first, second):
        assert torch.equal(one, other)


def test_a_compiled_block_stays_one():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()) for _ in range(2)))
    given = lambda rows: torch.randn(rows, 64)
    expected = trained(model, steps=3, given=given)

    def prepare(model):
        for place in range(len(model)):
            model[place] = torch.compile(model[place], backend="aot_eager")
        names = ["0", "1"]
        return (offload_blocks(model, names), checkpoint_blocks(model, names))

    losses, _ = trained(model, prepare, steps=3, given=given)
    assert losses == pytest.approx(expected[0], rel=1e-6)


def test_blocks_that_checkpoint_themselves_are_left_alone():
    model = Net(depth=2)
    model.layers[0].gradient_checkpointing = True
    assert checkpoint_blocks(model, find_blocks(model)).names == ["layers.1"]


def test_transformers_with_a_cache():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, **shape, attention_dropout=0.1))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64))
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=50, **shape, decoder_start_token_id=0))
    assert find_blocks(llama) == ["model.layers.0", "model.layers.1"]
    assert find_blocks(gpt2) == ["transformer.h.0", "transformer.h.1"]
    assert find_blocks(t5) == [f"{side}.block.{layer}" for side in ("encoder", "decoder") for layer in (0, 1)]
    for model in (llama, gpt2, t5):
        model.train()
        assert model.config.use_cache

        class Loss(nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

            def forward(self, tokens):
                return self.model(input_ids=tokens, labels=tokens).loss

        given = lambda rows: torch.randint(0, 50, (8, 48))
        assert_same(trained(Loss(model), both, steps=4, given=given), trained(Loss(model), steps=4, given=given))


# --- host memory ------------------------------------------------------------------------------------------


def test_host_memory_is_used_again():
    memory = HostMemory(pinned=False)
    sizes = [3 * MIB, 100_000, 7 * MIB, 2 * MIB, 65_536] * 4
    taken = []
    for _ in range(5):
        pieces = [memory.take(size) for size in sizes]
        assert [piece.memory.numel() for piece in pieces] == sizes
        places = sorted((id(piece.slab), piece.offset, piece.offset + piece.size) for piece in pieces)
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in zip(places, places[1:]))
        for piece in reversed(pieces):
            memory.give(piece)
        taken.append(memory.size)
    assert len(set(taken)) == 1 and taken[0] < 2 * sum(sizes)


def test_a_limit_on_host_memory(plain):
    model = copy.deepcopy(plain[0])
    applied = offload_blocks(model, find_blocks(model), pinned_limit=MIB)
    model(torch.randn(300, 8)).mean().backward()
    assert 0 < applied.bytes_offloaded <= applied.pinned_bytes <= MIB and applied.bytes_kept > 0
    applied.undo()
    assert applied.pinned_bytes == 0
    assert_same(trained(plain[0], lambda model: (offload_blocks(model, find_blocks(model), pinned_limit=MIB),)), plain[1])


def test_a_change_after_saving_is_an_error():
    model = nn.Sequential(nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()), nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()))
    applied = offload_blocks(model, ["0", "1"])
    small = model(torch.randn(10, 64))
    small.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        small.sum().backward()
    applied.undo()


# --- on the virtual GPU -----------------------------------------------------------------------------------

ON_THE_GPU = """
import gc
import json
import torch
from torch import nn
from oomph.fitting.techniques.activations import offload_blocks
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.checkpoints import checkpoint_blocks


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, hidden):
        rows, length, width = hidden.shape
        parts = self.qkv(self.norm(hidden)).split(width, -1)
        query, key, value = (part.view(rows, length, 4, width // 4).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return hidden + self.drop(self.down(nn.functional.gelu(self.up(hidden))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(256) for _ in range(12))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
names = find_blocks(model)
answers = {"parameters": sum(p.numel() * 4 for p in model.parameters()), "input": 16 * 512 * 256 * 4, "modes": {}}


def step(fail=False):
    torch.cuda.reset_peak_memory_stats()
    loss = model(torch.randn(16, 512, 256, device="cuda")).square().mean()
    handle = model.layers[5].up.weight.register_hook(out_of_memory) if fail else None
    try:
        loss.backward()
    finally:
        if handle is not None:
            handle.remove()
    optimizer.step()
    optimizer.zero_grad()
    return torch.cuda.max_memory_allocated()


def out_of_memory(grad):
    return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


for mode in ("plain", "checkpoint", "offload", "rehearsed offload", "checkpoint+offload"):
    away = offload_blocks(model, names, rehearse="rehearsed" in mode) if "offload" in mode else None
    twice = checkpoint_blocks(model, names) if "checkpoint" in mode else None
    peaks, pinned, sent = [], [], []
    for number in range(5):
        if number == 3:
            try:
                step(fail=True)
            except torch.cuda.OutOfMemoryError as error:
                error.__traceback__ = None
            else:
                raise AssertionError("it must have run out of memory")
            optimizer.zero_grad()
        peaks.append(step())
        pinned.append(away.pinned_bytes if away else 0)
        sent.append(away.bytes_offloaded if away else 0)
    answers["modes"][mode] = {"peaks": peaks, "pinned": pinned, "sent": sent}
    for each in (twice, away):
        if each is not None:
            each.undo()
    # What the error has left in cycles.
    gc.collect()
    answers["modes"][mode]["left"] = torch.cuda.memory_allocated()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_the_gpu(on_virtual_gpu, tmp_path_factory):
    script = tmp_path_factory.mktemp("gpu") / "steps.py"
    script.write_text(textwrap.dedent(ON_THE_GPU))
    done = on_virtual_gpu(script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_each_saves_more(on_the_gpu):
    peak = {mode: reported["peaks"][-1] for mode, reported in on_the_gpu["modes"].items()}
    inputs, weights = 12 * on_the_gpu["input"], on_the_gpu["parameters"]
    one_layer = (peak["plain"] - weights) / 12
    assert peak["plain"] > 2 * peak["checkpoint"] > 2 * peak["checkpoint+offload"]
    assert peak["plain"] > 2 * peak["offload"]
    assert on_the_gpu["modes"]["offload"] == on_the_gpu["modes"]["rehearsed offload"]
    # Checkpointed, each layer keeps its input, and one layer is there whole.
    assert inputs + weights < peak["checkpoint"] < weights * 2 + inputs + 2 * one_layer
    # And with these on the host, of the inputs only those of few layers are there.
    assert peak["checkpoint+offload"] < peak["checkpoint"] - inputs / 2


def test_every_step_takes_the_same(on_the_gpu):
    for mode, reported in on_the_gpu["modes"].items():
        assert len(set(reported["peaks"][1:])) == 1, mode
        assert len(set(reported["pinned"][1:])) == 1 and len(set(reported["sent"])) == 1, mode
        # Forwards within the backward give its thread a workspace for matrix products, in some releases of PyTorch.
        assert 0 <= reported["left"] - on_the_gpu["modes"]["plain"]["left"] <= MIB, mode
    sent = {mode: reported["sent"][-1] for mode, reported in on_the_gpu["modes"].items()}
    assert sent["checkpoint+offload"] == 12 * on_the_gpu["input"]
    assert sent["offload"] > 5 * sent["checkpoint+offload"]
    for mode in ("offload", "checkpoint+offload"):
        assert sent[mode] <= on_the_gpu["modes"][mode]["pinned"][-1] < 1.2 * sent[mode] + 64 * MIB
