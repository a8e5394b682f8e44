"""What programs read on a card, and what the same programs read in a prediction. Two calls:

    python docs/measured/values.py card > card.jsonl                          # on the card
    python docs/measured/values.py compare card.jsonl OOMPH PYTHON CARD       # anywhere: the command, a Python with the same PyTorch, the card's name

Each program prints what it read and what it took; the table compares both.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda"


def asserted():
    """A mask that came from the host is asserted on."""
    mask = torch.rand(64, 3, 224, 224).cuda()
    assert mask.min() >= 0 and mask.max() <= 1
    return [int((mask > 0.3).sum())]


def solver():
    """An adaptive solver of differential equations chooses its steps by computed errors, through training."""
    net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    start, target, out = torch.randn(20, 2).cuda(), torch.randn(20, 2).cuda(), []
    for _ in range(5):
        t, dt, steps, y = 0.0, 0.1, 0, start
        while t < 1.0:
            dt = min(dt, 1.0 - t)
            k1 = net(y)
            k2 = net(y + dt * k1)
            error = (dt * (k2 - k1) / 2).abs().max().item()
            if error < 1e-3:
                t, y = t + dt, y + dt * (k1 + k2) / 2
            steps += 1
            dt *= max(0.2, min(3.0, 0.9 * (1e-3 / (error + 1e-12)) ** 0.5))
            assert dt > 1e-7, "underflow in dt"
        optimizer.zero_grad()
        (y - target).abs().mean().backward()
        optimizer.step()
        out.append(steps)
    return out


def cropped():
    """A data set lies on the card in half precision, is cropped by masks, and eigenvectors are taken of it."""
    data = torch.rand(4000, 32, 32).half().cuda()
    used = data.float().mean(0) > 0.5
    rows = data[:, used].float()
    centred = rows - rows.mean(0)
    vectors = torch.linalg.eigh(centred.t() @ centred)[1][:, -64:]
    return [list(rows.shape), list((centred @ vectors).shape)]


def graph():
    """Edges are the nonzero elements of a dense matrix."""
    adjacency = (torch.rand(2708, 2708) < 0.0014).float().cuda()
    edges = adjacency.nonzero().t()
    features, layer = torch.randn(2708, 1433).cuda(), nn.Linear(1433, 16).cuda()
    optimizer = torch.optim.Adam(layer.parameters())
    for _ in range(3):
        sent = layer(features)[edges[0]]
        out = torch.zeros(2708, 16, device=DEVICE).index_add(0, edges[1], sent)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
    return [list(edges.shape), int(torch.bincount(edges[1]).max())]


def experts():
    """Tokens go to the expert that a router chooses: sizes hang on weights, which training changes."""
    embed, router = nn.Embedding(1000, 64).cuda(), nn.Linear(64, 4).cuda()
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(4)).cuda()
    optimizer = torch.optim.AdamW([*embed.parameters(), *router.parameters(), *layers.parameters()], lr=1e-2)
    out = []
    for _ in range(3):
        hidden = embed(torch.randint(0, 1000, (16, 128)).cuda()).flatten(0, 1)
        weights, chosen = router(hidden).softmax(-1).max(-1)
        result = torch.zeros_like(hidden)
        counts = []
        for index, layer in enumerate(layers):
            rows = (chosen == index).nonzero().flatten()
            counts.append(len(rows))
            result = result.index_add(0, rows, layer(hidden[rows]) * weights[rows, None])
        optimizer.zero_grad()
        (result - hidden).square().mean().backward()
        optimizer.step()
        out.append(counts)
    return out


def drawn():
    """Masks and choices by the card's own generator."""
    kept = torch.rand(128, 2048, device=DEVICE) < 0.15
    order = torch.randperm(5000, device=DEVICE)
    dropped = F.dropout(torch.ones(3000, 1000, device=DEVICE), 0.3)
    return [
        int(kept.sum()),
        order[:5].tolist(),
        int((dropped > 0).sum()),
        torch.randint(0, 100, (5,), device=DEVICE).tolist(),
        list(torch.zeros(128, 2048, 8, device=DEVICE)[kept].shape),
    ]


def dropout():
    """Training with dropout: what is compared hangs on masks that the card drew."""
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    x, y, out = torch.randn(256, 64).cuda(), torch.randint(0, 10, (256,)).cuda(), []
    for _ in range(5):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(round(loss.item(), 4))
    return out


def early():
    """Stops when the loss no longer falls: how many steps hangs on all of them."""
    net, out = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 1)).cuda(), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    x = torch.randn(200, 20).cuda()
    y, best, waited = x.sum(1, keepdim=True).sin(), 1e9, 0
    while waited < 2 and len(out) < 40:
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        waited = waited + 1 if loss.item() > best * 0.98 else 0
        best = min(best, loss.item())
        out.append(round(best, 3))
    return [len(out), *out[-2:]]


def generated():
    """A small language model draws tokens until the end comes."""
    embed, layer, head = nn.Embedding(50, 64).cuda(), nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval(), nn.Linear(64, 50).cuda()
    tokens = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
    with torch.inference_mode():
        while tokens.shape[1] < 60:
            logits = head(layer(embed(tokens))[:, -1])
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)
            if tokens[0, -1] == 7:
                break
    return tokens[0].tolist()


PROGRAMS = (asserted, solver, cropped, graph, experts, drawn, dropout, early, generated)


def run(program):
    torch.manual_seed(0)
    answer = program()
    torch.cuda.synchronize()
    return {"name": program.__name__, "read": answer, "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def compare(path, oomph, python, card):
    print("| program | read | allocated | reserved | seconds |\n|---|---|---:|---:|---:|")
    oomph, python, script = (os.path.abspath(one) for one in (oomph, python, __file__))
    with open(path) as file:
        rows = [json.loads(line) for line in file if line.startswith('{"name"')]
    for row in rows:
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            words = [oomph, "predict", "--gpu", card, "--python", python, "--no-recording", "--steps", "0", "--format", "json", script, row["name"]]
            done = subprocess.run(words, capture_output=True, text=True, cwd=folder)
            took = time.time() - began
        line = next((line for line in done.stderr.splitlines() if line.startswith('{"name"')), None)
        predicted = json.loads(line) if line else {"read": done.stderr[-300:], "allocated": 0, "reserved": 0}
        doubts = json.loads(done.stdout)["uncertain"] if done.stdout else []
        same = "the same" if predicted["read"] == row["read"] else f"{predicted['read']} for {row['read']}"
        if any(one["what"] in ("size", "branch") for one in doubts):
            same += ", said to be in doubt"
        sizes = (f"{predicted[key]:,} ({predicted[key] / row[key] - 1:+.2%})" for key in ("allocated", "reserved"))
        print(f"| {row['name']} | {same} |", " | ".join(sizes), f"| {took:.1f} |", flush=True)


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "compare":
        compare(*words)
    elif command == "card":
        print(json.dumps({"card": torch.cuda.get_device_name(), "torch": torch.__version__}))
        for program in PROGRAMS:
            done = subprocess.run([sys.executable, __file__, program.__name__], capture_output=True, text=True)
            print(done.stdout.strip() or done.stderr[-500:], flush=True)
    else:
        print(json.dumps(run(next(program for program in PROGRAMS if program.__name__ == command))))
