"""Train a ResNet-18 in bfloat16, channels last, with cuDNN choosing its algorithms by timing them."""
import argparse

import torch
import torchvision
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.backends.cudnn.benchmark = True
torch.manual_seed(0)

model = torchvision.models.resnet18(num_classes=1000)
model = model.to(device="cuda", dtype=torch.bfloat16, memory_format=torch.channels_last)
model.train()
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for step in range(args.steps):
    images = torch.randn(args.batch_size, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (args.batch_size,), device="cuda")

    start.record()
    loss = criterion(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    end.record()
    torch.cuda.synchronize()
    print(f"step {step} loss {loss.item():.3f} {start.elapsed_time(end):.1f} ms")

print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
