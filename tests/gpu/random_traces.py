"""Drive PyTorch's real allocator at random, under many settings, and keep what it did.

    python random_traces.py OUT_DIR [--seeds 40]

Each process has one setting and one seed: it allocates and frees blocks of many sizes, on several streams, with
record_stream, empty_cache, private pools, and a limit that it runs into. Its snapshot (every address) and its
statistics are the truth that the model of the allocator is held against (crates/oomph-replay/tests/random_traces.rs).
Nothing is computed, so a case takes as long as CUDA takes to start.
"""
import json, lzma, os, random, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor

MIB = 2**20
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64,max_non_split_rounding_mb:24",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:8,16:4,64:1,>:2]",
    "large_segment_size_mb:32",
    "large_segment_size_mb:12,expandable_segments:True",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:0.7,max_split_size_mb:40",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:64",
    "expandable_segments:True,garbage_collection_threshold:0.6",
    "max_split_size_mb:21,roundup_power2_divisions:2,large_segment_size_mb:16",
]


def size(rng):
    kind = rng.random()
    if kind < 0.35:
        return rng.randrange(1, 4096)
    if kind < 0.55:
        return rng.randrange(4096, MIB + 1)
    if kind < 0.80:
        return rng.randrange(MIB + 1, 12 * MIB)
    if kind < 0.97:
        return rng.choice([rng.randrange(10 * MIB, 90 * MIB), 16 * MIB, 20 * MIB, 32 * MIB, 64 * MIB])
    return rng.randrange(90 * MIB, 400 * MIB)


def child(path, conf, seed):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    import torch

    rng = random.Random(seed)
    torch.cuda.init()
    total = torch.cuda.mem_get_info()[1]
    cap = rng.choice([None, 600 * MIB, 1500 * MIB, 3000 * MIB])
    if cap is None and "garbage" in conf:
        cap = 2000 * MIB
    if cap:
        torch.cuda.set_per_process_memory_fraction(cap / total)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    side = [torch.cuda.Stream() for _ in range(2)]
    pool = torch.cuda.MemPool() if seed % 3 == 0 else None
    live, caught = [], 0

    def allocate(stream=None, private=False):
        n = size(rng)
        if private:
            with torch.cuda.use_mem_pool(pool):
                return torch.empty(n, dtype=torch.uint8, device="cuda")
        if stream is None:
            return torch.empty(n, dtype=torch.uint8, device="cuda")
        with torch.cuda.stream(stream):
            return torch.empty(n, dtype=torch.uint8, device="cuda")

    for _ in range(rng.choice([300, 800, 1500])):
        what = rng.random()
        try:
            if what < 0.50:
                live.append(allocate())
            elif what < 0.56:
                live.append(allocate(rng.choice(side)))
            elif what < 0.58 and pool is not None:
                live.append(allocate(private=True))
            elif what < 0.60 and live:
                rng.choice(live).record_stream(rng.choice(side))
            elif what < 0.603:
                torch.cuda.empty_cache()
            elif live:
                del live[rng.randrange(len(live))]
        except torch.OutOfMemoryError:
            caught += 1
            for _ in range(rng.randrange(1, 1 + len(live) // 2) if len(live) > 1 else 0):
                del live[rng.randrange(len(live))]
    stats = torch.cuda.memory_stats()
    torch.cuda.memory._dump_snapshot(path)
    keys = [k for k in stats if k.startswith("num_") or k.endswith((".all.peak", ".all.current"))]
    limit = int(cap / total * total) if cap else None
    print("JSON " + json.dumps(dict(
        case=os.path.basename(path)[:-7], torch=torch.__version__, gpu=torch.cuda.get_device_name(), conf=conf, seed=seed,
        fraction=cap / total if cap else None, total=total, caught=caught, stats={k: stats[k] for k in keys})))


def main():
    folder = sys.argv[1]
    if sys.argv[2] == "--child":
        child(folder, sys.argv[3], int(sys.argv[4]))
        return
    os.makedirs(folder, exist_ok=True)
    seeds = int(sys.argv[sys.argv.index("--seeds") + 1]) if "--seeds" in sys.argv else 40
    jobs = [(f"random{seed:03}", SETTINGS[seed % len(SETTINGS)], seed) for seed in range(seeds)]

    def run(job):
        name, conf, seed = job
        start = time.time()
        path = os.path.join(folder, name + ".pickle")
        p = subprocess.run([sys.executable, __file__, path, "--child", conf, str(seed)], capture_output=True, text=True, timeout=300)
        lines = [l[5:] for l in p.stdout.splitlines() if l.startswith("JSON ")]
        return name, lines, time.time() - start, p.stderr[-500:]

    with ThreadPoolExecutor(8) as workers, open(os.path.join(folder, "random.jsonl"), "w") as out:
        for name, lines, took, err in workers.map(run, jobs):
            if not lines:
                print(name, "FAILED", f"{took:.1f} s", err, flush=True)
            out.writelines(line + "\n" for line in lines)


if __name__ == "__main__":
    main()
