"""Tips about smaller numbers."""

from folklore.measure import GIB, MIB, allocated, fresh, milliseconds, peak, warm
from folklore.tip import tip

GROUP = "Smaller numbers"


def train(model_of, loss_of, batch_of, how):
    """Peak of three steps with AdamW, in float32, under autocast, or with weights in bfloat16; and the time of a step."""
    import torch

    from folklore import models

    before = fresh()
    model = model_of()
    if how == "bf16_weights":
        model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(how)
    # A scale at which gradients of a fresh network do not overflow, so that no step is skipped.
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=how == "fp16")

    def step():
        batch = batch_of()
        if how == "bf16_weights" and isinstance(batch, tuple):
            batch = batch[0].bfloat16(), batch[1]
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before[0], milliseconds(step), models.weights(model)


@tip(
    group=GROUP,
    says="Mixed precision halves memory",
    done="The small GPT with 32 sequences, and a wide network with a batch of 32, in float32 and under autocast in bfloat16 and float16.",
    shows="GPT {gpt_fp32} → {gpt_bf16} (float16 {gpt_fp16}); wide network {wide_fp32} → {wide_bf16}",
    times="a step of the GPT takes {gpt_fp32_ms:.1f} ms, {gpt_bf16_ms:.1f} ms, {gpt_fp16_ms:.1f} ms",
    verdict="true, but",
    holds=lambda n: 0.4 < n["gpt_bf16"] / n["gpt_fp32"] < 0.9 and abs(n["wide_bf16"] / n["wide_fp32"] - 1) < 0.05,
    why="Autocast halves activations. Weights, gradients and state stay in float32, and a half copy of each weight lives until the forward pass ends.",
    oomph="`oomph.fit(allow=(\"bf16\",))`; float16 with a scaler where the card has no bfloat16. `oomph predict` says what it takes on your card.",
)
def mixed_precision():
    from folklore import models

    warm()
    numbers = {}
    programs = {
        "gpt": (models.gpt, models.next_token_loss, lambda: models.tokens(32)),
        "wide": (lambda: models.mlp(width=3072, depth=8), models.class_loss, lambda: models.vectors(32)),
    }
    for name, program in programs.items():
        for how in ("fp32", "bf16", "fp16"):
            reached, ms, _ = train(*program, how)
            numbers |= {f"{name}_{how}": reached, f"{name}_{how}_ms": ms}
    return numbers


@tip(
    group=GROUP,
    says="`model.bfloat16()` halves everything",
    done="The wide network and the small GPT with weights, gradients and Adam's state in bfloat16.",
    shows="wide network {wide_fp32} → {wide_bf16_weights}, GPT {gpt_fp32} → {gpt_bf16_weights}",
    times="a step of the GPT takes {gpt_fp32_ms:.1f} ms and {gpt_bf16_weights_ms:.1f} ms",
    verdict="true, but",
    holds=lambda n: n["wide_bf16_weights"] < 0.55 * n["wide_fp32"] and n["gpt_bf16_weights"] < 0.7 * n["gpt_fp32"],
    why="It does. But a weight in bfloat16 has eight bits of precision, so that small updates are rounded away.",
    oomph="`oomph.fit(allow=(\"bf16-weights\",))`: only if you allow it.",
    card=lambda h200: "Llama 1.1B in 15 GiB: 44.4 samples a second instead of 3.6 ([fit.md](measured/fit.md))",
)
def bfloat16_weights():
    from folklore import models

    warm()
    numbers = {}
    programs = {
        "gpt": (models.gpt, models.next_token_loss, lambda: models.tokens(32)),
        "wide": (lambda: models.mlp(width=3072, depth=8), models.class_loss, lambda: models.vectors(32)),
    }
    for name, program in programs.items():
        for how in ("fp32", "bf16_weights"):
            reached, ms, _ = train(*program, how)
            numbers |= {f"{name}_{how}": reached, f"{name}_{how}_ms": ms}
    return numbers


