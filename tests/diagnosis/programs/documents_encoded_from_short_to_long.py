# cause: fragmentation
# from: pytorch/pytorch#96995
# what: batches get longer, and each result is put into half of the block that the batch before it freed, so the other half serves no later batch
import os  #! import os; os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.widen = nn.Linear(256, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.states = nn.Linear(width, 2 * width)

    def forward(self, x):
        x = self.narrow(self.widen(x).relu_())  #?
        return self.states(x)  #?


def batches(lengths, batch=64):
    for length in lengths:
        yield torch.randn(batch, length, 256, device="cuda")


@torch.no_grad()
def encode(model, lengths):
    states = []
    for x in batches(lengths):
        states.append(model(x))  #?
    return states


name = os.environ.get("CORPUS", "letters")
lengths = sorted(512 + 64 * step for step in range(17))
model = Encoder().cuda().eval()
states = encode(model, lengths)
print(name, sum(s.shape[1] for s in states), "positions", torch.cuda.memory_allocated() >> 20, "MiB")
