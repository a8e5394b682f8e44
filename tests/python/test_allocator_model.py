"""The allocator's model in Rust and a naive one in Python do the same on random programs under random settings.

Each trace is a few dozen to a few hundred calls with sizes around the allocator's thresholds, on several streams and pools, with
frees that wait, and memory that runs out. Addresses, refusals with their reasons, and statistics must be equal.
"""

import multiprocessing
import os
import random
import subprocess

from allocator_model import MIB, Allocator, OutOfMemory

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
TRACES = int(os.environ.get("OOMPH_TRACES", "4000"))
STATISTICS = ("allocated", "reserved", "active", "requested", "inactive_split", "segments")


def settings(rng, minor):
    """A text for the one model, and what it means for the other."""
    parts, meaning = [], {}
    large = 20
    if minor >= 11 and rng.random() < 0.2:
        large = rng.choice([11, 12, 16, 20, 32, 64])
        parts.append(f"large_segment_size_mb:{large}")
        meaning["large"] = large * MIB
    if rng.random() < 0.4:
        split = rng.choice([21, 24, 32, 40, 64, 100])
        if minor >= 10:
            split = max(split, large)
        parts.append(f"max_split_size_mb:{split}")
        meaning["max_split"] = split * MIB
        if minor >= 6 and rng.random() < 0.4:
            rounding = max(rng.choice([21, 30, 50]), large)
            parts.append(f"max_non_split_rounding_mb:{rounding}")
            meaning["max_non_split"] = rounding * MIB
    if rng.random() < 0.3:
        division = rng.choice([2, 4, 8, 16])
        parts.append(f"roundup_power2_divisions:{division}")
        meaning["divisions"] = (division,) * 16
    elif rng.random() < 0.2 and minor >= 10:
        parts.append("roundup_power2_divisions:[4:2,16:8,>:4]")
        meaning["divisions"] = (2, 2, 2, 0, 8) + (4,) * 11
    if rng.random() < 0.3:
        threshold = rng.choice([0.3, 0.5, 0.75, 0.9])
        parts.append(f"garbage_collection_threshold:{threshold}")
        meaning["threshold"] = threshold
    if rng.random() < 0.4:
        parts.append("expandable_segments:True")
        meaning["expandable"] = True
    if minor >= 10 and rng.random() < 0.2:
        fraction = rng.choice([0.1, 0.333, 0.5, 0.9])
        parts.append(f"per_process_memory_fraction:{fraction}")
        meaning["fraction"] = fraction
    if minor >= 12 and rng.random() < 0.1:
        parts.append("throw_on_cudamalloc_oom:True")
        meaning["throw"] = True
    rng.shuffle(parts)
    return ",".join(parts) or "-", meaning


def size(rng):
    edges = [512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]
    kind = rng.random()
    if kind < 0.3:
        return rng.randrange(1, 8192)
    if kind < 0.5:
        return max(1, rng.choice(edges) + rng.choice([-513, -512, -1, 0, 1, 511, 512]))
    if kind < 0.7:
        return rng.randrange(MIB // 2, 3 * MIB)
    if kind < 0.9:
        return rng.randrange(3 * MIB, 30 * MIB)
    return rng.randrange(30 * MIB, 150 * MIB)


def trace(seed):
    """The script for the one model, and what the other answers."""
    rng = random.Random(seed)
    minor = rng.choice([5, 8, 9, 10, 11, 11, 12, 12, 13, 15])
    total = rng.choice([300, 700, 2000, 8000]) * MIB + rng.choice([0, 12345])
    free = total - rng.choice([0, 5 * MIB, 64 * MIB])
    limit = rng.choice([None, None, None, total // 2, total - 30 * MIB])
    text, meaning = settings(rng, minor)
    model = Allocator(total=total, free=free, limit=limit, minor=minor, **meaning)
    script = [f"trace {minor} {total} {free} {'-' if limit is None else limit} {text}"]
    answers, live, waiting, pools = [], {}, {}, [(0, 0)] * 12 + [(0, 1), (7, 0)]
    for call in range(rng.choice([40, 80, 160])):
        what = rng.random()
        if what < 0.55 or not live:
            n, stream, pool = size(rng), rng.choice([0, 0, 0, 0, 1, 2]), rng.choice(pools)
            script.append(f"a {call} {n} {stream} {pool[0]} {pool[1]}")
            try:
                live[call] = model.malloc(n, stream, pool)
                answers.append(str(live[call][1].start))
            except OutOfMemory as error:
                answers.append(f"oom {error}")
        elif what < 0.90:
            gone = rng.choice(list(live))
            script.append(f"f {gone}")
            model.free(live.pop(gone))
        elif what < 0.94:
            gone = rng.choice(list(live))
            script.append(f"l {gone}")
            waiting[gone] = model.free_later(live.pop(gone))
        elif what < 0.98 and waiting:
            done = rng.choice(list(waiting))
            script.append(f"c {done}")
            model.complete(waiting.pop(done))
        elif what < 0.985:
            script.append("e")
            model.empty_cache()
    gauges = " ".join(f"{model.now[name]} {model.peak[name]}" for name in STATISTICS)
    answers.append(f"end {gauges} {model.retries} {model.ooms} {model.device_allocs} {model.device_frees}")
    return script, answers


def test_both_models_do_the_same():
    subprocess.run(["cargo", "build", "--locked", "-q", "--workspace", "--example", "drive"], cwd=ROOT, check=True)
    with multiprocessing.Pool() as workers:
        traces = workers.map(trace, range(TRACES), chunksize=100)
    script = "\n".join(line for lines, _ in traces for line in lines) + "\n"
    driver = os.path.join(ROOT, "target", "debug", "examples", "drive")
    done = subprocess.run([driver], input=script, capture_output=True, text=True, check=True)
    ours = iter(done.stdout.splitlines())
    refused, retried = 0, 0
    for seed, (script, answers) in enumerate(traces):
        got = [next(ours) for _ in answers]
        assert got == answers, f"trace {seed}: {first_difference(script, answers, got)}"
        refused += sum(answer.startswith("oom") for answer in answers)
        retried += int(answers[-1].split()[-4])
    assert next(ours, None) is None
    assert refused > TRACES and retried > TRACES / 2, "the traces must run into their limits"


def first_difference(script, theirs, ours):
    calls = [line for line in script if line.startswith("a ")] + ["the end"]
    for call, a, b in zip(calls, theirs, ours):
        if a != b:
            return f"{script[0]}; at {call!r}: Python {a!r}, Rust {b!r}"
    return None
