"""One training program of a grid of models, batches, data types and optimizers, as plain loops write them.

grid.py MODEL BATCH [--dtype fp32|bf16|fp16] [--optim adamw|...] [--ckpt] [--steps 3]
"""
import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F


def optimizer(parameters, kind):
    parameters = [p for p in parameters if p.requires_grad]
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4)
    if kind == "momentum":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    return {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-5),
        "adamw_fused": lambda: torch.optim.AdamW(parameters, lr=1e-5, fused=True),
        "adamw_single": lambda: torch.optim.AdamW(parameters, lr=1e-5, foreach=False),
    }[kind]()


class SimpleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(784, 4096), nn.Linear(4096, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


def mlp(batch, ckpt):
    def data():
        return torch.randn(batch, 784, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")

    return SimpleNet().to("cuda"), data, lambda model, b: F.cross_entropy(model(b[0]), b[1])


def image(name):
    def build(batch, ckpt):
        import torchvision

        model = getattr(torchvision.models, name)(weights=None).to("cuda").train()

        def data():
            return torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (batch,), device="cuda")

        return model, data, lambda model, b: F.cross_entropy(model(b[0]), b[1])

    return build


def text(model_class, config_class, length, labels):
    def build(batch, ckpt):
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, config_class)()
        config.use_cache = False
        model = getattr(transformers, model_class)(config)
        if ckpt:
            model.gradient_checkpointing_enable()
        model = model.to("cuda").train()

        def data():
            return torch.randint(0, config.vocab_size, (batch, length), device="cuda")

        def loss(model, ids):
            wanted = ids if labels == "tokens" else torch.zeros(ids.shape[0], dtype=torch.long, device=ids.device)
            return model(input_ids=ids, labels=wanted).loss

        return model, data, loss

    return build


MODELS = {
    "mlp": mlp,
    "resnet50": image("resnet50"),
    "mobilenet": image("mobilenet_v3_large"),
    "vit": image("vit_b_16"),
    "gpt2": text("GPT2LMHeadModel", "GPT2Config", 512, "tokens"),
    "bert": text("BertForSequenceClassification", "BertConfig", 128, "class"),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--optim", default="adamw")
    parser.add_argument("--ckpt", action="store_true")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    random.seed(0)
    model, data, loss_of = MODELS[args.model](args.batch, args.ckpt)
    steps = optimizer(model.parameters(), args.optim)
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype]
    scaler = torch.amp.GradScaler("cuda") if dtype is torch.float16 else None

    def step():
        batch = data()
        steps.zero_grad(set_to_none=True)
        if dtype is not None:
            with torch.autocast("cuda", dtype=dtype):
                loss = loss_of(model, batch)
        else:
            loss = loss_of(model, batch)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(steps)
            scaler.update()
        else:
            loss.backward()
            steps.step()

    for _ in range(args.steps):
        step()
        torch.cuda.synchronize()
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
