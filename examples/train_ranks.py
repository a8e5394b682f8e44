"""Train GPT-2 (124 million parameters) on several GPUs, one process each:

    torchrun --nproc-per-node 4 examples/train_ranks.py --how fsdp

Needs torch and nothing else. --how says what ranks share: nothing (ddp), the optimizer's state (zero), or parameters and gradients too
(fsdp). With --collect, rank 0 gathers what the others computed and keeps it, as scripts do that evaluate while they train.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from train_gpt2 import BLOCK, DIM, VOCAB, GPT2


def prepare(model, how):
    """The model and its optimizer, as they are on one rank."""
    options = {"lr": 3e-4, "weight_decay": 0.1}
    if how == "fsdp":
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        return model, torch.optim.AdamW(model.parameters(), **options)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if how == "zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)
    return model, torch.optim.AdamW(model.parameters(), **options)


def main():
    parser = argparse.ArgumentParser(description="Train GPT-2 (124M) on random tokens, on several GPUs.")
    parser.add_argument("--how", choices=["ddp", "zero", "fsdp"], default="ddp")
    parser.add_argument("--batch-size", type=int, default=4, help="sequences of 1024 tokens in a step, on each rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--collect", action="store_true", help="rank 0 keeps features of every rank")
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model, optimizer = prepare(GPT2().cuda(), args.how)

    collected = []
    for step in range(args.steps):
        ids = torch.randint(VOCAB, (args.batch_size, BLOCK + 1), device="cuda")
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.collect:
            features = logits.detach()[..., :DIM].contiguous()
            parts = [torch.empty_like(features) for _ in range(world)] if rank == 0 else None
            dist.gather(features, parts, dst=0)
            collected.append(parts)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
