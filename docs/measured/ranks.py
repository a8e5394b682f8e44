"""One model in every way in which PyTorch shares it out, on a real GPU beside what `oomph predict --ranks` says.

    python ranks.py gpu [--only WORD,...] --out rows.jsonl          on a machine with a GPU
    python ranks.py predicted --oomph PATH/oomph --python PATH --gpu h200 --out rows.jsonl      anywhere, with the same PyTorch
    python ranks.py table rows.jsonl

On the GPU each way is run twice. As eight processes which share the one card and talk by NCCL over sockets: to NCCL they are of several hosts
(NCCL_HOSTID), so that it lets them share it. And as one rank of eight in PyTorch's fake process group, where that way runs in it. Each gives
PyTorch's own peaks, of each rank.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.normpath(os.path.join(HERE, "../../tests/programs"))
sys.path.insert(0, PROGRAMS)
WORLD = 8
# Stages are dealt out of eight blocks; and context parallelism failed with eight ranks, in PyTorch itself.
# Those of launched.py, which libraries share out. Each rank is the only one of its machine to them: they take the card of their local rank.
LAUNCHED = ["accelerate-ddp", "accelerate-fsdp2"]
WORLDS = {"accelerate-ddp": 4, "accelerate-fsdp2": 4, "pipeline-gpipe": 4, "pipeline-1f1b": 4, "pipeline-interleaved": 4, "context": 4}
LIMIT = 110


def ways():
    import parallel

    return [*parallel.WHOLE.split(), *parallel.PIPELINES.split(), *LAUNCHED]


def program(how):
    return ["launched.py", "--by", how] if how in LAUNCHED else ["parallel.py", "--how", how]


def peaks(text):
    found = re.search(r"PEAK allocated=(\d+) reserved=(\d+)", text)
    return [int(found[1]), int(found[2])] if found else None


def started(how, rank, world, port, more):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world))
    environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    if how in LAUNCHED:
        environment.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    command = [sys.executable, *program(how), *more]
    return subprocess.Popen(command, cwd=PROGRAMS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def heard(processes):
    end, texts = time.monotonic() + LIMIT, []
    for process in processes:
        try:
            texts.append(process.communicate(timeout=max(1, end - time.monotonic()))[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[0] + "\nno end")
    return texts


def last_line(text):
    return (text.strip().splitlines() or [""])[-1][:160]


def on_gpu(number, how):
    """Each rank's peaks with NCCL, and those of the first and the last in the fake group."""
    world, begun = WORLDS.get(how, WORLD), time.monotonic()
    texts = heard([started(how, rank, world, 29600 + number, []) for rank in range(world)])
    row = {"how": how, "world": world, "nccl": [peaks(text) for text in texts]}
    if None in row["nccl"]:
        row["nccl_error"] = last_line(texts[row["nccl"].index(None)])
    row["losses"] = re.findall(r"step \d+ loss ([\d.]+)", "".join(texts))
    row["fake"] = [None]
    if how not in LAUNCHED:
        texts = heard([started(how, rank, world, 29900, ["--fake", str(world), "--rank", str(rank)]) for rank in (0, world - 1)])
        row["fake"] = [peaks(text) for text in texts]
        if None in row["fake"]:
            row["fake_error"] = last_line(texts[row["fake"].index(None)])
    row["seconds"] = round(time.monotonic() - begun, 1)
    return row


def found(command):
    """A path as it is from another folder; a name as it is."""
    return os.path.abspath(command) if os.sep in command else command


def predicted(how, arguments):
    world = WORLDS.get(how, WORLD)
    command = [found(arguments.oomph), "predict", "--gpu", arguments.gpu, "--python", found(arguments.python), "--steps", "0", "--format", "json"]
    command += ["--ranks", str(world), *program(how)]
    begun = time.monotonic()
    ran = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True, timeout=900)
    row = {"how": how, "seconds": round(time.monotonic() - begun, 1)}
    try:
        ranks = json.loads(ran.stdout)["predictions"]
    except ValueError:
        return {**row, "predicted": None, "error": last_line(ran.stderr)}
    return {**row, "predicted": [[one["peak"]["allocated"], one["peak"]["reserved"]] for one in ranks]}


def table(rows):
    def worst(how, truth, place):
        """The error of the rank that is furthest off, in percent."""
        pairs = zip(rows[how]["predicted"], truth)
        return max((100 * (mine[place] / theirs[place] - 1) for mine, theirs in pairs), key=abs)

    def error(percent):
        return "0" if percent == 0 else f"{percent:+.3f} %"

    print("| way | ranks | allocated, rank 0 | predicted | worst rank | reserved, rank 0 | predicted | worst rank | fake group, rank 0 |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    for how, row in rows.items():
        if not row.get("predicted") or None in row.get("nccl", [None]):
            print(f"| {how} | {row.get('world')} | {row.get('nccl_error', '')} | {row.get('error', '')} | | | | | |")
            continue
        (allocated, reserved), (mine, kept), fake = row["nccl"][0], row["predicted"][0], row["fake"][0]
        beside = "does not run" if fake is None else "the same" if fake == row["nccl"][0] else f"{fake[0]:,} and {fake[1]:,}"
        print(
            f"| {how} | {row['world']} | {allocated:,} | {mine:,} | {error(worst(how, row['nccl'], 0))} | {reserved:,} | {kept:,} | {error(worst(how, row['nccl'], 1))} | {beside} |"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("gpu", "predicted", "table"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out")
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--gpu", default="h200")
    arguments = parser.parse_args()
    if arguments.what == "table":
        rows = {}
        for path in arguments.files:
            with open(path) as file:
                for line in file:
                    row = json.loads(line)
                    rows.setdefault(row["how"], {}).update(row)
        return table(rows)
    only = [word for word in arguments.only.split(",") if word]
    wanted = [how for how in ways() if not only or how in only]
    run = (lambda number, how: on_gpu(number, how)) if arguments.what == "gpu" else (lambda _, how: predicted(how, arguments))
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool, open(arguments.out, "a") as out:
        for row in pool.map(run, range(len(wanted)), wanted):
            print(json.dumps(row), file=out, flush=True)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
