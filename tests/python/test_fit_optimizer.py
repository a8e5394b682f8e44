"""Fused kernels, state in host memory, 8-bit state and steps that can be resumed: the same values, less memory, nothing updated twice."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]

from oomph.fitting.errors import FitError  # noqa: E402
from oomph.fitting.techniques.optimizers import ResumableStep, StatesOnHost, fuse, to_8bit  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook  # noqa: E402

MAKERS = {
    "Adam, amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "AdamW, foreach": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
    "AdamW, fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "SGD, momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
}


def network():
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5)
    return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)


def groups_of(model):
    parameters = list(model.parameters())
    return [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}]


class Loop:
    """A plain training loop with a scheduler, which does not know what was done to its optimizer."""

    def __init__(self, make, wrap=None):
        self.model = network()
        self.optimizer = make(groups_of(self.model))
        self.wrapped = wrap(self.optimizer) if wrap else None
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5, gamma=0.5)
        self.random = torch.Generator().manual_seed(1)

    def backward(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 3, 8, 8, generator=self.random)).pow(2).mean().backward()

    def run(self, steps):
        for _ in range(steps):
            self.backward()
            self.optimizer.step()
            self.scheduler.step()
        return self


def assert_same(plain, other):
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    for one, two in zip(plain.model.parameters(), other.model.parameters()):
        ours, theirs = plain.optimizer.state[one], other.optimizer.state[two]
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[key])), key
            assert not torch.is_tensor(value) or value.stride() == theirs[key].stride(), key


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", MAKERS)
def test_state_on_the_host_changes_no_bit(name):
    if name == "Adafactor" and not hasattr(torch.optim, "Adafactor"):
        pytest.skip("this PyTorch has no Adafactor")
    plain = Loop(MAKERS[name]).run(20)
    other = Loop(MAKERS[name], lambda optimizer: StatesOnHost(optimizer, bucket_bytes=3000)).run(20)
    assert_same(plain, other)
    expected = sum(v.nbytes for state in plain.optimizer.state.values() for v in state.values() if torch.is_tensor(v) and v.ndim)
    buckets = len([bucket for bucket in other.wrapped._buckets if bucket.slab])
    assert expected <= other.wrapped.bytes_on_host <= expected + 4 * 4096 * buckets
    other.wrapped.undo()
    other.wrapped.undo()
    assert_same(plain.run(3), other.run(3))


@pytest.mark.parametrize("name", MAKERS)
def test_steps_in_parts_change_no_bit(name):
    if name == "Adafactor" and not hasattr(torch.optim, "Adafactor"):
        pytest.skip("this PyTorch has no Adafactor")
    assert_same(Loop(MAKERS[name]).run(20), Loop(MAKERS[name], lambda optimizer: ResumableStep(optimizer, bucket_bytes=1000)).run(20))


@pytest.mark.parametrize("make", [StatesOnHost, ResumableStep])
def test_hooks_and_closure_see_one_step(make):
    loop = Loop(MAKERS["AdamW, foreach"], lambda optimizer: make(optimizer, bucket_bytes=1000))
    seen = []
    loop.optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    loop.optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    everybody = [
        register_optimizer_step_pre_hook(lambda *_: seen.append("all before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("all after")),
    ]

    def closure():
        seen.append("closure")
        loop.backward()
        return 7

    try:
        assert loop.optimizer.step(closure) == 7
    finally:
        for hook in everybody:
            hook.remove()
    assert seen == ["all before", "before", "closure", "after", "all after"]


def test_a_checkpoint_can_be_saved_and_loaded_meanwhile():
    plain = Loop(MAKERS["AdamW, foreach"]).run(3)
    other = Loop(MAKERS["AdamW, foreach"], lambda optimizer: StatesOnHost(optimizer, bucket_bytes=3000)).run(3)
    host = other.wrapped.bytes_on_host
    saved = other.optimizer.state_dict()
    other.optimizer.load_state_dict(saved)
    assert_same(plain, other)
    other.run(2)
    assert_same(plain.run(2), other)
    assert other.wrapped.bytes_on_host == host
    fresh = Loop(MAKERS["AdamW, foreach"]).run(1)
    fresh.model.load_state_dict(other.model.state_dict())
    fresh.optimizer.load_state_dict(other.optimizer.state_dict())
    assert_same(plain, fresh)


def test_state_that_is_there_already_moves():
    plain = Loop(MAKERS["SGD, momentum"]).run(8)
    other = Loop(MAKERS["SGD, momentum"]).run(4)
    wrapped = StatesOnHost(other.optimizer, bucket_bytes=3000)
    assert wrapped.bytes_on_host > 0
    other.run(2)
    wrapped.undo(to_device=False)
    StatesOnHost(other.optimizer, bucket_bytes=1000)
    assert_same(plain, other.run(2))


class Failing:
    """Lets the updates of one step fail, as an out-of-memory would: before anything, or half-way."""

    def __init__(self, wrapped, at, half_way):
        self.real, self.wrapped, self.at, self.half_way, self.calls = wrapped._raw, wrapped, at, half_way, 0
        wrapped._raw = self

    def __call__(self, optimizer):
        self.calls += 1
        if self.calls == self.at:
            if self.half_way:
                self.real(optimizer)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self.real(optimizer)


@pytest.mark.parametrize("make", [StatesOnHost, ResumableStep])
@pytest.mark.parametrize("half_way", [False, True])
@pytest.mark.parametrize("first_step", [False, True])
def test_a_step_that_ran_out_of_memory_goes_on(make, half_way, first_step):
    before = 0 if first_step else 2
    plain = Loop(MAKERS["AdamW, foreach"]).run(before + 3)
    other = Loop(MAKERS["AdamW, foreach"], lambda optimizer: make(optimizer, bucket_bytes=1000)).run(before)
    posted = []
    other.optimizer.register_step_post_hook(lambda *_: posted.append(1))
    other.backward()
    values = [p.detach().clone() for p in other.model.parameters()]
    Failing(other.wrapped, at=2, half_way=half_way)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        other.optimizer.step()
    assert other.wrapped.in_progress and not posted
    updated = [not torch.equal(a, b) for a, b in zip(values, other.model.parameters())]
    assert any(updated) and not all(updated)
    other.optimizer.step()
    other.scheduler.step()
    assert not other.wrapped.in_progress and posted == [1]
    assert_same(plain, other.run(2))


def test_a_step_that_is_given_up_begins_anew():
    other = Loop(MAKERS["AdamW, foreach"], ResumableStep)
    other.backward()
    Failing(other.wrapped, at=1, half_way=True)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        other.optimizer.step()
    other.wrapped.abandon()
    assert not other.wrapped.in_progress
    assert not any(other.optimizer.state.get(p) for p in other.model.parameters())


def test_fused_kernels_are_chosen_and_given_back():
    plain, other = Loop(MAKERS["Adam, amsgrad"]).run(3), Loop(MAKERS["Adam, amsgrad"]).run(3)
    done = fuse(other.optimizer)
    assert [group["fused"] for group in other.optimizer.param_groups] == [True, True]
    assert fuse(other.optimizer) is None
    plain.run(5), other.run(5)
    for one, two in zip(plain.model.parameters(), other.model.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    done.undo()
    assert [(group["fused"], group["foreach"]) for group in other.optimizer.param_groups] == [(None, None)] * 2
    other.run(1)


def test_what_has_no_fused_form_is_updated_one_by_one():
    loop = Loop(MAKERS["RMSprop"])
    done = fuse(loop.optimizer)
    assert [group["foreach"] for group in loop.optimizer.param_groups] == [False, False]
    done.undo()
    assert [group["foreach"] for group in loop.optimizer.param_groups] == [None, None]


def test_what_cannot_be_taken_apart_is_refused():
    parameter = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(FitError, match="LBFGS looks at all parameters"):
        ResumableStep(torch.optim.LBFGS([parameter]))

    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            return None

    with pytest.raises(FitError, match="Own is not one of torch.optim's"):
        StatesOnHost(Own([parameter]))
    with pytest.raises(FitError, match="on the GPU only"):
        to_8bit(torch.optim.AdamW([parameter]))
    stepped = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(2)
    stepped.step()
    with pytest.raises(FitError, match="before the first step"):
        to_8bit(stepped)


ON_GPU = """
import gc, json, sys, warnings
sys.path.insert(0, sys.argv[1])
import torch
from oomph.fitting.techniques.optimizers import ResumableStep, StatesOnHost, fuse, to_8bit
from oomph.fitting.errors import FitError

