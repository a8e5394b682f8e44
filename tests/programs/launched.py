"""The model of parallel.py, shared out by accelerate and by Lightning: torchrun --nproc-per-node=4 launched.py --by accelerate-fsdp2.

With --start it starts its ranks as these libraries do: accelerate by notebook_launcher, Lightning by forks of this process.
"""
import argparse

import torch
from parallel import LENGTH, VOCAB, Block, Model, loss_of
from torch.utils.data import DataLoader, TensorDataset


def batches(args, ranks):
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCAB, (args.batch_size * args.steps * ranks, LENGTH + 1))
    return DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=args.batch_size)


def by_accelerate(args):
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = None
    if args.by == "accelerate-fsdp2":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=True,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
            cpu_ram_efficient_loading=args.load_once,
        )
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches(args, accelerator.num_processes))
    for number, (x, y) in enumerate(loader):
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"step {number} loss {accelerator.gather(loss.detach()).mean().item():.4f}")
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}", flush=True)
    accelerator.end_training()


def by_lightning(args):
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy

    class Trained(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = None if args.by == "lightning-parallel" else Model()

        def configure_model(self):
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            if self.model is None:
                self.model = Model()
                policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
                for block in self.model.blocks.values():
                    fully_shard(block, mesh=self.device_mesh["data_parallel"], mp_policy=policy)
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"], mp_policy=policy)

        def training_step(self, batch, index):
            loss = loss_of(self.model(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    strategies = {
        "lightning-ddp": lambda: DDPStrategy(start_method="fork" if args.start else "popen"),
        "lightning-fsdp": lambda: FSDPStrategy(auto_wrap_policy={Block}),
        "lightning-parallel": lambda: ModelParallelStrategy(data_parallel_size=args.devices, tensor_parallel_size=1),
    }
    precision = "32-true" if args.by == "lightning-parallel" else "bf16-mixed"
    trainer = L.Trainer(
        accelerator="gpu", devices=args.devices, strategy=strategies[args.by](), precision=precision, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Trained(), batches(args, trainer.world_size))
    if trainer.is_global_zero:
        print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")


WAYS = "accelerate-ddp accelerate-fsdp2 lightning-ddp lightning-fsdp lightning-parallel"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--by", choices=WAYS.split(), default="accelerate-fsdp2")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--start", action="store_true", help="let the library start the ranks")
    parser.add_argument("--load-once", action="store_true", help="accelerate: only rank 0 has the weights, and sends them")
    args = parser.parse_args()
    if args.by.startswith("lightning"):
        by_lightning(args)
    elif not args.start:
        by_accelerate(args)
    else:
        from accelerate import notebook_launcher

        notebook_launcher(by_accelerate, (args,), num_processes=args.devices)


if __name__ == "__main__":
    main()
