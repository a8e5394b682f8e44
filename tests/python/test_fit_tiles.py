"""What `oomph.fit` does about one long sequence: the modules that it finds to treat each position by itself, that tiles give the same result, and what they
save; and Liger's kernels in their place."""

import copy
import json
import sys
import weakref
from types import MethodType, ModuleType

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import oomph as package  # noqa: E402
from oomph.fitting.losses.loss_of import LossOf  # noqa: E402
from oomph.fitting.planning import words  # noqa: E402
from oomph.fitting.planning.plan import Plan  # noqa: E402
from oomph.fitting.techniques.blocks import find_blocks  # noqa: E402
from oomph.fitting.techniques.checkpoints import checkpoint_blocks  # noqa: E402
from oomph.fitting.techniques.liger import why_not_liger  # noqa: E402
from oomph.fitting.techniques.positionwise import find_tiled  # noqa: E402
from oomph.fitting.techniques.tiles import tile_modules  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def llama(words=100):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SHAPE, "vocab_size": words}))


def mixtral(**settings):
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SHAPE, num_key_value_heads=2, num_local_experts=4, **settings))


def gpt2(dropout):
    shape = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 2, **SPECIAL}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))


def bert(dropout):
    return transformers.BertForMaskedLM(transformers.BertConfig(**SHAPE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout))


def t5(dropout):
    shape = {"vocab_size": 100, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, dropout_rate=dropout))


def tokens(*shape, seed=5, most=100):
    ids = torch.randint(1, most, shape, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def found(model, batch=None, loss=None):
    batch = tokens(2, 64) if batch is None else batch
    return find_tiled(model, LossOf(loss).settled(model, batch), batch)


def of_layers(*parts, first="model.layers", last=("model.norm",)):
    return {f"{first}.{layer}.{part}" for layer in (0, 1) for part in parts} | set(last)


# --- what is found ----------------------------------------------------------------------------------------

NORMS = ("input_layernorm", "post_attention_layernorm")


def test_of_transformers():
    torch.manual_seed(0)
    assert set(found(llama())) == of_layers("mlp", *NORMS)
    of_gpt2 = {"first": "transformer.h", "last": ()}
    assert set(found(gpt2(0.0))) == of_layers("mlp", **of_gpt2)
    # With dropout, what draws nothing; its activation function consists of many operations.
    assert set(found(gpt2(0.1))) == of_layers("mlp.act", **of_gpt2)
    of_bert = {"first": "bert.encoder.layer", "last": ()}
    assert set(found(bert(0.0))) == of_layers("attention.output", "intermediate", **of_bert)
    assert set(found(bert(0.1))) == of_layers("intermediate", **of_bert)
    norms = {"encoder.block.0.layer.0.layer_norm", "decoder.block.0.layer.0.layer_norm", "decoder.block.0.layer.1.layer_norm"}
    norms |= {"encoder.final_layer_norm", "decoder.final_layer_norm"}
    assert set(found(t5(0.0))) == norms | {"encoder.block.0.layer.1", "decoder.block.0.layer.2"}
    assert set(found(t5(0.1))) == norms | {"encoder.block.0.layer.1.layer_norm", "decoder.block.0.layer.2.layer_norm"}


def test_of_experts():
    torch.manual_seed(0)
    assert set(found(mixtral())) == of_layers("mlp", *NORMS)
    # What the router has chosen is recorded for a loss of its own, so only what comes behind it is run in tiles.
    assert set(found(mixtral(output_router_logits=True))) == of_layers("mlp.experts", *NORMS)


def test_a_model_in_evaluation_is_tried_as_in_training():
    model = gpt2(0.1).eval()
    state = torch.get_rng_state()
    assert set(found(model)) == of_layers("mlp.act", first="transformer.h", last=())
    assert not any(module.training for module in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_a_convolutional_network_has_none():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 1))

        def forward(self, hidden):
            return hidden + self.inside(hidden)

    model = nn.Sequential(Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 4)))
    batch = (torch.randn(40, 8, 40, 40), torch.zeros(40, dtype=torch.long))
    assert found(model, batch, nn.CrossEntropyLoss()) == ()


