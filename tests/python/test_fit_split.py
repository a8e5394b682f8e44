"""A batch in parts gives what the plain loop gives: equal losses and parameters over 20 steps, and a refusal where that cannot be."""

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from collections import UserDict, namedtuple

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
from oomph.fitting.errors import FitError, NotSplittable  # noqa: E402
from oomph.fitting.losses import trials  # noqa: E402
from oomph.fitting.losses.counts import Accumulator, Counted, Weighing  # noqa: E402
from oomph.fitting.losses.cross_entropy import DeferredLogits, defer_logits, find_heads  # noqa: E402
from oomph.fitting.losses.loss_of import LossOf  # noqa: E402
from oomph.fitting.running.batches import cuts, micro_batches, per_sample, samples, take  # noqa: E402
from oomph.fitting.running.largest_batch import Batch, find_batch  # noqa: E402
from oomph.live.out_of_memory import is_out_of_memory  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

STEPS = 20
VOCABULARY = 5000


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)


class Words(nn.Module):
    """A language model as people write them: embeddings, something, a head."""

    def __init__(self, width=32, bias=False, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY, bias=bias)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.middle(self.embedding(tokens))))


def next_word_loss(model, batch, to=torch.float32, **options):
    logits = model(batch["input_ids"]).to(to)[..., :-1, :].contiguous()
    options = {name: value.to(to) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    return F.cross_entropy(logits.view(-1, logits.size(-1)), batch["labels"][..., 1:].reshape(-1), **options)


def padded(rows, length=12, highest=VOCABULARY):
    """Tokens of very different lengths: the first rows are short, one has nothing to predict."""
    tokens = torch.randint(0, highest, (rows, length))
    labels = tokens.clone()
    for row in range(rows):
        labels[row, 1 + (row * row) % length :] = -100
    return {"input_ids": tokens, "labels": labels}


def train(model, loss_of, batches, parts=None, weighing=None, early=False):
    """The losses of the plain loop, or of one in parts."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        if parts is None:
            loss = loss_of(model, batch)
            loss.backward()
        else:
            accumulator = Accumulator(weighing)
            edges = cuts(samples(batch), parts)
            for number, (start, stop) in enumerate(edges):
                with Counted() as counted:
                    loss = loss_of(model, take(batch, start, stop))
                last = list(model.parameters()) if early and number == len(edges) - 1 else None
                accumulator.scale(loss, counted, stop - start, last=last).backward()
            loss = accumulator.finish(model.parameters())
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def assert_same_training(model, loss_of, batches, parts=3, kind="targets"):
    weighing = trials.learn_weighing(lambda part: loss_of(model, part), batches[-1], model)
    assert weighing.kind == kind, weighing
    for early in (False, True):
        plain, parted = copy.deepcopy(model), copy.deepcopy(model)
        expected = train(plain, loss_of, batches)
        torch.testing.assert_close(train(parted, loss_of, batches, parts, weighing, early), expected, rtol=1e-5, atol=1e-6)
        for one, other in zip(plain.parameters(), parted.parameters()):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
    alone = copy.deepcopy(model)
    assert torch.equal(train(alone, loss_of, batches, 1, weighing), expected), "one part is the plain loop"
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), alone.parameters()))


def test_parts_have_the_same_types_and_are_views():
    Pair = namedtuple("Pair", "x y")
    Frozen = dataclasses.make_dataclass("Frozen", ["x", "name"], frozen=True)
    x, y = torch.randn(4, 3, 8), torch.arange(4)
    texts = ["a", "b", "c", "d"]
    inputs = UserDict(x=x, mask=torch.ones(1, 3), scale=torch.tensor(2.0), texts=texts, size=(4, 4, 4, 4), rows=[1, 2, 3, 4])
    nested = Pair(inputs, [y, Frozen(x, "n")])
    assert samples(nested) == 4
    part = take(nested, 1, 3)
    assert type(part) is Pair and type(part.x) is UserDict and type(part.y) is list and type(part.y[1]) is Frozen
    assert part.x["x"].data_ptr() == x[1].data_ptr() and part.x["x"].shape == (2, 3, 8)
    assert part.x["mask"].shape == (1, 3) and part.x["texts"] == ["b", "c"] and part.x["size"] == (4, 4, 4, 4) and part.x["rows"] == [2, 3]
    assert part.y[0].tolist() == [1, 2] and part.y[1].name == "n" and part.y[1].x.shape[0] == 2
    assert nested.x["texts"] == ["a", "b", "c", "d"], "the batch stays as it is"
    assert per_sample((x, y)) == 25 and samples(x) == 4 and samples([x, y]) == 4


@pytest.mark.parametrize("count", [2, 3, 4])
def test_lists_of_images_and_targets_are_samples(count):
    images = tuple(torch.randn(3, 5 + one, 4) for one in range(count))
    targets = [{"boxes": torch.randn(one + 1, 4), "labels": torch.ones(one + 1)} for one in range(count)]
    assert samples((images, targets)) == count
    part = take((images, targets), 1, count)
    assert type(part[0]) is tuple and part[0][0] is images[1] and part[1][0] is targets[1] and len(part[1]) == count - 1
    assert samples(targets) == count


@pytest.mark.parametrize(
    "batch, says",
    [
        ((torch.ones(4, 3), torch.ones(5, 2)), r"\(4, 3\) and \(5, 2\)"),
        ("text", "no tensor"),
        (torch.tensor(1.0), "no tensor"),
        (nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]), "PackedSequence"),
        (torch.eye(3).to_sparse(), "sparse"),
    ],
)
def test_what_has_no_clear_samples_is_refused(batch, says):
    with pytest.raises(NotSplittable, match=says):
        samples(batch)


def test_micro_batches_weigh_by_targets():
    batch = {"x": torch.randn(5, 2), "labels": torch.tensor([[1, 2], [-100, 3], [-100, -100], [-100, -100], [4, -100]])}
    parts = list(micro_batches(batch, 3))
    assert [(len(part["x"]), weight) for part, weight in parts] == [(2, 0.75), (1, 0.25)], "the part without targets is left out"
    assert [weight for _, weight in micro_batches(batch, 3, shifted=True)] == [1.0]
    assert [weight for _, weight in micro_batches(batch, 2, targets=lambda part: len(part["x"]) - 1)] == [2 / 3, 1 / 3]
    assert [weight for _, weight in micro_batches(torch.randn(4, 2), 3)] == [0.5, 0.25, 0.25]
    nothing = (torch.randn(4, 2), torch.full((4,), -100))
    assert [weight for _, weight in micro_batches(nothing, 2)] == [0.5, 0.5], "nan, as in the plain loop"
    with pytest.raises(ValueError):
        list(micro_batches(batch, 0))


def test_a_loop_of_ones_own_in_micro_batches():
    plain = Words()
    parted = copy.deepcopy(plain)
    batch = padded(8)
    next_word_loss(plain, batch).backward()
    for part, weight in micro_batches(batch, 4, shifted=True):
        (next_word_loss(parted, part) * weight).backward()
    for one, other in zip(plain.parameters(), parted.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7)


def test_same_training_of_regression():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    batches = [(torch.randn(7, 6), torch.randn(7, 2)) for _ in range(STEPS)]
    assert_same_training(model, lambda model, batch: F.mse_loss(model(batch[0]), batch[1]), batches)
    assert_same_training(model, lambda model, batch: (model(batch[0]) - batch[1]).abs().mean(), batches, kind="samples")


def test_same_training_with_class_weights_and_smoothing():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
    weigh = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0, 0.1, 3.0]), label_smoothing=0.1)
    batches = [(torch.randn(7, 6), torch.randint(0, 4, (7,))) for _ in range(STEPS)]
    assert_same_training(model, lambda model, batch: weigh(model(batch[0]), batch[1]), batches)


def test_same_training_of_padded_sequences():
    # The first row of the first batch has no target, and with seven parts its part has none either.
    model, batches = Words(width=8), [padded(7) for _ in range(STEPS)]
    for parts in (2, 7):
        assert_same_training(model, next_word_loss, batches, parts)


def test_same_training_of_a_sum():
    model = nn.Linear(6, 4)
    batches = [(torch.randn(7, 6), torch.randint(0, 4, (7,))) for _ in range(STEPS)]
    assert_same_training(model, lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="sum") / 64, batches, kind="sum")


def test_a_batch_without_targets_has_no_loss():
    model = Words(width=8)
    batch = padded(4)
    batch["labels"][:] = -100
    before = copy.deepcopy(model.state_dict())
    loss = train(model, next_word_loss, [batch], 2, Weighing("targets"))
    assert loss.isnan().all()
    same = (torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(same), "as in the plain loop, whose gradients are zeros"


class Noisy(torch.autograd.Function):
    """A table whose gradient is a sum that nearly cancels: in another order, or at another time, it comes out differently."""

    @staticmethod
    def forward(ctx, table, rows, generator, chance):
        ctx.generator, ctx.chance = generator, chance
        ctx.save_for_backward(rows)
        return rows + 3e-3 * table.sum()

    @staticmethod
    def backward(ctx, gradient):
        noise = ctx.chance * torch.randn(8, generator=ctx.generator)
        return 3e-3 * (gradient.sum() + noise * gradient.abs().sum()), gradient, None, None


@pytest.mark.parametrize("term", ["none", "over the whole batch"])
def test_gradients_that_differ_by_chance_are_no_reason_not_to_cut(term):
    """As the tables of relative positions of T5 on a GPU. A term that is over the whole batch shows all the same, however small."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    model.table = torch.nn.Parameter(torch.zeros(8))
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(6, 8), torch.randn(6, 1)

    def loss(part):
        rows, target = part
        value = torch.nn.functional.mse_loss(model(Noisy.apply(model.table, rows, generator, 0.02 if term == "none" else 0.0)), target)
        return value if term == "none" else value + 2e-4 * model.table.sum() * len(rows)

    if term == "none":
        assert trials.learn_weighing(loss, batch, model).kind in ("targets", "samples")
    else:
        with pytest.raises(NotSplittable):
            trials.learn_weighing(loss, batch, model)


def test_gradients_that_hang_on_how_products_are_rounded_are_no_reason_not_to_cut():
    """As T5's on a GPU, where its attention hangs on the last bit: one sample is multiplied by another kernel than two."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"classes": nn.Linear(8, 5), "wild": nn.Linear(8, 1)})
    batch = torch.randn(8, 8), torch.randint(0, 5, (8,))

    def loss(part, off=1 + 2**-22):
        rows, targets = part
        wild = model["wild"](rows) * (off if len(rows) == 1 else 1.0)
        return F.cross_entropy(model["classes"](rows), targets) + 1e-8 * torch.sin(1e5 * wild).mean()

    with pytest.raises(NotSplittable):  # So far off, no rounding makes it.
        trials.learn_weighing(lambda part: loss(part, 1 + 2**-14), batch, model)
    assert trials.learn_weighing(loss, batch, model).kind == "targets"


def test_a_model_is_as_it_was_after_its_rounding_was_tried():
    """Modules that take no hooks, outputs with bounds, types of 16 bits: whatever is in it."""
    scripted = torch.jit.script(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), scripted, nn.Sigmoid(), nn.Linear(4, 4).bfloat16())
    seen = {}
    with trials._rounded_otherwise(model):
        hooked = [len(module._forward_hooks) for module in model]
        before = torch.full((2, 4), 100.0)
        seen["sigmoid"] = model[2](before)
        seen["half"] = model[3](before.bfloat16()), torch.nn.functional.linear(before.bfloat16(), model[3].weight, model[3].bias)
        plain = torch.nn.functional.linear(before, model[0].weight, model[0].bias)
        off = (model[0](before) - plain).abs() / plain.abs()
    assert hooked == [1, 0, 1, 1] and not any(module._forward_hooks for module in model)
    assert seen["sigmoid"].max() <= 1 and torch.equal(*seen["half"])
    assert 0 < off.max() <= 3 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float32, 3e-4), (torch.bfloat16, 0.1)])
def test_a_small_term_that_hangs_on_the_order_of_samples_is_refused(dtype, weight):
    """It is nothing beside the whole gradient, and all that its own head gets."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"classes": nn.Linear(8, 5), "rank": nn.Linear(8, 1)}).to(dtype)
    batch = torch.randn(8, 8, dtype=dtype), torch.randint(0, 5, (8,))

    def loss(part):
        rows, targets = part
        ranks = model["rank"](rows).flatten()
        return F.cross_entropy(model["classes"](rows), targets) + weight * torch.relu(1 + ranks[:-1] - ranks[1:]).sum() / len(rows)

    with pytest.raises(NotSplittable):
        trials.learn_weighing(loss, batch, model)


def test_what_the_batch_compares_is_refused():
    model = nn.Linear(6, 4)
    batch = torch.randn(8, 6)

    def contrastive(part):
        out = F.normalize(model(part), dim=-1)
        return F.cross_entropy(out @ out.T * 5, torch.arange(len(part)))

    with pytest.raises(NotSplittable, match="in-batch negatives"):
        trials.learn_weighing(contrastive, batch, model)


def test_statistics_over_the_batch_are_refused():
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    batch = torch.randn(8, 6)
    with pytest.raises(NotSplittable, match=r"\(1\)"):
        trials.learn_weighing(lambda part: model(part).square().mean(), batch, model)
    model[1].eval()
    assert trials.learn_weighing(lambda part: model(part).square().mean(), batch, model).kind == "samples"
    assert [module.training for module in model.modules()] == [True, True, False], "modes are as they were"
    model[1] = nn.BatchNorm1d(4, track_running_stats=False).eval()
    with pytest.raises(NotSplittable):
        trials.learn_weighing(lambda part: model(part).square().mean(), batch, model)


def test_learning_says_what_it_cannot_know():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    model.register_buffer("calls", torch.zeros(()))
    batch = (torch.randn(8, 6), torch.randint(0, 4, (8,)))

    def loss(part):
        model.calls += 1
        torch.rand(3)
        return cross_entropy(model(part[0]), part[1])

    state = torch.get_rng_state()
    learnt = trials.learn_weighing(loss, batch, model)
    assert learnt.kind == "targets" and pickle.loads(pickle.dumps(learnt)) == learnt
    assert torch.equal(torch.get_rng_state(), state) and model.calls == 0 and model.training
    with pytest.raises(NotSplittable, match="one sample"):
        trials.learn_weighing(loss, take(batch, 0, 1), model)
    with pytest.raises(FitError, match=r"shape \(2,\)"):
        trials.learn_weighing(lambda part: cross_entropy(model(part[0]), part[1], reduction="none"), batch, model)
    assert trials.learn_weighing(lambda part: 1 / 0, batch, model).kind == "unknown"
    assert trials.learn_weighing(lambda part: None, batch, model).kind == "unknown"
    random = trials.learn_weighing(lambda part: F.dropout(model(part[0])).mean(), batch, model)
    assert random.kind == "unknown" and "random" in random.reason


def cut_into(model, loss_of, batch, parts, weighing):
    """The loss and the gradients of a batch in parts, and those of the whole."""
    plain, parted = copy.deepcopy(model), copy.deepcopy(model)
    whole = loss_of(plain, batch)
    whole.backward()
    accumulator = Accumulator(weighing)
    for start, stop in cuts(samples(batch), parts):
        with Counted() as counted:
            loss = loss_of(parted, take(batch, start, stop))
        accumulator.scale(loss, counted, stop - start).backward()
    loss = accumulator.finish(parted.parameters())
    return (loss, [one.grad for one in parted.parameters()]), (whole.detach(), [one.grad for one in plain.parameters()])


def error_of(parted, plain):
    return max(float((one - other).norm() / other.norm()) for one, other in zip(parted[1], plain[1]))


def masked_mean(model, batch):
    losses = F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten(), reduction="none").view_as(batch["y"])
    return (losses * batch["mask"]).sum() / batch["mask"].sum()


