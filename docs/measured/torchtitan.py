"""torchtitan's published memory of Llama 3 on H100s, beside what `oomph predict --ranks` says of its trainer without a GPU.

    python torchtitan.py standins FOLDER                                        a tokenizer and a data set of Llama 3's sizes
    python torchtitan.py run --oomph PATH/oomph --python PATH --trainer CHECKOUT --standins FOLDER --out rows.jsonl [--only WORD,...]
    python torchtitan.py table rows.jsonl
    python torchtitan.py sum                                                    the first row, summed by hand

CHECKOUT is torchtitan at the commit of the table (docs/measured/torchtitan.md says which, and what the environment of --python has). Its
trainer and its configurations are run as they are; what the rows change is on their command lines. Beside each prediction stand the minutes
that it took, those of processors, and the most host memory that all of its processes had at once.
"""

import argparse
import base64
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time

GIB = 2**30
# Of the cards of the table: "96GB HBM2e", of which the trainer logs 95 GiB.
CARD = ["--gpu", "h100-sxm", "--memory", "95GiB"]
# Llama 3's tokenizer: so many words, and 256 that are special.
WORDS = 128_000
LIMIT = 3000

FLOAT8 = "--float8.enable_float8_linear --float8.enable_fsdp_float8_all_gather --float8.precompute_float8_dynamic_scale_for_fsdp"
COMPILED = "--training.compile"
CONTEXT = "llama3_8b.toml --training.batch_size 1 --activation_checkpoint.mode full"
LARGE = "llama3_70b.toml --training.batch_size 16"
LARGEST = "llama3_405b.toml --training.tensor_parallel_degree 8 --experimental.pipeline_parallel_degree 8"
SMALL = "debug_model.toml"

# A row: its name, ranks, GiB in the table (none of other ways), and the trainer's arguments after --job.config_file train_configs/.
ROWS = [
    ("8B, FSDP 8", 8, 82.4, "llama3_8b.toml --training.batch_size 2"),
    ("8B, FSDP 8, compile", 8, 77.0, f"llama3_8b.toml --training.batch_size 2 {COMPILED}"),
    ("8B, FSDP 8, compile, float8", 8, 76.8, f"llama3_8b.toml --training.batch_size 2 {COMPILED} {FLOAT8}"),
    ("8B, FSDP 128", 128, 67.0, "llama3_8b.toml --training.batch_size 2"),
    ("8B, FSDP 128, compile", 128, 62.0, f"llama3_8b.toml --training.batch_size 2 {COMPILED}"),
    ("8B, FSDP 128, compile, float8", 128, 61.8, f"llama3_8b.toml --training.batch_size 2 {COMPILED} {FLOAT8}"),
    ("70B, FSDP 32 × TP 8, compile, float8", 256, 71.9, f"{LARGE} {COMPILED} {FLOAT8}"),
    ("70B, FSDP 32 × TP 8, compile, float8, async TP", 256, 67.6, f"{LARGE} {COMPILED} {FLOAT8} --experimental.enable_async_tensor_parallel"),
    ("8B, 32,768 tokens, FSDP 8, compile, float8", 8, 83.9, f"{CONTEXT} --training.seq_len 32768 {COMPILED} {FLOAT8}"),
    (
        "8B, 65,536 tokens, FSDP 4 × CP 2, compile, float8",
        8,
        84.2,
        f"{CONTEXT} --training.seq_len 65536 --experimental.context_parallel_degree 2 {COMPILED} {FLOAT8}",
    ),
    (
        "8B, 131,072 tokens, FSDP 2 × CP 4, compile, float8",
        8,
        84.0,
        f"{CONTEXT} --training.seq_len 131072 --experimental.context_parallel_degree 4 {COMPILED} {FLOAT8}",
    ),
    ("70B, FSDP 32 × TP 8", 256, None, LARGE),
    ("8B, HSDP 2 × 4", 8, None, "llama3_8b.toml --training.data_parallel_replicate_degree 2"),
    ("8B, FSDP 2 × TP 4", 8, None, "llama3_8b.toml --training.tensor_parallel_degree 4"),
    (
        "8B, 16,384 tokens, FSDP 4 × CP 2",
        8,
        None,
        f"{CONTEXT} --training.seq_len 16384 --experimental.context_parallel_degree 2",
    ),
    (
        "8B, FSDP 4 × PP 2, 1F1B",
        8,
        None,
        "llama3_8b.toml --training.batch_size 4 --experimental.pipeline_parallel_degree 2 --experimental.pipeline_parallel_schedule 1F1B",
    ),
    (
        "debug model, FSDP 2 × PP 2 × TP 2, Interleaved1F1B",
        8,
        None,
        f"{SMALL} --training.tensor_parallel_degree 2 --experimental.pipeline_parallel_degree 2 "
        "--experimental.pipeline_parallel_split_points layers.2,layers.4,layers.6 --experimental.pipeline_parallel_schedule Interleaved1F1B",
    ),
    ("debug model, DDP 4", 4, None, f"{SMALL} --training.data_parallel_shard_degree 1 --training.data_parallel_replicate_degree 4"),
    ("debug model, FSDP 4, offloaded", 4, None, f"{SMALL} --training.enable_cpu_offload"),
    ("debug model, FSDP 4, optimizer in backward", 4, None, f"{SMALL} --optimizer.early_step_in_backward"),
]


