"""Full fine-tuning of MODEL: all weights are trained.

Written by oomph predict --model, which ran it; it needs nothing of oomph. Put your own data into batch().
"""

import argparse

import torch
from transformers import AutoModelForCausalLM


def half() -> torch.dtype:
    """bfloat16; float16 on cards before Ampere, which have none."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def load(name: str, rate: float = 1e-5) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    # Weights, gradients and the state of AdamW in bfloat16. Where the card has none: in float32, and computed with in float16.
    dtype = half() if half() == torch.bfloat16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map={"": 0})
    # Activations are computed again in the backward pass.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    # Gradients in float16 would vanish without it; for bfloat16 it does nothing.
    scaler = torch.amp.GradScaler("cuda", enabled=half() == torch.float16)
    return model.train(), optimizer, scaler


def batch(model: torch.nn.Module, size: int, sequence: int) -> torch.Tensor:
    """Random tokens, none of them padding, in place of a text."""
    return torch.randint(model.config.get_text_config().vocab_size, (size, sequence), device="cuda")


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", half()):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="MODEL")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a batch")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens in a sequence")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--output", help="a folder for the model")
    arguments = parser.parse_args()
    model, optimizer, scaler = load(arguments.model, arguments.rate)
    for number in range(1, arguments.steps + 1):
        loss = step(model, optimizer, scaler, batch(model, arguments.batch, arguments.sequence))
        if number % 10 == 0:
            print(f"step {number}: loss {loss.item():.4f}")
    if arguments.output:
        model.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