def masked_batch(lengths, dtype=torch.float32, longest=12):
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return {"x": torch.randint(0, 50, (len(lengths), longest)), "y": torch.randint(0, 50, (len(lengths), longest)), "mask": mask.to(dtype)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_mean_by_hand_is_tried_again_where_there_is_padding(dtype):
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))
    compute = lambda part: masked_mean(model, part)
    weighing = trials.learn_weighing(compute, masked_batch([12] * 8, dtype), model)
    assert (weighing.kind, weighing.provisional) == ("samples", True)
    uneven = masked_batch([12, 12, 1, 2, 3, 12, 1, 1], dtype)
    assert error_of(*cut_into(model, masked_mean, uneven, 4, weighing)) > 0.5, "what it would come to"
    verifier = trials.Verifier(weighing)
    for _ in range(3):
        verifier.check(compute, masked_batch([12] * 8, dtype), model)
    before = torch.get_rng_state()
    with pytest.raises(NotSplittable, match="ignore_index"):
        verifier.check(compute, uneven, model)
    assert torch.equal(torch.get_rng_state(), before) and model.training and all(one.grad is None for one in model.parameters())
    # Sorted by length: neighbours are alike, the first and the last are not.
    with pytest.raises(NotSplittable, match="padding"):
        trials.verify(weighing, compute, masked_batch([12, 11, 10, 9, 8, 7, 6, 5], dtype), model)
    with pytest.raises(NotSplittable):
        trials.learn_weighing(compute, uneven, model)


