"""oomph.fit beside what people do by hand, on a real GPU under a budget: one script, rows of JSON, and the tables of fit.md.

    python docs/measured/fit.py --oomph target/release/oomph --out FOLDER [--only gpt2-medium,equal] [--seconds 500]

Every method is a process of its own, held to the same budget by PyTorch's allocator: the budget less what the card's context takes. Needs a GPU, and torch,
torchvision, transformers, accelerate and cloudpickle. Random weights and random tokens and images: memory and time do not depend on them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))

GIB = 1 << 30
MODELS = ("gpt2-medium", "gpt2-large", "vit-l", "resnet152", "llama-1.1b")
METHODS = ("plain", "accelerate", "checkpoint", "fit")


# -- what is trained


def build(name, layers=None):
    """Model on the GPU, optimizer, and a function that makes a batch of so many samples."""
    import torch

    torch.manual_seed(0)
    with torch.device("cuda"):
        if name.startswith("gpt2"):
            from transformers import GPT2Config, GPT2LMHeadModel

            shape = {"gpt2-medium": dict(n_layer=24, n_embd=1024, n_head=16), "gpt2-large": dict(n_layer=36, n_embd=1280, n_head=20)}[name]
            shape["n_layer"] = layers or shape["n_layer"]
            model = GPT2LMHeadModel(GPT2Config(**shape))
        elif name.startswith("llama"):
            from transformers import LlamaConfig, LlamaForCausalLM

            shape = dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000)
            model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers or 22, max_position_embeddings=2048, **shape))
        else:
            import torchvision

            model = torchvision.models.vit_l_16() if name == "vit-l" else torchvision.models.resnet152()
    model.train()
    if name == "resnet152":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def batch(samples, length=1024):
        if name in ("vit-l", "resnet152"):
            images = torch.randn(samples, 3, 224, 224, device="cuda", generator=generator)
            return images, torch.randint(1000, (samples,), device="cuda", generator=generator)
        ids = torch.randint(32000, (samples, length), device="cuda", generator=generator)
        return {"input_ids": ids, "labels": ids}

    return model, optimizer, batch


def loss_of(name):
    import torch

    criterion = torch.nn.CrossEntropyLoss() if name in ("vit-l", "resnet152") else None

    def loss(model, batch):
        return criterion(model(batch[0]), batch[1]) if criterion else model(**batch).loss

    return loss, criterion


def checkpoint_everywhere(name, model):
    """As people do it: the switch of transformers, and of torchvision's models every block."""
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return
    from torch.utils.checkpoint import checkpoint

    blocks = list(model.encoder.layers) if name == "vit-l" else [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    for block in blocks:
        block.forward = (lambda forward: lambda *args: checkpoint(forward, *args, use_reentrant=False))(block.forward)


# -- methods


def forget(optimizer):
    """After an out-of-memory: as before the first step."""
    import gc

    import torch

    optimizer.zero_grad(set_to_none=True)
    optimizer.state.clear()
    gc.collect()
    torch.cuda.empty_cache()


def timed(step, samples, steps):
    """Samples a second over the steps after two of warming up."""
    import torch

    for _ in range(2):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return samples * steps / (time.perf_counter() - start)


def largest(tries, low, high):
    """The largest size that runs, by doubling and halving the gap; 0 if none."""
    best, size = 0, low
    while size <= high and tries(size):
        best, size = size, size * 2
    top = min(size, high + 1)
    while top - best > max(1, best // 16):
        middle = (best + top) // 2
        best, top = (middle, top) if tries(middle) else (best, middle)
    return best


def by_hand(name, method, steps):
    """Plain PyTorch, or with every block checkpointed: the largest batch that runs, and how fast."""
    import torch

    model, optimizer, batch = build(name)
    loss, _ = loss_of(name)
    if method == "checkpoint":
        checkpoint_everywhere(name, model)

    def run(given):
        optimizer.zero_grad(set_to_none=True)
        loss(model, given).backward()
        optimizer.step()

    def tries(size):
        try:
            for _ in range(3):
                run(batch(size))
            return True
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            forget(optimizer)

    size = largest(tries, 1, 4096)
    # What ran three times may run out in the fourth, when memory is in other pieces.
    while size:
        given = batch(size)
        torch.cuda.reset_peak_memory_stats()
        try:
            speed = timed(lambda: run(given), size, steps)
            return {"batch": size, "speed": speed, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        except torch.cuda.OutOfMemoryError:
            size -= max(1, size // 16)
        del given
        forget(optimizer)
    return {"batch": 0}


def by_accelerate(name, wanted, steps):
    """find_executable_batch_size from the batch that is wanted: what it comes down to."""
    import torch
    from accelerate.utils import find_executable_batch_size

    model, optimizer, batch = build(name)
    loss, _ = loss_of(name)
    tried = []

    def run(given):
        optimizer.zero_grad(set_to_none=True)
        loss(model, given).backward()
        optimizer.step()

    @find_executable_batch_size(starting_batch_size=wanted)
    def train(batch_size):
        tried.append(batch_size)
        forget(optimizer)
        given = batch(batch_size)
        torch.cuda.reset_peak_memory_stats()
        return {"batch": batch_size, "speed": timed(lambda: run(given), batch_size, steps)}

    try:
        return train() | {"tried": len(tried)}
    except RuntimeError as error:
        return {"batch": 0, "tried": len(tried), "error": str(error)[:200]}


def by_fit(name, size, steps, budget, allow=(), **changes):
    import oomph
    import torch

    model, optimizer, batch = build(name, **changes)
    _, criterion = loss_of(name)
    given = batch(size)
    started = time.perf_counter()
    fit = oomph.fit(model, optimizer, loss=criterion, batch=given, budget=budget, allow=allow)
    planned = time.perf_counter() - started
    torch.cuda.reset_peak_memory_stats()
    # Trials of oomph.fit may have run out of memory, and try again then. What counts are the steps.
    before = torch.cuda.memory_stats()
    kept = torch.cuda.memory_reserved()
    speed = timed(lambda: fit.step(given), size, steps)
    after = torch.cuda.memory_stats()
    allocated, reserved = fit.peak()
    predicted = fit.plan.predicted
    return {
        "batch": size,
        "speed": speed,
        "allocated": allocated,
        "reserved": reserved,
        "predicted_allocated": predicted and predicted.allocated,
        "predicted_reserved": predicted and predicted.reserved,
        "seconds_predicted": predicted and predicted.seconds,
        "planning": planned,
        "tried": fit.plan.found and fit.plan.found.tried,
        "reserved_before": kept,
        "retries": after["num_alloc_retries"] - before["num_alloc_retries"],
        "ooms": after["num_ooms"] - before["num_ooms"],
        "parameters": sum(p.numel() for p in model.parameters()),
        "history": fit.plan.history,
        "plan": str(fit.plan),
        "chosen": fit.plan.summary(),
    }


def varying(budget):
    """200 steps whose sequences are of random lengths: none runs out of memory."""
    import random

    import oomph
    import torch

    model, optimizer, batch = build("gpt2-medium")
    longest = batch(16, 1024)
    fit = oomph.fit(model, optimizer, batch=longest, budget=budget)
    torch.cuda.reset_peak_memory_stats()
    draw = random.Random(7)
    lengths = [draw.randrange(64, 1025) for _ in range(199)] + [1024]
    started = time.perf_counter()
    losses = [fit.step(batch(draw.choice((16, 16, 16, 11, 5)), length)) for length in lengths]
    last = float(losses[-1])
    allocated, reserved = fit.peak()
    stats = torch.cuda.memory_stats()
    predicted = fit.plan.predicted
    return {
        "steps": len(losses),
        "seconds": time.perf_counter() - started,
        "last_loss": last,
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "allocated": allocated,
        "reserved": reserved,
        "predicted_allocated": predicted.allocated,
        "predicted_reserved": predicted.reserved,
        "history": fit.plan.history,
        "chosen": fit.plan.summary(),
    }


def equal():
    """Each exact technique, and all of them, beside the plain loop: 20 steps of a small causal model with padded, uneven batches."""
    import copy

    import oomph
    import torch
    from oomph.fitting.losses.loss_of import LossOf
    from oomph.fitting.techniques.blocks import find_blocks
    from oomph.fitting.techniques.positionwise import find_tiled
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        shape = dict(hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, vocab_size=8000)
        first = LlamaForCausalLM(LlamaConfig(**shape))
    blocks = tuple(find_blocks(first))
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(20):
        ids = torch.randint(8000, (12, 96), generator=generator)
        labels = ids.clone()
        for row in range(12):
            labels[row, int(torch.randint(2, 96, (), generator=generator)) :] = -100
        batches.append({"input_ids": ids.cuda(), "labels": labels.cuda(), "attention_mask": (labels != -100).long().cuda()})
    Plan = oomph.Plan
    tiled = find_tiled(first, LossOf(None), batches[0])
    plans = {
        "plain again": None,
        "fused": Plan(fused=True),
        "deferred logits": Plan(defer_logits=True),
        "parts of 5": Plan(micro=5),
        "parts of 1": Plan(micro=1),
        "checkpoint 3": Plan(checkpoint=blocks[:3]),
        "checkpoint all": Plan(checkpoint=blocks),
        "offload all": Plan(offload=blocks),
        "checkpoint and offload all": Plan(checkpoint=blocks, offload=blocks),
        "selective all": Plan(selective=blocks),
        "lean all": Plan(lean=blocks),
        "lean all, their inputs offloaded": Plan(lean=blocks, offload=blocks),
        "release": Plan(release=True),
        "release, half of the states on host": Plan(release=True, states_on_host=0.5),
        "tiles": Plan(tiled=tiled, tiles=4),
        "tiles, checkpoint and offload all": Plan(tiled=tiled, tiles=4, checkpoint=blocks, offload=blocks),
        "states on host": Plan(states_on_host=True),
        "expandable": Plan(expandable=True),
        "all": Plan(3, blocks[:4], blocks[1:5], defer_logits=True, fused=True, expandable=True, states_on_host=True, tiled=tiled, tiles=3),
    }

    def trained(plan, kind, batches=batches):
        model = copy.deepcopy(first)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3) if kind == "AdamW" else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        if plan is None:
            for batch in batches:
                optimizer.zero_grad()
                loss = model(**batch).loss
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        else:
            with oomph.fit(model, optimizer, batch=batches[0], plan=plan, quiet=True) as fit:
                losses = [fit.step(batch) for batch in batches]
        return torch.stack(losses), torch.cat([p.detach().flatten() for p in model.parameters()])

    start = torch.cat([p.detach().flatten() for p in first.parameters()])
    rows = {}
    # With a mask, transformers repeats keys and values itself.
    unmasked = [{key: value for key, value in batch.items() if key != "attention_mask"} for batch in batches]
    for kind in ("SGD", "AdamW"):
        for given, some in ((batches, plans), (unmasked, {"plain again, without a mask": None, "keys and values repeated, without a mask": Plan(repeat_groups=True)})):
            plain_losses, plain_parameters = trained(None, kind, given)
            if given is batches:
                rows[f"{kind} losses"] = [float(plain_losses[0]), float(plain_losses[-1])]
            for name, plan in some.items():
                losses, parameters = trained(plan, kind, given)
                rows[f"{kind}: {name}"] = {
                    "loss": float(((losses - plain_losses) / plain_losses).abs().max()),
                    "parameters": float((parameters - plain_parameters).norm() / plain_parameters.norm()),
                    "way": float((parameters - plain_parameters).norm() / (plain_parameters - start).norm()),
                    "largest": float((parameters - plain_parameters).abs().max()),
                }
    return {"rows": rows}


def model_size(method, budget):
    """The most layers of a GPT-2 of width 1280 that train with a batch of 8 sequences."""
    import torch

    reasons = {}
    if method == "fit":
        import oomph

        def tries(layers):
            model, optimizer, batch = build("gpt2-large", layers)
            given = batch(8)
            try:
                fit = oomph.fit(model, optimizer, batch=given, budget=budget, quiet=True)
            except oomph.FitError as error:
                reasons[layers] = str(error)
                return None
            torch.cuda.reset_peak_memory_stats()
            speed = timed(lambda: fit.step(given), 8, 2)
            row = {"layers": layers, "parameters": sum(p.numel() for p in model.parameters()), "speed": speed, "chosen": fit.plan.summary(), "reserved": fit.peak()[1]}
            fit.close()
            return row
    else:

        def tries(layers):
            model, optimizer, batch = build("gpt2-large", layers)
            loss, _ = loss_of("gpt2-large")
            if method == "checkpoint":
                checkpoint_everywhere("gpt2-large", model)
            given = batch(8)

            def run():
                optimizer.zero_grad(set_to_none=True)
                loss(model, given).backward()
                optimizer.step()

            try:
                speed = timed(run, 8, 2)
            except torch.cuda.OutOfMemoryError:
                return None
            return {"layers": layers, "parameters": sum(p.numel() for p in model.parameters()), "speed": speed, "reserved": torch.cuda.max_memory_reserved()}

    best = None
    # Each method in steps of its own: what it can do is known beforehand to that much.
    steps = {"plain": (2, 4, 6, 8, 10, 12, 16), "checkpoint": (16, 20, 24, 28, 30, 32, 34, 36), "fit": (64, 80, 84)}
    for layers in steps[method]:
        import gc

        try:
            row = tries(layers)
        except torch.cuda.OutOfMemoryError:
            reasons[layers], row = traceback.format_exc(), None
        gc.collect()
        torch.cuda.empty_cache()
        if row is None:
            break
        best = row
        # Should time run out in the next: what is known so far.
        print(json.dumps(best | {"reasons": reasons}), flush=True)
    return (best or {"layers": 0}) | {"reasons": reasons}


# -- one process each


def child(task):
    import torch
    from oomph.fitting.planning import card

    budget = task.pop("budget")
    here = card.here(torch.device("cuda:0"))
    total = torch.cuda.get_device_properties(0).total_memory
    # The same for all: what PyTorch may reserve is the budget less the context.
    torch.cuda.set_per_process_memory_fraction((budget - here.context) / total)
    torch.set_float32_matmul_precision(task.pop("precision", "high"))
    what = task.pop("what")
    work = {"by_hand": by_hand, "accelerate": by_accelerate, "fit": by_fit, "varying": varying, "equal": equal, "model_size": model_size}[what]
    if what in ("fit", "varying", "model_size"):
        task["budget"] = budget
    print(json.dumps(work(**task)))


def start(out, label, limit, **task):
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, str(HERE), "--child", json.dumps(task)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
        errors += f"\nstopped after {limit:.0f} s"
    try:
        row = json.loads(output.strip().splitlines()[-1]) | ({} if child.returncode == 0 else {"stopped": errors.strip()[-1500:]})
    except (IndexError, ValueError):
        row = {"failed": errors.strip()[-1500:], "exit": child.returncode}
    row = {"label": label, "took": round(time.monotonic() - began, 1), **row}
    with open(out / "rows.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({key: value for key, value in row.items() if key != "plan"}), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("fit"))
    parser.add_argument("--only", help="some of: equal, varying, sizes, allowed, and the models")
    parser.add_argument("--budget", type=float, default=15, help="GiB")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=560, help="begin nothing after this")
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        return child(json.loads(args.child))
    os.environ["OOMPH_COMMAND"] = str(pathlib.Path(args.oomph).resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    budget = int(args.budget * GIB)
    began = time.monotonic()
    # A method of a model alone: resnet152/fit=320, with its batch.
    only = args.only.split(",") if args.only else ["equal", *MODELS, "varying", "sizes", "allowed"]

    def run(label, **task):
        left = args.seconds - (time.monotonic() - began)
        if left < 10:
            print(f"left out for lack of time: {label}", flush=True)
            return {}
        return start(args.out, label, left + 20, budget=budget, **task)

    for what in only:
        if what == "equal":
            run("equal", what="equal", precision="highest")
        elif what == "varying":
            run("varying", what="varying")
        elif "/fit=" in what:
            name, size = what.split("/fit=")
            run(f"{name}/fit", what="fit", name=name, size=int(size), steps=args.steps)
        elif what.startswith("sizes"):
            for method in what.split("/")[1:] or ("plain", "checkpoint", "fit"):
                run(f"sizes/{method}", what="model_size", method=method)
        elif what == "allowed":
            run("llama-1.1b/bf16", what="fit", name="llama-1.1b", size=8, steps=args.steps, allow=["bf16", "bf16-weights"])
        else:
            plain = run(f"{what}/plain", what="by_hand", name=what, method="plain", steps=args.steps).get("batch", 0)
            everywhere = run(f"{what}/checkpoint", what="by_hand", name=what, method="checkpoint", steps=args.steps).get("batch", 0)
            wanted = max(4 * plain, everywhere, 8)
            run(f"{what}/accelerate", what="accelerate", name=what, wanted=wanted, steps=args.steps)
            run(f"{what}/fit", what="fit", name=what, size=wanted, steps=args.steps)
            if everywhere and everywhere != wanted:  # Never slower than that?
                run(f"{what}/fit at the batch of checkpointing", what="fit", name=what, size=everywhere, steps=args.steps)


if __name__ == "__main__":
    main()
