"""Tips about fragmentation, caching, and the allocator's settings."""

import random

from folklore.measure import GIB, MIB, allocated, count, fresh, largest_free_piece, limit, milliseconds, reserved, warm
from folklore.tip import tip

GROUP = "Fragmentation and the allocator"
CONF = "PYTORCH_CUDA_ALLOC_CONF"


def changing_lengths(steps=40):
    """Trains the small GPT on sequences of 32 to 512 tokens, another length each step."""
    import torch

    from folklore import models

    warm()
    before = fresh()
    model = models.gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    draw = random.Random(5)
    lengths = [draw.randrange(32, 513) for _ in range(steps)]
    for length in lengths:
        models.step(model, optimizer, models.next_token_loss, models.tokens(16, length))
    torch.cuda.synchronize()
    reached = {"allocated": torch.cuda.max_memory_allocated() - before[0], "reserved": torch.cuda.max_memory_reserved() - before[1]}
    lengths = iter(lengths * 10)
    return reached | {"ms": milliseconds(lambda: models.step(model, optimizer, models.next_token_loss, models.tokens(16, next(lengths))), repeats=steps)}


def results_beside_temporaries():
    """Eight times: a temporary, each a tenth larger than the last, and a result of six tenths of its size, which is kept. Then 200 MiB in one piece, in 1200 MiB in all."""
    import torch

    limit(1200 * MIB)
    kept, size = [], 100.0
    for _ in range(8):
        temporary = torch.randn(int(size) * MIB // 4, device="cuda")
        del temporary
        kept.append(torch.randn(int(size * 0.6) * MIB // 4, device="cuda"))
        size *= 1.1
    numbers = {"allocated": allocated(), "reserved": reserved(), "free": reserved() - allocated(), "largest": largest_free_piece()}
    try:
        last = torch.randn(200 * MIB // 4, device="cuda")
        numbers["got"] = last.numel() * 4
    except torch.OutOfMemoryError:
        numbers["got"] = 0
    return numbers | {"retries": count("num_alloc_retries"), "ooms": count("num_ooms")}


@tip(
    group=GROUP,
    says="Fragmentation: out of memory though enough is free",
    done="PyTorch is held to 1200 MiB. Eight times a temporary is made and deleted and a smaller result kept, each round a tenth larger; then 200 MiB are asked for.",
    shows="allocated {allocated}, reserved {reserved}; {free} free, the largest piece {largest}; the request gets {got}, out-of-memories: {ooms:d}",
    verdict="true",
    holds=lambda n: n["ooms"] == 1 and n["got"] == 0 and n["free"] > 200 * MIB > n["largest"],
    why="A block that lives on holds its segment, and what is free beside it is a hole. Sizes that change are not enough.",
    oomph="OM401: the line whose blocks hold the segments; `oomph tune`: which setting gets through.",
    card=lambda h200: "`seed_fragment4-cap0.55`: 375 MiB free in pieces of at most 365 MiB, 381 MiB asked for: out of memory ([out-of-memory.md](guides/out-of-memory.md#example-fragmentation))",
)
def fragmentation():
    return results_beside_temporaries()


@tip(
    group=GROUP,
    says="Tensors of changing sizes fragment memory",
    done="The small GPT is trained for 40 steps, 16 sequences of 32 to 512 tokens, another length each step.",
    shows="peak allocated {allocated}, peak reserved {reserved}",
    verdict="true",
    holds=lambda n: n["reserved"] > 1.1 * n["allocated"],
    why="A free block of another size does not fit, or is cut. The surplus is cache: with less room PyTorch gives it back and goes on, with a stall.",
    oomph="`oomph tune`: the setting, and the least memory; OM401.",
    card=lambda h200: f"`bert_var16`: {h200('bert_var16')} allocated, {h200('bert_var16', 'reserved_bytes.all.peak')} reserved",
)
def changing_sizes():
    return changing_lengths()


@tip(
    group=GROUP,
    says="`expandable_segments:True` cures fragmentation",
    done="Both programs above, with PyTorch's defaults and with the setting.",
    shows="lengths: reserved {plain_lengths_reserved} → {expandable_lengths_reserved}; results: out-of-memories {plain_results_ooms:d} → {expandable_results_ooms:d}",
    times="a step takes {plain_lengths_ms:.1f} ms and {expandable_lengths_ms:.1f} ms",
    verdict="true",
    holds=lambda n: n["expandable_lengths_reserved"] < 1.08 * n["plain_lengths_allocated"]
    and n["expandable_lengths_reserved"] < n["plain_lengths_reserved"]
    and (n["plain_results_ooms"], n["expandable_results_ooms"]) == (1, 0),
    why="A segment grows where it is, page by page. Not with memory that is shared between processes.",
    oomph="`oomph tune` replays your recording under it; `oomph.fit` turns it on.",
    card=lambda h200: h200.under("expandable_segments:True", "bert_var16", "mobilenet_eval"),
    settings={"plain": {}, "expandable": {CONF: "expandable_segments:True"}},
    rank=8,
    headline="`expandable_segments:True` is the one setting to know: with sequences of changing lengths {expandable_lengths_reserved} are reserved instead of {plain_lengths_reserved}, and a program that ran out of memory gets through. With [`max_split_size_mb`](#max-split-size) the first reserves more than without.",
)
def expandable_segments():
    return both_programs()


def both_programs():
    """The numbers of both, each name beginning with the program's."""
    results = {f"results_{name}": number for name, number in results_beside_temporaries().items()}
    limit(None)
    return results | {f"lengths_{name}": number for name, number in changing_lengths().items()}


@tip(
    group=GROUP,
    says="Set `max_split_size_mb`, as older error messages say",
    done="Both programs above, with `max_split_size_mb:64` and with the defaults.",
    shows="lengths: reserved {plain_lengths_reserved} → {split_lengths_reserved}; results: out-of-memories {plain_results_ooms:d} → {split_results_ooms:d}",
    times="a step takes {plain_lengths_ms:.1f} ms and {split_lengths_ms:.1f} ms",
    verdict="true, but",
    holds=lambda n: n["split_results_ooms"] == 0 and n["split_lengths_reserved"] > 1.1 * n["plain_lengths_reserved"],
    why="Large blocks are no longer cut, so that small ones cannot sit in them; but a free large block serves requests of nearly its size only.",
    oomph="`oomph tune` tries 32 to 512. Never with expandable segments (pytorch#123548).",
    card=lambda h200: h200.under("max_split_size_mb:64", "seed_fragment4", "gpt2_lengths"),
    settings={"plain": {}, "split": {CONF: "max_split_size_mb:64"}},
)
def max_split_size():
    return both_programs()


@tip(
    group=GROUP,
    says="`roundup_power2_divisions:4` against fragmentation",
    done="The training with changing lengths, with the setting and with the defaults.",
    shows="allocated {plain_allocated} → {rounded_allocated}, reserved {plain_reserved} → {rounded_reserved}",
    verdict="true, but",
    holds=lambda n: n["rounded_reserved"] < n["plain_reserved"] and n["rounded_allocated"] > n["plain_allocated"],
    why="Sizes that are nearly the same become the same, so that a free block serves the next step. Each block grows by up to a quarter.",
    oomph="`oomph tune` tries 4, 8 and 16.",
    card=lambda h200: h200.under("roundup_power2_divisions:4", "bert_var16", "gpt2_lengths"),
    settings={"plain": {}, "rounded": {CONF: "roundup_power2_divisions:4"}},
)
def roundup_power2_divisions():
    return changing_lengths()


@tip(
    group=GROUP,
    says="`garbage_collection_threshold:0.8` keeps memory low",
    done="The training with changing lengths, without and with the setting; both once more with PyTorch held to 3 GiB by `set_per_process_memory_fraction`.",
    shows="reserved without a limit {plain_reserved} → {threshold_reserved}; under the limit of 3 GiB {limited_reserved} → {both_reserved}",
    verdict="true, but",
    holds=lambda n: n["threshold_reserved"] == n["plain_reserved"] and n["both_reserved"] < 0.95 * n["limited_reserved"],
    why="It is a share of the limit that `set_per_process_memory_fraction` sets: blocks that are not used are given back early. Without a limit it is never used.",
    oomph="`oomph tune` tries it under a limit; `oomph doctor` says when there is none.",
    settings={
        "plain": {},
        "threshold": {CONF: "garbage_collection_threshold:0.8"},
        "limited": {"FOLKLORE_LIMIT": str(3 * GIB)},
        "both": {"FOLKLORE_LIMIT": str(3 * GIB), CONF: "garbage_collection_threshold:0.8"},
    },
)
def garbage_collection_threshold():
    import os

    if "FOLKLORE_LIMIT" in os.environ:
        limit(int(os.environ["FOLKLORE_LIMIT"]))
    return changing_lengths()


@tip(
    group=GROUP,
    says="Element-wise operations fill a hidden cache",
    done="`y = x + 0.1`, `z = y * 0.5`, `w = z / 2` on 1 GiB; all deleted. Then in one expression, and in place.",
    shows="peak {named} with a name for each, {expression} in one expression, {inplace} in place; allocated after `del` {after}",
    verdict="false",
    holds=lambda n: (n["named"], n["expression"], n["inplace"], n["after"]) == (4 * GIB, 3 * GIB, GIB, 0),
    why="Each operation makes a tensor, and a name holds it. No result is remembered, and nothing is computed again.",
    oomph="OM203, OM303: copies and temporaries at the peak.",
)
def elementwise_operations():
    import torch

    def named():
        x = torch.rand(GIB // 4, device="cuda")
        y = x + 0.1
        z = y * 0.5
        w = z / 2.0
        return w.numel()

    def expression():
        x = torch.rand(GIB // 4, device="cuda")
        return ((x + 0.1) * 0.5 / 2.0).numel()

    def inplace():
        return torch.rand(GIB // 4, device="cuda").add_(0.1).mul_(0.5).div_(2.0).numel()

    numbers = {}
    for work in (named, expression, inplace):
        fresh()
        work()
        numbers[work.__name__] = torch.cuda.max_memory_allocated()
    return numbers | {"after": allocated()}