def standins(folder):
    """A tokenizer of as many words as Llama 3's, which are no words of any language, and texts of numbers: both decide shapes only by how much there is."""
    os.makedirs(os.path.join(folder, "c4_test"), exist_ok=True)
    words = itertools.chain.from_iterable(itertools.product(range(256), repeat=length) for length in (1, 2, 3))
    with open(os.path.join(folder, "tokenizer.model"), "w") as file:
        for number, word in enumerate(itertools.islice(words, WORDS)):
            file.write(f"{base64.b64encode(bytes(word)).decode()} {number}\n")
    with open(os.path.join(folder, "c4_test", "data.json"), "w") as file:
        for row in range(2000):
            text = " ".join(str((row * 7919 + place * 104729) % 100003) for place in range(300))
            file.write(json.dumps({"text": text}) + "\n")


class Host:
    """What a process and its children took, looked at once a second: the most memory at once, where what several have is counted once (proportional set
    size), and the processors' seconds, of which the last second of each process may be missing."""

    def __init__(self, process):
        self.process, self.most, self.seconds = process, 0, {}
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while self.process.poll() is None:
            self.most = max(self.most, sum(map(self.part, self.family())))
            time.sleep(1)

    def family(self):
        parents, ticks = {}, {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
            ticks[int(name)] = int(fields[11]) + int(fields[12])
        found = [self.process.pid]
        for one in found:
            found += [child for child, parent in parents.items() if parent == one]
        self.seconds.update({one: ticks[one] / os.sysconf("SC_CLK_TCK") for one in found if one in ticks})
        return found

    @staticmethod
    def part(process):
        try:
            with open(f"/proc/{process}/smaps_rollup") as file:
                found = re.search(r"^Pss:\s+(\d+) kB", file.read(), re.MULTILINE)
        except OSError:
            return 0
        return int(found[1]) << 10 if found else 0


def by_hand():
    """What the first row has allocated while the loss's gradient is made, without oomph: each buffer by its shape."""
    parameters, ranks, tokens, words, blocks, width, wide, heads, keys = 8_030_261_248, 8, 2 * 8192, 128_256, 32, 4096, 14_336, 32, 1024
    block = 2 * width * width + 2 * width * keys + 3 * width * wide + 2 * width
    parts = {
        "parameters, an eighth, float32": 4 * parameters // ranks,
        "Adam's two moments, an eighth": 8 * parameters // ranks,
        "blocks: input, wq, wv, attention and its logsumexp, w1, w2, bfloat16": blocks * tokens * (2 * (width + width + keys + width + wide + width) + 4 * heads),
        "last norm: its input in float32, what it scales, what it gives": tokens * width * (4 + 2 + 2),
        "logits: log_softmax, its gradient, theirs, float32": 3 * 4 * tokens * words,
        "gathered: embedding, output and the last block, bfloat16": 2 * (2 * words * width + block),
        "rotations": 8192 * 64 * 8,
    }
    for part, size in parts.items():
        print(f"{size:>16,}  {part}")
    print(f"{sum(parts.values()):>16,}  {sum(parts.values()) / GIB:.2f} GiB")


def run(name, ranks, published, words, arguments, conf):
    trainer, *rest = words.split()
    command = [arguments.oomph, "predict", *CARD, "--ranks", str(ranks), "--python", arguments.python, "--until", "steps", "--no-recording", "--format", "json"]
    command += ["train.py", "--job.config_file", f"train_configs/{trainer}", "--job.dump_folder", os.path.join(arguments.standins, "outputs")]
    command += ["--model.tokenizer_path", os.path.join(arguments.standins, "tokenizer.model"), "--training.dataset", "c4_test"]
    command += ["--training.dataset_path", os.path.join(arguments.standins, "c4_test"), "--metrics.log_freq", "1", *rest]
    environment = {key: value for key, value in os.environ.items() if key != "PYTORCH_CUDA_ALLOC_CONF"}
    environment["HF_HUB_OFFLINE"] = "1"
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    row = {"name": name, "ranks": ranks, "published": published, "conf": conf, "words": words}
    begun = time.monotonic()
    process = subprocess.Popen(command, cwd=arguments.trainer, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    host = Host(process)
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate()
    row.update(minutes=round((time.monotonic() - begun) / 60, 2), busy=round(sum(host.seconds.values()) / 60, 2), host=host.most)
    try:
        predictions = json.loads(out)["predictions"]
    except (ValueError, KeyError):
        return {**row, "error": (err.strip().splitlines() or ["it said nothing"])[-1]}
    most = max(predictions, key=lambda one: one["peak"]["reserved"])
    for one in predictions:
        if one["error"]:
            row["error"] = str(one["error"])
    row.update(
        reserved=most["peak"]["reserved"],
        allocated=most["peak"]["allocated"],
        total=most["total"],
        estimated=most["estimated"],
        nccl=most["nccl"],
        rank=most["rank"],
        steps=most["steps"],
        fits=most["fits"],
        run=sum(one["like_rank"] is None for one in predictions),
        notes=[one["why"] for one in most["uncertain"]],
    )
    return row


def table(rows):
    print("| row | ranks | published GiB | predicted GiB | difference | allocated GiB | ranks run | minutes | CPU minutes | host GiB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        name = row["name"] + (f" (`{row['conf']}`)" if row["conf"] else "")
        if "reserved" not in row or row.get("error"):
            print(f"| {name} | {row['ranks']} | {row['published'] or ''} | does not run: {row.get('error')} | | | | {row['minutes']:.1f} | {row.get('busy') or ''} | |")
            continue
        reserved, published = row["reserved"] / GIB, row["published"]
        difference = f"{100 * (reserved / published - 1):+.2f} %" if published else ""
        print(
            f"| {name} | {row['ranks']} | {published or ''} | {reserved:.1f} | {difference} | {row['allocated'] / GIB:.1f} "
            f"| {row['run']} | {row['minutes']:.1f} | {row.get('busy') or ''} | {row['host'] / GIB:.1f} |"
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("standins", "run", "table", "sum"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", default="", help="numbers of rows, from 1")
    parser.add_argument("--conf", default="", help="PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--trainer", default=".")
    parser.add_argument("--standins")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.what == "standins":
        return standins(arguments.files[0])
    if arguments.what == "sum":
        return by_hand()
    if arguments.what == "table":
        return table([json.loads(line) for path in arguments.files for line in open(path)])
    only = [int(number) for number in arguments.only.split(",") if number]
    with open(arguments.out, "a") as out:
        for number, (name, ranks, published, words) in enumerate(ROWS, 1):
            if not only or number in only:
                row = run(name, ranks, published, words, arguments, arguments.conf)
                print(json.dumps(row), file=out, flush=True)
                table([row])


if __name__ == "__main__":
    main()
