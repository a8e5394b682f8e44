"""Measure `oomph explain` beside CPython's `pickle.load` of the same bytes, in the same run.

    python bench/run.py [--oomph target/release/oomph] [--rounds 7] [--events 2000000] [--check]

Each round times one process of each, one after the other, so that a busy machine slows both; the best and the median
of the rounds are shown. Memory is each process's highest resident set. `pickle.load` is timed inside its process,
without Python's start-up; `oomph explain` is timed from outside, start-up and all. With --check the bars must hold:
at least 20 times as fast, at most half of the memory.
"""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LOAD = """
import pickle, sys, time
with open(sys.argv[1], "rb") as file:
    start = time.perf_counter()
    pickle.load(file)
    print(time.perf_counter() - start)
"""


def measure(command):
    """Seconds, peak resident bytes and output of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        sys.exit(f"{command[0]} failed with {code}")
    return seconds, usage.ru_maxrss * 1024, output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default=os.path.join(HERE, "../target/release/oomph"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    data = os.path.join(HERE, "data", f"large-{args.events}.pickle")
    if not os.path.exists(data):
        os.makedirs(os.path.dirname(data), exist_ok=True)
        subprocess.run(
            [sys.executable, os.path.join(HERE, "generate_snapshot.py"), data, "--events", str(args.events)], check=True
        )
    size = os.path.getsize(data)
    ours, theirs, our_memory, their_memory = [], [], 0, 0
    for _ in range(args.rounds):
        _, memory, output = measure([sys.executable, "-c", LOAD, data])
        theirs.append(float(output))
        their_memory = max(their_memory, memory)
        seconds, memory, _ = measure([args.oomph, "explain", data])
        ours.append(seconds)
        our_memory = max(our_memory, memory)
    ratios = [b / a for a, b in zip(ours, theirs)]
    print(f"{size:,} bytes, {args.events:,} events or more; {args.rounds} rounds; Python {platform.python_version()}")
    print(f"{'':24}{'best':>10}{'median':>10}{'memory':>12}")
    for name, times, memory in (("oomph explain", ours, our_memory), ("pickle.load alone", theirs, their_memory)):
        print(f"{name:24}{min(times):>9.3f}s{statistics.median(times):>9.3f}s{memory / 2**20:>8.0f} MiB")
    ratio, share = statistics.median(ratios), our_memory / their_memory
    print(f"oomph explain is {ratio:.1f} times as fast (median of rounds), with {share:.2f} of the memory")
    if args.check and (ratio < 20 or share > 0.5):
        sys.exit("the bars are 20 times as fast and half of the memory")


if __name__ == "__main__":
    main()
