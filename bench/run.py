"""Measure oomph, each part beside what it is compared to, in the same run.

    python bench/run.py [--check] [--only explain,replay,tune,predict,record,report,ranks,data,stream,ram]

explain   `oomph explain` beside CPython's `pickle.load` of the same bytes. Each round times one process of each, one after
          the other, so that a busy machine slows both; the best and the median of the rounds are shown. Memory is each process's
          highest resident set. `pickle.load` is timed inside its process, without Python's start-up; `oomph explain` from
          outside, start-up and all. Bars: at least 20 times as fast (median of rounds), at most half of the memory.
replay    the native allocator's model on one core: the bench recording and four real ones. Bar: 5 million events a second.
tune      `oomph tune` on a recording of two million events, from outside. Bar: 20 seconds.
predict   `oomph predict` of three steps of GPT-2 (124M parameters, examples/train_gpt2.py) beside a Python that only imports what
          every training script does (torch, and torch._dynamo, which optimizers import). Bar: two seconds more, by the median.
record    what a block and its free cost under oomph's recorder beside PyTorch's own, on a virtual GPU, under 50 Python frames: once a
          program repeats its steps, and where every step is new. Bars: a tenth, and a half, of what PyTorch's costs.
report    `oomph report` beside PyTorch's `_memory_viz.trace_plot` on the same snapshot: seconds, memory and bytes of both pages, and what ours takes to
          open in headless Chromium, all pictures drawn. PyTorch's cannot be opened here: it fetches its script from a CDN. trace_plot is timed without
          loading the pickle, which is timed apart. Then a recording as long in which no step repeats another. Bars: pages under 5 MB that open in under two
          seconds.
ranks     512 recordings of one run, 20,000 events each, of which one leaks, one has larger activations and one dies: `oomph explain` and `oomph report` of all of
          them, and what the page takes to open. Bars: explained in ten seconds and written in twenty, in 1 GiB each; the page opens in under two.
data      CSVs of mixed columns, 4 million rows and 2 GB (bench/data_generate.py; the second only where there is room, and removed afterwards), loaded by pandas, polars, pyarrow,
          DuckDB and oomph, each in a process of its own: best and median seconds, peak memory above importing, bytes of the result. Bars: oomph's peak is at most 1.3 times
          its result, and it is as fast as the fastest of the others that ends with a small table.
stream    a CSV of ten times the budget, and the same as Parquet, read as batches of tensors by oomph.data.stream, torch's DataLoader with two workers over pyarrow, and Hugging Face's
          datasets: rows a second, and the highest memory (PSS of all processes without pages of files, above importing). Bar: at most 100 MiB above the budget.
ram       `oomph run --ram` of four programs (docs/measured/ram.py): seconds of their work beside the same without it, in turns, the best of the rounds, and the highest resident sets. Bars: at most
          5 % more for pandas, NumPy and a training, 30 % for a program that only makes objects, and 50 MiB.

With --check the bars must hold.
"""

import argparse
import glob
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import tables

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
PARTS = ("explain", "replay", "tune", "predict", "record", "report", "ranks", "data", "stream", "ram")
LOAD = """
import pickle, sys, time
with open(sys.argv[1], "rb") as file:
    start = time.perf_counter()
    pickle.load(file)
    print(time.perf_counter() - start)
"""