class MLP(nn.Module):
    """Position-wise; the modules below add something to it that is not."""

    def __init__(self, width=16):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, hidden):
        return self.down(self.act(self.up(hidden)).tanh())


class LooksAround(MLP):
    def forward(self, hidden):
        return super().forward(hidden) + hidden.mean(1, keepdim=True)


class LooksBack(MLP):
    def forward(self, hidden):
        return super().forward(hidden + 0.1 * nn.functional.pad(hidden, (0, 0, 40, 0))[:, :-40])


class LooksAroundLater(MLP):
    """Its gate is closed, until training opens it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, hidden):
        return super().forward(hidden) + self.gate * hidden.cumsum(1)


class KnowsItsPlace(MLP):
    def forward(self, hidden):
        return super().forward(hidden + torch.arange(hidden.shape[1], device=hidden.device).view(1, -1, 1) / 64)


class ComparesSamples(MLP):
    def forward(self, hidden):
        return super().forward(hidden - hidden.mean(0))


class Draws(MLP):
    def forward(self, hidden):
        return super().forward(hidden + 0 * torch.rand_like(hidden))


class Counts(MLP):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, hidden):
        self.seen += 1
        return super().forward(hidden)


class Leaves(MLP):
    def forward(self, hidden):
        self.penalty = hidden.square().mean()
        return super().forward(hidden)


class ChangesItsInput(MLP):
    def forward(self, hidden):
        return super().forward(hidden.tanh_())


class Capacity(MLP):
    """A router that sends no more than so many tokens through its expert."""

    def forward(self, hidden):
        chosen = torch.zeros(hidden.shape[:-1], device=hidden.device).scatter(1, hidden[..., 0].topk(hidden.shape[1] // 2, 1).indices, 1.0)
        return super().forward(hidden) * chosen.unsqueeze(-1)


class Gives(MLP):
    def forward(self, hidden):
        return super().forward(hidden), hidden


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inside = nn.Linear(4, 16)
        self.layers = nn.ModuleList(kind() for _ in range(2))

    def forward(self, given):
        hidden = self.inside(given)
        for layer in self.layers:
            result = layer(hidden)
            hidden = result[0] if isinstance(result, tuple) else result
        return hidden


NOT_ALONE = (LooksAround, LooksBack, LooksAroundLater, KnowsItsPlace, ComparesSamples, Capacity)
NOT_AGAIN = (Draws, Counts, Leaves, ChangesItsInput, Gives)


def test_modules_that_are_not_position_wise():
    torch.manual_seed(0)
    batch = (torch.randn(2, 96, 4), torch.zeros(2, 96, 16))
    assert found(Net(MLP), batch, nn.MSELoss()) == ("layers.0", "layers.1")
    for kind in (*NOT_ALONE, *NOT_AGAIN):
        model = Net(kind)
        before = copy.deepcopy(model.state_dict())
        assert found(model, batch, nn.MSELoss()) == (), kind.__name__
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_of_a_long_sequence_the_beginning_is_tried():
    class Placed(Net):
        def __init__(self, places):
            super().__init__(MLP)
            self.places = nn.Parameter(torch.zeros(places, 16))
            self.lengths = []

        def forward(self, given):
            self.lengths.append(given.shape[1])
            hidden = self.inside(given) + self.places
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    for places, lengths in ((1, [1024]), (3000, [1024, 3000])):
        model = Placed(places)
        assert found(model, (torch.randn(1, 3000, 4), torch.zeros(1, 3000, 16)), nn.MSELoss()) == ("layers.0", "layers.1")
        assert model.lengths == lengths


def test_one_block_of_each_kind_is_run():
    class Numbered(MLP):
        def __init__(self, layer_idx, dropout):
            super().__init__()
            self.layer_idx, self.drop = layer_idx, nn.Dropout(dropout)

        def forward(self, hidden):
            ran.append(self.layer_idx)
            result = self.drop(super().forward(hidden))
            return result + hidden.mean(1, keepdim=True) if self.layer_idx == 4 else result

    ran = []
    model = Net(MLP)
    model.layers = nn.ModuleList(Numbered(layer, dropout=0.1 * (layer == 2)) for layer in range(6))
    # The third is of another kind, and what comes behind that is not run. Of the others each is tried: the fifth does what they do not.
    assert found(model, (torch.randn(1, 96, 4), torch.zeros(1, 96, 16)), nn.MSELoss()) == ("layers.0", "layers.1", "layers.3", "layers.5")
    assert ran[:4] == [0, 1, 2, 0]


# --- the same result --------------------------------------------------------------------------------------


def trained(model, plan, steps=20, shape=(1, 96), lr=0.1):
    """Trains a copy, by a plain loop where there is no plan; gives its losses and its parameters."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=lr, momentum=0.9)
    losses = []
    batches = [tokens(*shape, seed=seed, most=model.config.vocab_size) for seed in range(steps)]
    if plan is None:
        for batch in batches:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    else:
        with package.fit(model, optimizer, batch=batches[0], plan=plan, quiet=True) as fit:
            losses = [fit.step(batch).item() for batch in batches]
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def apart(one, other):
    """The largest differences of losses and of parameters."""
    losses = max(abs(a - b) for a, b in zip(one[0], other[0], strict=True))
    return losses, max(float((value - other[1][name]).abs().max()) for name, value in one[1].items())


