"""Values that a GPU would have computed: known where they can be had, a range where not, and never wrong.

Programs compute the same on the CPU and on the virtual GPU, and compare what they read: integers and booleans decide, so they are computed whatever it takes.
"""

import json
import subprocess
import sys

import pytest
from conftest import PYTHON_2_11

GIB = 1 << 30

# Each defines `run(device)`, whose numbers must be the same on both.
ALIKE = {
    "copies": """
def run(device):
    import numpy
    out = []
    for moved in (torch.arange(1_200_000), torch.arange(800_000).float().reshape(800, 1000).t(), torch.rand(3, 400, 500).permute(2, 0, 1)):
        there = moved.to(device)
        out += [number(there), number(there.half()), number(there.to(torch.float64)[1:]), number(there.cpu())]
    # Written to after the copy: by PyTorch, and by NumPy, whose writes nobody sees.
    buffer = torch.zeros(1500, 1000)
    first = buffer.to(device, copy=True)
    buffer.fill_(3)
    second = buffer.to(device, copy=True)
    array = numpy.zeros((1500, 1000), dtype=numpy.float32)
    third = torch.from_numpy(array).to(device, copy=True)
    array[:] = 7
    fourth = torch.from_numpy(array).to(device, copy=True)
    return [*out, *map(number, (first, second, third, fourth))]
""",
    "sizes": """
def run(device):
    x = torch.randn(900, 900).to(device)
    near = (torch.rand(1200, 1200) < 0.001).float().to(device)
    mask = x > 0.5
    return [
        list(near.nonzero().shape), list(x[mask].shape), list(torch.masked_select(x, mask).shape), list(torch.where(mask)[0].shape),
        list(torch.unique((x * 3).long()).shape), near.to_sparse()._nnz(), list(torch.bincount((x.abs() * 10).long().flatten()).shape),
        list(torch.repeat_interleave((x[0].abs() * 3).long()).shape), list(x[x[:, 0] > 0].shape), number(near.nonzero()), number(x[mask]),
        number(near.to_sparse().coalesce().indices()), bool(x.min() >= -10), bool(x.isnan().any()), torch.equal(x, x.clone()), x.argmax().item(),
    ]
""",
    "in place": """
def run(device):
    y = torch.randn(1200, 1200).to(device)
    kept = y.clone()
    view = y.t()[5:]
    view.mul_(2)
    y[:100] = 5
    y.add_(1).relu_()
    y[y > 4] = -1
    y.view(-1)[::7] += 3
    of_view = view[10:20, ::2].unsqueeze(0).expand(3, -1, -1)
    y.diagonal().zero_()
    filled = torch.empty(1500, 1500, device=device)
    filled[:700] = 1
    filled[700:] = 2
    twisted = torch.empty(0, device=device).set_(y.untyped_storage(), 7, (600, 600), (1200, 1))
    grown = torch.ones(1000, 1000, device=device)
    grown.resize_(500, 500)
    index = torch.randperm(1200).to(device)
    y.index_add_(0, index[:50], torch.ones(50, 1200).to(device))
    y.scatter_(1, index[:, None], 9.0)
    torch.add(y, 1, out=y)
    return [number(one) for one in (y, kept, view, of_view, filled, twisted, grown, torch.cat([y[:3], view[:3, :1200]]))]
""",
    "inference": """
def run(device):
    with torch.inference_mode():
        small = torch.arange(1, 5).to(device)
        large = torch.arange(1_200_000).to(device)
        inside = [small.tolist(), small.cpu().tolist(), small.max().item(), bool(small.max() < 5), large.sum().item(), list((large % 7 == 0).nonzero().shape)]
    return [*inside, small[1:].tolist(), small.cpu().tolist(), number(large), small.to(torch.float16).tolist()]
""",
    "without a sign": """
def run(device):
    seeds = torch.tensor([255] * 8 + [1] + [0] * 7, dtype=torch.uint8)
    there = seeds.to(device).view(torch.uint64)
    return [there[0].item(), there[1].item(), int(there[0]), there.tolist(), seeds.view(torch.uint64)[0].item(), there[0].item() == 2**64 - 1, bool(there[0])]
""",
    "trained": """
def run(device):
    F = torch.nn.functional
    out = []
    plain = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.LayerNorm(128), torch.nn.GELU(), torch.nn.Linear(128, 10)).to(device)
    images = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(392, 10)).to(device)
    words = torch.nn.Embedding(50, 64).to(device)
    parameters = [*plain.parameters(), *images.parameters(), *words.parameters()]
    for make in (lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), lambda: torch.optim.AdamW(parameters), lambda: torch.optim.Adam(parameters, foreach=False)):
        optimizer = make()
        for step in range(2):
            ids, pictures, labels = torch.randint(0, 50, (32, 5)).to(device), torch.randn(32, 3, 16, 16).to(device), torch.randint(0, 10, (32,)).to(device)
            optimizer.zero_grad()
            for part in range(2):
                heads = words(ids).view(32, 5, 4, 16).transpose(1, 2)
                attended = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2).mean(1)
                loss = F.cross_entropy(plain(attended), labels) + F.cross_entropy(images(pictures), labels)
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            out += [round(loss.item(), 3), round(norm.item(), 3)]
    a = torch.randn(50, 50).to(device).requires_grad_()
    (gradient,) = torch.autograd.grad((a @ a).tanh().sum() + a[:10].pow(2).sum(), a)
    return [*out, round(images[1].running_mean.sum().item(), 3), round(gradient.sum().item(), 2)]
""",
    "solver": """
def solve(f, y, t1, tolerance=1e-4):
    t, dt, steps = 0.0, 0.1, 0
    while t < t1:
        dt = min(dt, t1 - t)
        k1 = f(y)
        k2 = f(y + dt * k1)
        error = (dt * (k2 - k1) / 2).abs().max().item()
        if error < tolerance:
            t, y = t + dt, y + dt * (k1 + k2) / 2
        steps += 1
        dt *= max(0.2, min(3.0, 0.9 * (tolerance / (error + 1e-12)) ** 0.5))
        assert dt > 1e-7, "underflow in dt"
    return y, steps

def run(device):
    net = torch.nn.Sequential(torch.nn.Linear(2, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    start, target, out = torch.randn(20, 2).to(device), torch.randn(20, 2).to(device), []
    for _ in range(3):
        optimizer.zero_grad()
        y, steps = solve(net, start, 1.0)
        (y - target).abs().mean().backward()
        optimizer.step()
        out.append(steps)
    return out
""",
    "cropped": """
def run(device):
    data = torch.rand(400, 28, 28).half().to(device)
    used = data.float().mean(0) > 0.5
    cropped = data[:, used].float()
    centred = cropped - cropped.mean(0)
    vectors = torch.linalg.eigh(centred.t() @ centred)[1][:, -8:]
    assert data.min() >= 0
    return [list(cropped.shape), list(vectors.shape), list((centred @ vectors).shape)]
""",
}

