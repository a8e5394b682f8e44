"""oomph.fit as a whole: the same result as the plain loop, the plan on the virtual GPU, and what happens when memory runs out.

Equality is shown on the CPU with plans that are given, since the virtual GPU computes nothing; plans, peaks and steps down on the virtual GPU.
The parts have tests of their own: test_fit_split, test_fit_memory, test_fit_optimizer, test_fit_inference, test_fit_integrations, test_fit_script.
"""

import copy
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
import oomph as package  # noqa: E402
from oomph.fitting.losses.loss_of import LossOf  # noqa: E402
from oomph.fitting.planning.payload import NotPackable, pack, unpack  # noqa: E402
from oomph.fitting.planning.plan import Measured, Plan  # noqa: E402
from oomph.fitting.planning.search import Facts, Found, Search  # noqa: E402
from torch import nn  # noqa: E402

FitError, GIB, MIB = package.FitError, 1 << 30, 1 << 20


pytestmark = pytest.mark.usefixtures("one_thread")


# -- the same result


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Language(nn.Module):
    """A small language model with a head wide enough for deferred logits."""

    def __init__(self, words=4200, width=16, layers=4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def token_mean(model, batch):
    """Over all targets that are not padding, wherever they are."""
    return nn.functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def padded_batches(count=20, samples=7, length=11):
    generator = torch.Generator().manual_seed(5)
    batches = []
    for _ in range(count):
        ids = torch.randint(4200, (samples, length), generator=generator)
        labels = ids.roll(-1, 1)
        for row in range(samples):
            labels[row, int(torch.randint(1, length + 1, (), generator=generator)) :] = -100
        batches.append({"ids": ids, "labels": labels})
    return batches


NAMES = tuple(f"layers.{number}" for number in range(4))
EXACT = {
    "fused": Plan(fused=True),
    "deferred logits": Plan(defer_logits=True),
    "two parts": Plan(micro=4),
    "parts of one": Plan(micro=1),
    "checkpointed": Plan(checkpoint=NAMES),
    "offloaded": Plan(offload=NAMES),
    "states on the host": Plan(states_on_host=True),
    "a share of them": Plan(states_on_host=0.4),
    "selectively checkpointed": Plan(selective=NAMES),
    "updated within the backward pass": Plan(release=True),
    "so, with states on the host": Plan(release=True, states_on_host=0.6, selective=NAMES[:2], checkpoint=NAMES[2:]),
    "so, in parts": Plan(3, release=True),
    "half of everything": Plan(3, NAMES[:2], NAMES[1:3], defer_logits=True, fused=True, states_on_host=True),
    "all of everything": Plan(2, NAMES, NAMES, defer_logits=True, fused=True, states_on_host=True),
}
BIT_EQUAL = ("checkpointed", "offloaded", "states on the host", "a share of them", "selectively checkpointed", "updated within the backward pass", "so, with states on the host")


@pytest.mark.parametrize("name", EXACT)
def test_twenty_steps_give_the_losses_and_parameters_of_the_plain_loop(name):
    torch.manual_seed(0)
    plain = Language()
    fitted = copy.deepcopy(plain)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.5, momentum=0.9)
    optimizer = torch.optim.SGD(fitted.parameters(), lr=0.5, momentum=0.9)
    batches = padded_batches()
    with package.fit(fitted, optimizer, loss=token_mean, batch=batches[0], plan=EXACT[name], quiet=True) as fit:
        for batch in batches:
            expected = token_mean(plain, batch)
            plain_optimizer.zero_grad()
            expected.backward()
            plain_optimizer.step()
            torch.testing.assert_close(fit.step(batch), expected.detach(), rtol=2e-6, atol=0)
    assert expected.item() < 8.6, "it must have learnt something"
    for (_, one), (_, other) in zip(plain.named_parameters(), fitted.named_parameters()):
        if name in BIT_EQUAL:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_gradients_are_clipped_as_in_the_plain_loop():
    torch.manual_seed(0)
    plain = Language()
    fitted = copy.deepcopy(plain)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3) for model in (plain, fitted)]
    batches = padded_batches(8)
    fit = package.fit(fitted, optimizers[1], loss=token_mean, batch=batches[0], plan=Plan(micro=2), clip_grad_norm=0.1, quiet=True)
    for batch in batches:
        optimizers[0].zero_grad()
        token_mean(plain, batch).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        optimizers[0].step()
        fit.step(batch)
    for one, other in zip(plain.parameters(), fitted.parameters()):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_parameters_that_only_the_optimizer_has_are_trained_as_in_the_plain_loop():
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(2.0))

        def forward(self, output, target):
            return nn.functional.cross_entropy(output / self.temperature, target)

    torch.manual_seed(0)
    batch = (torch.randn(8, 4), torch.randint(3, (8,)))
    trained = []
    for plan in (None, Plan(micro=2)):
        torch.manual_seed(1)
        model, loss = nn.Linear(4, 3), Tempered()
        optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.5)
        if plan is None:
            loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        else:
            package.fit(model, optimizer, loss=loss, batch=batch, plan=plan, quiet=True).step(batch)
        trained.append(loss.temperature.item())
    assert trained[0] != 2.0 and trained[1] == pytest.approx(trained[0], rel=1e-6)


def test_a_scaler_that_is_given_is_used_and_gradients_are_without_it():
    torch.manual_seed(0)
    model = Language()
    batch = padded_batches(1)[0]
    token_mean(model, batch).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fit = package.fit(model, optimizer, loss=token_mean, batch=batch, plan=Plan(micro=3), scaler=scaler, quiet=True)
    fit.backward(batch)
    for parameter, gradient in zip(model.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-7)
    with pytest.raises(FitError, match="twice without fit.update"):
        fit.backward(batch)
    fit.update()
    fit.step(batch)
    assert scaler.get_scale() == 4096.0