def plans(model, tiles=4):
    names, blocks = found(model, tokens(1, 96)), tuple(find_blocks(model))
    alone = Plan(tiled=names, tiles=tiles)
    return {
        "tiles": alone,
        "and checkpointed": alone.but(checkpoint=blocks),
        "and offloaded": alone.but(offload=blocks),
        "and both, with logits in pieces": alone.but(checkpoint=blocks, offload=blocks, defer_logits=True),
    }


def with_lora(model, targets):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False))


def test_twenty_steps_in_float64():
    """What reorders sums is the same but for rounding: in float64 nothing else is left. Logits in pieces are for narrower types."""
    torch.manual_seed(0)
    model = llama().double()
    expected = trained(model, None)
    for name, plan in plans(model).items():
        assert max(apart(trained(model, plan), expected)) < 1e-13, name
    assert expected[0][-1] != expected[0][0]


@pytest.mark.parametrize("shape, steps", [((1, 96), 20), ((3, 50), 4)])
def test_twenty_steps_in_float32(shape, steps):
    torch.manual_seed(0)
    # Words enough for logits that are made in pieces.
    model = llama(words=4200)
    expected = trained(model, None, steps, shape)
    got = {name: trained(model, plan, steps, shape) for name, plan in plans(model).items()}
    for name, result in got.items():
        losses, parameters = apart(result, expected)
        # Two of the last bits of a loss, and of the weight of a norm.
        assert losses <= 2**-19 and parameters <= 2**-22, name
        # Before weights have changed, there is no sum that was reordered but that of the loss.
        assert result[0][0] == expected[0][0] or "logits" in name, name
    # To checkpoint and to offload what is in tiles changes no bit.
    assert apart(got["tiles"], got["and checkpointed"]) == apart(got["tiles"], got["and offloaded"]) == (0, 0)


def test_frozen_weights_in_tiles_change_no_bit():
    torch.manual_seed(0)
    model = with_lora(llama(), ["q_proj", "v_proj"])
    expected = trained(model, None)
    given = plans(model)
    # A norm with a frozen weight keeps its input only.
    assert {name.removeprefix("base_model.model.") for name in given["tiles"].tiled} == of_layers("mlp", last=())
    for name in ("tiles", "and checkpointed", "and offloaded"):
        assert apart(trained(model, given[name]), expected) == (0, 0), name
    frozen = [name for name in expected[1] if "lora" not in name]
    assert all(torch.equal(expected[1][name], dict(model.named_parameters())[name]) for name in frozen)


def test_adapters_within_tiles():
    torch.manual_seed(0)
    model = with_lora(llama().double(), "all-linear")
    expected = trained(model, None)
    given = plans(model)
    # A linear layer with an adapter keeps nothing worth a tile, the MLP with three of them does.
    assert {name.removeprefix("base_model.model.") for name in given["tiles"].tiled} == of_layers("mlp", *NORMS)
    assert max(apart(trained(model, given["and checkpointed"]), expected)) < 1e-13


