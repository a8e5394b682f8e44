"""What four processes do for test_fit_sharded: each case trains a model that oomph.fit has sharded, on gloo with real numbers, beside one process with the whole batch.

    python sharded_cases.py RANK WORLD MEETING-PLACE FOLDER CASES

Writes what came of each case into FOLDER, one file a rank.
"""

import json
import os
import sys
import time

import oomph
import torch
import torch.distributed as dist
import torch.nn.functional as F
from oomph.fitting.errors import FitError
from oomph.sharding.blocks import machines_mesh
from oomph.sharding.state import is_sharded
from torch import nn

STEPS = 20
BLOCKS = [f"layers.{number}" for number in range(3)]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width + 1), nn.Linear(2 * width + 1, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Five rows in each of its tables: four ranks have parts of different sizes."""

    def __init__(self, tied, width=10, words=13):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in BLOCKS)
        self.fails = Fails()
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x):
        x = self.table(x)
        for number, layer in enumerate(self.layers):
            x = self.fails(layer(x)) if number == 1 else layer(x)
        return self.head(x)


class Fails(nn.Module):
    """Runs out of memory in so many backward passes."""

    def __init__(self):
        super().__init__()
        self.times = 0
        self.what = torch.OutOfMemoryError

    def forward(self, x):
        return Failing.apply(x, self) if self.training else x


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails.times:
            ctx.fails.times -= 1
            raise ctx.fails.what("made up")
        return gradient, None


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def batches(world):
    """One for each step: every rank's part. Targets are missing, on some ranks more than on others."""
    made = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        parts = []
        for rank in range(world):
            words = torch.randint(0, 13, (4, 6), generator=made)
            targets = words.roll(-1, 1).clone()
            targets[torch.rand(targets.shape, generator=made) < 0.1 * (rank + 1)] = -100
            parts.append((words, targets))
        yield parts


def make(tied=True):
    torch.manual_seed(0)
    model = Model(tied).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def in_one_process(tied, clip):
    """The losses of each step, those of all ranks, and the parameters in the end."""
    model, optimizer = make(tied)
    losses = []
    for parts in batches(4):
        each = [loss_of(model(words), targets) for words, targets in parts]
        (sum(each) / len(each)).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append([one.item() for one in each])
    return losses, model.state_dict()


_REFERENCES = {}


def reference(tied, clip):
    if (tied, clip) not in _REFERENCES:
        _REFERENCES[tied, clip] = in_one_process(tied, clip)
    return _REFERENCES[tied, clip]


def whole(model):
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in model.state_dict().items()}


def far(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def train(plan, tied=True, clip=None, shard="auto", before=None, failing=None, prepare=None):
    """Twenty steps under a plan; ``failing``: at which step, on which ranks, how often."""
    rank = dist.get_rank()
    model, optimizer = make(tied)
    steps = list(batches(4))
    if prepare is not None:
        optimizer = prepare(model)
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=steps[0][rank], plan=plan, shard=shard, clip_grad_norm=clip, quiet=True)
    losses = []
    for number, parts in enumerate(steps):
        if failing is not None and number == failing["step"]:
            model.fails.times = failing["times"] if rank in failing["ranks"] else 0
        losses.append(float(fit.step(parts[rank])))
    wanted, parameters = reference(tied, clip)
    return {
        "sharded": is_sharded(model),
        "plan": fit.plan.chosen.to_dict(),
        "history": fit.plan.history,
        "loss_off": max(abs(mine - one[rank]) for mine, one in zip(losses, wanted)),
        "parameters_off": far(whole(model), parameters),
        "tied": model.head.weight is model.table.weight,
        "evaluated": float(fit.evaluate(steps[0][rank])),
        "loss_after": float(one_loss(parameters, tied, steps[0][rank])),
    }


def one_loss(parameters, tied, part):
    model, _ = make(tied)
    model.load_state_dict(parameters)
    with torch.no_grad():
        return loss_of(model(part[0]), part[1])


def by_hand(model):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def kept(folder):
    return train({"shard": "kept"})


def resharded(folder):
    return train({"shard": "resharded"}, clip=0.1)


