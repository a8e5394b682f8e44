"""What a census costs: who holds what, asked at an out-of-memory, beside how many tensors there are.

Run it under oomph, on a real GPU or a virtual one:

    oomph run --gpu t4 docs/measured/census.py

It prints milliseconds of a census (the fastest of three, as a busy machine only makes it slower) and its size in the recording. An out-of-memory is provoked by asking for more than
any card has.
"""

import json
import sys

import torch

try:
    from _oomph_live import census
except ImportError:
    sys.exit("run this with oomph run: it measures what is inside then")


def measured(count):
    """Tensors in a list, half of them with a graph of their own."""
    weight = torch.ones(128, device="cuda", requires_grad=True)
    kept = [torch.empty(128, device="cuda") if number % 2 else weight * 2 for number in range(count)]
    best = None
    for _ in range(3):
        taken = census.take(torch, 0, 1 << 44, *reversed(torch.cuda.mem_get_info()))
        if best is None or taken["milliseconds"] < best["milliseconds"]:
            best = taken
    del kept
    return best


def main():
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    print("| tensors | milliseconds | bytes | complete | nodes of graphs |")
    print("|---:|---:|---:|---|---:|")
    for count in (1_000, 10_000, 100_000):
        taken = measured(count)
        size = len(json.dumps(taken, separators=(",", ":")))
        nodes = sum(holder.get("nodes", 0) for holder in taken["holders"])
        print(f"| {count:,} | {taken['milliseconds']:.0f} | {size:,} | {'yes' if taken['complete'] else 'no'} | {nodes:,} |")


main()