def test_experts_and_the_loss_of_their_router():
    torch.manual_seed(0)
    model = mixtral(output_router_logits=True)
    assert max(apart(trained(model, plans(model)["and checkpointed"]), trained(model, None))) < 5e-6


@pytest.mark.parametrize("make", [gpt2, bert, t5], ids=lambda make: make.__name__)
def test_twenty_steps_of_others(make):
    torch.manual_seed(0)
    model = make(0.0).double()
    assert max(apart(trained(model, plans(model)["and checkpointed"], lr=0.01), trained(model, None, lr=0.01))) < 1e-13


def test_weights_in_bfloat16_are_rounded_once():
    """The sum over tiles is in float32: its distance from the true gradient is that of the plain one, not that of so many roundings."""
    torch.manual_seed(0)
    rough = MLP(32).bfloat16()
    exact, tiled = copy.deepcopy(rough).double(), copy.deepcopy(rough)
    given = torch.randn(1, 2048, 32).bfloat16()
    applied = tile_modules(tiled, [""], 64)
    gradients = []
    for module in (exact, rough, tiled):
        module(given.to(module.up.weight.dtype)).square().mean().backward()
        gradients.append([parameter.grad.double() for parameter in module.parameters()])
    applied.undo()
    for true, plain, ours in zip(*gradients):
        assert (ours - true).norm() < 1.2 * (plain - true).norm() + 1e-9


def test_bfloat16_and_autocast_train_as_the_plain_loop():
    torch.manual_seed(0)
    model = llama()
    plan = plans(model)["and checkpointed"]
    expected = trained(model.bfloat16(), None)
    got = trained(model, plan)
    assert got[0][0] == expected[0][0] and apart(got, expected)[0] < 5e-3
    model = model.float()
    both = [trained(model, one.but(autocast="bfloat16")) for one in (Plan(), plan)]
    assert both[0][0][0] == both[1][0][0] and apart(*both)[0] < 5e-3


# --- details ----------------------------------------------------------------------------------------------


def test_a_graph_that_is_kept_and_inputs_without_gradients():
    torch.manual_seed(0)
    module, given = MLP().double(), torch.randn(2, 64, 16, dtype=torch.double, requires_grad=True)
    wanted = [given, *module.parameters()]
    expected = torch.autograd.grad(module(given).sin().sum(), wanted)
    applied = tile_modules(module, [""], 4)
    loss = module(given).sin().sum()
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    second = torch.autograd.grad(loss, wanted)
    for one, again, true in zip(first, second, expected):
        assert torch.equal(one, again) and torch.allclose(one, true, rtol=1e-13, atol=1e-15)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, wanted)
    # The input needs none; then only some parameters do; then nothing does.
    module(given.detach()).sin().sum().backward()
    assert torch.allclose(module.up.weight.grad, expected[1], rtol=1e-13, atol=1e-15) and given.grad is None
    module.requires_grad_(False)
    module.down.bias.requires_grad_()
    module.zero_grad()
    module(given).sin().sum().backward()
    assert module.up.weight.grad is None and torch.allclose(module.down.bias.grad, expected[4], rtol=1e-13, atol=1e-15)
    assert torch.allclose(given.grad, expected[0], rtol=1e-13, atol=1e-15)
    module.requires_grad_(False)
    assert not module(given.detach()).requires_grad
    applied.undo()
    assert "forward" not in vars(module)


def test_what_is_kept_is_freed_behind_the_backward():
    module, given = MLP(), torch.randn(1, 64, 16, requires_grad=True)
    applied = tile_modules(module, [""], 4)
    hidden = given * 2
    kept = weakref.ref(hidden)
    loss = module(hidden).sum()
    del hidden
    assert kept() is not None
    loss.backward()
    assert kept() is None and loss.grad_fn is not None
    applied.undo()


def test_a_weight_that_changed_since_is_an_error():
    module = MLP()
    applied = tile_modules(module, [""], 4)
    loss = module(torch.randn(1, 64, 16)).sum()
    with torch.no_grad():
        module.up.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
    applied.undo()


