"""The longest sequence at batch one that trains within a budget, on a real GPU: what people put together by hand beside oomph.fit with tiles.

    python docs/measured/long_sequences.py --out FOLDER [--only 1b,8b] [--seconds 230] [--layers 3]

LoRA of rank 16 on all linear layers of a Llama with frozen random weights in bfloat16, AdamW, attention by PyTorch's own kernels, expandable segments for all.

*By hand* is transformers' gradient checkpointing, with what the blocks keep in pinned host memory (torch.autograd.graph.save_on_cpu around the decoder, not around
the head), as TRL's activation offloading does. *Without tiles* is oomph.fit with every block checkpointed and offloaded and the loss in pieces; *with tiles* the
same and position-wise parts in tiles of about 4096 positions.

Of the 8B three layers are there (--layers), and the bytes of the others are held by a block that nobody uses: what a step takes on the GPU at its peak is the
same, because what the other layers keep is in host memory (on the virtual GPU, 3 and 8 layers differ by less than 0.1 %), and its time is not. The 1B is whole. A try is a forward, a backward and an update. It begins with the length
that was found on the virtual GPU, and goes up or down by a sixteenth until one has run and the next has not.
Needs a GPU, and torch, transformers and peft.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "python"))
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

GIB = 1 << 30
TILE = 4096
SHAPES = {
    "8b": (80, 32, dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)),
    "1b": (15, 16, dict(hidden_size=2048, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)),
}
# The longest on the virtual GPU (H200), where tries take seconds.
START = {
    "8b": {"by hand": 43520, "without tiles": 244736, "with tiles": 571392},
    "1b": {"by hand": 8192, "without tiles": 84992, "with tiles": 222720},
}
METHODS = ("by hand", "without tiles", "with tiles")


def build(name, layers):
    """The model with adapters on the GPU, and a block for the layers that are not there."""
    import peft
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    _, whole, shape = SHAPES[name]
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(**shape, num_hidden_layers=layers, max_position_embeddings=1 << 20, use_cache=False, attn_implementation="sdpa")
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules="all-linear"), autocast_adapter_dtype=False)
    torch.set_default_dtype(torch.float32)
    layer = model.base_model.model.model.layers[0]
    frozen = sum(p.numel() * p.element_size() for p in layer.parameters() if not p.requires_grad)
    # With its gradient, and Adam's two.
    adapters = 4 * sum(p.numel() * p.element_size() for p in layer.parameters() if p.requires_grad)
    held = torch.empty((whole - layers) * (frozen + adapters), dtype=torch.uint8, device="cuda")
    return model.train(), held


def batch_of(length):
    import torch

    ids = torch.randint(128256, (1, length), device="cuda")
    return {"input_ids": ids, "labels": ids}


def step_by_hand(model, optimizer, batch):
    import torch

    causal = model.base_model.model
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        hidden = causal.model(input_ids=batch["input_ids"]).last_hidden_state
    logits = causal.lm_head(hidden)
    loss = causal.loss_function(logits=logits, labels=batch["labels"], vocab_size=causal.config.vocab_size)
    del logits, hidden
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def step_fitted(model, optimizer, batch, tiled):
    import oomph
    from oomph.fitting.techniques.blocks import find_blocks

    blocks = tuple(find_blocks(model))
    plan = oomph.Plan(checkpoint=blocks, offload=blocks, defer_logits=True, fused=True, tiled=tiled, tiles=max(2, batch["input_ids"].shape[1] // TILE) if tiled else 0)
    with oomph.fit(model, optimizer, batch=batch, plan=plan, quiet=True) as fit:
        # Without the rungs: a step that runs out has run out.
        fit._running.backward(batch)
        fit._running.update()


class Tries:
    """Steps of one method at given lengths."""

    # Operations a second: a guess, until one long step was timed.
    speed = 2.5e14

    def __init__(self, model, method, tiled, deadline):
        import torch

        self.model, self.method, self.tiled, self.deadline = model, method, tiled, deadline
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4)
        self.rows = []
        if method == "by hand":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()

    def run(self, length):
        """Whether a step of this length runs."""
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        began, out = time.perf_counter(), None
        try:
            batch = batch_of(length)
            if self.method == "by hand":
                step_by_hand(self.model, self.optimizer, batch)
            else:
                step_fitted(self.model, self.optimizer, batch, self.tiled)
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError as error:
            out = str(error).split(". ")[0]
            error.__traceback__ = None
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        row = {"length": length, "ran": out is None, "seconds": round(time.perf_counter() - began, 2)}
        row |= {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(), "error": out}
        self.rows.append(row)
        if out is None and length > 1 << 16:
            Tries.speed = self.work(length) / row["seconds"]
        print(f"  {self.method}: {row}", flush=True)
        return out is None

    def work(self, length):
        """Operations of a step: attention grows with the square of the length."""
        config = self.model.base_model.model.config
        attention = 9 * config.hidden_size * config.num_hidden_layers * length**2
        return attention + 6 * sum(parameter.numel() for parameter in self.model.parameters()) * length

    def time_for(self, length):
        """Whether a step of this length ends before the time is up."""
        return time.monotonic() + self.work(length) / Tries.speed < self.deadline

    def longest(self, start):
        """The longest that runs, to a sixteenth, or that there is time for; and whether the next was seen to fail."""
        # The first step makes the optimizer's state.
        if not self.run(2048):
            return 0, True
        best, failed, length = 2048, None, start
        while not self.time_for(length):
            length = length * 15 // 16 // 512 * 512
        while self.time_for(length) and (failed is None or length < failed):
            if self.run(length):
                best, length = length, _longer(length)
            else:
                failed, length = length, length * 16 // 17 // 512 * 512
                if length <= best:
                    break
        return best, failed is not None and failed <= _longer(best) + 512


def _longer(length):
    return -(-length * 17 // 16 // 512) * 512


def measure(name, layers, deadline):
    import torch
    from oomph.fitting.losses.loss_of import LossOf
    from oomph.fitting.techniques.positionwise import find_tiled

    budget, whole, _ = SHAPES[name]
    layers = min(layers, whole) if name == "8b" else whole
    torch.cuda.set_per_process_memory_fraction(1.0)
    model, held = build(name, layers)
    limit = budget * GIB
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    began = time.perf_counter()
    tiled = find_tiled(model, LossOf(None), batch_of(1024))
    report = {"model": name, "budget": limit, "layers": layers, "held": held.numel(), "weights": sum(p.numel() * p.element_size() for p in model.parameters())}
    report |= {
        "tiled": len(tiled),
        "tiled_of_a_layer": [one.split("layers.0.")[1] for one in tiled if "layers.0." in one],
        "seconds_to_find": round(time.perf_counter() - began, 2),
    }
    print(report, flush=True)
    for method in METHODS:
        tries = Tries(model, method, tiled if method == "with tiles" else (), deadline)
        best, bracketed = tries.longest(START[name][method])
        report[method] = {"longest": best, "next_failed": bracketed, "tries": tries.rows}
        print(f"{name}: {method}: {best}{'' if bracketed else ' (no longer one was tried)'}", flush=True)
    return report


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="1b,8b")
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--layers", type=int, default=3)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    import torch
    import transformers

    about = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "transformers": transformers.__version__}
    for name in options.only.split(","):
        report = {**about, **measure(name, options.layers, began + options.seconds)}
        (options.out / f"long-{name}.json").write_text(json.dumps(report, indent=1))
        gc.collect()
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