COMMON = """
import sys
import torch

def number(tensor):
    "An integer that every element counts in."
    flat = tensor.double().flatten() * 8
    return int((flat.round().long() * (torch.arange(len(flat)).to(flat.device) % 97 + 1)).sum())
"""


@pytest.fixture(scope="module")
def alike(predict, tmp_path_factory):
    """What each program gives on the CPU and on the virtual GPU, all run in one process."""
    folder = tmp_path_factory.mktemp("alike")
    for name, text in ALIKE.items():
        (folder / f"{name}.py").write_text(COMMON + text)
    lines = [
        "import json, runpy, sys, torch",
        "answers = {}",
        "for name in sys.argv[1:]:",
        "    run = runpy.run_path(name + '.py')['run']",
        "    answers[name] = [(torch.manual_seed(0), run(device))[1] for device in ('cpu', 'cuda')]",
        "json.dump(answers, open('answers.json', 'w'))",
    ]
    (folder / "all.py").write_text("\n".join(lines))
    predicted = predict("--steps", "0", "all.py", *ALIKE, cwd=folder)
    assert predicted.code == 0, predicted.err
    return json.loads((folder / "answers.json").read_text()), predicted.reported


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_read_is_what_the_cpu_computes(alike, name):
    on_cpu, on_gpu = alike[0][name]
    assert on_gpu == on_cpu


def test_nothing_of_it_is_in_doubt(alike):
    assert [one for one in alike[1]["uncertain"] if one["what"] != "note"] == []


