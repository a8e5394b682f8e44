"""Mixed-precision training in float16 with torch.autocast and a GradScaler."""
import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda"


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


model = nn.Sequential(
    conv(3, 64), conv(64, 64),
    conv(64, 128, 2), conv(128, 128),
    conv(128, 256, 2), conv(256, 256),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1000),
).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")

for step in range(args.steps):
    images = torch.randn(args.batch_size, 3, 128, 128, device=device)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)

    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device_type="cuda", dtype=torch.float16):
        outputs = model(images)
        loss = criterion(outputs, labels)

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    print(f"step {step} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
