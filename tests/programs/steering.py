"""A loop that steers itself by values read from the device: lengths, masks, the loss scale, early stopping."""
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn


def trim(x, mask, shortest=64):
    """Drop the padding that every sample shares; skip the work when nothing is padded."""
    if mask.all():
        return x, mask
    longest = max(shortest, int(mask.sum(dim=1).max().item()))
    return x[:, :longest], mask[:, :longest]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--patience", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    head = nn.Linear(512, 1).cuda()
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24)

    best, bad = math.inf, 0
    for step in range(args.steps):
        x = torch.randn(args.batch_size, 512, 512, device="cuda")
        lengths = torch.randint(64, 385, (args.batch_size,), device="cuda")
        x, mask = trim(x, torch.arange(512, device="cuda") < lengths[:, None])

        with torch.autocast("cuda", dtype=torch.float16):
            y = head(model(x, src_key_padding_mask=~mask)).squeeze(-1)
            loss = F.binary_cross_entropy_with_logits(y[mask], torch.ones_like(y[mask]))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        print(f"step {step} length {x.size(1)} loss {loss.item():.4f} skipped {scaler.get_scale() < before}")

        best, bad = (loss.item(), 0) if loss.item() < best else (best, bad + 1)
        if bad >= args.patience or not math.isfinite(loss.item()):
            print("stopping early")
            break

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
