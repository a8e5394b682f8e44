"""A model that is sharded by oomph.fit where it must be: each rank calls it, and takes three steps.

    python fit_sharded.py BUDGET [--by-hand] [--allow NAME]

Prints what was predicted of the plan, and PyTorch's own peaks of the steps.
"""

import argparse
import os

import oomph
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WIDTH, WORDS, BLOCKS, SAMPLES, LENGTH = 1024, 4000, 8, 8, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("budget")
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--allow", action="append", default=[])
    arguments = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Model().cuda()
    if arguments.by_hand:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words = torch.randint(0, WORDS, (SAMPLES, LENGTH), device="cuda")
    shard = None if arguments.by_hand else "auto"
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=(words, words), shard=shard, budget=arguments.budget, allow=arguments.allow)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        fit.step((words, words))
    predicted, (allocated, reserved) = fit.plan.predicted, fit.peak()
    print(f"RANK {dist.get_rank()} SHARD {fit.plan.chosen.shard or 'whole'} LIMIT {fit.plan.room.usable}")
    print(f"PREDICTED allocated={predicted.allocated} reserved={predicted.reserved}")
    print(f"PEAK allocated={allocated} reserved={reserved}")


if __name__ == "__main__":
    main()
