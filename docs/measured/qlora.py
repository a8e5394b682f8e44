"""The memory of QLoRA training steps: measured on the card that is here, beside what `oomph predict` says of the same script.

    python docs/measured/qlora.py                 # both, on a machine with a GPU; the command is $OOMPH, or the `oomph` of the path
    python docs/measured/qlora.py --predict-only  # on a machine without

Models have the sizes of Llama 3.2 1B and Qwen2.5 0.5B and random weights: linear layers in 4 bits (nf4, double quantisation), adapters on all of them, gradient
checkpointing, autocast to bfloat16, 4 sequences of 1024. Where bitsandbytes is not installed, layers with the same tensors stand for its own (`plain tensors` in the
table): they have no values worth mentioning, the same bytes, and the same temporaries; the optimizer is then PyTorch's AdamW.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

BATCH, LENGTH, STEPS, RANK = 4, 1024, 3, 16

MODELS = {
    "llama-3.2-1b": ("Llama", dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64)),
    "qwen2.5-0.5b": ("Qwen2", dict(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2)),
}


# -- a training, in a process of its own


def plain_four_bit(torch):
    """A linear layer of the tensors that bitsandbytes' has, without its kernels."""

    class Multiplied(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.layer = layer
            scales = torch.empty_like(layer.scales, dtype=torch.float32)
            scales = scales, scales + layer.offset
            out = torch.nn.functional.linear(x, layer.dequantised(x.dtype), layer.bias)
            del scales
            return out

        @staticmethod
        def backward(ctx, gradient):
            return torch.matmul(gradient, ctx.layer.dequantised(gradient.dtype)), None

    class FourBit(torch.nn.Linear):
        def __init__(self, inputs, outputs, bias):
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features, numbers = inputs, outputs, inputs * outputs
            self.weight = torch.nn.Parameter(torch.zeros(numbers // 2, 1, dtype=torch.uint8, device="cuda"), requires_grad=False)
            self.bias = torch.nn.Parameter(torch.zeros(outputs, dtype=torch.bfloat16, device="cuda"), requires_grad=False) if bias else None
            pieces = dict(
                scales=(numbers // 64, torch.uint8),
                scales_of_scales=(-(-numbers // 64 // 256), torch.float32),
                table=(16, torch.float32),
                table_of_scales=(256, torch.float32),
                offset=((), torch.float32),
            )
            for name, (size, dtype) in pieces.items():
                self.register_buffer(name, torch.zeros(size, dtype=dtype, device="cuda"), persistent=False)

        def dequantised(self, dtype):
            return torch.full((self.out_features, self.in_features), 0.01, dtype=dtype, device="cuda")

        def forward(self, x):
            return Multiplied.apply(x.to(torch.bfloat16), self)

    return FourBit


def quantise(module, torch, bnb):
    for name, child in list(module.named_children()):
        if type(child) is not torch.nn.Linear:
            quantise(child, torch, bnb)
        elif name != "lm_head":
            inputs, outputs, bias = child.in_features, child.out_features, child.bias is not None
            if bnb is None:
                setattr(module, name, plain_four_bit(torch)(inputs, outputs, bias))
                continue
            new = bnb.nn.Linear4bit(inputs, outputs, bias, torch.bfloat16, quant_type="nf4", device="meta")
            new.weight = bnb.nn.Params4bit(torch.zeros(outputs, inputs, dtype=torch.bfloat16), requires_grad=False, quant_type="nf4", compress_statistics=True, module=new)
            new.weight = new.weight.cuda()
            if bias:
                new.bias = torch.nn.Parameter(torch.zeros(outputs, dtype=torch.bfloat16, device="cuda"), requires_grad=False)
            setattr(module, name, new)


def train(name):
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    try:
        import bitsandbytes as bnb
    except ImportError:
        bnb = None

    family, sizes = MODELS[name]
    config = getattr(transformers, f"{family}Config")(tie_word_embeddings=True, max_position_embeddings=4096, **sizes)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16)
    quantise(model, torch, bnb)
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                module._parameters[key] = torch.nn.Parameter(torch.full_like(parameter, 0.01, device="cuda"))
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config).cuda()

    model.is_loaded_in_4bit = True
    model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
    model = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = bnb.optim.PagedAdamW8bit(adapters, lr=1e-4) if bnb else torch.optim.AdamW(adapters, lr=1e-4)
    ids = torch.randint(config.vocab_size, (BATCH, LENGTH), device="cuda")
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}" + (f", bitsandbytes {bnb.__version__}" if bnb else "")
    measured = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    print("MEASURED " + json.dumps({**measured, "layers": "bitsandbytes" if bnb else "plain tensors", "card": torch.cuda.get_device_name(), "versions": versions}), flush=True)


# -- the table


def said(text):
    line = next((line for line in text.splitlines() if line.startswith("MEASURED ")), None)
    return json.loads(line.removeprefix("MEASURED ")) if line else None


def run(command):
    begun = time.monotonic()
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}")
    return ran, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", choices=MODELS, help="train this one, and say what was measured")
    parser.add_argument("--predict-only", action="store_true", help="there is no GPU here")
    parser.add_argument("--gpu", default="h200", help="the card to predict for")
    asked = parser.parse_args()
    if asked.train:
        return train(asked.train)
    oomph = os.environ.get("OOMPH") or shutil.which("oomph")
    if oomph is None:
        sys.exit("no command `oomph`: name it in $OOMPH")
    first, rows = None, []
    for name in MODELS:
        script = [os.path.abspath(__file__), "--train", name]
        measured, on_card = None, 0.0
        if not asked.predict_only:
            ran, on_card = run([sys.executable, *script])
            measured = said(ran.stdout)
        ran, predicting = run([oomph, "predict", "--gpu", asked.gpu, "--format", "json", "--no-recording", "--python", sys.executable, *script])
        predicted = json.loads(ran.stdout)
        first = first or measured or said(ran.stderr)
        kinds = {held["kind"]: held["bytes"] for held in predicted["kinds"] or ()}
        cells = (
            [measured["allocated"], predicted["peak"]["allocated"], measured["reserved"], predicted["peak"]["reserved"]]
            if measured
            else ["", predicted["peak"]["allocated"], "", predicted["peak"]["reserved"]]
        )
        cells += [kinds.get("frozen_weights", 0), kinds.get("adapters", 0), predicted["managed"]]
        rows.append([name, *(f"{cell:,}" if cell != "" else "" for cell in cells), f"{on_card:.0f}", f"{predicting:.0f}"])
    print(f"{first['card']}, {first['versions']}; layers: {first['layers']}\n" if first else "")
    print(
        "| model | allocated | predicted | reserved | predicted | frozen weights, predicted | adapters, predicted | managed, predicted | seconds on the card | seconds of prediction |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