TRACE_PLOT = """
import pickle, sys, time
from torch.cuda._memory_viz import trace_plot
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
loaded = time.perf_counter()
page = trace_plot(snapshot)
print(loaded - start, time.perf_counter() - loaded, len(page))
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


def large_recording(events):
    data = os.path.join(HERE, "data", f"large-{events}.pickle")
    if not os.path.exists(data):
        os.makedirs(os.path.dirname(data), exist_ok=True)
        subprocess.run([sys.executable, os.path.join(HERE, "generate_snapshot.py"), data, "--events", str(events)], check=True)
    return data


def explain(args, data):
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
    return [("explain is at least 20 times as fast", ratio >= 20), ("explain takes at most half of the memory", share <= 0.5)]


def replay(args, data):
    real = ["settings/t5_lengths", "settings/vit_sizes", "h200/bert_var16", "h200/generate8"]
    files = [data] + [os.path.join(ROOT, "fixtures", name + ".pickle.xz") for name in real]
    slowest = None
    print(f"{'events':>10}{'million a second':>18}{'blocks at once':>16}  recording, settings, rules")
    for path in files:
        for line in measure([args.throughput, path])[2].splitlines():
            row = json.loads(line)
            rate = row["events"] / row["seconds"] / 1e6
            slowest = rate if slowest is None else min(rate, slowest)
            name = os.path.basename(path).split(".")[0]
            print(f"{row['events']:>10,}{rate:>18.1f}{row['block_slots']:>16,}  {name}, {row['conf'] or 'defaults'}, {row['torch']}")
    return [("the native model goes through 5 million events a second", slowest >= 5)]


def tune(args, data):
    seconds, memory, output = measure([args.oomph, "tune", data, "--format", "json"])
    trials = json.loads(output)["trials"]
    print(f"oomph tune: {len(trials)} settings, {seconds:.1f} s, {memory / 2**20:.0f} MiB")
    return [("tune takes less than 20 seconds", seconds < 20)]


def predict(args, _):
    script = os.path.join(ROOT, "examples/train_gpt2.py")
    command = [args.oomph, "predict", "-q", "--no-recording", "--gpu", "t4", "--python", args.python, script, "--batch-size", "4"]
    imports = [args.python, "-c", "import torch, torch._dynamo"]
    pairs = [(measure(command)[0], measure(imports)[0]) for _ in range(max(3, args.rounds // 2))]
    more = statistics.median(predicted - imported for predicted, imported in pairs)
    predicted, imported = (statistics.median(column) for column in zip(*pairs))
    print(f"oomph predict, GPT-2, three steps: {predicted:.1f} s; importing alone {imported:.1f} s; {more:.1f} s more")
    return [("predicting takes two seconds more than importing", more < 2)]


def record(args, _):
    library = subprocess.run([args.oomph, "run", "--library"], capture_output=True, text=True, check=True).stdout.strip()
    script = os.path.join(HERE, "record_blocks.py")
    command = [args.oomph, "run", "-q", "--no-recording", "--gpu", "t4", "--python", args.python, script, library]
    costs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"a block and its free: {costs['plain']:.0f} ns; more: steady {costs['steady']:.0f}, new steps {costs['new']:.0f}, PyTorch's recorder {costs['pytorch']:.0f}")
    return [
        ("a steady program costs a tenth of PyTorch's recorder", costs["steady"] < 0.1 * costs["pytorch"]),
        ("new steps cost half of it", costs["new"] < 0.5 * costs["pytorch"]),
    ]


def lengths_recording(args):
    """Two million events of which no step repeats another, recorded on a virtual GPU."""
    data = os.path.join(HERE, "data", "lengths.oomph")
    if not os.path.exists(data):
        script = os.path.join(HERE, "train_lengths.py")
        subprocess.run([args.oomph, "run", "-q", "--gpu", "a100-80gb", "--python", args.python, "-o", data, script, "520"], check=True)
    return data


def report(args, data):
    page = os.path.join(HERE, "data", "report.html")
    bars = []
    print(f"{'':34}{'seconds':>9}{'memory':>12}{'page':>12}{'words':>9}{'all drawn':>11}")
    for name, recording in (("oomph report", data), ("oomph report, varying lengths", lengths_recording(args))):
        seconds, memory, _ = measure([args.oomph, "report", "-q", recording, "-o", page, "--force", "--what-if", "never"])
        size = os.path.getsize(page)
        opened = json.loads(subprocess.run([args.python, os.path.join(HERE, "open_page.py"), "5", page], capture_output=True, text=True, check=True).stdout)
        words, drawn = statistics.median(opened["words"]), statistics.median(opened["drawn"])
        print(f"{name:34}{seconds:>9.2f}{memory / 2**20:>8.0f} MiB{size / 1e6:>9.2f} MB{words:>7.2f} s{drawn:>9.2f} s  script's heap {opened['heap'] / 2**20:.0f} MiB")
        bars += [(f"{name}: the page is under 5 MB", size < 5e6), (f"{name}: the page opens in under two seconds", drawn < 2)]
    _, memory, output = measure([args.python, "-c", TRACE_PLOT, data])
    load, plot, size = output.split()
    print(f"{'_memory_viz.trace_plot':34}{float(plot):>9.2f}{memory / 2**20:>8.0f} MiB{int(size) / 1e6:>9.2f} MB{'-':>9}{'-':>11}  after {float(load):.1f} s of loading the pickle")
    return bars


def ranks(args, _):
    folder = os.path.join(HERE, "data", "ranks")
    if not os.path.exists(folder):
        subprocess.run([sys.executable, os.path.join(HERE, "generate_ranks.py"), folder], check=True)
    files, page = sorted(glob.glob(os.path.join(folder, "*.pickle"))), os.path.join(HERE, "data", "ranks.html")
    explained, explain_memory, output = measure([args.oomph, "explain", *files])
    written, report_memory, _ = measure([args.oomph, "report", "-q", *files, "-o", page, "--force"])
    opened = json.loads(subprocess.run([args.python, os.path.join(HERE, "open_page.py"), "3", page], capture_output=True, text=True, check=True).stdout)
    drawn, named = statistics.median(opened["drawn"]), [f"rank{number}.pickle" in output for number in (17, 300, 400)]
    size = sum(map(os.path.getsize, files))
    print(
        f"{len(files)} recordings, {size / 2**20:.0f} MiB: explained in {explained:.1f} s, {explain_memory / 2**20:.0f} MiB; written in {written:.1f} s, {report_memory / 2**20:.0f} MiB"
    )
    print(f"page of {os.path.getsize(page) / 1e6:.2f} MB, all drawn in {drawn:.2f} s; named the one that leaks, the larger one and the one that dies: {named}")
    return [
        ("512 ranks are explained in ten seconds", explained < 10),
        ("their page is written in twenty", written < 20),
        ("each in 1 GiB", max(explain_memory, report_memory) < 2**30),
        ("their page opens in under two seconds", drawn < 2),
        ("who stands out is named", all(named)),
    ]


def data(args, _):
    return tables.data(args)


def stream(args, _):
    return tables.stream(args)


def ram(args, _):
    script = os.path.join(ROOT, "docs/measured/ram.py")
    command = [args.python, script, "--oomph", args.oomph, "--python", args.python, "--rounds", str(args.rounds), "--tools", "plain,oomph run --ram", "cost"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    print(output)
    return [(f"RAM: {line.rsplit(': ', 1)[0]}", line.endswith(": holds")) for line in output.splitlines() if "(goal: " in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default=os.path.join(ROOT, "target/dist/oomph"))
    parser.add_argument("--throughput", default=os.path.join(ROOT, "target/dist/examples/throughput"))
    parser.add_argument("--python", default=os.path.join(ROOT, ".venv/bin/python"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    data = large_recording(args.events)
    bars = []
    for part in args.only.split(","):
        print(f"--- {part}")
        bars += globals()[part](args, data)
    missed = [bar for bar, holds in bars if not holds]
    for bar in missed:
        print(f"MISSED: {bar}")
    if args.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