def test_an_out_of_memory_puts_random_numbers_and_replaced_buffers_back():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.fails = nn.Linear(4, 2), 1
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            x = nn.functional.dropout(self.linear(x), 0.5)
            if self.fails:
                self.fails -= 1
                raise torch.cuda.OutOfMemoryError("CUDA out of memory (a test)")
            return x

    losses = []
    for fails in (0, 1):
        torch.manual_seed(0)
        model = Counts()
        model.fails = fails
        batch = (torch.ones(4, 4), torch.zeros(4, dtype=torch.long))
        fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss(), batch=batch, plan=Plan(), quiet=True)
        fit._not_splittable = "a test"
        fit._rungs = [Measured(Plan(fused=True), 0, 0, 0.0)]
        losses.append((fit.step(batch).item(), model.seen.item(), len(fit.plan.history)))
    assert losses[0][:2] == losses[1][:2] and losses[0][1] == 1 and [one[2] for one in losses] == [0, 1]


def test_a_cell_that_is_run_again_begins_anew():
    torch.manual_seed(0)
    model = Language()
    batch = padded_batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fits = [package.fit(model, optimizer, loss=token_mean, batch=batch, plan=Plan(checkpoint=NAMES, defer_logits=True), quiet=True) for _ in range(2)]
    fits[1].step(batch)
    with pytest.raises(FitError, match="was closed"):
        fits[0].step(batch)


def test_a_fit_is_given_back_where_it_may_be_reused():
    torch.manual_seed(0)
    model, batch = Language(), padded_batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def epoch(weight, **more):
        given = {"loss": lambda net, batch: token_mean(net, batch) * weight, "batch": batch, "plan": Plan(micro=3), "reuse": True, "quiet": True, **more}
        return package.fit(model, optimizer, **given)

    first = epoch(1.0)
    expected = 2 * token_mean(model, batch).item()
    # The same, with the loss of this call.
    assert epoch(2.0) is first and first.step(batch).item() == pytest.approx(expected, rel=2e-6)
    assert vars(optimizer)["_oomph_fit"] is first and "_oomph_fit" not in vars(copy.deepcopy(optimizer))
    # Asked for in another way, for another optimizer, without the word, or after it was closed: a new one.
    other = epoch(1.0, clip_grad_norm=1.0)
    assert other is not first and epoch(1.0, clip_grad_norm=1.0) is other
    anew = epoch(1.0, clip_grad_norm=1.0, reuse=False)
    assert anew is not other and epoch(1.0, clip_grad_norm=1.0) not in (other, anew)
    last = epoch(1.0, clip_grad_norm=1.0)
    last.close()
    assert epoch(1.0, clip_grad_norm=1.0) is not last
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert epoch(1.0, clip_grad_norm=1.0).optimizer is optimizer


def test_a_fit_is_given_back_only_to_who_asks_in_the_same_way():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))

    def again(**more):
        given = {"loss": nn.CrossEntropyLoss(), "batch": batch, "plan": Plan(micro=3), "reuse": True, "quiet": True, **more}
        return package.fit(model, optimizer, **given)

    first = again(budget="1GiB", gpu="t4")
    # The same in other words.
    assert again(budget=1 << 30, gpu="t4", plan=Plan(micro=3).to_dict()) is first
    for refused, why in ({"budget": "abc"}, "budget='abc'"), ({"batch": iter([batch])}, "the batch is a list_iterator"):
        with pytest.raises(FitError, match=why):
            again(**{"budget": "1GiB", "gpu": "t4", **refused})
    fits = [first]
    for other in {"budget": "2GiB", "gpu": "t4"}, {"budget": "2GiB", "gpu": "a100-80gb"}, {"budget": "2GiB", "gpu": "a100-80gb", "plan": Plan(micro=2)}:
        fits.append(again(**other))
        assert fits[-1] is not fits[-2] and again(**other) is fits[-1]
    assert [fit.plan.chosen.micro for fit in fits] == [3, 3, 3, 2]


def test_a_loss_that_is_known_is_not_asked_again():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.zeros(6, 4), torch.zeros(6, 2))
    asked = []

    def epoch():
        def loss(net, batch):
            asked.append(type(net).__name__)
            return (net(batch[0]) - batch[1]).square().mean()

        return package.fit(model, optimizer, loss=loss, batch=batch, plan=Plan(), reuse=True, quiet=True)

    assert epoch() is epoch() and asked == ["_StandIn"]


def test_a_batch_without_a_common_dimension_is_fitted_whole():
    torch.manual_seed(0)
    batch = (torch.randn(5, 4), torch.tensor([[0, 1, 2], [1, 2, 3]]))

    def neighbours(model, batch):
        nodes, edges = batch
        out = model(nodes)
        return (out[edges[0]] - out[edges[1]]).square().mean()

    model = nn.Linear(4, 2)
    fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=neighbours, batch=batch, plan=Plan(), quiet=True)
    expected = neighbours(model, batch).item()
    assert fit.step(batch).item() == expected
    with pytest.raises(FitError, match="not clear how many samples"):
        package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=neighbours, batch=batch, plan=Plan(micro=1))


def test_buffers_that_every_forward_changes_forbid_the_cut():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.register_buffer("centre", torch.zeros(3))

        def forward(self, x):
            out = self.linear(x)
            if self.training:
                self.centre.mul_(0.9).add_(0.1 * out.detach().mean(0))
            return out - self.centre

    torch.manual_seed(0)
    model = Centred()
    batch = (torch.randn(6, 4), torch.randint(3, (6,)))
    with pytest.raises(FitError, match="the buffer centre is changed by every forward pass"):
        package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss(), batch=batch, plan=Plan(micro=2))
    assert model.centre.tolist() == [0.0, 0.0, 0.0]


