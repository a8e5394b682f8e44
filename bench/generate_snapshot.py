"""Write a large PyTorch snapshot that is like a real one, byte for byte: the shapes, the sharing and the sizes of
a real recording, laid end to end.

    python bench/generate_snapshot.py OUT [--events 2000000] [--seed-fixture fixtures/h200/generate8.pickle.xz]

The seed is a real recording of text generation on an H200 (174,000 events, stacks 20 frames deep, a new list for
every captured traceback, as PyTorch writes them). It is repeated until there are enough events; each
repetition has its own lists and times, and what is alive at the end of one is freed at the beginning of the next.
"""

import argparse
import lzma
import os
import pickle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--events", type=int, default=2_000_000)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--seed-fixture", default=os.path.join(here, "../fixtures/h200/generate8.pickle.xz"))
    args = parser.parse_args()
    with lzma.open(args.seed_fixture) as file:
        snapshot = pickle.load(file)
    seed = snapshot["device_traces"][0]
    alive = {}
    for entry in seed:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            alive.pop(entry["addr"], None)
    span = seed[-1]["time_us"] - seed[0]["time_us"] + 1000
    trace, repetition = list(seed), 1
    while len(trace) < args.events:
        shift = span * repetition
        copies = {}  # one new list for every list of the seed: sharing within a repetition is kept

        def again(entry, **changes):
            frames = entry["frames"]
            entry = dict(entry, time_us=entry["time_us"] + shift, compile_context="N/" + "A", **changes)
            entry["frames"] = copies.setdefault(id(frames), list(frames))
            return entry

        for entry in list(alive.values()):
            freed = dict(entry, time_us=seed[0]["time_us"])
            freed["frames"] = entry["frames"]
            trace.append(again(freed, action="free_requested"))
            trace.append(again(freed, action="free_completed"))
        # Segments are already there: only blocks are allocated again.
        trace.extend(again(entry) for entry in seed if not entry["action"].startswith("segment"))
        repetition += 1
    snapshot["device_traces"] = [trace]
    with open(args.out, "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    print(f"{args.out}: {len(trace):,} events, {os.path.getsize(args.out):,} bytes")


if __name__ == "__main__":
    main()
