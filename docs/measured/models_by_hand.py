"""What somebody may write by hand to train or run a model of which there is only a config.json: for models.py, on the virtual GPU.

    oomph predict --gpu h200 models_by_hand.py CONFIG_FOLDER WAY BATCH SEQUENCE

Shares nothing with the scripts of `oomph predict --model`. The model is made without weights and without a checkpoint, 4-bit layers are put in one by one, tokens are generated one by one.
"""

import sys

import torch
import transformers
from transformers import AutoConfig, DynamicCache

folder, way, size, length = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = AutoConfig.from_pretrained(folder)
is_old = torch.cuda.get_device_capability()[0] < 8
low = torch.float16 if is_old else torch.bfloat16
kept = torch.float32 if is_old and way == "full" else low
if config.is_encoder_decoder:
    auto = transformers.AutoModelForSeq2SeqLM
elif config.architectures[0].endswith("MaskedLM"):
    auto = transformers.AutoModelForMaskedLM
else:
    auto = transformers.AutoModelForCausalLM

with torch.device("meta"):
    model = auto.from_config(config, dtype=kept)
if way == "qlora":
    import bitsandbytes as bnb

    for _, module in list(model.named_modules()):
        for child, layer in list(module.named_children()):
            if type(layer) is torch.nn.Linear and layer is not model.get_output_embeddings():
                small = bnb.nn.Linear4bit(
                    layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=low, compress_statistics=True, quant_type="nf4", device="meta"
                )
                weight = torch.empty(layer.out_features, layer.in_features, dtype=low, device="cuda")
                small.weight = bnb.nn.Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=small).to("cuda")
                if layer.bias is not None:
                    small.bias = torch.nn.Parameter(torch.empty(layer.out_features, dtype=low, device="cuda"))
                setattr(module, child, small)
                del weight


def here(tensor):
    return torch.empty_like(tensor, device="cuda") if tensor.is_meta else tensor


# Tied weights are one, so they are moved once.
made = {}
for module in model.modules():
    for name, parameter in list(module._parameters.items()):
        if parameter is not None and parameter.is_meta:
            if id(parameter) not in made:
                made[id(parameter)] = (parameter, torch.nn.Parameter(here(parameter.data), requires_grad=parameter.requires_grad))
            module._parameters[name] = made[id(parameter)][1]
    for name, buffer in list(module._buffers.items()):
        if buffer is not None:
            module._buffers[name] = here(buffer)

vocabulary = config.get_text_config().vocab_size
if way == "infer":
    model.eval()
    with torch.no_grad():
        tokens, cache = torch.randint(vocabulary, (size, length - 2), device="cuda"), DynamicCache(config=config)
        for _ in range(2):
            logits = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            tokens = logits[:, -1:].argmax(-1)
    raise SystemExit

model.train()
model.gradient_checkpointing_enable({"use_reentrant": False})
if way != "full":
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = bnb.optim.PagedAdamW8bit(trained, lr=1e-4) if way == "qlora" else torch.optim.AdamW(trained, lr=1e-4, fused=True)
scaler = torch.amp.GradScaler() if is_old else None
for _ in range(3):
    tokens = torch.randint(vocabulary, (size, length), device="cuda")
    with torch.autocast("cuda", low):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