def test_dropout_that_comes_later_draws_the_same_in_the_backward():
    """Such modules are not found; one may be trained with dropout all the same after it was tried without."""
    torch.manual_seed(0)
    module = nn.Sequential(MLP(), nn.Dropout(0.5))
    given = torch.randn(1, 64, 16)
    for wrap in (lambda: None, lambda: checkpoint_blocks(module, [""])):
        applied = [tile_modules(module, [""], 4), wrap()]
        torch.manual_seed(1)
        module.zero_grad()
        result = module(given)
        result.sum().backward()
        after = torch.get_rng_state()
        # A value that was dropped has no gradient: the bias of the last layer counts those that were not.
        assert torch.equal(module[0].down.bias.grad, 2.0 * (result != 0).sum((0, 1)))
        torch.manual_seed(1)
        module(given)
        assert torch.equal(after, torch.get_rng_state())
        for each in filter(None, applied):
            each.undo()


def test_calls_of_few_positions_and_other_shapes_are_left_alone():
    module = MLP()
    applied = tile_modules(module, [""], 8)
    for shape in ((1, 1, 16), (2, 20, 16), (2, 3, 40, 16)):
        given = torch.randn(shape)
        assert type(module(given).grad_fn).__name__ != "_TiledBackward"
    for shape in ((1, 40, 16), (40, 1, 16), (300, 16)):
        result = module(torch.randn(shape))
        assert type(result.grad_fn).__name__ == "_TiledBackward" and result.shape == shape
    applied.undo()


def test_evaluation_goes_in_tiles_too():
    torch.manual_seed(0)
    module, given = MLP(), torch.randn(2, 64, 16)
    expected = module(given).detach()
    lengths = []
    module.up.register_forward_hook(lambda _, args, __: lengths.append(args[0].shape[1]))
    applied = tile_modules(module, [""], 4)
    with torch.inference_mode():
        assert torch.equal(module(given), expected)
    assert lengths == [16] * 4
    applied.undo()


def test_the_plan_is_plain_data_and_has_words():
    plan = Plan(checkpoint=("layers.0",), tiled=("layers.0.mlp", "norm"), tiles=8)
    again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan and plan.exact
    assert Plan.from_dict({"micro": 2}) == Plan(micro=2)
    assert words.techniques(Plan(), plan, 1, 1) == "all 1 blocks run again in the backward pass, position-wise parts in 8 tiles along the sequence"


# --- Liger ------------------------------------------------------------------------------------------------


@pytest.fixture
def liger(monkeypatch):
    """Stands for Liger's package: changes instances and, as Liger does, what the module of the model names too."""

    class Kernel(nn.Module):
        def forward(self, hidden):
            calls.append(hidden.shape[1])
            return self.weight * nn.functional.rms_norm(hidden, (hidden.shape[-1],), eps=self.variance_epsilon)

    calls = []

    def apply(model, **options):
        from transformers.models.llama import modeling_llama

        assert options == {"rope": False, "cross_entropy": False, "fused_linear_cross_entropy": False}
        modeling_llama.LlamaRMSNorm = Kernel
        for module in model.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                module.casting_mode = "llama"
                module.__dict__["forward"] = MethodType(Kernel.forward, module)

    package, inside, patches = ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers"), ModuleType("liger_kernel.transformers.monkey_patch")
    inside._apply_liger_kernel_to_instance, patches.MODEL_TYPE_TO_APPLY_LIGER_FN = apply, {"llama": apply}
    for each in (package, inside, patches):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    return calls


def test_liger_is_used_by_the_model_that_is_given_and_undone(liger):
    from transformers.models.llama import modeling_llama

    torch.manual_seed(0)
    model = with_lora(llama(), ["q_proj"])
    of_class, before = modeling_llama.LlamaRMSNorm, [dict(vars(module)) for module in model.modules()]
    plan = Plan(liger=True, tiled=("base_model.model.model.norm",), tiles=4)
    assert not plan.exact
    result = trained(model, plan, steps=2)
    # Two norms of each of two layers, whole, and the last in tiles, which runs them again in the backward.
    assert liger == ([96] * 4 + [24] * 8) * 2
    assert max(apart(result, trained(model, None, steps=2))) < 1e-5
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    fit = package.fit(model, optimizer, batch=tokens(1, 96), plan=plan, quiet=True)
    assert modeling_llama.LlamaRMSNorm is of_class and "forward" in vars(model.base_model.model.model.norm)
    fit.close()
    assert all(vars(module).keys() == was.keys() for module, was in zip(model.modules(), before))


