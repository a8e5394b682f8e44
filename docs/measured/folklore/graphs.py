"""Tips about gradients and what is kept for them."""

from folklore.measure import MIB, allocated, fresh, milliseconds, peak, warm
from folklore.tip import tip

GROUP = "Gradients, and what is kept for them"


def inference_peaks(*modes):
    """Peaks of a forward pass of thirteen layers over 4096 rows, each activation 16 MiB."""
    import contextlib

    import torch

    from folklore import models

    warm()
    model = models.mlp().eval()
    batch = models.vectors(4096)[0]
    contexts = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    numbers = {}
    for mode in modes:

        def forward(mode=mode):
            with contexts[mode]():
                model(batch)

        numbers |= {f"{mode}_peak": peak(forward)[0], f"{mode}_ms": milliseconds(forward)}
    return numbers


@tip(
    group=GROUP,
    says="`torch.no_grad()` for inference",
    done="A forward pass of thirteen layers, each activation 16 MiB, with and without `no_grad()`.",
    shows="peak {grad_peak} without, {no_grad_peak} with it",
    times="{grad_ms:.2f} ms and {no_grad_ms:.2f} ms",
    verdict="true",
    holds=lambda n: n["no_grad_peak"] < n["grad_peak"] / 5,
    why="Without it every activation waits for a backward pass that never comes.",
    oomph="OM202; `oomph.fit_inference`.",
    card=lambda h200: f"`eval_grad` {h200('eval_grad')}, `eval_nograd` {h200('eval_nograd')} allocated",
    rank=7,
    headline="`no_grad()` for inference is true and large: {no_grad_peak} instead of {grad_peak}. `inference_mode()` saves not a byte more, and `model.eval()` none at all.",
)
def no_grad():
    return inference_peaks("grad", "no_grad")


@tip(
    group=GROUP,
    says="`inference_mode()` saves more memory than `no_grad()`",
    done="The same forward pass under both.",
    shows="peak {no_grad_peak} and {inference_mode_peak}",
    times="{no_grad_ms:.2f} ms and {inference_mode_ms:.2f} ms",
    verdict="false",
    holds=lambda n: n["no_grad_peak"] == n["inference_mode_peak"],
    why="Both keep nothing for a backward pass. `inference_mode()` also leaves out version counters, which is time on the CPU.",
    oomph="`oomph.fit_inference` uses it, for the time.",
)
def inference_mode():
    return inference_peaks("no_grad", "inference_mode")


@tip(
    group=GROUP,
    says="`model.eval()` saves memory at inference",
    done="The same forward pass with gradients on, after `model.train()` and after `model.eval()`; then the network with dropout.",
    shows="peak {train_peak} and {eval_peak}; with dropout {dropout_train_peak} and {dropout_eval_peak}",
    verdict="does nothing",
    holds=lambda n: n["train_peak"] == n["eval_peak"] and n["dropout_eval_peak"] < n["dropout_train_peak"],
    why="It changes what dropout and batch norm do, not whether activations are kept. For memory it is `no_grad()`.",
    oomph="OM202.",
)
def eval_mode():
    from torch import nn

    from folklore import models

    warm()
    batch = models.vectors(4096)[0]
    plain = models.mlp()
    dropout = models.mlp(between=lambda: nn.Sequential(nn.GELU(), nn.Dropout(0.1)))
    return {
        "train_peak": peak(lambda: plain.train()(batch))[0],
        "eval_peak": peak(lambda: plain.eval()(batch))[0],
        "dropout_train_peak": peak(lambda: dropout.train()(batch))[0],
        "dropout_eval_peak": peak(lambda: dropout.eval()(batch))[0],
    }


