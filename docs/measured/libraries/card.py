"""All of it on a card: `python card.py OUT` writes OUT/answers.jsonl and OUT/plans.jsonl.

Networks of convolutions run one after another where plans are tried, because others would disturb their times. cuDNN's frontend writes down which plans PyTorch
made, what each needs and how long it took; `plans.jsonl` has that in order.
"""

import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = sys.argv[1]
PLAN = re.compile(r"EXECUTION_PLAN_DESCRIPTOR : (\S+?),.*workSpaceSize: (\d+)")
TOOK = re.compile(r"Plan (\S+) took\s+(\S+)")
NETS = ("resnet18", "unet", "transpose", "sound", "mobilenet", "resnet50")
# How many processes import PyTorch while another has the card.
AHEAD = 4


def start(net, mode, benchmark):
    """A process that has imported PyTorch and waits until it is let go."""
    name = os.path.join(OUT, f"{net}-{mode}-{int(benchmark)}")
    environment = dict(os.environ, CUDNN_FRONTEND_LOG_INFO="1", CUDNN_FRONTEND_LOG_FILE=name + ".log", WAIT_FOR=name + ".go")
    words = [net, mode, *(["--benchmark"] if benchmark else [])]
    command = [sys.executable, os.path.join(HERE, "convolutions.py"), *words]
    return name, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def gather(name, process, answers, plans):
    open(name + ".go", "w").close()
    out, _ = process.communicate(timeout=120)
    peaks = re.search(r"PEAK allocated=(\d+) reserved=(\d+)", out)
    answer = {"allocated": int(peaks[1]), "reserved": int(peaks[2])} if peaks else {"error": out[-300:]}
    print(json.dumps({"call": os.path.basename(name), "answer": answer}), file=answers, flush=True)
    found = []
    with open(name + ".log", errors="replace") as log:
        for line in log:
            for kind, pattern in (("plan", PLAN), ("took", TOOK)):
                if match := pattern.search(line):
                    found.append([kind, *match.groups()])
    print(json.dumps({"name": os.path.basename(name), "plans": found}), file=plans, flush=True)


def main():
    os.makedirs(OUT, exist_ok=True)
    modes = {net: ("fp32", "amp") if net == "sound" else ("fp32", "amp", "last") for net in NETS}
    order = [(net, mode, benchmark) for benchmark in (True, False) for net in NETS for mode in modes[net]]
    with open(os.path.join(OUT, "answers.jsonl"), "w") as answers, open(os.path.join(OUT, "plans.jsonl"), "w") as plans:
        waiting = []
        for index in range(len(order)):
            while len(waiting) < AHEAD and index + len(waiting) < len(order):
                waiting.append(start(*order[index + len(waiting)]))
            gather(*waiting.pop(0), answers, plans)
        for words in (["nccl.py", "1"], ["nccl.py", "2"], ["nccl.py", "4"], ["sizes.py", "60"]):
            ran = subprocess.run([sys.executable, os.path.join(HERE, words[0]), *words[1:]], stdout=subprocess.PIPE, text=True, timeout=150)
            answers.write(ran.stdout)


if __name__ == "__main__":
    main()
