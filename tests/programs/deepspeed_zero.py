"""The model of parallel.py, shared out by DeepSpeed's ZeRO: torchrun --nproc-per-node=4 deepspeed_zero.py --stage 3 --offload.

Parameters and gradients are bfloat16, master copies and the optimizer's state float32. DeepSpeed's own optimizers are compiled where they are used; PyTorch's AdamW stands in for them unless --own-adam asks for them.
"""
import argparse
import os

import deepspeed
import torch
from parallel import LENGTH, VOCAB, Model, loss_of


def settings(args):
    zero = {
        "stage": args.stage,
        "contiguous_gradients": True,
        "overlap_comm": args.overlap,
        "reduce_bucket_size": args.bucket,
        "allgather_bucket_size": args.bucket,
    }
    if args.stage == 3:
        zero |= {"stage3_prefetch_bucket_size": 1 << 20, "stage3_param_persistence_threshold": 10_000, "stage3_max_live_parameters": 1 << 23, "stage3_max_reuse_distance": 1 << 23, "sub_group_size": 1 << 24}
    if args.offload or args.offload_parameters:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if args.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": False}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": not args.own_adam}}
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": args.own_adam,
        "optimizer": optimizer,
        "steps_per_print": 1 << 30,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, choices=(0, 1, 2, 3), default=2)
    parser.add_argument("--offload", action="store_true", help="the optimizer's state on the host")
    parser.add_argument("--offload-parameters", action="store_true", help="and the parameters (stage 3)")
    parser.add_argument("--own-adam", action="store_true", help="DeepSpeed's FusedAdam and DeepSpeedCPUAdam, which need a compiler")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--bucket", type=int, default=1 << 23, help="elements")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=0, help="as DeepSpeed's launcher gives it")
    args = parser.parse_args()

    # Ranks may share a card, if NCCL takes them to be of several hosts.
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    deepspeed.init_distributed("nccl")
    torch.manual_seed(0)
    config = settings(args)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=args.stage == 3):
        model = Model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for number in range(args.steps):
        x = torch.randint(0, VOCAB, (args.batch_size, LENGTH), device="cuda")
        y = torch.randint(0, VOCAB, (args.batch_size, LENGTH), device="cuda")
        loss = loss_of(engine(x), y)
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0:
            print(f"step {number} loss {loss.item():.4f}")
    print(f"PEAK allocated={torch.cuda.max_memory_allocated()} reserved={torch.cuda.max_memory_reserved()}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
