"""QLoRA: the weights of MODEL in 4 bits and frozen, adapters are trained.

Written by oomph predict --model, which ran it; it needs nothing of oomph. Put your own data into batch().
"""

import argparse

import torch
from bitsandbytes.optim import PagedAdamW8bit
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def half() -> torch.dtype:
    """bfloat16; float16 on cards before Ampere, which have none."""
    return torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16


def load(name: str, rate: float = 1e-4) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    # NF4, and the constants of the quantization are quantized too.
    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=half())
    model = AutoModelForCausalLM.from_pretrained(name, dtype=half(), quantization_config=bits, device_map={"": 0})
    # Norms, embeddings and the head stay in 16 bits; peft's prepare_model_for_kbit_training would make them float32.
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    # Activations are computed again in the backward pass.
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = PagedAdamW8bit([one for one in model.parameters() if one.requires_grad], lr=rate)
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
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--output", help="a folder for the adapters")
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