# Ways in which a value could be taken for known that is not: what these read is right, or it is in doubt.
TRAPS = {
    "undrawn": "weights = torch.nn.Linear(300, 300)\nanswer = bool(weights.to(device).weight.sum() == weights.weight.double().sum().float())",
    "undrawn_copies": "import copy\nmodel = torch.nn.Linear(1024, 1024)\nanswer = [bool(one.to(device).weight.float().abs().sum() == 0) for one in (copy.deepcopy(model).half(), copy.deepcopy(model))]",
    "shared_gradients": "a, b = torch.ones(3).to(device).requires_grad_(), torch.ones(3).to(device).requires_grad_()\n(torch.cat([a, b]) ** 2).sum().backward()\nanswer = [bool(a.grad.sum() == 6), bool(b.grad.sum() == 6)]",
    "gradient_in_another": "big = torch.arange(6.0).to(device)\na = torch.ones(3).to(device).requires_grad_()\ntorch.autograd.grad(a + 1, a, big[:3])\nanswer = [bool(big.sum() == 15)]",
    "written_in_part": "x = torch.arange(10).to(device)\nbig = torch.zeros(2_000_000, dtype=torch.long).to(device)\nbig + x[0]\nx[0] = 5\nanswer = [int((big + x[0]).sum())]",
    "conjugated": "z = torch.randn(600, 600, dtype=torch.cfloat).to(device)\nsmall = torch.tensor([1 + 2j]).to(device)\nanswer = [bool((z.mH @ z).trace().real > 300_000), bool(small.conj().imag < 0)]",
    "optimizer_in_backward": "w = torch.ones(4).to(device).requires_grad_()\noptimizer = torch.optim.SGD([w], lr=1.0)\nw.register_post_accumulate_grad_hook(lambda p: optimizer.step())\nw.sum().backward()\nanswer = [bool(w.sum() == 0)]",
    "counted_by_a_hook": "w, n = torch.ones(4).to(device).requires_grad_(), torch.zeros(()).to(device)\nw.register_hook(lambda g: n.add_(1) and None)\nw.sum().backward()\nanswer = [bool(n == 1)]",
    "checkpoint_of_old": "from torch.utils.checkpoint import checkpoint\nlin, x = torch.nn.Linear(4, 4).to(device), torch.ones(2, 4).to(device).requires_grad_()\nlin(checkpoint(lin, x, use_reentrant=True)).sum().backward()\nanswer = [bool(lin.weight.grad.sum() > 1.0), bool(lin.weight.grad.sum() < 1.0)]",
    "written_by_numpy": "buffer = torch.zeros(1_000_000)\ny = buffer.to(device, copy=True)\nbuffer.numpy()[:] = 7\nanswer = [bool(y.sum() == 0)]",
    "address_again": "class F(torch.autograd.Function):\n    forward = staticmethod(lambda c, x: x.clone())\n    backward = staticmethod(lambda c, g: g)\nw = torch.rand(2_000_000).to(device).requires_grad_()\nF.apply(w).sum().backward()\nm = w.grad == w.grad\ndel m\nmask = torch.arange(2_000_000).to(device) < 5\nanswer = [bool(mask.all())]",
    "overlapping": "t = torch.ones(20, dtype=torch.long).to(device)\nt.as_strided((4, 5), (1, 1)).fill_(0)\nanswer = [int(t.sum())]",
    "dropped_in_small": "x = torch.ones(1000).to(device).requires_grad_()\ny = torch.nn.functional.dropout(x, 0.5)\ny.sum().backward()\nanswer = [bool(((x.grad > 0) == (y > 0)).all()), bool((y > 0).sum() > 300)]",
    "own_function": "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(c, a, k, b):\n        c.save_for_backward(a, b)\n        c.k = k\n        return a * b * k\n    @staticmethod\n    def backward(c, g):\n        a, b = c.saved_tensors\n        return g * b * c.k, None, g * a * c.k\na, b = torch.arange(4.0).to(device).requires_grad_(), torch.full((4,), 2.0).to(device).requires_grad_()\n(F.apply(a, 3, b.exp()) * b + F.apply(b, 2, a)).sum().backward()\nanswer = [bool((a.grad.sum() - 193.337).abs() < 0.01), bool((b.grad.sum() - 411.009).abs() < 0.01)]",
    "own_function_counts": "class F(torch.autograd.Function):\n    seen = torch.zeros(()).to(device)\n    forward = staticmethod(lambda c, x: x * 2)\n    @staticmethod\n    def backward(c, g):\n        F.seen += 1\n        return g * 2\nw = torch.ones(3).to(device).requires_grad_()\nF.apply(F.apply(w)).sum().backward()\nanswer = [bool(F.seen == 2), bool(w.grad.sum() == 12)]",
    "own_function_added_to": "class F(torch.autograd.Function):\n    forward = staticmethod(lambda c, x: x.clone())\n    backward = staticmethod(lambda c, g: g * 1)\nw = torch.ones(3).to(device).requires_grad_()\nx = w * 1\n(F.apply(x) + F.apply(x) * 2 + x * 4).sum().backward()\n(g,) = torch.autograd.grad((F.apply(w) + F.apply(w) * 2 + w).sum(), w)\nanswer = [bool(w.grad.sum() == 21), bool(g.sum() == 12)]",
    "written_to_parts": "w = torch.arange(1.0, 5.0).to(device).requires_grad_()\nout = torch.empty(6, 4, device=device)\nfor i in range(6):\n    out[i] = w * i\nc = w * 2\nc[1:3].mul_(w[0])\nd = (w.reshape(2, 2).t() * 3)\nd[0] = w[:2] * 5\n(out.sum() + (c ** 2).sum() + d.sum()).backward()\nanswer = [bool(w.grad.sum() == 260), bool(w.grad[0] == 132), bool(w.grad[3] == 50)]",
    "written_to_parts_of_views": "w = torch.arange(1.0, 5.0).to(device).requires_grad_()\nc = w * 2\nv = c[1:]\nv[0] = w[0] * 7\nc[:2].mul_(3)\nv.add_(w[1:])\n(c ** 2).sum().backward()\nanswer = [bool(w.grad.sum() == 1210), bool(w.grad[0] == 1038)]",
    "after_create_graph": "a = torch.ones(5).to(device).requires_grad_()\nb = torch.full((5,), 2.0).to(device).requires_grad_()\n(g,) = torch.autograd.grad((a ** 3 * b).sum(), a, create_graph=True)\nloss = (b * 3).sum() + (g * b).sum()\n(h,) = torch.autograd.grad((b ** 2).sum(), b, retain_graph=True)\nloss.backward()\nanswer = [bool(g.sum() == 30), bool(h.sum() == 20), bool(b.grad.sum() == 75)]",
    "traced": "m = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).to(device)\nx = torch.ones(2, 3, 8, 8).to(device)\nm(x)\ntraced = torch.jit.trace(m, x, check_trace=False)\nanswer = [list(traced(x).shape), bool(m[1].num_batches_tracked == 3), bool(m[0].weight.sum() == m[0].weight.clone().sum())]",
    "of_lists": "w = torch.ones(4).to(device).requires_grad_()\ny = [w * 2]\ntorch._foreach_mul_(y, 3.0)\ny[0].sum().backward()\nanswer = [bool(w.grad.sum() == 24)]",
    "own_function_batched": "class F(torch.autograd.Function):\n    generate_vmap_rule = True\n    forward = staticmethod(lambda x: x ** 2)\n    setup_context = staticmethod(lambda c, inputs, output: c.save_for_backward(*inputs))\n    backward = staticmethod(lambda c, g: g * 2 * c.saved_tensors[0])\nw = torch.ones(4).to(device).requires_grad_()\n(j,) = torch.autograd.grad(F.apply(w * 1), w, torch.eye(4).to(device), is_grads_batched=True)\nanswer = [list(j.shape), bool(j.sum() == 8)]",
    "own_function_of_gradients": "class F(torch.autograd.Function):\n    forward = staticmethod(lambda c, x: x.clone())\n    @staticmethod\n    def backward(c, g):\n        w.grad.add_(10)\n        return g\nw = torch.ones(4).to(device).requires_grad_()\nw.grad = torch.ones(4).to(device)\n(F.apply(w) * 2).sum().backward()\nanswer = [bool(w.grad.sum() == 52)]",
    "own_function_of_a_kernel": "class F(torch.autograd.Function):\n    forward = staticmethod(lambda c, x: x.clone())\n    @staticmethod\n    def backward(c, g):\n        out = torch.empty_like(g)\n        return out if g.is_cuda else g\nw = torch.ones(4).to(device).requires_grad_()\n(F.apply(w) * 3).sum().backward()\nanswer = [bool(w.grad.sum() == 12)]",
    "hooks_on_saved": "w = torch.ones(4).to(device).requires_grad_()\nwith torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 0 + 9):\n    y = w ** 2\ny.sum().backward()\nanswer = [bool(w.grad.sum() == 72)]",
    "hook_on_own_backward": "class F(torch.autograd.Function):\n    forward = staticmethod(lambda c, x: x * 2)\n    backward = staticmethod(lambda c, g: g * 2)\nw = torch.ones(4).to(device).requires_grad_()\ny = F.apply(w)\ny.grad_fn.register_hook(lambda given, got: tuple(one * 10 for one in given))\ny.sum().backward()\nanswer = [bool(w.grad.sum() == 80)]",
    "traced_by_closure": "n, x = torch.zeros(3).to(device), torch.ones(3).to(device)\ndef f(x):\n    n.add_(1)\n    return x * 2\ntorch.jit.trace(func=f, example_inputs=(x,), check_trace=False)\nwith torch.inference_mode():\n    torch.jit.trace(torch.nn.ReLU(), x.clone(), check_trace=False)\nanswer = [bool(n.sum() == 3)]",
    "double_backward": "a = torch.ones(5).to(device).requires_grad_()\n(g,) = torch.autograd.grad((a ** 3).sum(), a, create_graph=True)\n(h,) = torch.autograd.grad(g.sum(), a)\nanswer = [bool(g.sum() == 15), bool(h.sum() == 30)]",
}


