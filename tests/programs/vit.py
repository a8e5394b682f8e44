"""Train torchvision's ViT-B/16 for a few steps with label smoothing and a warm-up schedule."""
import argparse

import torch
import torchvision
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--freeze", action="store_true", help="train the head only")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = torchvision.models.vit_b_16(num_classes=100)
    if args.freeze:
        model.requires_grad_(False)
        model.heads.requires_grad_(True)
    model.cuda().train()

    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    correct = 0
    for step in range(args.steps):
        images = torch.randn(args.batch_size, 3, 224, 224, device="cuda")
        labels = torch.randint(0, 100, (args.batch_size,), device="cuda")
        outputs = model(images)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        correct += (outputs.argmax(dim=1) == labels).sum().item()
        print(f"step {step} loss {loss.item():.4f}")

    print(f"accuracy {correct / (args.batch_size * args.steps):.3f}")
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main()