def test_evaluation_is_that_of_the_whole_batch_and_leaves_the_model_training():
    torch.manual_seed(0)
    model = Language()
    batch = padded_batches(1)[0]
    fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=token_mean, batch=batch, plan=Plan(micro=2), quiet=True)
    value = fit.evaluate(batch)
    with torch.no_grad():
        torch.testing.assert_close(value, token_mean(model, batch), rtol=2e-6, atol=0)
    assert value.is_inference() and model.training and all(p.grad is None for p in model.parameters())


def test_close_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    step = optimizer.step.__func__
    batch = padded_batches(1)[0]
    with package.fit(model, optimizer, loss=token_mean, batch=batch, plan=EXACT["all of everything"], quiet=True) as fit:
        fit.step(batch)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    assert optimizer.step.__func__ is step and not optimizer.param_groups[0]["fused"]
    with pytest.raises(FitError, match="was closed"):
        fit.step(batch)


@pytest.mark.parametrize("kind", ["criterion", "model's own", "function"])
def test_the_loss_is_given_in_three_ways(kind):
    torch.manual_seed(0)
    batch = padded_batches(1)[0]

    class Own(Language):
        def forward(self, ids, labels=None):
            logits = super().forward(ids)
            return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}

    class Flat(Language):
        def forward(self, ids):
            return super().forward(ids).transpose(1, 2)

    model, loss, given = {
        "criterion": (Flat(), nn.CrossEntropyLoss(), (batch["ids"], batch["labels"])),
        "model's own": (Own(), None, batch),
        "function": (Language(), token_mean, batch),
    }[kind]
    fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=loss, batch=given, plan=Plan(micro=3), quiet=True)
    with torch.no_grad():
        expected = {"criterion": lambda: loss(model(batch["ids"]), batch["labels"]), "model's own": lambda: model(**batch)["loss"], "function": lambda: token_mean(model, batch)}
        expected = expected[kind]()
    torch.testing.assert_close(fit.step(given), expected, rtol=2e-6, atol=0)


# -- what cannot be done


def test_what_cannot_be_split_is_said():
    torch.manual_seed(0)

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.two = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.two(self.norm(self.one(x)))

    def contrastive(model, batch):
        found = nn.functional.normalize(model(batch[0]), dim=-1)
        return nn.functional.cross_entropy(found @ found.T, torch.arange(len(found)))

    model = Norms()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.randn(6, 4), torch.randint(2, (6,)))
    with pytest.raises(FitError, match="statistics over the batch"):
        package.fit(model, optimizer, loss=nn.CrossEntropyLoss(), batch=batch, plan=Plan(micro=2))
    model.eval()
    with pytest.raises(FitError, match="compared with each other"):
        package.fit(model, optimizer, loss=contrastive, batch=batch, plan=Plan(micro=2))
    with pytest.raises(FitError, match="one number"):
        package.fit(model, optimizer, loss=nn.CrossEntropyLoss(reduction="none"), batch=batch, plan=Plan(micro=2))
    single = (batch[0][:1], batch[1][:1])
    fit = package.fit(model, optimizer, loss=nn.CrossEntropyLoss(), batch=single, plan=Plan(), quiet=True)
    fit._learn()
    assert "one sample" in fit._not_splittable


def test_a_model_that_begins_to_train_after_it_was_planned_is_looked_at_again():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    batch = (torch.randn(6, 4), torch.randint(2, (6,)))
    fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss(), batch=batch, plan=Plan(micro=2), quiet=True)
    fit.step(batch)
    model.train()
    with pytest.raises(FitError, match="1 takes statistics over the batch"):
        fit.step(batch)


def test_wrong_names_are_refused():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))
    with pytest.raises(FitError, match="allow= knows liger, bf16, 8bit-optimizer, bf16-weights, not fp4"):
        package.fit(model, optimizer, loss=nn.CrossEntropyLoss(), batch=batch, allow=["fp4"])
    with pytest.raises(FitError, match="takes a torch.nn.Module"):
        package.fit(optimizer, model, batch=batch)


class Wide(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.zeros(4), 0


NEVER = {
    "another's optimizer": ({"optimizer": torch.optim.SGD(nn.Linear(4, 2).parameters())}, "the optimizer has none of this model's parameters, .*: make it of them"),
    "no GPU": ({}, 'the model is on the CPU, and there is no GPU here: gpu="t4" makes a plan'),
    "a dataset": ({"batch": Wide()}, "the batch is a Wide, which has samples: give one batch, "),
    "a loader": ({"batch": torch.utils.data.DataLoader(Wide())}, r"the batch is a DataLoader, .*: give one of them, such as next\(iter\(loader\)\)"),
    "an iterator": ({"batch": iter([(torch.zeros(6, 4), torch.zeros(6))])}, "the batch is a list_iterator, which gives batches: give one of them"),
    "bytes": ({"budget": 14, "gpu": "t4"}, 'budget=14: 14 bytes\\? write "14GiB" or "14MiB"'),
    "bytes in words": ({"budget": "14", "gpu": "t4"}, "budget='14': 14 bytes\\?"),
    "no budget": ({"budget": None, "gpu": "t4"}, 'budget=None is no size: give "auto", or a size such as "14GiB"'),
    "no unit": ({"budget": "14XB", "gpu": "t4"}, "budget='14XB': 'XB' is not a unit"),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_could_never_work_is_refused_before_a_program_is_started(name, monkeypatch):
    def started(*_, **__):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = nn.Linear(4, 2)
    given, why = NEVER[name]
    given = {"optimizer": torch.optim.SGD(model.parameters()), "batch": (torch.zeros(6, 4), torch.zeros(6, dtype=torch.long)), **given}
    with pytest.raises(FitError, match=why) as refused:
        package.fit(model, loss=nn.CrossEntropyLoss(), **given)
    assert "\n" not in str(refused.value)


def test_a_loader_in_place_of_a_batch_is_refused_by_steps_too():
    model = nn.Linear(4, 2)
    batch = (torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))
    with package.fit(model, torch.optim.SGD(model.parameters()), loss=nn.CrossEntropyLoss(), batch=batch, plan=Plan(), quiet=True) as fit:
        for wrong in (fit.step, fit.evaluate):
            with pytest.raises(FitError, match="the batch is a DataLoader, which gives batches: give one"):
                wrong(torch.utils.data.DataLoader(Wide()))
        assert fit.step(batch) > 0


def test_an_optimizer_may_train_other_parameters_if_the_model_has_none_to_train():
    model, loss = nn.Linear(4, 2).requires_grad_(False), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    with package.fit(model, optimizer, loss=lambda net, x: loss(net(x)).square().mean(), batch=torch.ones(6, 4), plan=Plan(), quiet=True) as fit:
        before = loss.weight.clone()
        fit.step(torch.ones(6, 4))
    assert not torch.equal(before, loss.weight)


def pair_mean(model, batch):
    ids, labels = batch
    return token_mean(model, {"ids": ids, "labels": labels})


class Objective:
    """A loss that is an object, and one that is a method of it."""

    def __call__(self, network, batch):
        return pair_mean(network, batch)

    def of(self, network, batch):
        return pair_mean(network.eval().train(), batch)


def layer_by_layer(net, batch):
    x, labels = batch
    for layer in net if len(net) == 1 else ():
        x = layer(x)
    return nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten())


