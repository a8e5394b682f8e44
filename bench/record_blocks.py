"""What a block and its free cost in a process, on a virtual GPU: plain, under oomph's recorder (steady, and where every step is new),
under PyTorch's own. Nanoseconds of processor time, the best of several rounds; the call comes from under 50 Python frames. Run by run.py
under `oomph run --gpu`, with the recorder's library as its argument."""

import json
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../python"))
import torch
from oomph.live import recording

BLOCKS, ROUNDS, DEPTH = 20_000, 8, 50

torch.cuda.init()
kept = torch.empty(1 << 20, device="cuda")
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.empty(8, device="cuda"))], lr=1)
attachment = recording.attachment(torch, sys.argv[1])


def measure(depth, sizes, after):
    if depth:
        return measure(depth - 1, sizes, after)
    best = float("inf")
    for number in range(ROUNDS):
        size = sizes(number)
        began = time.process_time()
        for _ in range(BLOCKS):
            torch.empty(size, device="cuda")
        best = min(best, time.process_time() - began)
        after()
    return best / BLOCKS * 1e9


def recorded(sizes):
    ours = recording.Recording(os.path.join(tempfile.mkdtemp(), "blocks.oomph"))
    attachment.begin(ours)
    ours.reports_kinds = False
    cost = measure(DEPTH, sizes, lambda: ours.after_step(optimizer, (), {}))
    ours.stop()
    return cost


costs = {"plain": measure(DEPTH, lambda _: 1000, lambda: None)}
costs["steady"] = recorded(lambda _: 1000) - costs["plain"]
costs["new"] = recorded(lambda number: 1000 + 512 * number) - costs["plain"]
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
costs["pytorch"] = measure(DEPTH, lambda _: 1000, lambda: None) - costs["plain"]
print(json.dumps(costs))
