"""``oomph.fit(shard="auto")`` on four real ranks that share one GPU, beside one process without it.

    python fit_sharded.py --oomph PATH/oomph [--cases NAME,...] [--out rows.jsonl]

The ranks talk by NCCL over sockets: to NCCL they are of several hosts (NCCL_HOSTID), so that it lets them share the card. Each is held to the budget of its case, in which the model does
not fit whole. For each case it prints the plan, what was predicted and what PyTorch counted on each rank (bytes), and the losses of five steps beside those of one process with the
whole batch. Needs torch 2.6 or later and transformers; stops after five and a half minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.normpath(os.path.join(HERE, "../../python"))
RANKS, STEPS, LIMIT = 4, 5, 330
# Of each: the budget of a rank, samples of a rank, their length, and whether the program shards the model itself.
CASES = {
    "gpt2-355m": ("3.5GiB", 4, 512, False),
    "gpt2-355m-runs-out": ("3.5GiB", 4, 512, False),
    "llama-700m": ("5GiB", 2, 1024, False),
    "llama-700m-by-hand": ("5GiB", 2, 1024, True),
}
# In a case that runs out, one rank does so in the middle of this step, in a block of its forward pass.
RUNS_OUT, IN_STEP = 2, 3


def make(name):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    # Made on the CPU, it would take longer than its steps.
    torch.set_default_device("cuda")
    try:
        return _made(name, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM)
    finally:
        torch.set_default_device("cpu")


def _made(name, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM):
    if name.startswith("gpt2"):
        config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        return GPT2LMHeadModel(config)
    sizes = {"hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 20, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000}
    return LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=2048, use_cache=False))


def batches(name):
    """One for each step: each rank's part. Some targets are missing."""
    import torch

    _, samples, length, _ = CASES[name]
    made = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        words = torch.randint(0, 32000, (RANKS, samples, length), generator=made)
        targets = words.clone()
        targets[torch.rand(targets.shape, generator=made) < 0.1] = -100
        yield [{"input_ids": words[rank].cuda(), "labels": targets[rank].cuda()} for rank in range(RANKS)]


def whole(name):
    import torch

    model = make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for parts in batches(name):
        each = []
        for part in parts:
            loss = model(**part).loss
            (loss / RANKS).backward()
            each.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each)
    return {"losses": losses, "peak": [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]}


def run_out_once(block):
    import torch

    def refuse(module, args):
        hook.remove()
        raise torch.OutOfMemoryError("made up, in the middle of a forward pass")

    hook = block.register_forward_pre_hook(refuse)


def rank_of(name):
    import oomph
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    budget, _, _, by_hand = CASES[name]
    model = make(name)
    if by_hand:
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    steps = list(batches(name))
    begun = time.monotonic()
    fit = oomph.fit(model, optimizer, batch=steps[0][rank], budget=budget, shard=None if by_hand else "auto", quiet=rank > 0)
    planned = time.monotonic() - begun
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for number, parts in enumerate(steps, 1):
        if name.endswith("runs-out") and rank == RUNS_OUT and number == IN_STEP:
            run_out_once(model.transformer.h[12])
        begun = time.monotonic()
        losses.append(fit.step(parts[rank]).item())
        times.append(time.monotonic() - begun)
    predicted = fit.plan.predicted
    return {
        "plan": fit.plan.summary(),
        "chosen": fit.plan.chosen.to_dict(),
        "notes": fit.plan.notes,
        "history": fit.plan.history,
        "predicted": predicted and [predicted.allocated, predicted.reserved],
        "peak": list(fit.peak()),
        "losses": losses,
        "planned_seconds": round(planned, 1),
        "step_seconds": round(min(times), 3),
    }


def one(what, name, out):
    answer = whole(name) if what == "whole" else rank_of(name)
    with open(out, "w") as file:
        json.dump(answer, file)
    # A process group that is taken leave of would wait for the others.
    os._exit(0)


def start(what, name, out, **more):
    environment = {**os.environ, "PYTHONPATH": PACKAGE + os.pathsep + os.environ.get("PYTHONPATH", ""), **more}
    command = [sys.executable, os.path.abspath(__file__), "--one", what, "--cases", name, "--out", out]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(processes, paths, end):
    """What each has written; for one that has not, what it said last."""
    answers = []
    for process, path in zip(processes, paths):
        try:
            said = process.communicate(timeout=max(1, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0] + "\nno end"
        try:
            with open(path) as file:
                answers.append(json.load(file))
        except (OSError, ValueError):
            answers.append({"error": "\n".join(said.strip().splitlines()[-8:])})
    return answers


def run(name, number, oomph, folder, end):
    path = os.path.join(folder, f"{name}-whole.json")
    (beside,) = ended([start("whole", name, path)], [path], end)
    paths = [os.path.join(folder, f"{name}-{rank}.json") for rank in range(RANKS)]
    shared = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29710 + number), "OOMPH_COMMAND": oomph}
    sockets = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    ranks = [start("rank", name, paths[rank], RANK=str(rank), LOCAL_RANK="0", NCCL_HOSTID=f"host{rank}", **shared, **sockets) for rank in range(RANKS)]
    return {"case": name, "budget": CASES[name][0], "whole": beside, "ranks": ended(ranks, paths, end)}


def show(row):
    print(f"\n{row['case']}, {row['budget']} a rank; whole, one process takes {row['whole'].get('peak', row['whole'])}")
    for rank, said in enumerate(row["ranks"]):
        if "error" in said:
            print(f"  rank {rank} failed:\n{said['error']}")
            continue
        if rank == 0:
            print(f"  {said['plan']}; planned in {said['planned_seconds']} s, a step takes {said['step_seconds']} s")
            for note in [*said["notes"], *said["history"]]:
                print(f"  {note}")
        print(f"  rank {rank}: predicted {said['predicted']}, counted {said['peak']}")
        if "losses" in row["whole"]:
            beside = [each[rank] for each in row["whole"]["losses"]]
            far = max(abs(a - b) for a, b in zip(said["losses"], beside))
            print(f"    losses {[round(loss, 5) for loss in said['losses']]}, whole {[round(loss, 5) for loss in beside]}, at most {far:.2g} apart")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--out")
    parser.add_argument("--one")
    arguments = parser.parse_args()
    if arguments.one:
        return one(arguments.one, arguments.cases, arguments.out)
    end = time.monotonic() + LIMIT
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(arguments.cases.split(",")):
            row = run(name, number, os.path.abspath(arguments.oomph) if os.sep in arguments.oomph else arguments.oomph, folder, end)
            show(row)
            sys.stdout.flush()
            if arguments.out:
                with open(arguments.out, "a") as file:
                    print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
