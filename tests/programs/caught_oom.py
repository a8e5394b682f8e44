"""Find a batch size that fits by halving it on every OutOfMemoryError, then go on training with it."""
import argparse
import gc

import torch
import torch.nn.functional as F
from torch import nn


def train_step(model, head, optimizer, batch_size):
    x = torch.randn(batch_size, 512, 512, device="cuda")
    labels = torch.randint(0, 100, (batch_size,), device="cuda")
    loss = F.cross_entropy(head(model(x)[:, 0]), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--memory-fraction", type=float, default=1.0, help="share of the device to use")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.cuda.set_per_process_memory_fraction(args.memory_fraction)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    head = nn.Linear(512, 100).cuda()
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-4)

    batch_size, done = args.batch_size, 0
    while done < args.steps:
        try:
            loss = train_step(model, head, optimizer, batch_size)
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
            print(f"batch size {batch_size} does not fit, trying {batch_size // 2}")
            batch_size //= 2
            optimizer.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
            continue
        done += 1
        print(f"step {done} batch size {batch_size} loss {loss:.4f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