def test_padding_of_any_value_is_noticed():
    model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))

    def loss(part):
        losses = F.cross_entropy(model(part).flatten(0, 1), part.flatten(), reduction="none")
        return (losses * (part != 7).flatten()).sum() / (part != 7).sum()

    tokens = torch.randint(8, 50, (6, 40))
    weighing = trials.learn_weighing(loss, tokens, model)
    verifier = trials.Verifier(weighing)
    verifier.check(loss, tokens, model)
    tokens = tokens.clone()
    tokens[3, 10:] = 7
    with pytest.raises(NotSplittable):
        verifier.check(loss, tokens, model)


def test_a_true_mean_over_samples_is_tried_a_few_times_only():
    model = nn.Linear(12, 3)
    calls = []

    def loss(part):
        calls.append(len(part["mask"]))
        return (model(part["x"].float() * part["mask"]) - 1).square().mean()

    weighing = trials.learn_weighing(loss, masked_batch([12] * 8), model)
    assert (weighing.kind, weighing.provisional) == ("samples", True) and max(calls) <= 4 and len(calls) <= 16
    verifier, counts = trials.Verifier(weighing), []
    for _ in range(30):
        calls.clear()
        verifier.check(loss, masked_batch(torch.randint(1, 13, (8,)).tolist()), model)
        counts.append(len(calls))
    assert counts[0] > 0 and not any(counts[10:]) and sum(counts) < 200, counts