TAKES_MODEL = {
    "another name": (lambda net, batch: pair_mean(net, batch), True),
    "an object": (Objective(), True),
    "a method": (Objective().of, True),
    "where it is": (lambda m, batch: pair_mean(m, [one.to(m.device if hasattr(m, "device") else "cpu") for one in batch]), True),
    "moved": (lambda net, batch: pair_mean(net.to("cpu"), batch), True),
    "in float": (lambda net, batch: pair_mean(net.float(), batch), True),
    "a part": (lambda net, batch: pair_mean(net[0], batch), True),
    "a part by name": (lambda net, batch: pair_mean(net._modules["0"], batch), True),
    "part by part": (layer_by_layer, True),
    "without what wraps it": (lambda net, batch: pair_mean(net.module if hasattr(net, "module") else net, batch), True),
    "if there is one": (lambda net, batch: pair_mean(net, batch) if net else None, True),
    "a tensor": (lambda logits, target: nn.functional.cross_entropy(logits, target), False),
    "arithmetic": (lambda output, target: (output - target).square().mean(), False),
    "a method of tensors": (lambda output, target: output.flatten().mean(), False),
    "a method of both": (lambda output, target: nn.functional.cross_entropy(output.float(), target), False),
    "a field": (lambda output, target: output.logits.mean(), False),
    "its fields": (lambda output, target: [one.mean() for one in output][0], False),
    "its first": (lambda output, target: output[0].mean(), False),
}


@pytest.mark.parametrize("name", TAKES_MODEL)
def test_a_function_that_calls_a_model_is_given_it_by_whatever_name(name):
    torch.manual_seed(0)
    loss, takes_model = TAKES_MODEL[name]
    model, batch = nn.Sequential(Language()), tuple(padded_batches(1)[0].values())
    assert LossOf(loss).settled(model, batch).takes_model is takes_model
    if takes_model:
        fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=loss, batch=batch, plan=Plan(micro=3), quiet=True)
        torch.testing.assert_close(fit.step(batch), pair_mean(model, batch).detach(), rtol=2e-6, atol=0)


def test_an_output_may_have_fields_that_are_called_as_layers_are():
    torch.manual_seed(0)
    Out = namedtuple("Out", "recon mu logvar")

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu, self.logvar, self.decode = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            mu = self.mu(x)
            return Out(self.decode(mu), mu, self.logvar(x))

    def elbo(out, target):
        return -0.5 * (1 + out.logvar - out.mu.pow(2) - out.logvar.exp()).mean() + (out.recon - target).square().mean()

    model, x = VAE(), torch.randn(6, 4)
    fit = package.fit(model, torch.optim.SGD(model.parameters(), lr=0.0), loss=elbo, batch=(x, x), plan=Plan(micro=3), quiet=True)
    torch.testing.assert_close(fit.step((x, x)), elbo(model(x), x).detach(), rtol=2e-6, atol=0)


def test_a_batch_that_is_no_pair_is_for_a_function_of_the_model():
    model, batch = Language(), padded_batches(1)[0]
    asked = []
    loss = LossOf(lambda net, batch: asked.append(batch) or token_mean(net.requires_grad_(), batch)).settled(model, batch)
    # There is nothing to find out.
    assert loss.takes_model and asked == []
    assert loss(model, batch).item() == token_mean(model, batch).item()


def test_how_a_loss_is_called_is_said_if_it_fails():
    model, batch = nn.Linear(4, 2), (torch.zeros(6, 4), torch.zeros(6, 2))
    # It is not called before it is put into another.
    with pytest.raises(
        TypeError, match=r"Tensor is not a Module subclass \(the loss is called as loss\(output, target\); if it is f\(model, batch\), call its first parameter `model`\)"
    ):
        LossOf(lambda net, batch: nn.Sequential(net, nn.Softmax(-1))(batch[0]).mean()).settled(model, batch)(model, batch)
    with pytest.raises(TypeError, match=r"\(the batch, a dict, is no pair \(input, target\), so the loss is called as f\(model, batch\)\)"):
        LossOf(lambda out, target: out - target).settled(model, {"x": batch[0]})(model, {"x": batch[0]})


def test_finding_out_leaves_the_batch_and_random_numbers_alone():
    numpy = pytest.importorskip("numpy")
    model, batch = Language(), padded_batches(1)[0]

    def loss(net, batch):
        first, second = batch
        labels = first.pop("labels")
        drawn.append((random.random(), numpy.random.rand(), torch.rand(()).item()))
        return token_mean(net, {**first, "labels": labels})

    drawn = []
    given = [batch, batch["labels"]]
    for _ in range(2):
        assert LossOf(loss).settled(model, given).takes_model
    assert list(batch) == ["ids", "labels"] and len(drawn) == 2 and drawn[0] == drawn[1]


