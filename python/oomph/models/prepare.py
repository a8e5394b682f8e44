"""Reads a model's ``config.json``, and writes what a prediction runs: the script, and a checkpoint that has everything but data.

What is asked is a dictionary: ``model`` (a folder, a ``config.json`` or a name of the Hub), ``way`` (qlora, lora, full, infer), ``packages`` that this way needs, ``batch``, ``sequence`` (or null),
and where to write: ``script``, ``checkpoints`` (a folder for each type that cards have), ``prepared``. What came of it is ``prepared``: an ``error`` with a ``hint``, or the facts that the crate ``oomph-predict`` needs (``model.rs``).
When there is a ``script``, all else is there.

The checkpoint's files are as long as real ones, and all holes: they take no room on the disk, and the script loads them as it would load the real ones, by ``from_pretrained``. They have the
type that the script asks for, whatever the real ones have: to convert it the host would read them, and the card would not see a difference. There is one for each type that cards have. Of the Hub only
``config.json`` is asked for. No code of a model's own is run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor
    from torch.nn import Module
    from transformers import PretrainedConfig, PreTrainedModel

    # Of a tensor in a file: its name, its type as safetensors calls it, its shape, and its bytes.
    Piece = tuple[str, str, list[int], int]

# What people train with where they say nothing else.
USUAL_SEQUENCE = 2048
# As the Hub's own are split.
SHARD = 5 << 30
CLASSES = {
    "causal": ("AutoModelForCausalLM", ', task_type="CAUSAL_LM"'),
    "both": ("AutoModelForSeq2SeqLM", ', task_type="SEQ_2_SEQ_LM"'),
    "masked": ("AutoModelForMaskedLM", ""),
}
DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
# Their first positions are for padding.
ROBERTA = {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "xmod"}


class Refused(Exception):
    """Why there is no prediction, and what to do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