def test_a_term_beside_a_counted_mean_makes_it_provisional():
    model = Words(width=8)

    def with_term(model, batch):
        logits = model(batch["input_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) + 0.1 * logits.logsumexp(-1).square().mean()

    whole = {"input_ids": torch.randint(0, VOCABULARY, (8, 12)), "labels": torch.randint(0, VOCABULARY, (8, 12))}
    compute = lambda part: with_term(model, part)
    weighing = trials.learn_weighing(compute, whole, model)
    assert (weighing.kind, weighing.provisional) == ("targets", True)
    with pytest.raises(NotSplittable):
        trials.verify(weighing, compute, padded(8), model)
    pure = trials.learn_weighing(lambda part: next_word_loss(model, part) / 4, whole, model)
    assert (pure.kind, pure.provisional) == ("targets", False), "nothing but the mean: proved"


def two_heads(model, batch):
    """As for question answering: where an answer begins and ends, or neither."""
    scores = model(batch["x"])
    return (F.cross_entropy(scores[:, :10], batch["s"], ignore_index=10) + F.cross_entropy(scores[:, 10:], batch["e"], ignore_index=10)) / 2


def test_several_means_whose_counts_part_are_refused():
    model = nn.Linear(8, 20)
    batch = {"x": torch.randn(8, 8), "s": torch.randint(0, 10, (8,)), "e": torch.randint(0, 10, (8,))}
    weighing = trials.learn_weighing(lambda part: two_heads(model, part), batch, model)
    assert (weighing.kind, weighing.provisional, weighing.means) == ("samples", True, 2)
    parted, plain = cut_into(model, two_heads, batch, 4, weighing)
    torch.testing.assert_close(parted, plain, rtol=1e-5, atol=1e-6)
    batch["s"][2:6], batch["e"][0] = 10, 10
    with pytest.raises(NotSplittable, match="different counts"):
        cut_into(model, two_heads, batch, 4, weighing)
    cut_into(model, two_heads, batch, 4, weighing.unwatched())
    batch["s"][:], batch["e"][:] = 1, 2
    batch["s"][::2], batch["e"][::2] = 10, 10
    parted, plain = cut_into(model, two_heads, batch, 4, weighing)
    torch.testing.assert_close(parted, plain, rtol=1e-5, atol=1e-6)


def test_a_mean_for_each_sample_is_not_several_means():
    model = nn.Linear(6, 5)
    loss = lambda model, batch: torch.stack([F.cross_entropy(model(x), y) for x, y in zip(*batch)]).mean()
    batch = (torch.randn(8, 4, 6), torch.randint(0, 5, (8, 4)))
    weighing = trials.learn_weighing(lambda part: loss(model, part), batch, model)
    assert (weighing.kind, weighing.means) == ("samples", 0)
    batch[1][:5, 2:] = -100
    assert trials.verify(weighing, lambda part: loss(model, part), batch, model)
    parted, plain = cut_into(model, loss, batch, 3, weighing)
    torch.testing.assert_close(parted, plain, rtol=1e-5, atol=1e-6)


class Recurrent(nn.Module):
    def __init__(self, batch_first, kind="lstm"):
        super().__init__()
        self.embedding = nn.Embedding(1000, 32)
        layer = lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first)
        self.middle = nn.LSTM(32, 32, 2, dropout=0.5, batch_first=batch_first) if kind == "lstm" else layer()
        self.head = nn.Linear(32, 1000)

    def forward(self, tokens):
        middle = self.middle(self.embedding(tokens))
        return self.head(middle[0] if isinstance(middle, tuple) else middle)


@pytest.mark.parametrize("kind, named", [("lstm", r"middle \(nn.LSTM\)"), ("attention", r"middle.self_attn \(nn.MultiheadAttention\)")])
def test_time_is_not_cut(kind, named):
    batch = (torch.randint(0, 1000, (32, 8)), torch.randint(0, 1000, (32, 8)))
    loss = lambda model: lambda part: cross_entropy(model(part[0]).reshape(-1, 1000), part[1].reshape(-1))
    model = Recurrent(False, kind)
    with pytest.raises(NotSplittable, match=f"the first dimension is time for {named} with batch_first=False"):
        trials.learn_weighing(loss(model), batch, model)
    model = Recurrent(True, kind)
    assert trials.learn_weighing(loss(model), batch, model).kind == "targets"
    if kind == "lstm":
        assert model.middle.dropout == 0.5 and model.middle.training
        # Any loop over time, without a module that says so.
        cell, head = nn.LSTMCell(32, 32), nn.Linear(32, 1000)
        model = nn.ModuleList([Recurrent(True).embedding, cell, head])

        def over_time(part):
            state, out = None, []
            for step in model[0](part[0]):
                state = cell(step, state)
                out.append(head(state[0]))
            return cross_entropy(torch.stack(out).flatten(0, 1), part[1].flatten())

        with pytest.raises(NotSplittable, match="gradients: samples"):
            trials.learn_weighing(over_time, batch, model)


def test_a_small_term_over_the_batch_is_refused():
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 100))
    batch = (torch.randn(8, 8), torch.randint(0, 100, (8,)))

    def with_entropy(part):
        scores = model(part[0])
        mean = scores.softmax(-1).mean(0)
        return cross_entropy(scores, part[1]) + 0.1 * (mean * mean.log()).sum()

    with pytest.raises(NotSplittable, match="over the whole batch"):
        trials.learn_weighing(with_entropy, batch, model)


class InTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x, y):
        scores = self.layer(x)
        return cross_entropy(scores, y) if self.training else scores


def test_a_loss_in_training_only_is_unknown_and_counted():
    model = InTraining()
    batch = (torch.randn(8, 8), torch.tensor([0, 1, -100, -100, -100, 3, 4, 1]))
    compute = lambda part: LossOf(None)(model, part)
    for training in (True, False):
        weighing = trials.learn_weighing(compute, batch, model.train(training))
        assert weighing.kind == "unknown" and "in training only" in weighing.reason and model.training is training
    model.train()
    parted, plain = cut_into(model, lambda model, part: model(*part), batch, 3, weighing)
    torch.testing.assert_close(parted, plain, rtol=1e-5, atol=1e-6)
    with pytest.raises(FitError, match="must be one number"):
        trials.learn_weighing(lambda part: LossOf(None)(model.layer, part[0]), batch, model)


@pytest.mark.parametrize("autocast", [False, True])
def test_learning_allows_for_rounding(autocast):
    """Deep and in half precision, with keys whose gradients are nothing but rounding: still a mean."""
    layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True) for _ in range(6)]
    model = nn.Sequential(nn.Embedding(200, 64), *layers, nn.Linear(64, 200))

    def loss(part):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return cross_entropy(model(part).flatten(0, 1), part.flatten())

    before = [torch.randn_like(one) for one in model.parameters()]
    for one, gradient in zip(model.parameters(), before):
        one.grad = gradient
    weighing = trials.learn_weighing(loss, torch.randint(0, 200, (6, 16)), model)
    assert (weighing.kind, weighing.provisional) == ("targets", False), weighing
    assert all(one.grad is gradient for one, gradient in zip(model.parameters(), before)), "gradients are as they were"
    assert trials._precision(loss, torch.randint(0, 200, (1, 16)), model) is (trials._HALF if autocast else trials._FULL)


def test_gradients_that_are_compared_take_little_memory():
    large = [nn.Linear(1024, 4096, bias=False) for _ in range(12)]  # 16 MiB each
    model = nn.Sequential(*large, nn.Linear(8, 8))
    chosen = trials._compared(model)
    ids = [id(one) for one in chosen]
    assert sum(one.numel() * 4 for one in chosen) <= 64 << 20
    assert all(id(one) in ids for one in (model[-1].weight, model[-1].bias, large[0].weight, large[-1].weight)) and len(chosen) == 5