# -- the search, without PyTorch


def searched(limit, *, batch=8, blocks=10, splits=True, activation=100, states=80, weights=100, allow=(), **facts):
    """A model whose memory is a formula: weights, gradients and states; activations by sample and block, of checkpointed blocks a tenth."""
    names = tuple(f"b{number}" for number in range(blocks))

    def reserved(plan):
        size = plan.micro or batch
        kept = size * (activation * (blocks - len(plan.checkpoint)) + activation // 10 * (len(plan.checkpoint) - len(plan.offload)))
        fixed = (weights if not plan.bf16_weights else weights // 2) * 2 + (0 if plan.states_on_host else states)
        return fixed + kept + (activation * size if plan.checkpoint else 0) - (50 if plan.fused else 0)

    def seconds(plan):
        parts = -(-batch // (plan.micro or batch))
        return 1 + 0.03 * parts + 0.033 * len(plan.checkpoint) + 0.05 * len(plan.offload) + (0.5 if plan.states_on_host else 0) - (0.4 if plan.autocast else 0)

    facts = Facts(batch, names, limit, limit, 10**9, splits, allow=allow, **facts)
    # What is guessed is off, and in proportion.
    search = Search(facts, lambda plan: Measured(plan, reserved(plan), reserved(plan), seconds(plan)), seconds, lambda plan: (0, int(0.8 * reserved(plan))))
    return search.run(), reserved


def test_nothing_is_done_if_the_plain_step_fits():
    found, _ = searched(100_000)
    assert found.chosen.plan == Plan() and [one.plan for one in found.chain] == [Plan()]


def test_what_costs_nothing_comes_first():
    found, reserved = searched(reserved_plain() - 10)
    assert found.chosen.plan == Plan(fused=True, expandable=True) and reserved(found.chosen.plan) <= reserved_plain() - 10


def reserved_plain():
    return searched(10**9)[0].plain.reserved


def test_the_fastest_that_fits_is_chosen_and_every_rung_needs_less():
    for limit in range(700, 9000, 333):
        found, reserved = searched(limit)
        assert found.chosen is not None and found.chosen.reserved <= limit
        every = [Plan(micro, tuple(f"b{n}" for n in range(count)), fused=True, expandable=True) for micro in (0, 6, 4, 3, 2, 1) for count in range(11)]
        best = min((1 + 0.03 * -(-8 // (plan.micro or 8)) + 0.033 * len(plan.checkpoint) for plan in every if reserved(plan) <= limit), default=None)
        if best is not None and found.chosen.plan != Plan():
            assert found.chosen.seconds <= best * 1.031, (limit, found.chosen)
        needs = [found.chosen.reserved, *(rung.reserved for rung in found.rungs)]
        assert needs == sorted(needs, reverse=True) and len(set(needs)) == len(needs)


def test_checkpointing_is_found_where_there_is_no_host_memory():
    names = tuple("abcdef")
    cost = lambda plan: 10 + 6 * (6 - len(plan.checkpoint)) - len(plan.offload)
    facts = Facts(1, names, 20, 20, 0, splits=False)
    measure = lambda plan: Measured(plan, cost(plan), cost(plan), 1.0, host=len(plan.offload))
    found = Search(facts, measure, lambda plan: 1.0 + len(plan.checkpoint), lambda plan: (0, cost(plan))).run()
    assert len(found.chosen.plan.checkpoint) == 5 and not found.chosen.plan.offload


def test_a_batch_that_cannot_be_split_is_not():
    found, _ = searched(2500, splits=False)
    assert found.chosen.plan.micro == 0 and found.chosen.plan.checkpoint


def test_host_memory_comes_last_and_the_least_is_told_if_nothing_fits():
    found, _ = searched(345, batch=1, blocks=2, states=2000)
    assert found.chosen.plan.states_on_host
    found, reserved = searched(100)
    assert found.chosen is None and found.least.plan.states_on_host and found.least.reserved == reserved(found.least.plan)


def test_a_plan_that_fails_its_proof_gives_way_to_one_that_needs_less():
    refused = []

    def prove(plan, limit):
        short = limit is not None and len(refused) < 2
        if short:
            refused.append(plan)
        return Measured(plan, 1, 1, 0.0, short=short)

    facts = Facts(8, tuple(f"b{n}" for n in range(10)), 6000, 6000, 10**9)
    cost = lambda plan: 200 + 100 * (plan.micro or 8) * (10 - len(plan.checkpoint)) if plan != Plan() else 10**6
    found = Search(facts, lambda plan: Measured(plan, cost(plan), cost(plan), 1.0), lambda plan: 1.0, lambda plan: (0, cost(plan)), prove).run()
    assert len(refused) == 2 and found.chosen.plan not in refused and cost(found.chosen.plan) < min(map(cost, refused))


def test_what_is_found_survives_being_written_down():
    found, _ = searched(3000)
    assert Found.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# -- what is sent to the child


def test_a_model_is_sent_without_its_bytes_and_comes_back_tied():
    model = Language(words=100_000, width=64)
    model.head.weight = model.words.weight
    optimizer = torch.optim.AdamW(model.parameters())
    packed = pack({"model": model, "optimizer": optimizer, "ids": torch.arange(5), "loss": lambda output: output.sum()})
    assert len(packed) < 100_000
    there = unpack(packed)
    assert there["model"].head.weight is there["model"].words.weight and there["ids"].tolist() == [0, 1, 2, 3, 4]
    sent = [p for group in there["optimizer"].param_groups for p in group["params"]]
    assert [id(p) for p in sent] == [id(p) for p in there["model"].parameters()]
    assert [tuple(p.shape) for p in there["model"].parameters()] == [tuple(p.shape) for p in model.parameters()]


def test_cards_are_found_by_the_names_that_the_command_takes():
    from oomph.fitting.errors import FitError
    from oomph.fitting.planning.card import named

    assert [named(name).name for name in ("4090", "T4", "NVIDIA GeForce RTX 4090", "a100-80gb")] == ["rtx-4090", "t4", "rtx-4090", "a100-80gb"]
    with pytest.raises(FitError, match="there is no card .nothing. in the catalogue"):
        named("nothing")


def test_what_cannot_be_sent_is_named():
    with pytest.raises(NotPackable, match="cannot be sent to another process"):
        pack({"lock": threading.Lock()})


# -- on the virtual GPU, through a real child

GPT = """
import json, os, sys
import torch, torch.nn as nn, torch.nn.functional as F
import oomph

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.qkv, self.o = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n2, self.a, self.b = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 8, d // 8).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.b(F.gelu(self.a(self.n2(x))))

class GPT(nn.Module):
    def __init__(self, layers=8, d=512, words=20000):
        super().__init__()
        self.e, self.layers, self.head = nn.Embedding(words, d), nn.ModuleList(Block(d) for _ in range(layers)), nn.Linear(d, words, bias=False)
    def forward(self, ids):
        x = self.e(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def loss_fn(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

def tell(**what):
    print("TOLD " + json.dumps(what), flush=True)
"""


@pytest.fixture
def virtually(on_virtual_gpu, tmp_path):
    """Runs code after GPT on a virtual T4; gives (what it reported, stderr)."""

    def run(code, gpu="t4", fails=False):
        script = tmp_path / "train.py"
        script.write_text(GPT + textwrap.dedent(code))
        ran = on_virtual_gpu(script, gpu=gpu, timeout=600)
        assert fails or ran.returncode == 0, ran.stderr
        return [json.loads(line[5:]) for line in ran.stdout.splitlines() if line.startswith("TOLD ")], ran.stderr

    return run


def test_a_step_that_does_not_fit_is_planned_and_takes_what_was_predicted(virtually):
    reported, err = virtually("""
        model = GPT().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(20000, (32, 257), device="cuda")
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget="2GiB")
        torch.cuda.reset_peak_memory_stats()
        for length in (257, 257, 100, 257, 30, 257):
            fit.step(ids[:, :length])
        allocated, reserved = fit.peak()
        stats, said = torch.cuda.memory_stats(), fit.plan.to_dict()
        tell(allocated=allocated, reserved=reserved, ooms=stats["num_ooms"], retries=stats["num_alloc_retries"], plan=said, text=str(fit.plan), history=fit.plan.history)
    """)
    (reported,) = reported
    chosen = next(one for one in [reported["plan"]["plain"], *reported["plan"]["chain"]] if one["plan"] == reported["plan"]["chosen"])
    assert reported["plan"]["plain"]["reserved"] > 2 * GIB >= reported["reserved"]
    assert abs(reported["allocated"] - chosen["allocated"]) <= 0.005 * chosen["allocated"]
    assert abs(reported["reserved"] - chosen["reserved"]) <= 0.02 * chosen["reserved"]
    assert reported["ooms"] == reported["retries"] == 0 and reported["history"] == []
    assert "the plain step" in reported["text"] and "logits and cross-entropy in pieces" in reported["text"]
    assert err.startswith("oomph.fit: ")


def test_an_out_of_memory_leads_one_rung_down_and_the_batch_is_repeated(virtually):
    reported, err = virtually("""
        model = GPT().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=torch.randint(20000, (8, 129), device="cuda"), budget="1600MiB")
        counted = []
        optimizer.register_step_post_hook(lambda *_: counted.append(1))
        tell(plan=fit.plan.chosen.to_dict())
        state = torch.cuda.get_rng_state()
        fit.step(torch.randint(20000, (8, 1025), device="cuda"))
        tell(steps=fit.steps, updates=len(counted), history=fit.plan.history, ooms=torch.cuda.memory_stats()["num_ooms"], plan=fit.plan.chosen.to_dict())
    """)
    first, after = reported
    assert first["plan"] == Plan().to_dict()
    assert after["ooms"] >= 1 and after["steps"] == after["updates"] == 1
    assert after["history"] and all("out of memory; one rung down" in line for line in after["history"])
    assert after["plan"] != first["plan"] and after["history"][0] in err


def test_an_optimizer_that_runs_out_goes_on_with_its_state_on_the_host(virtually):
    reported, _ = virtually("""
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).cuda()   # 512 MiB of weights
        optimizer = torch.optim.AdamW(model.parameters())
        batch = (torch.zeros(4, 4096, device="cuda"), torch.zeros(4, 4096, device="cuda"))
        fit = oomph.fit(model, optimizer, loss=nn.MSELoss(), batch=batch, plan=oomph.Plan(fused=True))
        updated = []
        optimizer.register_step_post_hook(lambda *_: updated.append(1))
        torch.cuda.set_per_process_memory_fraction(1300 * 2**20 / torch.cuda.get_device_properties(0).total_memory)
        fit.step(batch)
        fit.step(batch)
        steps = {float(state["step"]) for state in optimizer.state.values()}
        tell(steps=fit.steps, on_host=fit.plan.chosen.states_on_host, history=fit.plan.history, devices=sorted({state["exp_avg"].device.type for state in optimizer.state.values()}), number=len(optimizer.state))
    """)
    (reported,) = reported
    assert reported["steps"] == 2 and reported["on_host"] and reported["devices"] == ["cpu"] and reported["number"] == 8
    assert "out of memory in the optimizer" in reported["history"][0]


def test_wrong_use_says_the_least_budget_that_could_work_and_it_does(virtually):
    reported, _ = virtually("""
        model = GPT(layers=4)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(20000, (4, 65))
        def attempt(name, **how):
            try:
                oomph.fit(model, optimizer, loss=loss_fn, batch=ids, quiet=True, **how)
            except oomph.FitError as error:
                tell(name=name, error=str(error), least=error.least)
                return error.least
        attempt("on the CPU")
        weights = sum(p.numel() * 4 for p in model.parameters())
        model.cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = ids.cuda()
        least = attempt("below the parameters", budget=weights // 2 + 110 * 2**20)
        tell(weights=weights)
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget=least, quiet=True)
        fit.step(ids)
        fit.step(ids)
        tell(ooms=torch.cuda.memory_stats()["num_ooms"], on_host=fit.plan.chosen.states_on_host)
        settings = lambda: torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
        applied = settings()
        fit.close()
        tell(applied=applied, after=settings(), devices=sorted({s["exp_avg"].device.type for s in optimizer.state.values()}))
        # What the program set itself stays, and comes back.
        from oomph.fitting.techniques.allocator import allocator_setter, hold_to, use_expandable_segments
        allocator_setter()("max_split_size_mb:256,expandable_segments:False,garbage_collection_threshold:0.7")
        def others():
            now = torch.cuda.memory._snapshot()["allocator_settings"]
            return [now[name] for name in ("max_split_size", "garbage_collection_threshold", "expandable_segments")]
        undo = use_expandable_segments()
        during = others()
        undo()
        torch.cuda.set_per_process_memory_fraction(0.5)
        undo = hold_to(0.25, torch.device("cuda:0"))
        undo()
        tell(during=during, after=others(), fraction=torch.cuda.get_per_process_memory_fraction(0))
    """)
    on_cpu, below, weights, *fitted = reported
    assert on_cpu["error"] == 'the model is on the CPU, and is planned on the GPU that it trains on: move it with model.to("cuda"), and make the optimizer after that'
    assert "whatever is done" in below["error"] and "the parameters alone are" in below["error"]
    assert 2 * weights["weights"] < below["least"] < 4 * weights["weights"] + 500 * MIB
    assert fitted[0]["ooms"] == 0 and fitted[0]["on_host"] >= 0.9
    assert fitted[1:-1] == [{"applied": True, "after": False, "devices": ["cuda"]}]
    assert fitted[-1] == {"during": [256 * MIB, 0.7, True], "after": [256 * MIB, 0.7, False], "fraction": 0.5}


def test_a_trial_that_the_gpu_has_no_room_for_is_run_through_host_memory(virtually):
    """Whether a batch can be cut is tried with two samples, as they are. Where these do not fit, it is found out all the same."""
    reported, _ = virtually("""
        from oomph.fitting.running.spill import with_room
        model = GPT(layers=6).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.randint(20000, (8, 513), device="cuda")
        loss_fn(model, ids[:1]).backward()
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss_fn(model, ids[:2])
        taken = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        attempts = []
        def trial():
            attempts.append(torch.cuda.memory_stats()["num_ooms"])
            loss = loss_fn(model, ids[:2])
            return torch.autograd.grad(loss, list(model.parameters())[-1:])[0].shape
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((before + taken * 0.8) / total)
        torch.cuda.reset_peak_memory_stats()
        tell(shape=list(with_room(trial)), attempts=attempts, fits=torch.cuda.max_memory_allocated() <= before + taken * 0.8)
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=ids, plan=oomph.Plan(micro=1, checkpoint=tuple(f"layers.{number}" for number in range(6))), quiet=True)
        tell(why_not=fit._not_splittable)
    """)
    assert reported == [{"shape": [20000, 512], "attempts": [0, 1], "fits": True}, {"why_not": None}]


def test_a_trial_is_run_again_after_any_refusal_of_memory_and_no_other_failure():
    from oomph.fitting.running.spill import with_room

    def trial(*outcomes):
        left = list(outcomes)

        def run():
            now = left.pop(0)
            if isinstance(now, Exception):
                raise now
            return now

        return run

    refused = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert with_room(trial(refused, "done")) == "done"
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        with_room(trial(refused, RuntimeError("this transform does not support saved tensor hooks")))
    with pytest.raises(ValueError, match="a fault of the program"):
        with_room(trial(ValueError("a fault of the program"), "done"))


def test_a_plan_that_takes_too_much_host_memory_is_no_matter_of_the_budget(virtually):
    reported, _ = virtually("""
        model = GPT(layers=4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(20000, (4, 65), device="cuda")
        try:
            oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget="1MiB", quiet=True)
        except oomph.FitError as error:
            least = error.least
        from oomph import _ram
        _ram.left = lambda: 1 << 20
        try:
            oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget=least, quiet=True)
        except oomph.FitError as error:
            tell(lines=str(error).splitlines())
    """)
    first, *others = reported[0]["lines"]
    assert re.fullmatch(r"it does not fit: the GPU's \S+ MiB would do, but host memory does not", first)
    assert any(re.fullmatch(r"that takes \S+ MiB of host memory, of which 819 KiB may be used", line) for line in others)


def test_what_is_allowed_is_used_and_what_is_not_is_not(virtually):
    """A T4 has no bfloat16: its 16 bits are float16, with a scaler, as for a loss that has one already."""
    reported, _ = virtually("""
        model = GPT(layers=3).cuda()
        ids = torch.randint(20000, (16, 257), device="cuda")
        for how in ({}, {"allow": ("bf16",)}, {"scaler": torch.amp.GradScaler("cuda")}):
            optimizer = torch.optim.AdamW(model.parameters())
            with oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget="1200MiB", quiet=True, **how) as fit:
                fit.step(ids)
                predicted = fit.plan.predicted
                tell(
                    autocast=fit.plan.chosen.autocast, exact=fit.plan.chosen.exact, notes=fit.plan.notes,
                    predicted=predicted and predicted.reserved, timed=fit.plan.speeds.measured,
                )
    """)
    exact, allowed, scaled = reported
    # What a virtual card takes is how busy this machine is, and says nothing about which plan is fast.
    assert not any(each["timed"] for each in reported)
    assert exact["autocast"] is None and exact["exact"] and exact["predicted"]
    assert allowed["autocast"] == "float16" and not allowed["exact"] and allowed["predicted"]
    assert scaled["autocast"] is None and scaled["exact"] and scaled["predicted"] and "could not be predicted" not in str(scaled["notes"])


def test_four_bit_weights_with_adapters_are_planned_and_take_what_was_predicted(virtually):
    reported, err = virtually("""
        import bitsandbytes as bnb

        class Adapted(nn.Module):
            def __init__(self, base):
                super().__init__()
                self.base = bnb.nn.Linear4bit(base.in_features, base.out_features, base.bias is not None, torch.float16, quant_type="nf4", device="meta")
                self.base.weight = bnb.nn.Params4bit(base.weight.data, requires_grad=False, quant_type="nf4", module=self.base)
                if base.bias is not None:
                    self.base.bias = base.bias.requires_grad_(False)
                self.down, self.up = nn.Linear(base.in_features, 8, bias=False), nn.Linear(8, base.out_features, bias=False)
            def forward(self, x):
                return self.base(x) + self.up(self.down(x))

        model = GPT().requires_grad_(False)
        for layer in model.layers:
            for name in ("qkv", "o", "a", "b"):
                setattr(layer, name, Adapted(getattr(layer, name)))
        model.cuda()
        optimizer = bnb.optim.PagedAdamW8bit([p for p in model.parameters() if p.requires_grad], lr=1e-4)
        ids = torch.randint(20000, (16, 513), device="cuda")
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget="1GiB")
        for _ in range(2):
            fit.step(ids)
        predicted = fit.plan.predicted
        tell(notes=fit.plan.notes, plain=fit.plan.found.plain.reserved, limit=fit.plan.room.limit, blocks=fit.plan.blocks, history=fit.plan.history,
             checkpoint=len(fit.plan.chosen.checkpoint), micro=fit.plan.chosen.micro, allocated=torch.cuda.max_memory_allocated(), predicted=predicted.allocated)
    """)
    (told,) = reported
    assert "could not be predicted" not in str(told["notes"]) and not told["history"]
    assert told["blocks"] == 8 and told["plain"] > told["limit"] and (told["checkpoint"] or told["micro"])
    # A table that bitsandbytes shares among the weights of a process is there twice.
    assert abs(told["allocated"] - told["predicted"]) <= 4096


def test_a_model_that_cannot_be_sent_is_fitted_while_it_runs(virtually):
    reported, err = virtually("""
        model = GPT().cuda()
        import threading; model.lock = threading.Lock()
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(20000, (16, 513), device="cuda")
        fit = oomph.fit(model, optimizer, loss=loss_fn, batch=ids, budget="2GiB")
        fit.step(ids)
        tell(history=fit.plan.history, notes=fit.plan.notes)
    """)
    assert "cannot be sent to another process" in reported[0]["notes"][0] and reported[0]["history"]
    assert "memory is saved when it runs out" in err


# -- several ranks


def test_ranks_step_down_together_and_have_the_gradients_of_ddp(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent("""
        import copy, json, os, sys
        import torch, torch.distributed as dist, torch.nn as nn
        import oomph
        from oomph.fitting import fit as module
        torch.set_num_threads(1)
        rank, meet, reported = int(sys.argv[1]), sys.argv[2], sys.argv[3]
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
        torch.manual_seed(0)
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(3, 3)
            def forward(self, x):
                return self.used(x)
        plain = Model()
        model = copy.deepcopy(plain)
        ddp = nn.parallel.DistributedDataParallel(plain, find_unused_parameters=True)
        # What nothing uses must not be decayed either.
        one, two = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1) for m in (plain, model))
        torch.manual_seed(rank + 1)
        batches = [(torch.randn(6, 8), torch.randint(3, (6,))) for _ in range(5)]
        fit = oomph.fit(nn.parallel.DistributedDataParallel(model), two, loss=nn.CrossEntropyLoss(), batch=batches[0], plan=oomph.Plan(micro=4), quiet=True)
        fails = [rank == 1]
        loss_of = fit.loss_of
        class Failing(type(loss_of)):
            def __call__(self, model, batch):
                if fails and fails.pop():
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory (a test)")
                return super().__call__(model, batch)
        fit._running.loss_of = Failing(loss_of.loss)
        for x, y in batches:
            one.zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            one.step()
            fit.step((x, y))
        far = max((a - b).abs().max().item() for a, b in zip(plain.parameters(), model.parameters()))
        small = Model()
        try:
            oomph.fit(small, torch.optim.SGD(small.parameters()), loss=nn.CrossEntropyLoss(), batch=batches[0], gpu="t4", budget="1MiB", quiet=True)
        except oomph.FitError as error:
            refused = str(error).splitlines()[0]
        with open(reported, "w") as file:
            json.dump([far < 1e-6, fit.plan.chosen.micro, len(fit.plan.history), refused[:44]], file)
        # A process that ends while the other still talks to it may be aborted.
        dist.barrier()
        dist.destroy_process_group()
        # A thread of gloo that asks for Python's lock while the interpreter ends is aborted, rarely, and the process with it.
        os._exit(0)
    """)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    reported = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    commands = [[sys.executable, script, str(rank), tmp_path / "meet", reported[rank]] for rank in range(2)]
    ranks = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for command in commands]
    for rank in ranks:
        _, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err[-3000:]
    # Only the first has asked; all say the same.
    assert [json.loads(path.read_text()) for path in reported] == [[True, 3, 1, "it does not fit in 1.00 MiB, whatever is don"]] * 2