def test_why_liger_is_not_used(liger, monkeypatch):
    assert why_not_liger(llama()) is None
    assert why_not_liger(gpt2(0.0)) == "Liger has no kernels for this model"
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    assert "pip install liger-kernel" in why_not_liger(llama())


# --- on the virtual GPU -----------------------------------------------------------------------------------

ON_THE_GPU = """
import gc
import json
import torch
from torch import nn
from torch.nn import functional as F
from oomph.fitting.losses.cross_entropy import defer_logits
from oomph.fitting.techniques.activations import offload_blocks
from oomph.fitting.techniques.blocks import find_blocks
from oomph.fitting.techniques.checkpoints import checkpoint_blocks
from oomph.fitting.techniques.tiles import tile_modules

LENGTH, WIDTH = 16384, 256
calls = []


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, hidden):
        wide = hidden.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(hidden.dtype)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        calls.append(hidden.shape[1])
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        query, key, value = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.behind, self.mlp = Norm(), Attention(), Norm(), MLP()

    def forward(self, hidden):
        hidden = hidden + self.attention(self.before(hidden))
        return hidden + self.mlp(self.behind(hidden))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(8192, WIDTH), nn.ModuleList(Layer() for _ in range(4))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, 8192, bias=False)

    def forward(self, ids):
        hidden = self.words(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), ids.flatten())


model = Net().to("cuda", torch.bfloat16)
blocks = find_blocks(model)
tiled = [f"{block}.{part}" for block in blocks for part in ("before", "behind", "mlp")] + ["norm"]
ids = torch.zeros(1, LENGTH, dtype=torch.long, device="cuda")


def step():
    calls.clear()
    torch.cuda.reset_peak_memory_stats()
    model(ids).backward()
    model.zero_grad()
    return torch.cuda.max_memory_allocated()


# In sizes of one hidden state.
answers = {}
unit = LENGTH * WIDTH * 2
for mode in ("plain", "defer", "defer+tiles", "checkpoint+defer", "checkpoint+defer+tiles", "checkpoint+offload+defer+tiles"):
    applied = []
    if "defer" in mode:
        applied.append(defer_logits(model, 4 << 20))
    if "offload" in mode:
        applied.append(offload_blocks(model, blocks, rehearse=True))
    if "checkpoint" in mode:
        applied.append(checkpoint_blocks(model, blocks))
    if "tiles" in mode:
        applied.append(tile_modules(model, tiled, 16))
    base = torch.cuda.memory_allocated()
    peaks = [round((step() - base) / unit, 2) for _ in range(3)]
    answers[mode] = {"peaks": peaks, "calls": len(calls), "positions": sum(calls)}
    for each in applied:
        each.undo()
    gc.collect()
    answers[mode]["left"] = torch.cuda.memory_allocated()
print(json.dumps(answers))
"""


def test_one_long_sequence_takes_less(on_virtual_gpu, tmp_path):
    script = tmp_path / "steps.py"
    script.write_text(ON_THE_GPU)
    done = on_virtual_gpu(script, gpu="a100-80gb")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    peak = {mode: reported["peaks"][-1] for mode, reported in answers.items()}
    # In hidden states. The MLPs keep four tensors of four each, and the norms as much as four each.
    assert peak["defer"] > 110 and peak["defer+tiles"] < 50
    assert peak["checkpoint+defer"] > 40 and peak["checkpoint+defer+tiles"] < 24
    assert peak["checkpoint+offload+defer+tiles"] < 22
    for mode, reported in answers.items():
        assert len(set(reported["peaks"])) == 1, mode
        assert reported["left"] == answers["plain"]["left"], mode
    # A checkpoint leaves it to the tiles to compute again: nothing is computed a third time.
    assert answers["plain"]["positions"] == 4 * 16384
    assert answers["defer+tiles"]["positions"] == answers["checkpoint+defer"]["positions"] == answers["checkpoint+defer+tiles"]["positions"] == 8 * 16384
    assert answers["checkpoint+defer+tiles"]["calls"] == 2 * 16 * 4
