"""`oomph predict --model`: a model by its name alone. Models are tiny; the sizes of real ones are in docs/measured/models.py."""

import ast
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import oomph
import pytest
import torch
import transformers
from conftest import COMMAND, slowness
from oomph.models import prepare, sizes

TINY = dict(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
GROUPED = dict(**TINY, num_key_value_heads=2, max_position_embeddings=512)
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True, architectures=["LlamaForCausalLM"]),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=16),
    "phi3": lambda: transformers.Phi3Config(**GROUPED, pad_token_id=0),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**TINY),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=1000, n_embd=64, n_layer=2, n_head=4, n_positions=256, architectures=["GPT2LMHeadModel"]),
    "opt": lambda: transformers.OPTConfig(vocab_size=1000, hidden_size=64, word_embed_proj_dim=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4),
    "bloom": lambda: transformers.BloomConfig(vocab_size=1000, hidden_size=64, n_layer=2, n_head=4),
    "mixtral": lambda: transformers.MixtralConfig(**GROUPED, num_local_experts=4, architectures=["MixtralForCausalLM"]),
    "olmoe": lambda: transformers.OlmoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "t5": lambda: transformers.T5Config(vocab_size=1000, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "bert": lambda: transformers.BertConfig(**TINY, architectures=["BertForMaskedLM"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Gives a folder with the config.json of a model, and nothing else."""
    place = tmp_path_factory.mktemp("models")

    def of(name):
        if not (place / name).exists():
            CONFIGS[name]().save_pretrained(place / name)
        return place / name

    return of


def task(tmp_path, model, way="lora", batch=1, sequence=None):
    checkpoints = {half: str(tmp_path / half) for half in ("bfloat16", "float16")}
    packages = ["accelerate", *{"qlora": ["peft", "bitsandbytes"], "lora": ["peft"]}.get(way, [])]
    return {"model": str(model), "way": way, "packages": packages, "batch": batch, "sequence": sequence, "checkpoints": checkpoints}


# -- the checkpoint and the script


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_of_holes_is_loaded_as_a_real_one(name, folder, tmp_path):
    asked = task(tmp_path, folder(name), way="full")
    ready, _ = prepare.prepare(asked)
    kind = prepare.kind_of(CONFIGS[name]())
    auto = getattr(transformers, prepare.CLASSES[kind][0])
    for half, checkpoint in asked["checkpoints"].items():
        model, info = auto.from_pretrained(checkpoint, dtype="auto", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
        wanted = {"bfloat16": torch.bfloat16, "float16": torch.float32}[half]
        files = [os.stat(os.path.join(checkpoint, file)) for file in os.listdir(checkpoint) if file.endswith(".safetensors")]
        tensors = {one.data_ptr(): one.numel() for one in model.parameters()}
        assert sum(file.st_size for file in files) >= sum(tensors.values()) * wanted.itemsize
    assert sum(one.numel() for one in model.parameters()) == ready["parameters"]


def test_large_checkpoints_take_no_room(tmp_path):
    config = transformers.LlamaConfig(vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32)
    config.save_pretrained(tmp_path / "large")
    asked = task(tmp_path, tmp_path / "large")
    ready, _ = prepare.prepare(asked)
    place = asked["checkpoints"]["bfloat16"]
    files = [os.stat(os.path.join(place, file)) for file in os.listdir(place) if file.endswith(".safetensors")]
    assert sum(file.st_size for file in files) > 2 * ready["parameters"] > 4e9
    assert sum(file.st_blocks * 512 for file in files) < 1 << 20
    assert all(file.st_size <= prepare.SHARD + (1 << 20) for file in files)


@pytest.mark.parametrize("way", ["qlora", "lora", "full", "infer"])
@pytest.mark.parametrize("kind", ["causal", "both", "masked"])
def test_the_script_is_for_the_model(way, kind):
    text = prepare.script_of(way, kind, 'a "name"/\\of\na model', 3, 77)
    tree = ast.parse(text)
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert 'a "name"/\\of\na model' in values and 3 in values and 77 in values
    assert prepare.CLASSES[kind][0] in text and "MODEL" not in text
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"load", "batch", "step", "main"} <= functions
    assert "oomph" not in {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}


def test_what_cannot_be_predicted_is_refused_with_a_way_out(folder, tmp_path, monkeypatch):
    def refused(model, **more):
        with pytest.raises(prepare.Refused) as caught:
            prepare.prepare(task(tmp_path, model, **more))
        return str(caught.value), caught.value.hint

    (tmp_path / "empty").mkdir()
    assert refused("./nothing")[0] == "./nothing: there is no such folder"
    assert "no config.json" in refused(tmp_path / "empty")[0]
    why, hint = refused("Qwen/Qwen2.5-7B")
    assert why.startswith("Qwen/Qwen2.5-7B: there is no such folder, and its config.json could not be had from the Hub") and "download config.json" in hint
    assert refused(folder("llama"), sequence=1024) == ("--sequence 1024: the model takes 512 tokens at most", "--sequence 512")
    transformers.ViTConfig(architectures=["ViTForImageClassification"]).save_pretrained(tmp_path / "vit")
    assert refused(tmp_path / "vit")[0] == "ViTForImageClassification is not a language model that is run by name"
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text('{"model_type": "strange", "auto_map": {"AutoConfig": "code.Config"}}')
    assert "its config.json cannot be read" in refused(tmp_path / "strange")[0]
    config = CONFIGS["llama"]().to_dict() | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "gptq").mkdir()
    (tmp_path / "gptq" / "config.json").write_text(json.dumps(config))
    assert "the checkpoint is quantized (gptq)" in refused(tmp_path / "gptq")[0]
    find = prepare.importlib.util.find_spec
    monkeypatch.setattr(prepare.importlib.util, "find_spec", lambda name: None if name in ("peft", "bitsandbytes") else find(name))
    assert refused(folder("llama"), way="qlora") == ("--train qlora needs peft and bitsandbytes, which this Python does not have", "pip install peft bitsandbytes")


def test_experts_in_one_tensor_are_not_quantized(folder, tmp_path):
    ready, _ = prepare.prepare(task(tmp_path, folder("mixtral"), way="qlora"))
    experts = ready["left"]
    # Of each layer: three matrices of four experts.
    assert experts == 2 * 4 * 3 * 64 * 128


# -- the largest sizes


def test_the_search_finds_the_largest_that_fits():
    dice, tries = random.Random(0), []
    for _ in range(2000):
        unit = dice.choice([1, 16, 128])
        most = dice.randint(1, 500) * unit + dice.randint(0, unit - 1)
        limit, asked = dice.randint(0, most + 3 * unit), dice.randint(1, most)
        known = asked if asked <= limit else 0
        tried = []
        # Mostly so, and not always.
        thought = sorted(min(most, int(limit * dice.uniform(*off))) for off in ((0.8, 1.05), (0.95, 1.2)))
        found = sizes.search(lambda one: tried.append(one) or one <= limit, known, None if known else asked, *thought, most, unit)
        values = [one for one in (*range(0, most + 1, unit), most, known) if one <= limit and (known or one < asked)]
        assert found == max(values)
        tries.append(len(tried))
    assert sum(tries) / len(tries) < 6
    # Nothing is known of what is far beyond what was run.
    for limit in (1, 2, 33, 900, 40_000, 65_536):
        tried = []
        assert sizes.search(lambda one: tried.append(one) or one <= limit, min(limit, 4), None, 32, 32, 65_536, 1) == limit
        assert len(tried) < 40, (limit, tried)


def test_what_was_run_bounds_the_search():
    points = {2: (20, 30), 4: (40, 50), 8: (80, 90)}
    # Held to 60: 4 took less, 8 has more in tensors; it would be reached by what is reserved at 5, by tensors at 6.
    assert sizes.bounds(points, 60, 2, True) == (4, 8, 5, 6)
    assert sizes.bounds(points, 45, 2, True) == (2, 8, 3, 4)
    # 4 was run within the room, and failed.
    assert sizes.bounds(points, 45, 4, False)[:2] == (2, 4)
    assert sizes.bounds(points, 10, 2, False)[:2] == (0, 2)
    assert sizes.bounds(points, 100, 2, True)[:2] == (8, None)
    # The curve was doubled on beyond what was asked about, which fits.
    assert sizes.bounds(points, 25, 1, True)[:2] == (1, 4)


def test_values_are_followed_until_the_first_block_and_where_they_are_read():
    class Followed:
        has_read = is_paused = False

        @contextlib.contextmanager
        def paused(self):
            self.is_paused = True
            yield
            self.is_paused = False

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, inputs, reads):
            # A mask, which all look at.
            followed.has_read = True
            paused = [followed.is_paused]
            for block in self.blocks:
                inputs = block(inputs)
                paused.append(followed.is_paused)
            followed.has_read |= reads
            return paused

    model, followed = Model(), Followed()
    # Without a virtual GPU nothing is followed.
    assert sizes.followed_by(torch) is None and sizes.Unread(torch, model, None).reads

    def watched(reads):
        unread = sizes.Unread(torch, model, followed)
        for read in reads:
            with unread.step():
                paused = model(torch.zeros(1, 4), read)
            yield paused, unread.was_read_after_all

    never, always = [False] * 4, [False] + [True] * 3
    assert list(watched([False, False, False])) == [(never, False), (always, False), (always, False)]
    assert list(watched([True, True])) == [(never, False), (never, False)]
    # It is to be taken again, and none after it is.
    assert list(watched([False, True, False])) == [(never, False), (always, True), (never, False)]
    # What a scaler reads is read when values are followed again.
    scaler = torch.amp.GradScaler("cpu")
    scaler.step = lambda optimizer: setattr(followed, "has_read", True) or followed.is_paused
    unread = sizes.Unread(torch, model, followed)
    for expected in (never, always, always):
        with unread.step():
            assert model(torch.zeros(1, 4), False) == expected
            assert unread.apart(scaler).step(None) is False
        assert not unread.was_read_after_all


def test_the_curve_is_straight_or_bends():
    line = {1: (110, 130), 2: (120, 140), 4: (140, 160)}
    # Halfway between where what is in tensors and what is reserved would come to 300.
    assert sizes.estimate(line, 300, 1000, 1) == (20 + 18) // 2
    assert sizes.estimate(line, 100, 1000, 1) == 0 and sizes.estimate(line, 10**9, 1000, 1) == 1000
    square = {one: 100 + one * one for one in (10, 20, 40)}
    assert sizes.crossing(square, 100 + 90 * 90, 10**6) == 90


# -- whole predictions

BY_HAND = """
import sys, torch, transformers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from peft import LoraConfig, get_peft_model
from bitsandbytes.optim import PagedAdamW8bit
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], quantization_config=config, device_map={"": 0})
print("WEIGHTS", torch.cuda.memory_allocated())
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
model.gradient_checkpointing_enable({"use_reentrant": False})
model.train()
optimizer = PagedAdamW8bit([one for one in model.parameters() if one.requires_grad])
for _ in range(3):
    tokens = torch.randint(1000, (2, 64), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_qlora_takes_what_a_script_with_real_weights_takes(folder, predict, tmp_path):
    found = predict("--model", folder("llama"), "--train", "qlora", "--batch", "2", "--sequence", "64", gpu="rtx-4090")
    assert found.code == 0, found.err
    answer = found.reported
    assert answer["fits"] and answer["ended"] == "finished" and answer["steps"] == 3 and not answer["uncertain"]
    assert answer["model"]["architecture"] == "LlamaForCausalLM" and answer["model"]["not_quantized"] == 0
    real = transformers.LlamaForCausalLM(CONFIGS["llama"]()).to(torch.bfloat16)
    real.save_pretrained(tmp_path / "real")
    (tmp_path / "train.py").write_text(BY_HAND)
    by_hand = predict("--steps", "0", "train.py", tmp_path / "real", gpu="rtx-4090", cwd=tmp_path)
    assert by_hand.code == 0, by_hand.err
    # The scaler that does nothing for bfloat16 holds nothing; the loss is kept for a line longer.
    assert abs(found.peak[0] - by_hand.peak[0]) <= 512 and found.peak[1] == by_hand.peak[1]
    first, *others = answer["cards"]
    assert first["gpu"]["name"] == "rtx-4090" and first["run"] and first["needs"]["allocated"] == answer["peak"]["allocated"]
    assert first["longest_sequence"] == 512 and first["largest_batch"] > 1000
    assert not any(card["run"] for card in others) and all(card["fits"] for card in others)
    compile(answer["script"], "script", "exec")
    assert str(folder("llama")) in answer["script"]


def test_experts_with_adapters_on_a_card_that_is_too_small(folder, predict, tmp_path):
    script = tmp_path / "mixtral.py"
    found = predict("--model", folder("mixtral"), "--batch", "65536", "--memory", "6GiB", "--script-out", script, gpu="rtx-4090", format="text")
    assert found.code == 1, found.err
    lines = found.out.splitlines()
    assert lines[0].startswith(f"{folder('mixtral')}, lora, batch 65536, sequence 512 (on a virtual NVIDIA GeForce RTX 4090, 6.00 GiB: ran out of memory")
    assert lines[2].startswith("does not fit: it needs ")
    [row] = [line.split() for line in lines if line.startswith("rtx-4090 ")]
    assert row[5] == "no" and 500 < int(row[6]) < 65536
    assert f"Script: {script}" in lines and "from peft import" in script.read_text()


def test_several_cards_from_python(folder):
    found = oomph.predict_model(folder("bert") / "config.json", train="infer", gpus=["t4", "l4"], sequence=128)
    assert [card.gpu for card in found.cards] == ["t4", "l4"] and found.fits is None
    assert all(card.run and card.fits and card.longest_sequence == 512 for card in found.cards)
    assert found.cards[0].largest_batch < found.cards[1].largest_batch
    assert "AutoModelForMaskedLM" in found.script and found.raw["model"]["train"] == "infer"
    with pytest.raises(TypeError, match="which card"):
        oomph.predict_model("gpt2")
    with pytest.raises(oomph.PredictionError, match="no such folder"):
        oomph.predict_model("./nothing", gpu="t4")


def test_all_weights_on_a_card_without_bfloat16(folder, predict):
    found = predict("--model", folder("t5"), "--train", "full", "--sequence", "64", gpu="t4")
    assert found.code == 0, found.err
    first, *others = found.reported["cards"]
    parameters = found.reported["model"]["parameters"]
    # Weights, gradients and two states in float32; the others have them in bfloat16.
    assert 6 * parameters < first["needs"]["allocated"] - others[0]["needs"]["allocated"] < 10 * parameters


def test_a_model_that_takes_too_long_to_read_is_said(folder, predict, tmp_path):
    found = predict("--model", folder("llama"), "--timeout", "1", "--script-out", tmp_path / "script.py", gpu="t4", format="text")
    assert found.code == 2 and found.out == ""
    assert found.err == "error: the model could not be read: the time was up: it was stopped after 1 s\n"


def process_with(word, of):
    """The process of oomph's whose task has this in it."""
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            stat, task = pathlib.Path("/proc", entry, "stat").read_text(), pathlib.Path("/proc", entry, "environ").read_bytes()
            if int(stat.rpartition(")")[2].split()[1]) == of and word in task:
                return int(entry)
    return None


@pytest.mark.parametrize("ended, code", [("sizes.py", 2), ("llama-lora.py", 2), ("oomph", 128 + signal.SIGTERM)])
def test_whichever_process_ends_first_nothing_waits_and_why_is_said(ended, code, folder):
    """While the one reads the model, and the other waits for the script."""
    words = ["predict", "--model", folder("llama"), "--gpu", "t4", "--no-recording", "--python", sys.executable]
    oomph = subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 30 * slowness()
    processes = []
    while not all(processes) or not processes:
        assert time.monotonic() < end and oomph.poll() is None
        processes = [process_with(word, oomph.pid) for word in (b"/sizes.py", b"/llama-lora.py")]
    if ended == "oomph":
        oomph.terminate()
    else:
        os.kill(processes[ended != "sizes.py"], signal.SIGKILL)
    out, said = oomph.communicate(timeout=60 * slowness())
    assert oomph.returncode == code and out == ""
    assert not any(os.path.exists(f"/proc/{pid}") for pid in processes)
    if ended == "oomph":
        assert said == ""
    else:
        assert said.startswith("error: the program ended (signal: 9 (SIGKILL)) before it had left what was asked for")


@pytest.mark.parametrize("words", [("train.py",), ("--max", "--batch-size"), ("--ranks", "2")])
def test_options_that_do_not_go_together(words, predict):
    found = predict("--model", "gpt2", *words, python="python3")
    assert found.code == 2 and "cannot be used with" in found.err


def test_options_of_a_model_need_one(predict):
    found = predict("--batch", "2", "train.py", python="python3")
    assert found.code == 2 and found.err.startswith("error: --batch goes with --model")
