"""The tips that people pass on about GPU memory, tested: runs every experiment in a process of its own, and writes docs/folklore.md.

    python docs/measured/folklore.py                                            on the GPU that is there
    python docs/measured/folklore.py --oomph target/release/oomph --gpu h200    on a virtual one: memory only, times mean nothing
    python docs/measured/folklore.py --write                                    the document again, from the numbers of before

Experiments and their words are in docs/measured/folklore, one file a subject. What is measured goes to docs/measured/folklore/results.jsonl, one line a
tip; a tip that cannot be run here (--only, a package that is missing) keeps its line of before, with the machine that it came from. Needs torch and NumPy;
SciPy and TensorFlow for one row each. Exits with 1 if a verdict does not hold, or an experiment failed.
"""

import argparse
import datetime
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
# The package of this name wins over this file.
sys.path.insert(0, str(HERE.parent))

from folklore import TIPS, NotHere, document  # noqa: E402

MARK = "FOLKLORE "


# -- in the process of one experiment


def child(name, variant):
    """Imports while others are being measured, waits for its turn, and says what it measured."""
    tip = TIPS[name]
    if tip.needs == "gpu":
        import torch
    sys.stdin.readline()
    try:
        wants_variant = bool(inspect.signature(tip.experiment).parameters)
        numbers = tip.experiment(variant) if wants_variant else tip.experiment()
    except NotHere as reason:
        print(MARK + json.dumps({"not_run": str(reason)}), flush=True)
        return
    result = {"numbers": {key: number for key, number in numbers.items() if number is not None}}
    if tip.needs == "gpu":
        result["where"] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(MARK + json.dumps(result), flush=True)
    # Autograd's thread may still be letting go of the last graph; where Python ends meanwhile, PyTorch aborts.
    os._exit(0)


# -- the parent


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver():
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
        return asked.stdout.split("\n")[0].strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


