"""Tips about training: batches, checkpointing, optimizers."""

from folklore.measure import MIB, fresh, milliseconds, peak, warm
from folklore.tip import tip

GROUP = "Training"


def train_gpt(rows, parts=1, steps=3, checkpointing=False, optimizer="AdamW", **options):
    """Peak of training the small GPT, everything included, and the time of a step."""
    import torch

    from folklore import models

    before = fresh()
    model = models.gpt()
    model.checkpointing = checkpointing
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4, **options)

    def step():
        made.zero_grad()
        for _ in range(parts):
            (models.next_token_loss(model, models.tokens(rows // parts)) / parts).backward()
        made.step()

    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    reached = torch.cuda.max_memory_allocated() - before[0], torch.cuda.max_memory_reserved() - before[1]
    return reached, milliseconds(step), models.weights(model)


@tip(
    group=GROUP,
    says="Halve the batch, halve the memory",
    done="A small GPT (23 million parameters, AdamW) is trained with 32, 16 and 8 sequences of 256 tokens.",
    shows="peak allocated {peak_32}, {peak_16}, {peak_8}; weights, gradients and Adam's state are {fixed} of each",
    times="a step takes {ms_32:.1f} ms, {ms_16:.1f} ms, {ms_8:.1f} ms",
    verdict="true, but",
    holds=lambda n: n["peak_32"] > n["peak_16"] > n["peak_8"] and n["peak_16"] > 0.5 * n["peak_32"] and n["peak_8"] > 0.3 * n["peak_32"],
    why="Only activations shrink. Weights, gradients and state stay: 16 bytes a parameter with Adam.",
    oomph="`oomph predict --max --batch-size train.py` finds the largest batch that fits.",
)
def halve_the_batch():
    warm()
    numbers = {}
    for rows in (32, 16, 8):
        (reached, _), ms, weights = train_gpt(rows)
        numbers |= {f"peak_{rows}": reached, f"ms_{rows}": ms, "fixed": 4 * weights}
    return numbers


@tip(
    group=GROUP,
    says="Gradient accumulation: a large batch with the memory of a small one",
    done="The same with 32 sequences at once, with four parts of 8, and with a batch of 8.",
    shows="peak allocated {whole} at once, {parts} in parts, {small} for the batch of 8; gradients are {gradients}",
    times="a step takes {whole_ms:.1f} ms at once, {parts_ms:.1f} ms in parts",
    verdict="true",
    holds=lambda n: 0 <= n["parts"] - n["small"] <= 1.1 * n["gradients"] and n["parts"] < 0.6 * n["whole"],
    why="Activations are those of one part; gradients stay through all of them. The mean must be taken over the targets of the whole batch; batch norm sees parts.",
    oomph="`oomph.fit` weighs parts by their targets; `oomph.micro_batches` for your own loop.",
    card=lambda h200: "ViT-L/16 in 15 GiB: 272 images in 12 parts at 320 a second, plain at most 30 at 312 ([fit.md](measured/fit.md))",
)
def accumulation():
    warm()
    (whole, _), whole_ms, _ = train_gpt(32)
    (parts, _), parts_ms, _ = train_gpt(32, parts=4)
    (small, _), _, weights = train_gpt(8)
    return {"whole": whole, "whole_ms": whole_ms, "parts": parts, "parts_ms": parts_ms, "small": small, "gradients": weights}


@tip(
    group=GROUP,
    says="Gradient checkpointing trades time for memory",
    done="The same with 32 sequences, each of the six blocks checkpointed.",
    shows="peak allocated {plain} → {checkpointed}",
    times="a step takes {plain_ms:.1f} ms and {checkpointed_ms:.1f} ms",
    verdict="true",
    holds=lambda n: n["checkpointed"] < 0.75 * n["plain"] and n.get("checkpointed_ms", 1) > n.get("plain_ms", 0),
    why="A block keeps its input only, and is run again in the backward pass. Logits, weights and state are not touched.",
    oomph="`oomph.fit` checkpoints as many blocks as it takes, not all.",
    card=lambda h200: "`checkpointing.py` 1.95 GiB → 0.99 GiB allocated ([predictions.md](measured/predictions.md)); GPT-2 medium in 15 GiB: batch 2 → 13 ([fit.md](measured/fit.md))",
)
def checkpointing():
    warm()
    (plain, _), plain_ms, _ = train_gpt(32)
    (checkpointed, _), checkpointed_ms, _ = train_gpt(32, checkpointing=True)
    return {"plain": plain, "plain_ms": plain_ms, "checkpointed": checkpointed, "checkpointed_ms": checkpointed_ms}


@tip(
    group=GROUP,
    says="Adam takes twice the model on top; SGD takes nothing",
    done="The state of each optimizer after a step of the small GPT.",
    shows="weights {weights}; state of SGD {sgd}, of SGD with momentum {momentum}, of Adam {adam}",
    verdict="true",
    holds=lambda n: n["sgd"] == 0 and 1 <= n["momentum"] / n["weights"] < 1.01 and 2 <= n["adam"] / n["weights"] < 1.01 * 2,
    why="Two moments of four bytes for each parameter, made in the first `step()`: the peak is mostly in the second.",
    oomph="`oomph.fit` can keep the state in host memory, or in 8 bits (`allow=`).",
)
def optimizer_state():
    import torch

    from folklore import models

    warm()
    numbers = {}
    for name, made in (("sgd", torch.optim.SGD), ("momentum", lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)), ("adam", torch.optim.Adam)):
        fresh()
        model = models.gpt()
        optimizer = made(model.parameters(), lr=1e-4)
        models.step(model, optimizer, models.next_token_loss, models.tokens(4))
        tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value) and value.is_cuda]
        numbers |= {name: sum(tensor.untyped_storage().nbytes() for tensor in tensors), "weights": models.weights(model)}
        del model, optimizer, tensors
    return numbers


