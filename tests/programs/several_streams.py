"""Copy the next batch on a side stream while the current one trains; record_stream keeps it alive."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Prefetcher:
    def __init__(self, batches):
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        batch = next(self.batches, None)
        self.next = None
        if batch is not None:
            with torch.cuda.stream(self.stream):
                x, y = (t.cuda(non_blocking=True) for t in batch)
                self.next = (x.sub_(x.mean()).div_(x.std()), y)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            for tensor in batch:
                tensor.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4096)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048), nn.GELU(), nn.Linear(2048, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
batches = (
    (torch.randn(args.batch_size, 2048).pin_memory(), torch.randint(0, 10, (args.batch_size,)).pin_memory())
    for _ in range(args.steps)
)

for step, (x, y) in enumerate(Prefetcher(batches)):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

torch.cuda.synchronize()
print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