def test_several_means_are_one_only_if_their_counts_are():
    scores, target = torch.randn(4, 6, requires_grad=True), torch.tensor([1, 2, -100, 3])
    with Counted() as counted:
        cross_entropy(scores, target) + cross_entropy(scores * 2, target)
        with torch.no_grad():
            F.mse_loss(scores, torch.zeros(4, 6))
    assert counted.total() == 3, "the same targets, and what is computed aside does not count"
    with Counted() as counted:
        cross_entropy(scores, target) + F.mse_loss(scores, torch.zeros(4, 6))
    assert counted.total() is None
    with Counted() as counted:
        cross_entropy(scores, target) + F.kl_div(scores.log_softmax(-1), scores.softmax(-1), reduction="batchmean")
    assert counted.total() is None
    with Counted() as counted:
        F.l1_loss(scores, torch.zeros(4, 6)) + cross_entropy(scores, scores.detach().softmax(-1))
    assert counted.total() == 24
    with Counted() as counted:
        pass
    assert counted.total() is None
    assert type(torch._C._nn.cross_entropy_loss).__name__ == "builtin_function_or_method", "the functions are PyTorch's again"
    with pytest.raises(NotSplittable, match="cannot be counted"):
        Accumulator(Weighing("unknown", "why")).scale(scores.sum(), counted, 4)


@pytest.mark.parametrize(
    "options, model",
    [
        ({}, {}),
        ({}, {"bias": True}),
        ({}, {"tied": True}),
        ({"label_smoothing": 0.1}, {"bias": True}),
        ({"weight": torch.linspace(0.1, 2, VOCABULARY)}, {}),
        ({"weight": torch.linspace(0.1, 2, VOCABULARY), "label_smoothing": 0.1}, {"tied": True}),
        ({"reduction": "sum"}, {}),
        ({"reduction": "none"}, {}),
    ],
)
def test_deferred_logits_give_the_same_loss_and_gradients(options, model):
    plain = Words(**model)
    deferred, truth = copy.deepcopy(plain), copy.deepcopy(plain).double()
    undoable = defer_logits(deferred, chunk_bytes=4 * VOCABULARY * 7)
    assert undoable.heads == ["head"]
    batch = padded(5)
    losses, totals = [], []
    for one in (plain, deferred, truth):
        with Counted() as counted:
            loss = next_word_loss(one, batch, **options, to=next(one.parameters()).dtype)
        losses.append(loss.mean())
        totals.append(counted.total())
        losses[-1].backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    for one, other, right in zip(plain.parameters(), deferred.parameters(), truth.parameters()):
        # The sums have another order: what counts is that they are no farther from those in float64.
        errors = [(float((some.grad - right.grad).norm() / right.grad.norm())) for some in (one, other)]
        assert errors[1] <= 1e-6 and errors[1] <= 2 * errors[0] + 1e-7, errors
    assert totals[0] == totals[1] and (totals[0] is None) == ("reduction" in options)
    undoable.undo()
    undoable.undo()
    assert "forward" not in deferred.head.__dict__ and type(deferred(batch["input_ids"])) is torch.Tensor


@pytest.mark.parametrize("cast", [False, True])
def test_deferred_logits_under_autocast(cast):
    plain = Words(bias=True)
    deferred = copy.deepcopy(plain)
    defer_logits(deferred, chunk_bytes=4 * VOCABULARY * 7)
    tokens = torch.randint(0, VOCABULARY, (4, 9))
    losses = []
    for one in (plain, deferred):
        with torch.autocast("cpu", torch.bfloat16):
            logits = one(tokens)
            assert logits.dtype == torch.bfloat16
            losses.append(F.cross_entropy((logits.float() if cast else logits).flatten(0, 1), tokens.flatten()))
        losses[-1].backward()
    assert type(logits) is DeferredLogits and logits._root.whole is None
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    for one, other in zip(plain.parameters(), deferred.parameters()):
        assert (other.grad - one.grad).norm() <= 2**-7 * one.grad.norm(), "each chunk's product is rounded to bfloat16"


@pytest.mark.parametrize("way", ["checkpoint", "offload"])
def test_deferred_logits_under_hooks_of_what_is_saved(way):
    plain = Words(width=8)
    deferred = copy.deepcopy(plain)
    defer_logits(deferred, chunk_bytes=4 * VOCABULARY * 7)
    batch = padded(5)
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor

    next_word_loss(plain, batch).backward()
    if way == "checkpoint":
        checkpoint(next_word_loss, deferred, batch, use_reentrant=False).backward()
    else:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = next_word_loss(deferred, batch)
        loss.backward()
        assert packed and all(VOCABULARY != shape[-1] for shape in packed if shape), "no logits are offloaded"
    for one, other in zip(plain.parameters(), deferred.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-5, atol=1e-7)


class Squares(torch.autograd.Function):
    """Goes past __torch_function__, as other people's fused losses do."""

    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        return (logits * logits).sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]


def written_before(model, tokens):
    logits = model(tokens)
    view = logits.view(-1, VOCABULARY)
    logits.mul_(2)
    return F.cross_entropy(view, tokens.view(-1))


def written_into(model, tokens):
    logits = model(tokens)
    logits[..., 5] = -3
    return F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))


def masked_after_a_scale(model, tokens):
    logits = model(tokens) * 0.5
    logits[..., 40:] = -1e9
    return F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1) % 40)