@tip(
    group=GROUP,
    says="`fused=True` (or `foreach=False`) makes the optimizer smaller",
    done="A wide network, batch of 32, is trained with AdamW as it comes, with `foreach=False` and with `fused=True`.",
    shows="peak allocated {default}, {single}, {fused}; weights {weights}",
    times="a step takes {default_ms:.2f} ms, {single_ms:.2f} ms, {fused_ms:.2f} ms",
    verdict="true",
    holds=lambda n: n["default"] - n["fused"] > 0.8 * n["weights"] and n["single"] < n["default"],
    why="By default AdamW works on all parameters at once, with a temporary as large as the model. Fused kernels make none.",
    oomph="OM302 says what it saves. `oomph.fit` tries `fused` first.",
    card=lambda h200: f"`foreach` {h200('foreach')}, `fused` {h200('fused')} allocated",
    rank=10,
    headline="`AdamW(fused=True)` saves nearly a copy of the weights and costs nothing: {default} → {fused}.",
)
def fused_optimizer():
    import torch

    from folklore import models

    warm()
    numbers = {}
    for name, options in (("default", {}), ("single", {"foreach": False}), ("fused", {"fused": True})):
        before = fresh()
        model = models.mlp(width=3072, depth=8)
        optimizer = torch.optim.AdamW(model.parameters(), **options)

        def step(model=model, optimizer=optimizer):
            models.step(model, optimizer, models.class_loss, models.vectors(32))

        for _ in range(3):
            step()
        numbers |= {name: torch.cuda.max_memory_allocated() - before[0], f"{name}_ms": milliseconds(step), "weights": models.weights(model)}
        del model, optimizer, step
    return numbers


@tip(
    group=GROUP,
    says="`ReLU(inplace=True)` halves activation memory",
    done="A forward and a backward pass of thirteen layers with ReLU, each activation 16 MiB, without and with it.",
    shows="peak {plain} and {inplace}",
    verdict="does nothing",
    holds=lambda n: abs(n["plain"] - n["inplace"]) < 8 * MIB,
    why="ReLU's backward pass needs its output, so its input is freed anyway. In place saves that one tensor for a moment of the forward pass; the peak is in the backward pass.",
    oomph="OM304: which lines make activations.",
)
def inplace_relu():
    import torch

    from folklore import models

    warm()
    batch = models.vectors(4096)
    numbers = {}
    for name, inplace in (("plain", False), ("inplace", True)):
        model = models.mlp(between=lambda inplace=inplace: torch.nn.ReLU(inplace=inplace))
        models.class_loss(model, batch).backward()
        numbers[name] = peak(lambda model=model: models.class_loss(model, batch).backward())[0]
        del model
    return numbers


@tip(
    group=GROUP,
    says="Freeze the layers that you do not train",
    done="The small GPT with 32 sequences and AdamW: all of it trained; then only the last block and the head.",
    shows="peak allocated {all} → {frozen}",
    times="a step takes {all_ms:.1f} ms and {frozen_ms:.1f} ms",
    verdict="true",
    holds=lambda n: n["frozen"] < 0.6 * n["all"],
    why="Frozen layers have no gradients and no optimizer state, and below the last trained layer no activation is kept.",
    oomph="`oomph predict` says how much before you try.",
    card=lambda h200: "`vit.py` 3.26 GiB, with `--freeze` 523 MiB allocated ([predictions.md](measured/predictions.md))",
)
def freeze_layers():
    import torch

    from folklore import models

    warm()
    numbers = {}
    for name in ("all", "frozen"):
        before = fresh()
        model = models.gpt()
        if name == "frozen":
            model.requires_grad_(False)
            for part in (model.blocks[-1], model.norm, model.head):
                part.requires_grad_(True)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

        def step(model=model, optimizer=optimizer):
            models.step(model, optimizer, models.next_token_loss, models.tokens(32))

        for _ in range(3):
            step()
        numbers |= {name: torch.cuda.max_memory_allocated() - before[0], f"{name}_ms": milliseconds(step)}
        del model, optimizer, step
    return numbers
