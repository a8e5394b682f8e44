"""Generates text with MODEL, its weights in 16 bits, with a cache of keys and values.

Written by oomph predict --model, which ran it; it needs nothing of oomph. Put your own prompts into batch().
"""

import argparse

import torch
from transformers import AutoModelForCausalLM

# Tokens that are generated; the others of a sequence are its prompt. More of them take longer, and no more memory.
NEW = 2


def half() -> torch.dtype:
    """bfloat16; float16 on cards before Ampere, which have none."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def load(name: str) -> tuple[torch.nn.Module]:
    return (AutoModelForCausalLM.from_pretrained(name, dtype=half(), device_map={"": 0}).eval(),)


def batch(model: torch.nn.Module, size: int, sequence: int) -> torch.Tensor:
    """Random tokens, none of them padding, in place of prompts."""
    return torch.randint(model.config.get_text_config().vocab_size, (size, max(1, sequence - NEW)), device="cuda")


@torch.inference_mode()
def step(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="MODEL")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a batch")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens in a sequence, prompt and answer")
    parser.add_argument("--steps", type=int, default=1, help="batches")
    arguments = parser.parse_args()
    (model,) = load(arguments.model)
    for _ in range(arguments.steps):
        answers = step(model, batch(model, arguments.batch, arguments.sequence))
        print(f"{len(answers)} answers, {answers.shape[1]} tokens each")


if __name__ == "__main__":
    main()
