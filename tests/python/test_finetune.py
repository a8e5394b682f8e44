"""What people fine-tune: 4-bit and 8-bit weights, adapters, paged optimizers. Bytes are reckoned here, from the layouts that the libraries document.

A step of QLoRA is predicted as a user would have it done, and tensors of other classes go to the planner by their pieces. How plans are made of them is in
test_fit.
"""

import json
import math
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
from oomph.fitting.pieces import pieces  # noqa: E402
from oomph.fitting.planning.card import bytes_on  # noqa: E402
from oomph.fitting.planning.payload import NotPackable, pack, unpack  # noqa: E402
from torch import nn  # noqa: E402

HIDDEN, INNER, LAYERS, WORDS, RANK = 1024, 2048, 2, 4096, 128

# The layers that are quantised, as (outputs, inputs).
LINEAR = [(HIDDEN, HIDDEN)] * 4 + [(INNER, HIDDEN)] * 2 + [(HIDDEN, INNER)]

QLORA = f"""
import json, sys
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import LlamaConfig, LlamaForCausalLM

told = {{}}

def allocated(name):
    told[name] = torch.cuda.memory_allocated()

def quantise(module):
    for name, child in list(module.named_children()):
        if type(child) is torch.nn.Linear and name != "lm_head":
            new = bnb.nn.Linear4bit(child.in_features, child.out_features, False, torch.bfloat16, quant_type="nf4", device="meta")
            new.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True, module=new)
            setattr(module, name, new)
        else:
            quantise(child)

config = LlamaConfig(
    vocab_size={WORDS}, hidden_size={HIDDEN}, intermediate_size={INNER}, num_hidden_layers={LAYERS}, num_attention_heads=8, tie_word_embeddings=False
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
model = model.to(torch.bfloat16).to_empty(device="cpu")
quantise(model)
# What comes with the first kernels is not the model's.
warm = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
warm @ warm
del warm
allocated("before")
model = model.cuda()
allocated("quantised")

linear = model.model.layers[0].mlp.up_proj
x = torch.empty(4, 64, {HIDDEN}, device="cuda", dtype=torch.bfloat16, requires_grad=True)
torch.cuda.reset_peak_memory_stats()
allocated("before_one")
y = linear(x)
told["forward_of_one"], told["shape"] = torch.cuda.max_memory_allocated(), list(y.shape)
gradient = torch.empty_like(y)
torch.cuda.reset_peak_memory_stats()
allocated("before_backward_of_one")
y.backward(gradient)
told["backward_of_one"], told["shape_of_gradient"] = torch.cuda.max_memory_allocated(), list(x.grad.shape)
del x, y, gradient
allocated("after_one")

model.is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={{"use_reentrant": False}})
allocated("prepared")
model = get_peft_model(model, LoraConfig(r={RANK}, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"))
allocated("adapted")
optimizer = bnb.optim.PagedAdamW8bit([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-4)
ids = torch.zeros(1, 16, dtype=torch.long, device="cuda")
for step in range(2):
    model(input_ids=ids, labels=ids).loss.backward()
    allocated(f"backward_{{step}}")
    optimizer.step()
    allocated(f"step_{{step}}")
    optimizer.zero_grad()
    allocated(f"end_{{step}}")

# LLM.int8: columns with outliers are computed apart, in 16 bits.
allocated("before_eight")
eight = bnb.nn.Linear8bitLt({HIDDEN}, {INNER}, bias=False, has_fp16_weights=False, threshold=6.0).half().cuda()
allocated("eight")
x = torch.empty(4, 64, {HIDDEN}, device="cuda", dtype=torch.half, requires_grad=True)
y = eight(x)
y.backward(torch.empty_like(y))
told["shapes_of_eight"] = [list(y.shape), list(x.grad.shape)]
with open("told.json", "w") as file:
    json.dump(told, file)
"""


def blocks(*sizes):
    """As PyTorch's allocator hands them out."""
    return sum(math.ceil(size / 512) * 512 for size in sizes)