def test_what_is_not_known_is_never_taken_for_known(predict, tmp_path):
    for name, text in TRAPS.items():
        (tmp_path / f"{name}.py").write_text(
            "import torch\ndef run(device):\n    torch.manual_seed(0)\n" + "".join(f"    {line}\n" for line in text.splitlines()) + "    return answer\n"
        )
    lines = "import json, runpy, sys\nanswers = {name: [runpy.run_path(name + '.py')['run'](device) for device in ('cpu', 'cuda')] for name in sys.argv[1:]}\njson.dump(answers, open('answers.json', 'w'))\n"
    (tmp_path / "traps.py").write_text(lines)
    # One that is watched for hooks stops following gradients: those come last.
    predicted = predict("--steps", "0", "traps.py", *sorted(TRAPS, key=lambda name: "hook" in name or "backward" in name), cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    doubted = {one["file"].rpartition("/")[2] for one in predicted.reported["uncertain"] if one["file"]}
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert [name for name, (on_cpu, on_gpu) in answers.items() if on_cpu != on_gpu and f"{name}.py" not in doubted] == []
    right = {name for name, (on_cpu, on_gpu) in answers.items() if on_cpu == on_gpu and f"{name}.py" not in doubted}
    assert {
        "own_function",
        "own_function_counts",
        "own_function_added_to",
        "written_to_parts",
        "gradient_in_another",
        "written_in_part",
        "counted_by_a_hook",
        "dropped_in_small",
        "address_again",
        "overlapping",
    } <= right


HOST_NUMBERS = """
import torch
torch.manual_seed(0)
before = torch.get_rng_state()
torch.nn.init.normal_(torch.empty(1000, 1000, device="meta"))
assert torch.equal(before, torch.get_rng_state()), "meta tensors moved the generator"
chosen = torch.empty(64, 2048).uniform_() < 0.15
assert 18_000 < int(chosen.sum()) < 21_500, "the script's own numbers were not drawn"
torch.empty(1, device="cuda")
"""


def test_one_number_that_is_written_by_a_mask_counts_nothing(predict, tmp_path):
    """As DTensor does with words that another rank has: which those are is not known here, and need not be. Newer PyTorch says of itself that it fills."""
    (tmp_path / "filled.py").write_text("""
import torch

model = torch.nn.Embedding(1000, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    mask = torch.rand(64, 128, device="cuda") > 0.5
    out = model(torch.arange(64 * 128).reshape(64, 128).remainder(1000).cuda()) * 1
    out[mask, :] = 0.0
    torch.zeros(64, 128, device="cuda")[mask] = 1
    out.sum().backward()
    optimizer.step()
""")
    reported = predict("--until", "steps", "--values-seconds", "0", "filled.py", cwd=tmp_path, python=PYTHON_2_11).reported
    assert (reported["fits"], reported["steps"], reported["estimated"]) == (True, 3, None)
    assert not [one["why"] for one in reported["uncertain"] if "boolean index" in one["why"]]


def test_the_generator_of_the_host_gives_what_it_gives_without_oomph(predict, tmp_path):
    (tmp_path / "host_numbers.py").write_text(HOST_NUMBERS)
    predicted = predict("--steps", "0", "host_numbers.py", cwd=tmp_path)
    assert predicted.code == 0, predicted.err


SHUFFLED = """
import sys
import torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
config = BertConfig(vocab_size=3000, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
BertModel(config).save_pretrained(sys.argv[1])
model = BertModel.from_pretrained(sys.argv[1])
loader = torch.utils.data.DataLoader(range(1000), batch_size=100, shuffle=True)
print("ORDER", [int(batch[0]) for batch in loader])
if torch.cuda.is_available():
    model.cuda()
"""


def test_a_loader_is_shuffled_after_from_pretrained_as_it_is_without_oomph(predict, tmp_path):
    """Its batches are padded to their longest sample, so that which come together makes the peak."""
    (tmp_path / "shuffled.py").write_text(SHUFFLED)
    predicted = predict("--steps", "0", "shuffled.py", "there", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    ran = subprocess.run([sys.executable, "shuffled.py", "here"], cwd=tmp_path, capture_output=True, text=True, check=True)
    order = [line for line in ran.stdout.splitlines() if line.startswith("ORDER")]
    assert order and order == [line for line in predicted.err.splitlines() if line.startswith("ORDER")]


# Random programs: each step makes or changes a tensor of a pool, on both devices alike; then all are compared.
RANDOM = """
import random, sys
import torch
SIZES = [(3,), (40, 30), (300, 400), (700, 900)]
def program(seed, device):
    choice = random.Random(seed)
    torch.manual_seed(seed)
    pool = [torch.randn(choice.choice(SIZES)).to(device) for _ in range(4)]
    for _ in range(30):
        x = choice.choice(pool)
        kind = choice.randrange(16)
        if kind == 0: x.add_(choice.random())
        elif kind == 1: pool.append(x * 2)
        elif kind == 2: pool.append(x.t() if x.dim() == 2 else x.flip(0))
        elif kind == 3: x[x > choice.random()] = 0.5
        elif kind == 4: pool.append(x[x > 0])
        elif kind == 5: pool.append(x[: max(1, len(x) // 2)])
        elif kind == 6: x.zero_() if choice.random() < 0.2 else x.clamp_(-1, 1)
        elif kind == 7: pool.append(x.cumsum(0))
        elif kind == 8: pool.append(torch.cat([x, x]))
        elif kind == 9: x.copy_(torch.randn(x.shape))
        elif kind == 10: pool.append(x.double().float().contiguous())
        elif kind == 11: pool.append(x.reshape(-1)[::3])
        elif kind == 12 and x.numel(): pool.append(x.max().expand(5).clone())
        elif kind == 13: pool.append(torch.zeros_like(x).masked_fill_(x < 0, 2.0))
        elif kind == 14: pool.append(x.sort(0)[0] if x.dim() == 1 else x.sum(1))
        elif kind == 15: x.mul_(x.abs().mean() if x.numel() else 1)
        while len(pool) > 8: pool.pop(choice.randrange(len(pool)))
    return [(list(x.shape), int((x > 0).sum()), int((x.double() * 16).round().clamp(-1e6, 1e6).nan_to_num().long().sum())) for x in pool]
wrong = []
for seed in range(int(sys.argv[1])):
    cpu, gpu = program(seed, "cpu"), program(seed, "cuda")
    if cpu != gpu: wrong.append((seed, cpu, gpu))
assert not wrong, wrong[0]
"""


def test_random_programs_read_what_the_cpu_computes(predict, tmp_path):
    (tmp_path / "random_programs.py").write_text(RANDOM)
    predicted = predict("--steps", "0", "random_programs.py", "30", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    assert [one for one in predicted.reported["uncertain"] if one["what"] in ("size", "branch")] == []


# --- what cannot be had -----------------------------------------------------------------------------------

OPEN = """
import torch
weight = torch.randn(1000, 1000).cuda().requires_grad_()
(slope,) = torch.autograd.grad((weight ** 3).sum(), weight, create_graph=True)
slope.sum().backward()
chosen = (weight.grad > 0).nonzero()
kept = torch.zeros(len(chosen), 1000, device="cuda")
"""
LINE = 1 + OPEN.splitlines().index("chosen = (weight.grad > 0).nonzero()")


def test_a_size_that_hangs_on_what_is_not_known_is_a_range(predict, tmp_path):
    (tmp_path / "open.py").write_text(OPEN)
    reported = {}
    for card in ("t4", "h200"):
        predicted = predict("--steps", "0", "open.py", gpu=card, cwd=tmp_path)
        reported[card] = predicted.reported
        assert (predicted.code, predicted.reported["fits"]) == (0, True), predicted.err
    for card, one in reported.items():
        assert one["range"]["high"] == one["total"] > 4 * 1000 * 1000 * 1000 > one["range"]["low"] + 3 * GIB, card
        (doubt,) = [one for one in one["uncertain"] if one["what"] == "size"]
        assert (doubt["line"], doubt["why"]) == (LINE, "nonzero: how many is not known, as many as there can be are taken")


def test_why_a_value_could_not_be_had_is_said(predict, tmp_path):
    text = "import torch\nx = torch.randn(2000, 2000).cuda()\ny = x @ x\nkept = y[y > 0]\n"
    (tmp_path / "costly.py").write_text(text)
    why = {}
    for words in (["--values-seconds", "0"], ["--values", "20MiB"]):
        predicted = predict("--steps", "0", *words, "costly.py", cwd=tmp_path)
        (doubt,) = [one for one in predicted.reported["uncertain"] if one["what"] == "size"]
        why[words[0]] = doubt["line"], doubt["why"].partition(" (")[2]
    assert why == {"--values-seconds": (4, "it would take more than --values-seconds allows)"), "--values": (4, "the memory for values (--values) is full)")}


def test_where_the_card_lies_in_the_range_the_answer_is_not_known(predict, tmp_path):
    (tmp_path / "open.py").write_text(OPEN)
    predicted = predict("--steps", "0", "--memory", "2GiB", "open.py", gpu="t4", cwd=tmp_path, format="text")
    assert predicted.code == 2
    first = predicted.out.splitlines()[2]
    assert first.startswith("not known: between ") and first.endswith(" of 2.00 GiB, by values that only a GPU would have"), predicted.out


FAILS = """
import torch
weight = torch.rand(10, 10).cuda().requires_grad_()
(slope,) = torch.autograd.grad((weight ** 2).sum(), weight, create_graph=True)
slope.sum().backward()
assert weight.grad.sum().item() > 50, "too little"
"""


def test_a_program_that_dies_of_a_value_that_was_made_up_is_told_apart_from_one_with_a_bug(predict, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    predicted = predict("--steps", "0", "fails.py", cwd=tmp_path)
    (doubt,) = [one for one in predicted.reported["uncertain"] if one["what"] == "made_up"]
    assert (predicted.code, predicted.reported["fits"], predicted.reported["error"]) == (2, None, "AssertionError: too little")
    assert doubt["line"] == len(FAILS.splitlines()) and doubt["why"].startswith("the last value before it failed was made up: ")
    (tmp_path / "bug.py").write_text("import torch\ntorch.ones(3).cuda()\nassert False\n")
    predicted = predict("--steps", "0", "bug.py", cwd=tmp_path)
    assert predicted.code == 2 and [one for one in predicted.reported["uncertain"] if one["what"] == "made_up"] == []


ROUTES = """
import torch
# Of what nobody knows, experts are drawn.
routes = torch.empty(8192, 16, device="cuda").topk(4).indices
ordered, order = routes.flatten().sort()
counts = torch.bincount(ordered, minlength=16)
# Computed only here, from the routes that were drawn.
assert routes.shape == (8192, 4) and bool((ordered[1:] >= ordered[:-1]).all()), "not sorted"
assert int(counts.sum()) == 8192 * 4 and bool((routes.flatten()[order] == ordered).all()), "of other routes"
"""


def test_what_follows_from_a_choice_that_was_drawn_is_right_when_it_is_read(predict, tmp_path):
    (tmp_path / "routes.py").write_text(ROUTES)
    predicted = predict("--steps", "0", "routes.py", cwd=tmp_path)
    assert predicted.code == 0, (predicted.out, predicted.err)


UNDRAWN = """
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(300, 300)
there = layer.cuda()
assert 0.02 < there.weight.abs().mean().item() < 0.04
"""


def test_a_program_that_fails_of_weights_that_were_not_drawn_runs_again_with_them(predict, tmp_path):
    (tmp_path / "undrawn.py").write_text(UNDRAWN)
    predicted = predict("--steps", "0", "undrawn.py", cwd=tmp_path)
    assert (predicted.code, predicted.reported["fits"], predicted.reported["uncertain"]) == (0, True, []), predicted.err


PLAIN = """
import torch
big = torch.randn(1500, 1500).cuda()
for _ in range(60):
    big = (big @ big).tanh()
loss = big.mean().item()
assert type(loss) is float, type(loss)
"""


def test_a_program_that_asks_for_plain_numbers_gets_them(predict, tmp_path):
    (tmp_path / "plain.py").write_text(PLAIN)
    predicted = predict("--steps", "0", "plain.py", cwd=tmp_path)
    assert (predicted.code, predicted.reported["fits"], predicted.reported["uncertain"]) == (0, True, []), predicted.err


def test_how_large_a_sparse_product_is_is_not_known(predict, tmp_path):
    (tmp_path / "product.py").write_text("import torch\na = torch.eye(50).to_sparse_csr().cuda()\nkept = (a @ a).to_sparse_coo().values()\n")
    predicted = predict("--steps", "0", "product.py", cwd=tmp_path, format="text")
    assert predicted.code == 2
    assert predicted.out.splitlines()[2].startswith("not known"), predicted.out
    assert "  it multiplies sparse matrices: how large the product is" in predicted.out


def test_an_error_is_not_the_tensor_that_it_prints(predict, tmp_path):
    (tmp_path / "long.py").write_text("import torch\ntorch.ones(3).cuda()\nraise ValueError('zeros:\\n' + '0  0 ' * 5000)\n")
    predicted = predict("--steps", "0", "long.py", cwd=tmp_path)
    assert predicted.code == 2 and predicted.reported["error"].startswith("ValueError: zeros:\n0  0 0") and len(predicted.reported["error"]) == 2002
    text = predict("--steps", "0", "long.py", cwd=tmp_path, format="text").out
    assert "  ValueError: zeros: 0 0 0 0" in text and len(text) < 4000


SLOW = """
import torch
x = torch.randn(2000, 2000).cuda()
for _ in range(4):
    x = (x @ x).tanh()
loss = x.mean().item()
print("printed:", type(loss).__name__)
if x.mean().item() > -1:
    print("compared")
"""


def test_time_is_spent_where_something_is_decided_and_no_more_than_there_is(predict, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    enough = predict("--steps", "0", "slow.py", cwd=tmp_path)
    assert enough.code == 0 and enough.reported["uncertain"] == [], enough.err
    none = predict("--steps", "0", "--values-seconds", "0", "slow.py", cwd=tmp_path)
    assert none.code == 0 and [(one["what"], one["line"]) for one in none.reported["uncertain"]] == [("branch", 8)]
    little = predict("--steps", "0", "--values", "8MiB", "slow.py", cwd=tmp_path)
    assert little.code == 0 and [(one["what"], one["line"]) for one in little.reported["uncertain"]] == [("branch", 8)]


UNSEEN = """
import torch
x = torch.arange(8, device="cuda")
static, out = torch.zeros(8, dtype=torch.long, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out.copy_(static * 2)
static.copy_(x)
graph.replay()
if out.sum() == 56:  # line 9: only a replay has computed it
    pass
shared = torch.ones(8, dtype=torch.long, device="cuda")
shared.untyped_storage().resize_(0)
shared.untyped_storage().resize_(64)
if shared.sum() == 8:  # line 14: what is there now is anything
    pass
if static.sum() == 28:
    torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
"""


def test_what_is_written_where_nobody_sees_it_is_not_taken_for_known(predict, tmp_path):
    (tmp_path / "unseen.py").write_text(UNSEEN.lstrip("\n"))
    predicted = predict("--steps", "0", "unseen.py", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    assert [(one["what"], one["line"]) for one in predicted.reported["uncertain"]] == [("branch", 9), ("branch", 14)]
    assert predicted.reported["peak"]["allocated"] > 3 << 20


# --- hostile programs -------------------------------------------------------------------------------------

HOSTILE = """
import resource, sys, time, torch
began = time.time()
x = torch.ones(400_000, device="cuda")
for _ in range(105_000):  # more operations than are kept
    x.add_(1)
kept = torch.ones(400_000, device="cuda")
for _ in range(2_000):
    kept = kept * 1.0
deep = torch.equal(kept, torch.ones(400_000, device="cuda"))
big = torch.zeros(64 << 20, device="cuda")
for _ in range(20):  # 5 GiB come back
    host = big.cpu()
a = torch.randn(30, 30).cuda().requires_grad_()
(first,) = torch.autograd.grad((a ** 3).sum(), a, create_graph=True)
(second,) = torch.autograd.grad(first.sum(), a)
twice = second.sum().item()
del x, kept, big
took = time.time() - began
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
open("left", "w").write(f"{deep} {took} {used}")
"""


def test_hostile_programs_take_bounded_memory_and_time(predict, tmp_path):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    predicted = predict("--steps", "0", "hostile.py", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
    deep, took, used = (tmp_path / "left").read_text().split()
    assert deep == "True"
    # Two hundred thousand operations by themselves take twenty seconds where a mode sees them; PyTorch itself takes half of the memory.
    assert float(took) < 150 and float(used) < 2500


def test_values_survive_forks_and_threads(predict, tmp_path):
    text = """
import threading, torch
from torch.utils.data import DataLoader
x = torch.arange(2_000_000).cuda()
seen = []
thread = threading.Thread(target=lambda: seen.append(int(x.sum())))
thread.start(); thread.join()
batches = [int((batch.cuda() > 0).sum()) for batch in DataLoader(torch.ones(8, 300_000), batch_size=4, num_workers=1)]
assert int(x.sum()) == 1999999000000 and batches == [1_200_000] * 2, (seen, batches)
"""
    (tmp_path / "threads.py").write_text(text)
    predicted = predict("--steps", "0", "threads.py", cwd=tmp_path)
    assert predicted.code == 0, predicted.err
