"""Train a LlamaForCausalLM on left-padded batches, with an attention mask and position ids of our own."""
import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def batch(batch_size, length, vocab_size, pad, padded):
    ids = torch.randint(1, vocab_size, (batch_size, length))
    mask = torch.ones_like(ids)
    if padded:
        for row, skip in enumerate(torch.randint(0, length // 2, (batch_size,)).tolist()):
            ids[row, :skip], mask[row, :skip] = pad, 0
    positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--no-padding", dest="padded", action="store_false")
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    args = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12000, hidden_size=768, intermediate_size=2048, num_hidden_layers=6,
        num_attention_heads=12, num_key_value_heads=4, max_position_embeddings=1024,
        pad_token_id=0, attn_implementation=args.attention,
    )
    model = LlamaForCausalLM(config).cuda()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for step in range(args.steps):
        inputs = batch(args.batch_size, 512, config.vocab_size, config.pad_token_id, args.padded)
        inputs = {name: tensor.to("cuda") for name, tensor in inputs.items()}
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.4f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