@tip(
    group=GROUP,
    says="Intermediate tensors linger if `backward()` is not called",
    done="A function runs a forward pass with gradients, 16 MiB an activation, and returns without `backward()`; five times.",
    shows="allocated {first} after the first call, {fifth} after the fifth; peak {first_peak} in the first, {fifth_peak} in the fifth; while the output is held {held}",
    verdict="false",
    holds=lambda n: n["first"] == n["fifth"] == 0 and n["first_peak"] == n["fifth_peak"] and n["held"] > 100 * MIB,
    why="The graph hangs on the output, and goes when the function returns. Only an output or a loss that is *kept* keeps its graph.",
    oomph="OM201: what is kept; OM202: graphs that are never used.",
    rank=4,
    headline="A forward pass without `backward()` leaves nothing behind: {fifth} after five of them. A loss that is *kept* leaves its whole graph.",
)
def without_backward():
    import torch

    from folklore import models

    warm()
    model = models.mlp()
    batch = models.vectors(4096)[0]

    def forward():
        output = model(batch)
        return output.sum() is None

    base = fresh()[0]
    after, peaks = [], []
    for _ in range(5):
        torch.cuda.reset_peak_memory_stats()
        forward()
        after.append(allocated() - base)
        peaks.append(torch.cuda.max_memory_allocated() - base)
    kept = model(batch)
    return {"first": after[0], "fifth": after[4], "first_peak": peaks[0], "fifth_peak": peaks[4], "held": allocated() - base, "output": kept.numel() * 4}


@tip(
    group=GROUP,
    says="`total += loss` leaks: write `loss.item()`",
    done="Losses are added up over six batches: in validation with gradients on, in training after `backward()`, in validation with `loss.item()`.",
    shows="growth for each batch: validation {validation}, training {training}, with `item()` {item}",
    verdict="true, but",
    holds=lambda n: n["validation"] > 100 * MIB and n["training"] <= 4096 and n["item"] == 0,
    why="A loss holds its graph, and the graph its activations. `backward()` lets those go; in validation nothing does.",
    oomph="OM201: the line, its growth, the saving.",
    card=lambda h200: f"`accumulate`: {h200('accumulate')} allocated after eight batches",
)
def total_plus_loss():
    from folklore import models

    warm()
    model = models.mlp()
    batch = models.vectors(4096)

    def growth(how):
        model.zero_grad()
        models.class_loss(model, batch).backward()
        total, sizes = 0, []
        fresh()
        for _ in range(6):
            loss = models.class_loss(model, batch)
            if how == "training":
                loss.backward()
            total = total + (loss.item() if how == "item" else loss)
            del loss
            sizes.append(allocated())
        return (sizes[-1] - sizes[0]) // 5

    return {how: growth(how) for how in ("validation", "training", "item")}


@tip(
    group=GROUP,
    says="`zero_grad(set_to_none=True)` saves memory",
    done="A network of wide layers is trained with SGD, with `set_to_none=False` and as it is.",
    shows="peak allocated {kept_peak} and {none_peak}; the gradients are {gradients}",
    times="a step takes {kept_ms:.2f} ms and {none_ms:.2f} ms",
    verdict="true, but",
    holds=lambda n: 0 < n["kept_peak"] - n["none_peak"] <= 1.05 * n["gradients"],
    why="Gradients that are gone leave room for the next forward pass. It is the default since PyTorch 2.0.",
    oomph="`oomph.fit` lets gradients go after each step.",
)
def set_to_none():
    import torch

    from folklore import models

    warm()
    numbers = {}
    for how, gone in (("kept", False), ("none", True)):
        fresh()
        model = models.mlp(width=2048, depth=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step(model=model, optimizer=optimizer, gone=gone):
            models.step(model, optimizer, models.class_loss, models.vectors(4096), set_to_none=gone)

        def steps(step=step):
            for _ in range(3):
                step()

        weights = models.weights(model)
        numbers |= {f"{how}_peak": peak(steps)[0] + weights, f"{how}_ms": milliseconds(step), "gradients": weights}
        model.zero_grad()
        del model, optimizer, step, steps
    return numbers


@tip(
    group=GROUP,
    says="`retain_graph=True` is a harmless fix for “backward through the graph a second time”",
    done="A forward and a backward pass, without and with `retain_graph=True`, while the loss is held.",
    shows="kept after `backward()`: {plain} without, {retained} with it",
    verdict="false",
    holds=lambda n: n["plain"] <= 4096 and n["retained"] > 100 * MIB,
    why="It keeps every activation until the loss goes: in a loop, two graphs at once at the peak.",
    oomph="OM201, OM304.",
)
def retain_graph():
    from folklore import models

    warm()
    model = models.mlp()
    batch = models.vectors(4096)
    models.class_loss(model, batch).backward()
    base, numbers = fresh()[0], {}
    for how, keep in (("plain", False), ("retained", True)):
        loss = models.class_loss(model, batch)
        loss.backward(retain_graph=keep)
        numbers[how] = allocated() - base
        del loss
    return numbers
