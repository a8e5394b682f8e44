"""Runs MODEL, which reads text and writes none, its weights in 16 bits.

Written by oomph predict --model, which ran it; it needs nothing of oomph. Put your own text into batch().
"""

import argparse

import torch
from transformers import AutoModelForMaskedLM


def half() -> torch.dtype:
    """bfloat16; float16 on cards before Ampere, which have none."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def load(name: str) -> tuple[torch.nn.Module]:
    return (AutoModelForMaskedLM.from_pretrained(name, dtype=half(), device_map={"": 0}).eval(),)


def batch(model: torch.nn.Module, size: int, sequence: int) -> torch.Tensor:
    """Random tokens, none of them padding, in place of a text."""
    return torch.randint(model.config.get_text_config().vocab_size, (size, sequence), device="cuda")


@torch.inference_mode()
def step(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens).logits


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="MODEL")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a batch")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens in a sequence")
    parser.add_argument("--steps", type=int, default=1, help="batches")
    arguments = parser.parse_args()
    (model,) = load(arguments.model)
    for _ in range(arguments.steps):
        logits = step(model, batch(model, arguments.batch, arguments.sequence))
        print(f"logits of {len(logits)} sequences, {logits.shape[1]} tokens each")


if __name__ == "__main__":
    main()