class Run:
    """One experiment under one setting: a process that has begun to import, and waits for its turn."""

    def __init__(self, tip, variant, environment, args):
        self.tip, self.variant, self.args = tip, variant, args
        # -E leaves out what `oomph run` would put into the program: it is the plain program that is measured.
        command = [sys.executable, "-E", str(HERE), "--child", tip.name, "--variant", variant]
        virtual = args.gpu and tip.needs == "gpu"
        if virtual:
            command = [str(args.oomph), "run", "--gpu", args.gpu, "--no-recording", *command]
        environment = {**os.environ, **environment, **({"FOLKLORE_VIRTUAL": "1"} if virtual else {})}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True)

    def finish(self):
        """Its turn; gives what it said, or ``failed`` with why."""
        try:
            out, err = self.process.communicate("go\n", timeout=self.tip.limit)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"failed": f"longer than {self.tip.limit} s"}
        printed = [line[len(MARK) :] for line in out.splitlines() if line.startswith(MARK)]
        if printed and self.process.returncode == 0:
            return json.loads(printed[-1])
        return {"failed": f"exit {self.process.returncode}\n{out[-1000:]}{err[-3000:]}"}

    def stop(self):
        """Ends what this object has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


def where(tip, result, args):
    """What produced a row. Nothing about the machine but what the numbers depend on."""
    common = {"python": platform.python_version(), "date": datetime.date.today().isoformat()}
    if tip.needs == "gpu":
        kind = {"kind": "virtual"} if args.gpu else {"kind": "gpu", "driver": driver()}
        return kind | result["where"] | common
    others = {"tensorflow": version("tensorflow-cpu") or version("tensorflow")} if tip.needs == "tensorflow" else {}
    return {"kind": "host", "cores": len(os.sched_getaffinity(0)), "torch": version("torch"), "numpy": version("numpy")} | others | common


def together(tip, parts, args):
    """The row of a tip, from what it said under each of its settings."""
    for result in parts.values():
        if "failed" in result or "not_run" in result:
            return {"tip": tip.name} | result
    numbers = {}
    for variant, result in parts.items():
        for name, number in result["numbers"].items():
            numbers["_".join(part for part in (variant, name) if part)] = number
    return {"tip": tip.name, "numbers": numbers, "where": where(tip, next(iter(parts.values())), args)}


def missing(tip):
    """The package without which a tip is not run, if it is not there."""
    if tip.needs not in ("gpu", "host") and importlib.util.find_spec(tip.needs) is None:
        return {"tip": tip.name, "not_run": f"{tip.needs} is not installed"}
    return None


def measure(tips, args):
    """Rows, in the order of the tips. Some processes import ahead, but only one at a time is on the GPU, and it has ended before the next begins."""
    planned = [(tip, variant, environment) for tip in tips if missing(tip) is None for variant, environment in tip.variants.items()]
    ahead, parts = [], {}
    began = time.monotonic()
    try:
        while planned or ahead:
            while planned and len(ahead) < args.ahead:
                ahead.append(Run(*planned.pop(0), args))
            current = ahead.pop(0)
            tip = current.tip
            parts.setdefault(tip.name, {})[current.variant] = result = current.finish()
            if len(parts[tip.name]) == len(tip.variants):
                row = together(tip, parts[tip.name], args)
                found = document.outcome(tip, row) if "failed" not in row else "FAILED"
                print(f"{time.monotonic() - began:5.0f} s  {tip.name}: {found}", file=sys.stderr, flush=True)
                if found != "as expected":
                    print(f"         {row.get('failed') or row.get('not_run') or row['numbers']}", file=sys.stderr, flush=True)
                yield row
            elif "failed" in result:
                print(f"         {tip.name} ({current.variant}): {result['failed']}", file=sys.stderr, flush=True)
    finally:
        for one in ahead:
            one.stop()
    yield from (missing(tip) for tip in tips if missing(tip) is not None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", help="a virtual card, as `oomph gpus` names it")
    parser.add_argument("--oomph", type=pathlib.Path, help="the command, for --gpu")
    parser.add_argument("--only", help="these tips, with commas between them")
    parser.add_argument("--ahead", type=int, default=min(6, len(os.sched_getaffinity(0)) + 1), help="how many processes import at a time")
    parser.add_argument("--results", type=pathlib.Path, default=document.RESULTS)
    parser.add_argument("--document", type=pathlib.Path, default=document.DOCUMENT)
    parser.add_argument("--write", action="store_true", help="measure nothing; write the document")
    parser.add_argument("--list", action="store_true", help="name the tips")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--variant", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.variant)
    if args.list:
        return print("\n".join(TIPS))
    if bool(args.gpu) != bool(args.oomph):
        parser.error("--gpu and --oomph go together")
    if args.oomph:
        args.oomph = args.oomph.resolve()
    names = args.only.split(",") if args.only else list(TIPS)
    if unknown := [name for name in names if name not in TIPS]:
        parser.error(f"no such tip: {', '.join(unknown)} (--list names them)")

    rows = document.results(args.results) if args.results.exists() else {}
    rows = {name: row for name, row in rows.items() if name in TIPS}
    failed = False
    for row in measure([TIPS[name] for name in names], args) if not args.write else ():
        tip = TIPS[row["tip"]]
        if "numbers" in row:
            rows[tip.name] = row
        elif "failed" in row:
            failed = True
        elif "numbers" not in rows.get(tip.name, {}):
            rows[tip.name] = row
        write(rows, args.results)
    args.document.write_text(document.write(rows))
    contradicted = [name for name, row in rows.items() if document.outcome(TIPS[name], row).startswith("not on")]
    for name in contradicted:
        print(f"{name}: its numbers contradict its verdict", file=sys.stderr)
    return int(failed or bool(contradicted))


def write(rows, path):
    """In the order of the tips, so that two runs can be compared line by line."""
    path.write_text("".join(json.dumps(rows[name]) + "\n" for name in TIPS if name in rows))


if __name__ == "__main__":
    sys.exit(main())
