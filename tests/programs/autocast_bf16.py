"""Fine-tune an encoder classifier under bfloat16 autocast with gradient accumulation."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab=20000, dim=768, heads=12, layers=4, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, ids):
        x = self.encoder(self.embed(ids))
        return self.classifier(x.mean(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Encoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.steps)

    for step in range(args.steps):
        for _ in range(args.accumulate):
            ids = torch.randint(1, 20000, (args.batch_size, 256)).cuda()
            labels = torch.randint(0, 4, (args.batch_size,)).cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(ids), labels) / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        print(f"step {step} loss {loss.item() * args.accumulate:.4f} lr {scheduler.get_last_lr()[0]:.2e}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