def four_bit(outputs, inputs):
    """nf4 with double quantisation: codes of half a byte; a scale in a byte for 64 of them; a scale in 4 bytes for 256 scales; two tables, and an offset."""
    numbers = outputs * inputs
    scales = numbers // 64
    return blocks(numbers // 2, scales, 4 * math.ceil(scales / 256), 4 * 16, 4 * 256, 4)


# cuBLAS's workspace before Hopper.
WORKSPACE = 8_519_680
# bitsandbytes makes one table of 256 floats once a process; the rotary embedding has two of 64.
TABLE, ROTARY = 1024, 2 * 512

QUANTISED = LAYERS * sum(four_bit(*shape) for shape in LINEAR)
# Embedding, head and norms.
OTHERS = 2 * WORDS * HIDDEN + (2 * LAYERS + 1) * HIDDEN
ADAPTERS = LAYERS * sum(RANK * (outputs + inputs) for outputs, inputs in LINEAR)


@pytest.fixture(scope="module")
def qlora(oomph, warm, tmp_path_factory):
    """One run for all that is asked of it: what `oomph predict` says, and what the program saw."""
    folder = tmp_path_factory.mktemp("qlora")
    (folder / "qlora.py").write_text(QLORA)
    code, out, err = oomph("predict", "--gpu", "t4", "--format", "json", "--no-recording", "--python", warm(sys.executable), "qlora.py", cwd=folder)
    assert code == 0, err
    return json.loads(out), json.loads((folder / "told.json").read_text())


def test_quantised_weights_have_the_bytes_of_their_layout(qlora):
    told = qlora[1]
    assert told["quantised"] - told["before"] == QUANTISED + 2 * OTHERS + TABLE + ROTARY
    # What is not quantised is made 32 bits wide for the training.
    assert told["prepared"] - told["after_one"] == 2 * OTHERS
    assert told["adapted"] - told["prepared"] == 4 * ADAPTERS


def test_kernels_of_bitsandbytes_take_what_their_code_allocates(qlora):
    told, (outputs, inputs), tokens = qlora[1], (INNER, HIDDEN), 4 * 64
    assert told["shape"] == [4, 64, outputs] and told["shape_of_gradient"] == [4, 64, inputs]
    weight, scales = 2 * outputs * inputs, 4 * outputs * inputs // 64
    # The scales, without and with their offset, are there until the product is.
    assert told["forward_of_one"] - told["before_one"] == weight + 2 * scales + 2 * tokens * outputs + WORKSPACE
    assert told["backward_of_one"] - told["before_backward_of_one"] == weight + 2 * tokens * inputs + WORKSPACE
    assert told["after_one"] == told["quantised"]


def test_a_paged_optimizer_keeps_its_state_beside_the_card(qlora):
    reported, told = qlora
    assert told["backward_0"] - told["adapted"] == 4 * ADAPTERS + blocks(8 * 16)
    # Scales of both states, one for 256 numbers, and the two tables.
    state = 2 * 4 * ADAPTERS // 256 + 2 * TABLE
    assert told["step_0"] - told["backward_0"] == state
    assert told["step_1"] == told["step_0"] and told["end_1"] == told["end_0"] == told["step_0"] - 4 * ADAPTERS
    # The states themselves, of a byte each.
    assert reported["managed"] == 2 * ADAPTERS


def test_frozen_weights_adapters_and_gradients_are_told_apart(qlora):
    reported, _ = qlora
    kinds = {held["kind"]: held["bytes"] for held in reported["kinds"]}
    assert reported["step"] == 2
    assert kinds["frozen_weights"] == QUANTISED + 4 * OTHERS
    assert (kinds["adapters"], kinds["gradients"]) == (4 * ADAPTERS, 4 * ADAPTERS)
    assert kinds["optimizer_state"] == 2 * 4 * ADAPTERS // 256 + 2 * TABLE
    # The buffers of the rotary embedding, and what bitsandbytes keeps for later weights.
    assert kinds["parameters"] == ROTARY + TABLE


def test_eight_bit_weights_have_their_bytes_and_outliers_are_said_to_be_unknown(qlora):
    reported, told = qlora
    assert told["eight"] - told["before_eight"] == blocks(HIDDEN * INNER, 4 * INNER)
    assert told["shapes_of_eight"] == [[4, 64, INNER], [4, 64, HIDDEN]]
    # Which columns have outliers hangs on values that only the kernels would have computed.
    assert "bitsandbytes::int8_vectorwise_quant" in str(reported["uncertain"])


# -- tensors of other classes


def four_bit_layer(quantised=True):
    bnb = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear4bit(512, 2048, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    return layer.to("cpu") if quantised else layer


def test_four_bit_weights_travel_by_their_pieces():
    layer = four_bit_layer()
    weight, state = layer.weight, layer.weight.quant_state
    packed = pack({"layer": layer, "again": weight, "view": weight.data[:16]})
    assert len(packed) < 20_000
    there = unpack(packed)
    sent, state_sent = there["again"], there["again"].quant_state
    assert type(sent) is type(weight) and isinstance(sent, nn.Parameter) and not sent.requires_grad
    assert (sent.shape, sent.dtype, sent.bnb_quantized, sent.quant_type) == (weight.shape, torch.uint8, True, "nf4")
    assert there["layer"].weight is sent and sent.module is there["layer"] and there["layer"].quant_state is state_sent
    assert there["view"].untyped_storage().data_ptr() == sent.untyped_storage().data_ptr()
    assert (state_sent.shape, state_sent.dtype, state_sent.blocksize, state_sent.nested) == (state.shape, state.dtype, 64, True)
    for name in ("absmax", "code", "offset"):
        assert getattr(state_sent, name).shape == getattr(state, name).shape and getattr(state_sent, name).dtype == getattr(state, name).dtype
    assert state_sent.state2.absmax.shape == state.state2.absmax.shape
    # Tables travel with their values, codes and scales without.
    assert torch.equal(state_sent.code, state.code)


def test_bytes_are_those_of_all_pieces():
    layer = four_bit_layer()
    assert bytes_on(torch.device("cpu"), layer) == four_bit(2048, 512)
    assert sum(piece.numel() * piece.element_size() for piece in pieces(layer.weight)) == 2048 * 512 // 2 + 16384 + 4 * (64 + 16 + 256 + 1)


def test_wrappers_travel_as_what_they_wrap():
    from torch.testing._internal.two_tensor import TwoTensor

    shared = torch.arange(2000, dtype=torch.float32)
    model = nn.Linear(50, 40, bias=False)
    model.weight = nn.Parameter(TwoTensor(shared.view(40, 50), torch.zeros(40, 50)), requires_grad=False)
    there = unpack(pack({"model": model, "shared": shared}))
    weight = there["model"].weight
    assert type(weight) is TwoTensor and isinstance(weight, nn.Parameter) and not weight.requires_grad and weight.shape == (40, 50)
    assert torch.equal(weight.a, model.weight.a) and weight.a.untyped_storage().data_ptr() == there["shared"].untyped_storage().data_ptr()
    assert bytes_on(torch.device("cpu"), model) == 2 * blocks(8000)


class Scaled(nn.Parameter):
    """A parameter with attributes, one of which refers back to it."""


def test_attributes_of_parameters_travel_with_them():
    weight = torch.Tensor._make_subclass(Scaled, torch.zeros(8, 1 << 16), True)
    weight.scale, weight.owner = torch.full((8,), 3.0), {"weight": weight}
    there = unpack(pack([weight]))[0]
    assert type(there) is Scaled and there.requires_grad and there.is_leaf and there.owner["weight"] is there
    assert there.scale.tolist() == [3.0] * 8


class WithMore(torch.optim.SGD):
    """An optimizer with attributes that PyTorch's own pickling leaves out, one of which cannot be sent."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.table, self.lock = {"signs": torch.tensor([1, -1])}, threading.Lock()


def test_optimizers_of_others_keep_what_they_need():
    model = nn.Linear(4, 4)
    there = unpack(pack({"optimizer": WithMore(model.parameters()), "model": model}))
    assert there["optimizer"].table["signs"].tolist() == [1, -1] and not hasattr(there["optimizer"], "lock")
    assert there["optimizer"].param_groups[0]["params"][0] is there["model"].weight
    there["model"](torch.ones(1, 4)).sum().backward()
    there["optimizer"].step()


def test_what_has_no_memory_cannot_be_sent():
    with pytest.raises(NotPackable, match="on meta cannot be sent"):
        pack(nn.Linear(2, 2, device="meta"))
