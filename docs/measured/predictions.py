"""Programs on a real GPU beside what `oomph predict` says of them, in one go, on one machine.

    python predictions.py --oomph PATH/oomph --gpu h200 [--only WORD,...] [--jobs 6] [--out rows.jsonl]
    python predictions.py --oomph PATH/oomph --gpu h200 --truth fixtures/grid.jsonl     without a GPU: against counters
    python predictions.py --table rows.jsonl                                             the table again

Each program runs by itself, in a process of its own, and again under `oomph predict`; both give PyTorch's own peaks.
Programs with a GradScaler run 12 steps on the GPU: in the first ones gradients overflow and the optimizer is skipped,
so that its state is not there yet. A prediction is of the steady state, and so are these rows.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.normpath(os.path.join(HERE, "../../tests/programs"))

# The programs and, of some, more than one size.
CASES = """
plain_loop.py | plain_loop.py --batch-size 48 | hf_trainer.py | hf_trainer.py --bf16 | lightning_fit.py | compiled.py
checkpointing.py | checkpointing.py --no-checkpoint | autocast_fp16.py --steps 12 | autocast_bf16.py
autocast_bf16.py --batch-size 4 | adam_8bit.py | lora.py | lora.py --rank 64 | dataloader_workers.py | generate.py
generate.py --batch-size 3 --max-new-tokens 64 | lstm.py | lstm.py --batch-size 7 | convnet_benchmark.py
attention_half.py | attention_half.py --batch-size 5 | moe.py | moe.py --batch-size 3 | masks.py | llama_causal.py
llama_causal.py --no-padding | llama_causal.py --attention eager | steering.py | inference.py | inference.py --no-grad
vae_or_gan.py | vae_or_gan.py --batch-size 33 | diffusion_unet.py
diffusion_unet.py --batch-size 3 | vit.py | vit.py --freeze | embedding_bag.py | fft_and_linalg.py | graph_capture.py
several_streams.py | caught_oom.py --memory-fraction 0.08 | ddp.py | fsdp2.py
""".replace("\n", "|")


def programs():
    return [case.split() for case in map(str.strip, CASES.split("|")) if case]


def grid(path):
    rows = []
    with open(path) as file:
        for line in file:
            row = json.loads(line)
            words = ["grid.py", row["model"], str(row["batch"]), "--dtype", row["dtype"], "--optim", row["optim"]]
            rows.append((words + (["--ckpt"] if row["ckpt"] else []), row))
    return rows


def on_gpu(words):
    """PyTorch's own peaks on the real GPU."""
    command = [sys.executable]
    if words[0] in ("ddp.py", "fsdp2.py"):
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    if "fp16" in words:
        words = [*words, "--steps", "12"]
    ran = subprocess.run(command + words, cwd=PROGRAMS, capture_output=True, text=True, timeout=400)
    found = re.findall(r"PEAK allocated=(\d+) reserved=(\d+)", ran.stdout)
    if not found:
        return {"error": (ran.stderr.strip().splitlines() or ["no PEAK line"])[-1][:200]}
    return {"allocated": int(found[-1][0]), "reserved": int(found[-1][1])}


def predicted(words, oomph, gpu, python):
    """The same from `oomph predict`, run to the program's end."""
    ranks = ["--ranks", "1"] if words[0] in ("ddp.py", "fsdp2.py") else []
    command = [oomph, "predict", "--gpu", gpu, "--python", python, "--steps", "0", "--format", "json"]
    command += ["--no-recording", *ranks, *words]
    ran = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True, timeout=400)
    try:
        result = json.loads(ran.stdout)
    except ValueError:
        return {"error": (ran.stderr.strip().splitlines() or ["no result"])[-1][:200]}
    result = result.get("predictions", [result])[0]
    if result["fits"] is None:
        return {"error": result["error"][:200]}
    return {
        "allocated": result["peak"]["allocated"],
        "reserved": result["peak"]["reserved"],
        "uncertain": len([one for one in result["uncertain"] if one["what"] != "note"]),
        "unmodelled": [call["name"] for call in result["unmodelled_calls"]],
    }


def table(rows):
    def percent(row, key):
        return 100 * (row["predicted"][key] / row["gpu"][key] - 1)

    print("| program | GPU's peak allocated | predicted | error | GPU's peak reserved | predicted | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    compared = []
    for row in rows:
        name = " ".join(row["words"])
        if "error" in row["gpu"] or "error" in row["predicted"]:
            print(f"| `{name}` | {row['gpu'].get('error', 'ran')} | {row['predicted'].get('error', 'ran')} | | | | |")
            continue
        allocated, reserved = percent(row, "allocated"), percent(row, "reserved")
        compared.append((abs(allocated), abs(reserved)))
        print(
            f"| `{name}` | {row['gpu']['allocated']:,} | {row['predicted']['allocated']:,} | {allocated:+.2f} % "
            f"| {row['gpu']['reserved']:,} | {row['predicted']['reserved']:,} | {reserved:+.2f} % |"
        )
    if compared:
        print(f"\n{len(compared)} programs. Error of peak allocated: median {statistics.median(a for a, _ in compared):.3f} %, ", end="")
        print(f"at most {max(a for a, _ in compared):.2f} %; of peak reserved: median ", end="")
        print(f"{statistics.median(r for _, r in compared):.3f} %, at most {max(r for _, r in compared):.2f} %. ", end="")
        print(f"To the byte: {sum(a == 0 for a, _ in compared)} allocated, {sum(r == 0 for _, r in compared)} reserved.")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oomph")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--truth", help="counters from a GPU instead of a GPU: the grid's rows")
    parser.add_argument("--grid", help="run the grid's programs too, of this file")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--table")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    if args.table:
        with open(args.table) as file:
            return table([json.loads(line) for line in file])
    known = {}
    if args.truth:
        cases = []
        for words, row in grid(args.truth):
            known[tuple(words)] = {"allocated": row["peak_allocated"], "reserved": row["peak_reserved"]}
            cases.append(words)
    else:
        cases = programs() + ([words for words, _ in grid(args.grid)] if args.grid else [])
    wanted = [word for word in args.only.split(",") if word]
    cases = [words for words in cases if not wanted or any(word in " ".join(words) for word in wanted)]

    def one(words):
        try:
            real = known.get(tuple(words)) or on_gpu(words)
        except subprocess.TimeoutExpired:
            real = {"error": "took too long"}
        try:
            virtual = predicted(words, args.oomph, args.gpu, args.python)
        except subprocess.TimeoutExpired:
            virtual = {"error": "took too long"}
        row = {"words": words, "gpu": real, "predicted": virtual}
        print(json.dumps(row), file=sys.stderr, flush=True)
        return row

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(one, cases))
    if args.out:
        with open(args.out, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if not args.truth:
        import torch

        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
        print(f"{card}, torch {torch.__version__}, {datetime.date.today()}\n")
    table(rows)


if __name__ == "__main__":
    main()