def scaled_before_a_write(model, tokens):
    logits = model(tokens)
    scaled = logits * 3
    logits.mul_(2)
    return F.cross_entropy(scaled.view(-1, VOCABULARY), tokens.view(-1))


def by_keywords(model, tokens):
    logits = torch.mul(input=torch.tanh(input=model(tokens)), other=2.0)
    return F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))


def looked_at(model, tokens):
    logits = model(tokens)
    with torch.no_grad():
        logits.argmax(-1).sum()
    return F.cross_entropy(logits.view(-1, VOCABULARY), tokens.view(-1))


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model, tokens: model(tokens).logsumexp(-1).mean(),
        lambda model, tokens: F.nll_loss(F.log_softmax(model(tokens), -1).view(-1, VOCABULARY), tokens.view(-1)),
        lambda model, tokens: F.cross_entropy(model(tokens).transpose(1, 2), tokens),
        lambda model, tokens: F.cross_entropy(model(tokens)[:, -1, :100], tokens[:, -1] % 100),
        lambda model, tokens: torch.stack([model(tokens), model(tokens)]).square().mean(),
        lambda model, tokens: Squares.apply(model(tokens)),
        lambda model, tokens: F.cross_entropy((1.0 / (model(tokens) + 3)).view(-1, VOCABULARY), tokens.view(-1)),
        lambda model, tokens: F.cross_entropy((model(tokens) + model.head.weight.sum(-1)).view(-1, VOCABULARY), tokens.view(-1)),
        lambda model, tokens: F.cross_entropy((model(tokens) + torch.ones(3, 1, VOCABULARY)).view(-1, VOCABULARY), tokens.view(-1)),
        written_before,
        written_into,
        masked_after_a_scale,
        scaled_before_a_write,
        by_keywords,
        looked_at,
    ],
)
def test_what_needs_plain_logits_gets_them(loss_of):
    plain = Words(width=8)
    deferred = copy.deepcopy(plain)
    defer_logits(deferred)
    tokens = torch.randint(0, VOCABULARY, (3, 5))
    losses = [loss_of(model, tokens) for model in (plain, deferred)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for one, other in zip(plain.parameters(), deferred.parameters()):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-6, atol=1e-8)


ROW = torch.linspace(-1, 1, VOCABULARY)


def a_row_that_is_changed_later(logits):
    row = ROW.clone()
    changed = logits + row
    row.zero_()
    return changed


@pytest.mark.parametrize(
    "change, off",
    [
        (lambda logits: logits + ROW, 1e-6),
        (a_row_that_is_changed_later, 1e-6),
        (lambda logits: ROW[None] + logits[:, 1:], 1e-6),
        (lambda logits: torch.tanh(logits / 3.0) * 3.0, 1e-6),
        (lambda logits: (0.5 * logits).to(torch.float64) + ROW, 1e-6),
        (lambda logits: torch.div(logits.bfloat16(), 2).float(), 2**-7),
    ],
    ids=["a buffer", "a row that is changed later", "a row before a slice", "capped", "scaled, and of another type", "rounded"],
)
@pytest.mark.parametrize("past", [False, True], ids=["cross entropy", "past torch functions"])
def test_logits_that_are_changed_number_by_number_stay_deferred(change, off, past):
    plain = Words(width=8, bias=True)
    deferred = copy.deepcopy(plain)
    defer_logits(deferred, chunk_bytes=4 * VOCABULARY * 4)
    tokens = torch.randint(0, VOCABULARY, (3, 5))
    losses, kinds = [], []
    for model in (plain, deferred):
        logits = change(model(tokens))
        kinds.append((type(logits), logits.dtype, logits.shape))
        losses.append(Squares.apply(logits) if past else F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, : logits.shape[1]].flatten(), label_smoothing=0.1))
        losses[-1].backward()
    assert kinds[1][0] is DeferredLogits and kinds[1][1:] == kinds[0][1:]
    assert past or logits._root.whole is None
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    for one, other in zip(plain.parameters(), deferred.parameters()):
        assert (other.grad - one.grad).norm() <= off * one.grad.norm()


def test_rows_of_deferred_logits_stay_deferred():
    model = Words(width=8)
    defer_logits(model)
    tokens = torch.randint(0, VOCABULARY, (3, 5))
    logits = model(tokens)
    assert isinstance(logits, torch.Tensor) and logits.shape == (3, 5, VOCABULARY) and logits.requires_grad and not logits.is_leaf
    mask = tokens < VOCABULARY // 2
    for one, shape in [
        (logits[:, -1], (3, VOCABULARY)),
        (logits[mask], (int(mask.sum()), VOCABULARY)),
        (logits[:, 1:3, :].reshape(-1, VOCABULARY), (6, VOCABULARY)),
        (logits.to(torch.bfloat16).to("cpu").flatten(end_dim=1), (15, VOCABULARY)),
    ]:
        assert type(one) is DeferredLogits and one.shape == shape
    assert logits._root.whole is None
    with torch.no_grad():
        assert type(model(tokens)) is torch.Tensor


def test_wide_layers_inside_are_no_heads():
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 4096), nn.Linear(4096, 8)) for _ in range(2)])
    assert find_heads(nn.Sequential(nn.Embedding(100, 8), blocks)) == {}
    assert list(find_heads(nn.Sequential(blocks, nn.Linear(8, 21841)))) == ["1"], "many classes, too"