MiB = 1 << 20
params = [torch.nn.Parameter(torch.empty(4 * MiB, device="cuda")) for _ in range(20)]
for p in params:
    p.grad = torch.empty_like(p)
out = {}
optimizer = torch.optim.AdamW(params)
done = fuse(optimizer)
wrapped = StatesOnHost(optimizer, 64 * MiB)
base = torch.cuda.memory_allocated()
out["peaks"], out["left"], out["host"] = [], [], []
for _ in range(4):
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    out["peaks"].append((torch.cuda.max_memory_allocated() - base) // MiB)
    out["left"].append((torch.cuda.memory_allocated() - base) // MiB)
    out["host"].append(wrapped.bytes_on_host // MiB)
state = optimizer.state[params[0]]
out["where"] = [state["exp_avg"].device.type, state["exp_avg"].is_pinned(), state["step"].device.type]

# Only one bucket fits, without those that come and go; then none.
def fill(leave):
    torch.cuda.empty_cache()
    return torch.empty(torch.cuda.mem_get_info()[0] - leave, dtype=torch.uint8, device="cuda")
hog = fill(80 * MiB)
optimizer.step()
out["tight"] = "ok"
del hog
torch.cuda.empty_cache()
hog = fill(30 * MiB)
try:
    optimizer.step()
except torch.cuda.OutOfMemoryError:
    out["none"] = [wrapped.in_progress, optimizer.state[params[0]]["exp_avg"].device.type]
del hog
torch.cuda.empty_cache()
optimizer.step()
out["after"] = [wrapped.in_progress, optimizer.state[params[0]]["exp_avg"].device.type]
wrapped.undo(to_device=False)
torch.cuda.reset_peak_memory_stats()
wrapped = StatesOnHost(optimizer, 32 * MiB)
optimizer.step()
out["taken over"] = [(torch.cuda.max_memory_allocated() - base) // MiB, wrapped.bytes_on_host // MiB]

# It does not fit: nothing of it is there then, nothing is lost, and another goes on with it.
hog = fill(300 * MiB)
before = {p: state["exp_avg"] for p, state in optimizer.state.items()}
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    wrapped.undo()
out["no room"] = [str(one.message).split(":")[0] for one in warned] + [torch.cuda.memory_allocated() - base - hog.numel() < 8 * MiB]
out["no room"] += [all(optimizer.state[p]["exp_avg"] is there for p, there in before.items()), len(before), len(optimizer.state_dict()["state"])]
del hog
torch.cuda.empty_cache()
wrapped = StatesOnHost(optimizer, 32 * MiB)
optimizer.step()
wrapped.undo()
out["undone"] = [(torch.cuda.memory_allocated() - base) // MiB, optimizer.state[params[0]]["exp_avg"].device.type]
done.undo()
out["step"] = optimizer.state[params[0]]["step"].device.type
del optimizer, wrapped, state
gc.collect()

# State that cannot be made leaves nothing behind.
optimizer = torch.optim.AdamW(params, fused=True)
resumable = ResumableStep(optimizer)
base = torch.cuda.memory_allocated()
hog = fill(300 * MiB)
try:
    optimizer.step()
except torch.cuda.OutOfMemoryError:
    out["resumable"] = [resumable.in_progress, len([p for p in params if optimizer.state.get(p)])]
del hog
torch.cuda.empty_cache()
optimizer.step()
out["resumed"] = [resumable.in_progress, (torch.cuda.memory_allocated() - base) // MiB]
resumable.undo()
del optimizer, resumable

try:
    import bitsandbytes
except ImportError:
    pass
else:
    optimizer = torch.optim.AdamW(params)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    base = torch.cuda.memory_allocated()
    small = to_8bit(optimizer)
    small.optimizer.step()
    scheduler.step()
    out["8bit"] = [type(small.optimizer).__name__, small.optimizer.param_groups[0]["lr"], (torch.cuda.memory_allocated() - base) // MiB]
    small.undo()
    out["8bit undone"] = [(torch.cuda.memory_allocated() - base) // MiB, "t_alpha" in optimizer.param_groups[0]]
print(json.dumps(out))
"""


def test_on_a_gpu_the_state_passes_through(on_virtual_gpu):
    done = on_virtual_gpu("-c", ON_GPU, ROOT / "python")
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout.splitlines()[-1])
    # 640 MiB of state, 64 MiB at a time: one goes, one is updated, one comes.
    assert out["peaks"] == [128, 192, 192, 192]
    assert out["left"] == [0, 0, 0, 0]
    assert out["host"] == [640, 640, 640, 640]
    assert out["where"] == ["cpu", True, "cuda"]
    assert out["tight"] == "ok"
    assert out["no room"] == ["the optimizer's state stays in host memory", True, True, 20, 20]
    assert out["none"] == [True, "cpu"]
    assert out["after"] == [False, "cpu"]
    assert out["taken over"] == [96, 640]
    assert out["undone"] == [640, "cuda"]
    assert out["step"] == "cpu"
    assert out["resumable"] == [True, 0]
    assert out["resumed"] == [False, 640]
    if "8bit" in out:
        assert out["8bit"][0] == "AdamW8bit" and out["8bit"][1] == pytest.approx(1e-4)
        assert 160 <= out["8bit"][2] <= 164
        assert out["8bit undone"] == [0, False]
