"""One model, trained in each of the ways in which PyTorch shares it out: torchrun --nproc-per-node=4 parallel.py --how fsdp2.

With --fake 8 it is one rank of eight without the others, in a group that moves nothing: what that rank takes of a real GPU.
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

VOCAB, DIM, HEADS, DEPTH, LENGTH = 4096, 512, 8, 8, 256


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        # Under tensor parallelism a rank has some of the heads.
        q, k, v = (one(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Experts(nn.Module):
    """One expert a rank: tokens are sent to theirs, as many to each, and come back."""

    def __init__(self, group):
        super().__init__()
        self.group, self.expert = group, Feed()

    def forward(self, x):
        from torch.distributed.nn.functional import all_to_all_single

        rows = x.flatten(0, 1)
        there = all_to_all_single(torch.empty_like(rows), rows.contiguous(), group=self.group)
        back = all_to_all_single(torch.empty_like(rows), self.expert(there), group=self.group)
        return back.view_as(x)


class Block(nn.Module):
    def __init__(self, group=None):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), Attention()
        self.second, self.feed = nn.LayerNorm(DIM), Feed() if group is None else Experts(group)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.feed(self.second(x))


class Model(nn.Module):
    def __init__(self, blocks=range(DEPTH), group=None):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM) if 0 in blocks else None
        self.blocks = nn.ModuleDict({str(number): Block(group) for number in blocks})
        last = DEPTH - 1 in blocks
        self.norm, self.head = (nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)) if last else (None, None)

    def forward(self, x):
        x = x if self.words is None else self.words(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def wrap_ddp(model, how):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(model, gradient_as_bucket_view=how == "ddp-views", static_graph=how == "ddp-static")
    if how == "ddp-compressed":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model


def wrap_fsdp1(model, how):
    import functools

    from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP if how == "fsdp1-grad" else ShardingStrategy.FULL_SHARD,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        cpu_offload=CPUOffload(how == "fsdp1-offload"),
        use_orig_params=True,
        device_id=torch.cuda.current_device(),
    )


def wrap_fsdp2(model, how, mesh):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    options = {"mesh": mesh, "reshard_after_forward": how != "fsdp2-kept"}
    if how != "fsdp2-float32":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if how == "fsdp2-offload":
        options["offload_policy"] = CPUOffloadPolicy()
    for block in model.blocks.values():
        fully_shard(block, **options)
    return fully_shard(model, **options)


def wrap_tensors(model, mesh):
    """Heads and hidden units on different ranks, and what lies between in pieces along the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks.values():
        columns, rows = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
        plan = {"norm": SequenceParallel(), "attention": whole, "second": SequenceParallel(), "feed": whole}
        plan |= {f"attention.{name}": columns for name in "qkv"} | {"attention.out": rows, "feed.up": columns, "feed.down": rows}
        parallelize_module(block, mesh, plan)
    return model


def pipeline(how, args):
    """A step over stages: what a rank has of the model, and how its parts of the batch go through."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    rank, world = dist.get_rank(), dist.get_world_size()
    rounds = 2 if how == "pipeline-interleaved" else 1
    stages = rounds * world
    assert DEPTH % stages == 0, f"{DEPTH} blocks cannot be dealt out to {stages} stages"
    per = DEPTH // stages
    device = torch.device("cuda", torch.cuda.current_device())
    numbers = [rank + turn * world for turn in range(rounds)]
    models = [Model(range(number * per, (number + 1) * per)).to(device) for number in numbers]
    built = [PipelineStage(model, number, stages, device) for model, number in zip(models, numbers)]
    schedule = {"pipeline-gpipe": ScheduleGPipe, "pipeline-1f1b": Schedule1F1B, "pipeline-interleaved": ScheduleInterleaved1F1B}[how]
    turns = schedule(built if rounds > 1 else built[0], n_microbatches=2 * world, loss_fn=loss_of)
    optimizer = torch.optim.AdamW([one for model in models for one in model.parameters()], lr=1e-4)

    def step(x, y):
        losses = []
        turns.step(*([x] if rank == 0 else []), **({"target": y, "losses": losses} if rank == world - 1 else {}))
        return torch.stack(losses).mean() if losses else None

    return step, optimizer


def whole(how, args):
    """A step over the model, wrapped so that ranks share it."""
    world = dist.get_world_size()
    context = None
    if how in ("hsdp", "fsdp2-tensor"):
        mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("outer", "inner"))
    else:
        mesh = init_device_mesh("cuda", (world,))
    model = Model(group=dist.group.WORLD if how == "experts" else None).cuda()
    if how.startswith("ddp") or how == "zero":
        model = wrap_ddp(model, how)
    elif how.startswith("fsdp1"):
        model = wrap_fsdp1(model, how)
    elif how == "tensor":
        model = wrap_tensors(model, mesh)
    elif how == "fsdp2-tensor":
        model = wrap_fsdp2(wrap_tensors(model, mesh["inner"]), how, mesh["outer"])
    elif how == "experts":
        # Experts are different on each rank, all else is the same.
        for name, parameter in model.named_parameters():
            if "expert" not in name:
                parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad, op=dist.ReduceOp.AVG))
    elif how == "context":
        from torch.distributed.tensor.experimental import context_parallel

        context = context_parallel
    else:
        model = wrap_fsdp2(model, how, mesh)
    if how == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(x, y):
        if context is None:
            loss = loss_of(model(x), y)
            loss.backward()
            return loss
        with context(mesh, buffers=[x, y], buffer_seq_dims=[1, 1], no_restore_buffers={x, y}):
            loss = loss_of(model(x), y)
            loss.backward()
        return loss

    return step, optimizer


WHOLE = "ddp ddp-views ddp-static ddp-compressed zero fsdp1 fsdp1-grad fsdp1-offload fsdp2 fsdp2-float32 fsdp2-kept fsdp2-offload hsdp tensor fsdp2-tensor context experts"
PIPELINES = "pipeline-gpipe pipeline-1f1b pipeline-interleaved"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=[*WHOLE.split(), *PIPELINES.split()], default="fsdp2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fake", type=int, help="one rank of so many, without the others")
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()

    if args.fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.cuda.set_device(0)
        dist.init_process_group("fake", store=FakeStore(), rank=args.rank, world_size=args.fake)
    else:
        # Ranks may share a card, if NCCL takes them to be of several hosts.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("nccl")
    torch.manual_seed(0)
    step, optimizer = (pipeline if args.how.startswith("pipeline") else whole)(args.how, args)

    for number in range(args.steps):
        x = torch.randint(0, VOCAB, (args.batch_size, LENGTH), device="cuda")
        y = torch.randint(0, VOCAB, (args.batch_size, LENGTH), device="cuda")
        loss = step(x, y)
        optimizer.step()
        optimizer.zero_grad()
        if loss is not None and dist.get_rank() == 0:
            print(f"step {number} loss {float(loss.detach()):.4f}")

    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