def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": VOCABULARY, "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, intermediate_size=16, num_key_value_heads=2))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    for model in (llama, gpt2):
        model.train()
        deferred = copy.deepcopy(model)
        assert defer_logits(deferred, chunk_bytes=4 * VOCABULARY * 8).heads == ["lm_head"]
        batches = [transformers.BatchEncoding(padded(4)) for _ in range(STEPS)]
        outputs = deferred(**batches[0])
        assert type(outputs.logits) is DeferredLogits and outputs.logits._root.whole is None, "the loss has not made them"
        learnt = trials.learn_weighing(lambda part: deferred(**part).loss, batches[0], deferred)
        assert learnt.kind == "targets"
        expected = train(model, lambda model, part: model(**part).loss, batches)
        found = train(deferred, lambda model, part: model(**part).loss, batches, 3, learnt)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for one, other in zip(model.parameters(), deferred.parameters()):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


ON_THE_CARD = """
import json
import torch, torch.nn.functional as F
from torch import nn
from oomph.fitting.running import largest_batch
from oomph.fitting.losses.cross_entropy import defer_logits

class Model(nn.Sequential):
    def forward(self, tokens):
        logits = super().forward(tokens).float()
        return F.cross_entropy(logits.view(-1, logits.size(-1)), tokens.view(-1))

model = Model(nn.Embedding(50257, 64), nn.Linear(64, 50257, bias=False)).cuda()
tokens = torch.zeros(4, 512, dtype=torch.long, device="cuda")
peaks = []
for chunk in (None, 16 << 20):
    if chunk:
        defer_logits(model, chunk)
    model.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model(tokens).backward()
    peaks.append(torch.cuda.max_memory_allocated() - before)

seen = []

def step(size):
    seen.append(size)
    blocks = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(size)]
    blocks.append(blocks)  # A cycle: only a collection frees it.

found = [largest_batch.find_batch(step, effective=effective, tries=1) for effective in (1000, 257)]
try:
    largest_batch.find_batch(lambda size: torch.empty(1 << 40, dtype=torch.uint8, device="cuda"), effective=4)
except largest_batch.FitError as error:
    print(json.dumps({"peaks": peaks, "found": found, "seen": seen, "said": str(error)}))
"""


@pytest.fixture(scope="module")
def on_the_card(on_virtual_gpu):
    """What a program on the virtual T4 says."""
    done = on_virtual_gpu("-c", ON_THE_CARD)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_deferred_logits_leave_the_memory_to_others(on_the_card):
    plain, deferred = on_the_card["peaks"]
    rows, chunk, weight = 4 * 512 * 50257 * 4, 16 << 20, 50257 * 64 * 4
    assert plain > 2 * rows
    assert deferred < 4.5 * chunk + 3 * weight < 0.1 * plain


def test_find_batch_on_a_card_that_is_too_small(on_the_card):
    (size, parts), (of_prime, parts_of_prime) = on_the_card["found"]
    assert (size, parts) == (125, 8) and on_the_card["seen"][:5] == [1000, 500, 250, 125, 200]
    assert (of_prime, parts_of_prime) == (129, 2), "almost even parts where there is no divisor"
    assert "one sample" in on_the_card["said"] and "oomph.fit" in on_the_card["said"]


def test_find_batch_raises_what_is_no_out_of_memory():
    def step(size):
        if size > 3:
            raise RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        if size < 3:
            raise AssertionError("3 runs")

    assert find_batch(step, effective=12, largest=7) == Batch(3, 4)
    assert not is_out_of_memory(ValueError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    with pytest.raises(ZeroDivisionError):
        find_batch(lambda size: 1 / 0, effective=4)
    with pytest.raises(ValueError):
        find_batch(step, effective=0)


ON_TWO_RANKS = """
import contextlib, copy, json, os, sys
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from oomph.fitting.running.batches import cuts, take
from oomph.fitting.losses.counts import Accumulator, Counted, Weighing
from oomph.fitting.running.largest_batch import find_batch

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

def step(size):
    if size > (12, 5)[rank]:
        raise RuntimeError("CUDA out of memory")

found = find_batch(step, effective=16)

torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(6, 4))
torch.manual_seed(rank)
batch = (torch.randn(6, 6), torch.tensor([[0, -100, -100, 1, 2, 3], [-100, 1, -100, -100, -100, 2]][rank]))
F.cross_entropy(model(batch[0]), batch[1]).backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
accumulator, edges = Accumulator(Weighing("targets")), cuts(6, 3)
for number, (start, stop) in enumerate(edges):
    last = number == len(edges) - 1
    with contextlib.nullcontext() if last else model.no_sync():
        part = take(batch, start, stop)
        with Counted() as counted:
            loss = F.cross_entropy(model(part[0]), part[1])
        accumulator.scale(loss, counted, stop - start, last=model.parameters() if last else None).backward()
accumulator.finish(model.parameters())
for one, other in zip(model.parameters(), expected):
    torch.testing.assert_close(one.grad, other)
print(json.dumps(found), flush=True)
# A process that ends while the other still talks to it may be aborted.
dist.barrier()
dist.destroy_process_group()
# A thread of gloo that asks for Python's lock while the interpreter ends is aborted, rarely, and the process with it.
os._exit(0)
"""


def test_ranks_agree(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", ON_TWO_RANKS]
    ranks = [subprocess.Popen([*words, str(rank), str(tmp_path / "meet")], env=environment, **pipes) for rank in range(2)]
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err[-2000:]
        assert json.loads(out) == [4, 4]
