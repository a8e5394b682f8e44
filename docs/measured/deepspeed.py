"""DeepSpeed's ZeRO on a real GPU, beside what `oomph predict --ranks` says.

    PYTHONPATH=FOLDER python deepspeed.py gpu --out gpu.jsonl             on a machine with a GPU; FOLDER has deepspeed, hjson, msgpack, einops and cpuinfo
    python deepspeed.py predicted --oomph PATH/oomph --python PATH --out predicted.jsonl      anywhere, with the same versions
    python deepspeed.py table gpu.jsonl predicted.jsonl

On the GPU the ranks are four processes which share the one card and talk by NCCL over sockets: to NCCL they are of several hosts (NCCL_HOSTID). Each gives PyTorch's own peaks.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

PROGRAMS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/programs"))
RANKS, LIMIT = 4, 80
CASES = ["--stage 1", "--stage 2", "--stage 3", "--stage 1 --offload", "--stage 2 --offload", "--stage 3 --offload", "--stage 3 --offload-parameters"]


def started(words, rank, port, out):
    # DeepSpeed takes the card of the local rank: each is the only one of its machine.
    environment = dict(os.environ, RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE="1")
    environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_HOSTID=f"host{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    command = [sys.executable, "deepspeed_zero.py", *words.split()]
    return subprocess.Popen(command, cwd=PROGRAMS, env=environment, stdout=out, stderr=subprocess.STDOUT)


def last_line(text):
    return (text.strip().splitlines() or [""])[-1][:160]


def on_gpu(number, words):
    with tempfile.TemporaryDirectory() as folder:
        files = [open(os.path.join(folder, str(rank)), "w+") for rank in range(RANKS)]
        processes = [started(words, rank, 29700 + number, file) for rank, file in enumerate(files)]
        end = time.monotonic() + LIMIT
        # Where one has failed, the others wait for it.
        while any(one.poll() is None for one in processes) and not any(one.poll() for one in processes) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(1)
        failed = [rank for rank, one in enumerate(processes) if one.poll()]
        for process in processes:
            process.kill()
            process.wait()
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
    found = [re.search(r"PEAK allocated=(\d+) reserved=(\d+)", text) for text in texts]
    row = {"case": words, "gpu": [[int(one[1]), int(one[2])] if one else None for one in found]}
    if None in row["gpu"]:
        row["error"] = last_line(texts[failed[0]]) if failed else f"not done after {LIMIT} s"
    return row | {"losses": re.findall(r"step \d+ loss ([\d.]+)", texts[0])}


def found(command):
    """A path as it is from another folder; a name as it is."""
    return os.path.abspath(command) if os.sep in command else command


def predicted(words, arguments):
    command = [found(arguments.oomph), "predict", "--no-recording", "--gpu", "h200", "--python", found(arguments.python), "--steps", "0", "--format", "json"]
    ran = subprocess.run([*command, "--ranks", str(RANKS), "deepspeed_zero.py", *words.split()], cwd=PROGRAMS, capture_output=True, text=True, timeout=900)
    try:
        ranks = json.loads(ran.stdout)["predictions"]
    except ValueError:
        return {"case": words, "predicted": None, "error": last_line(ran.stderr)}
    return {"case": words, "predicted": [[one["peak"]["allocated"], one["peak"]["reserved"]] for one in ranks]}


def table(paths):
    rows = {}
    for path in paths:
        with open(path) as file:
            for row in map(json.loads, file):
                rows.setdefault(row["case"], {}).update(row)
    print("| case | allocated, rank 0 | predicted | reserved, rank 0 | predicted |\n|---|---:|---:|---:|---:|")
    for case, row in rows.items():
        gpu, mine = (next(iter(row.get(name) or []), None) or ["", ""] for name in ("gpu", "predicted"))
        print(f"| `{case}` | {gpu[0]} | {mine[0]} | {gpu[1]} | {mine[1]} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("gpu", "predicted", "table"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    if arguments.what == "table":
        return table(arguments.files)
    with open(arguments.out, "a") as out:
        for number, words in enumerate(CASES):
            row = on_gpu(number, words) if arguments.what == "gpu" else predicted(words, arguments)
            print(json.dumps(row), file=out, flush=True)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