@tip(
    group=GROUP,
    says="`x.half()` halves the memory of a tensor",
    done="`y = x.half()` for 1 GiB; then `del x`.",
    shows="allocated {before} → {both} with both, {after} after `del x`",
    verdict="true, but",
    holds=lambda n: (n["before"], n["both"], n["after"]) == (GIB, GIB + GIB // 2, GIB // 2),
    why="It makes a second tensor. Memory first grows by half, and shrinks only when the first is freed.",
    oomph="OM203: copies that live together.",
)
def half_makes_a_copy():
    import torch

    x = torch.randn(GIB // 4, device="cuda")
    before = allocated()
    y = x.half()
    both = allocated()
    del x
    return {"before": before, "both": both, "after": allocated(), "kept": y.numel()}


@tip(
    group=GROUP,
    says="float64 to float32 halves memory",
    done="256 MiB of NumPy's float64 go to the GPU as float32: by `torch.from_numpy(a).cuda().float()` and by `torch.from_numpy(a).float().cuda()`.",
    shows="in the end {kept} each; peak on the GPU {gpu_peak} and {cpu_peak}",
    verdict="true, but",
    holds=lambda n: n["kept"] == 128 * MIB and n["cpu_peak"] == 128 * MIB and n["gpu_peak"] == 384 * MIB,
    why="NumPy makes float64, and `from_numpy` keeps it. Converted on the GPU, both are there at once. Convert first, then copy.",
    oomph="`oomph data profile` says which columns need 64 bits; `oomph.data.load` never makes the large ones.",
)
def float64():
    import numpy
    import torch

    array = numpy.random.default_rng(0).random(32 * MIB)
    kept = torch.from_numpy(array).cuda().float()
    gpu_peak = torch.cuda.max_memory_allocated()
    size = kept.numel() * kept.element_size()
    del kept
    fresh()
    torch.from_numpy(array).float().cuda()
    return {"kept": size, "gpu_peak": gpu_peak, "cpu_peak": torch.cuda.max_memory_allocated()}


@tip(
    group=GROUP,
    says="int8 quantisation makes the model four times smaller",
    done="Weights of a network of nine wide layers are kept as int8 with a scale for each row, and made float32 layer by layer in the forward pass; inference.",
    shows="weights {fp32_weights} → {int8_weights}; peak of a forward pass {fp32_peak} → {int8_peak}. PyTorch's `quantize_dynamic` fails on the GPU",
    times="a forward pass takes {fp32_ms:.2f} ms and {int8_ms:.2f} ms",
    verdict="true, but",
    holds=lambda n: n["int8_weights"] < 0.27 * n["fp32_weights"] and n["int8_weights"] < n["int8_peak"] < n["fp32_peak"] and n["dynamic_errors"] == 1,
    why="A layer is made whole when it is used, so its size comes on top; activations stay. `quantize_dynamic` is for the CPU. Only inference was measured: in training, weights stay float, but the optimizer's state can be kept in 8 bits, and frozen weights in 8 or 4 (QLoRA).",
    oomph="`oomph.fit_inference(allow=(\"8bit-weights\",))`; `oomph.fit(allow=(\"8bit-optimizer\",))` for training.",
)
def int8_weights():
    import warnings

    import torch
    from torch import nn

    from folklore import models

    class Int8(nn.Module):
        def __init__(self, linear):
            super().__init__()
            scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
            self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
            self.register_buffer("scale", scale)
            self.bias = linear.bias

        def forward(self, x):
            return nn.functional.linear(x, self.weight.float() * self.scale, self.bias)

    warm()
    batch = models.vectors(32)[0]
    numbers = {}

    @torch.no_grad()
    def inference(name, model):
        held = sum(t.untyped_storage().nbytes() for t in (*model.parameters(), *model.buffers()))
        above, _ = peak(lambda: model(batch))
        return {f"{name}_weights": held, f"{name}_peak": held + above, f"{name}_ms": milliseconds(lambda: model(batch))}

    model = models.mlp(width=3072, depth=8)
    numbers |= inference("fp32", model)
    for place, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, place, Int8(layer))
    del layer
    numbers |= inference("int8", model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small = torch.ao.quantization.quantize_dynamic(models.mlp(depth=1), {nn.Linear}, dtype=torch.qint8)
            small(batch)
        numbers["dynamic_errors"] = 0
    except (RuntimeError, NotImplementedError, AttributeError):
        numbers["dynamic_errors"] = 1
    return numbers