def prepared(task: dict[str, Any]) -> dict[str, Any] | None:
    """What is known of the model: read here, or by another process before. None if it is refused."""
    try:
        with open(task["prepared"], encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        pass
    try:
        answer, script = prepare(task)
    except Refused as refused:
        write(task["prepared"], json.dumps({"error": str(refused), "hint": refused.hint}))
        return None
    write(task["prepared"], json.dumps(answer))
    write(task["script"], script)
    return answer


def write(path: str, text: str) -> None:
    """Whoever sees the file sees all of it."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".part", path)


def prepare(task: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Writes the checkpoints. Gives what is known of the model, and the script's text."""
    way, source = task["way"], where(task["model"])
    missing = [name for name in ("transformers", *task["packages"]) if importlib.util.find_spec(name) is None]
    if missing:
        raise Refused(f"--train {way} needs {' and '.join(missing)}, which this Python does not have", f"pip install {' '.join(missing)}")
    config = configuration(source, task["model"])
    quantized(config, way)
    kind = kind_of(config)
    positions = most_positions(config)
    sequence = task["sequence"] or min(USUAL_SEQUENCE, positions or USUAL_SEQUENCE)
    if positions is not None and sequence > positions:
        raise Refused(f"--sequence {sequence}: the model takes {positions} tokens at most", f"--sequence {positions}")
    model = empty_model(config, kind)
    for half, folder in task["checkpoints"].items():
        write_checkpoint(model, config, "float32" if way == "full" and half == "float16" else half, folder)
    facts = {
        "architecture": type(model).__name__,
        "parameters": sum(one.numel() for one in model.parameters()),
        "left": not_quantized(model) if way == "qlora" else 0,
        "positions": positions,
        "sequence": sequence,
    }
    return facts, script_of(way, kind, source, task["batch"], sequence)


def where(model: str) -> str:
    """The folder, or the name on the Hub."""
    if os.path.isfile(model):
        if os.path.basename(model) != "config.json":
            raise Refused(f"{model}: a model is a folder, its config.json, or a name of the Hub", "oomph predict --model FOLDER; a script goes without --model")
        return os.path.dirname(model) or "."
    if os.path.isdir(model):
        if not os.path.isfile(os.path.join(model, "config.json")):
            raise Refused(f"{model}: there is no config.json in this folder", "give the folder of a model of transformers")
        return model
    if model.startswith(("/", "./", "../", "~")) or model.count("/") > 1 or not model.strip():
        raise Refused(f"{model}: there is no such folder", "give a folder with a config.json, or a name of the Hub: Qwen/Qwen2.5-7B")
    return model


def configuration(source: str, asked: str) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if os.path.isdir(source):
            raise Refused(
                f"{asked}: its config.json cannot be read: {first}",
                "is transformers new enough for the model? a model that brings code of its own is not run by name: predict your script",
            ) from error
        if re.search(r"gated|restricted|401|403", str(error)):
            raise Refused(f"{asked}: the Hub does not give its config.json: {first}", "log in (hf auth login), or download config.json and give its folder") from error
        raise Refused(
            f"{asked}: there is no such folder, and its config.json could not be had from the Hub: {first}",
            "download config.json and give its folder: oomph predict --model FOLDER",
        ) from error


def quantized(config: PretrainedConfig, way: str) -> None:
    """A checkpoint that is quantized already is another one: only what QLoRA does itself is left to it."""
    how = getattr(config, "quantization_config", None)
    if how is None:
        return
    method = how.get("quant_method") if isinstance(how, dict) else getattr(how, "quant_method", None)
    method = str(getattr(method, "value", method) or "quantized")
    if method.startswith("bitsandbytes") and way == "qlora":
        del config.quantization_config
        return
    raise Refused(f"the checkpoint is quantized ({method}), and how its weights lie is not in its config.json", "name the model that it was made from, or predict your script")


def kind_of(config: PretrainedConfig) -> str:
    """What the model does with text, by the class that it was saved as; otherwise by what transformers has for it."""
    from transformers.models.auto import modeling_auto as auto

    known = {
        "both": getattr(auto, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", {}),
        "masked": getattr(auto, "MODEL_FOR_MASKED_LM_MAPPING", {}),
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    }
    possible = {kind for kind, mapping in known.items() if type(config) in mapping}
    saved = (getattr(config, "architectures", None) or [""])[0]
    if "both" in possible and getattr(config, "is_encoder_decoder", False):
        return "both"
    if "masked" in possible and (saved.endswith("ForMaskedLM") or "causal" not in possible):
        return "masked"
    if "causal" in possible and not (saved.endswith(("Classification", "QuestionAnswering")) or (saved.endswith("Model") and "masked" in possible)):
        return "causal"
    what = saved or config.model_type
    raise Refused(f"{what} is not a language model that is run by name", "predict your script: oomph predict --gpu t4 train.py")


def most_positions(config: PretrainedConfig) -> int | None:
    text = config.get_text_config()
    positions = getattr(text, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        return positions - (text.pad_token_id + 1 if text.model_type in ROBERTA and text.pad_token_id is not None else 0)
    return None


def empty_model(config: PretrainedConfig, kind: str) -> PreTrainedModel:
    """The model without weights: its tensors have shapes, and no memory."""
    import torch
    import transformers

    try:
        with torch.device("meta"):
            return getattr(transformers, CLASSES[kind][0]).from_config(config, trust_remote_code=False)
    except Exception as error:
        raise Refused(
            f"{config.model_type}: transformers cannot make the model: {error}", "is the config.json complete? with a model that brings code of its own, predict your script"
        ) from error


def not_quantized(model: Module) -> int:
    """Parameters that are many matrices in one tensor, as experts are: bitsandbytes quantizes linear layers, and leaves these in 16 bits."""
    return sum(one.numel() for one in model.parameters() if one.dim() > 2)


def write_checkpoint(model: PreTrainedModel, config: PretrainedConfig, dtype: str, folder: str) -> None:
    """Files of safetensors with every tensor of the model, as its own checkpoint has them, and holes for data."""
    import torch

    tensors = saved_tensors(model)
    wanted = getattr(torch, dtype)
    shards: list[list[Piece]] = []
    room = 0
    for name, tensor in tensors.items():
        kept = wanted if tensor.is_floating_point() else tensor.dtype
        size = tensor.numel() * kept.itemsize
        if not shards or room < size:
            shards.append([])
            room = SHARD
        shards[-1].append((name, DTYPES[str(kept).removeprefix("torch.")], list(tensor.shape), size))
        room -= size
    os.makedirs(folder)
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_shard(os.path.join(folder, file), shard)
        places.update((name, file) for name, *_ in shard)
    total = sum(size for shard in shards for *_, size in shard)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as index:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, index)
    config.save_pretrained(folder)


def saved_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The tensors of the model's files. Experts that are one tensor in memory are many there, and put together on the card: here those of the last layer are, when
    everything else has been loaded. The others are as in memory, which takes seconds less."""
    tensors = model.state_dict()
    for name in getattr(model, "all_tied_weights_keys", None) or tied(model):
        tensors.pop(name, None)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        # Before transformers 5 they are modules of their own.
        return tensors
    in_files = revert_weight_conversion(model, dict(tensors))
    last = max(map(layer, tensors), default=-1)
    return {
        **{name: one for name, one in tensors.items() if layer(name) != last or last < 0},
        **{name: one for name, one in in_files.items() if layer(name) == last >= 0},
    }


def layer(name: str) -> int:
    """The number of the layer that a tensor belongs to; -1 if it belongs to none."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else -1


def tied(model: Module) -> list[str]:
    """Names of parameters that are others'. For transformers 4, which has no list of them."""
    kept = {name for name, _ in model.named_parameters()}
    return [name for name, _ in model.named_parameters(remove_duplicate=False) if name not in kept]


def write_shard(path: str, tensors: list[Piece]) -> None:
    header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def script_of(way: str, kind: str, model: str, batch: int, sequence: int) -> str:
    """The script's text, with this model and these sizes as what it takes where nothing else is said."""
    name = "encode" if way == "infer" and kind == "masked" else way
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts", f"{name}.py"), encoding="utf-8") as file:
        text = file.read()
    auto, task = CLASSES[kind]
    text = text.replace("AutoModelForCausalLM", auto).replace(', task_type="CAUSAL_LM"', task)
    text = text.replace('"--batch", type=int, default=1', f'"--batch", type=int, default={batch}').replace(
        '"--sequence", type=int, default=2048', f'"--sequence", type=int, default={sequence}'
    )
    # In the one place as Python writes it, in the other as words of a comment.
    return text.replace('"MODEL"', json.dumps(model)).replace("MODEL", re.sub(r"[^\w ./:@+-]", " ", model), 1)