def other_weights(model):
    """As if each rank had drawn its own."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(dist.get_rank())
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def made_apart(folder):
    return train({"shard": "kept"}, prepare=other_weights)


def untied(folder):
    return train({"shard": "resharded"}, tied=False)


def checkpointed(folder):
    return train({"shard": "resharded", "checkpoint": BLOCKS})


def in_parts(folder):
    return train({"shard": "resharded", "micro": 1, "checkpoint": BLOCKS[:1]})


def machines(folder):
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    try:
        return train({"shard": "machines", "micro": 2})
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]


def over_a_mesh(folder):
    return train({"shard": "kept"}, shard=machines_mesh(make()[0], 2))


def on_the_host(folder):
    return train({"shard": "host"})


def already_sharded(folder):
    return train({"micro": 2}, shard=None, prepare=by_hand)


def larger_on_one(folder):
    """A batch with more samples than the example, on one rank only."""
    rank = dist.get_rank()
    model, optimizer = make()
    parts = next(batches(4))
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=parts[rank], plan={"shard": "kept"}, shard="auto", quiet=True)
    given = [tuple(torch.cat([one, one[:1]]) for one in part) if number == 2 else part for number, part in enumerate(parts)]
    loss = float(fit.step(given[rank]))
    alone, its_optimizer = make()
    each = [loss_of(alone(words), targets) for words, targets in given]
    (sum(each) / len(each)).backward()
    its_optimizer.step()
    return {"loss_off": abs(loss - each[rank].item()), "parameters_off": far(whole(model), alone.state_dict())}


def out_of_memory(folder):
    return train({"shard": "kept"}, failing={"step": 7, "ranks": [2], "times": 1})


def out_of_memory_at_first(folder):
    """In the first step, when no rank knows what the others will start; and on two ranks at once, one of them again in the step that is repeated."""
    return train({"shard": "resharded"}, failing={"step": 0, "ranks": [0, 3], "times": 1})


def out_of_memory_in_a_part(folder):
    return train({"shard": "machines", "micro": 2}, shard=machines_mesh(make()[0], 2), failing={"step": 3, "ranks": [1], "times": 1})


def out_of_memory_everywhere(folder):
    return train({"shard": "kept"}, failing={"step": 2, "ranks": [0, 1, 2, 3], "times": 1})


def another_error(folder):
    rank = dist.get_rank()
    model, optimizer = make()
    model.fails.what = KeyError
    steps = list(batches(4))
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=steps[0][rank], plan={"shard": "kept"}, shard="auto", quiet=True)
    fit.step(steps[0][rank])
    model.fails.times = int(rank == 1)
    try:
        fit.step(steps[1][rank])
    except Exception as error:
        return {"raised": type(error).__name__, "said": str(error)}
    return {"raised": None}


def saved(folder):
    rank = dist.get_rank()
    model, optimizer = make()
    steps = list(batches(4))
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=steps[0][rank], plan={"shard": "resharded"}, shard="auto", quiet=True)
    for parts in steps[:5]:
        fit.step(parts[rank])
    fit.save(os.path.join(folder, "checkpoint"))
    return {"steps": fit.steps}


def loaded(folder):
    """On as many ranks as there are: each has the parts of several of the four."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    steps = list(batches(4))
    mine = range(rank * 4 // world, (rank + 1) * 4 // world)
    of_all = lambda parts: tuple(torch.cat([parts[one][which] for one in mine]) for which in (0, 1))
    # One mean for each of the four, as if each were a rank: their counts differ.
    loss = lambda output, target: sum(loss_of(*both) for both in zip(output.chunk(len(mine)), target.chunk(len(mine)))) / len(mine)
    fit = oomph.fit(model, optimizer, loss=loss, batch=of_all(steps[0]), plan={"shard": "kept"}, shard="auto", quiet=True)
    fit.load(os.path.join(folder, "checkpoint"))
    for parts in steps[5:]:
        fit.step(of_all(parts))
    return {"steps": fit.steps, "parameters_off": far(whole(model), reference(True, None)[1])}


def killed(folder):
    rank = dist.get_rank()
    model, optimizer = make()
    steps = list(batches(4))
    fit = oomph.fit(model, optimizer, loss=loss_of, batch=steps[0][rank], plan={"shard": "kept"}, shard="auto", quiet=True)
    fit.step(steps[0][rank])
    if rank == 3:
        os._exit(9)
    begun = time.monotonic()
    try:
        fit.step(steps[1][rank])
    except Exception as error:
        return {"raised": type(error).__name__, "said": str(error), "seconds": time.monotonic() - begun}
    return {"raised": None}


def main():
    rank, world, meeting, folder, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(world))
    said = {}
    for case in cases:
        begun = time.monotonic()
        try:
            said[case] = globals()[case](folder)
        except FitError as error:
            said[case] = {"error": str(error)}
        said[case]["took"] = round(time.monotonic() - begun, 2)
        with open(os.path.join(folder, f"{rank}-of-{world}.json.part"), "w") as file:
            json.dump(said, file)
        os.replace(file.name, file.name.removesuffix(".part"))
    # Where one has been killed, there is nothing to take leave of.
    os._exit(0)


if __name__ == "__main__":
    main()
