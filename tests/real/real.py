"""Scripts of other people (scripts.toml), run unchanged on a real GPU and beside that predicted by `oomph predict`.

    python real.py fetch [--mirror FOLDER]             the scripts, by name and commit
    python real.py data                                made-up data in the formats that they read
    python real.py card                                each on the GPU of this machine, to be repeated: some differ from run to run
    python real.py predict --oomph PATH [--gpu h200]   each on the virtual GPU; needs no GPU
    python real.py table                               both, side by side

The interpreter that runs this is the one that runs the scripts; requirements.txt says what it needs. `card` and `predict` may run
on two machines: carry the files *.jsonl over. Everything is kept in the work folder, target/real unless told (--work).
"""

import argparse
import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys
import time

import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
WORK = os.path.normpath(os.path.join(HERE, "../../target/real"))
# A repository of data: graphs of papers.
PLANETOID = "kimiyoung/planetoid"
# What a prediction may be off by, in percent of what the card counted.
ALLOCATED = 0.5
RESERVED = 3.0
SECONDS = 300
# Characters of an error that are kept.
ERROR = 160


def suite(only):
    with open(os.path.join(HERE, "scripts.toml"), "rb") as file:
        listed = tomllib.load(file)
    words = [word for word in only.split(",") if word]
    scripts = [script for script in listed["script"] if not words or any(word in script["name"] for word in words)]
    return listed["repositories"], scripts


def source(work, repository):
    return os.path.join(work, "source", repository.replace("/", "+"))


def fetch(work, mirror, only):
    """Each repository's files at its commit, in a folder of their own."""
    repositories, scripts = suite(only)
    wanted = {script["repository"] for script in scripts} | {PLANETOID}
    for name in sorted(wanted):
        commit, files = repositories[name]["commit"], repositories[name].get("files", ["*.py"])
        folder = source(work, name)
        if os.path.exists(os.path.join(folder, f".{commit}")):
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        git = ["git", "-C", folder]
        subprocess.run([*git, "init", "-q"], check=True)
        if mirror:
            # A mirror may lack its largest files, and cannot be fetched from then: its objects are used where they lie.
            owner, _, project = name.partition("/")
            there = mirror.format(owner=owner, name=project)
            with open(os.path.join(folder, ".git/objects/info/alternates"), "w") as file:
                file.write(os.path.join(there, ".git/objects" if os.path.isdir(os.path.join(there, ".git")) else "objects") + "\n")
        else:
            subprocess.run([*git, "fetch", "-q", "--depth", "1", f"https://github.com/{name}", commit], check=True)
        subprocess.run([*git, "checkout", "-q", commit, "--", *files], check=True)
        shutil.rmtree(os.path.join(folder, ".git"))
        open(os.path.join(folder, f".{commit}"), "w").close()
        print(f"{name} {commit[:12]}", flush=True)


def placed(work, script, how):
    """A fresh copy of the script's repository, with its data where it looks for it; the folder to start in."""
    top = os.path.join(work, how, script["name"])
    shutil.rmtree(top, ignore_errors=True)
    shutil.copytree(source(work, script["repository"]), top)
    folder = os.path.join(top, script.get("folder", "."))
    for name in script.get("folders", []):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    for at, data in script.get("links", {}).items():
        at = os.path.normpath(os.path.join(folder, at))
        os.makedirs(os.path.dirname(at), exist_ok=True)
        found = os.path.join(source(work, PLANETOID), "data") if data == "planetoid" else os.path.join(work, "data/few", data)
        if not os.path.lexists(at):
            os.symlink(found, at)
    return top, folder


def environment(work, script, top, counters, snapshot):
    """What the script's process sees: the data, its end, no network, no screen."""
    paths = [os.path.join(HERE, "site"), *(os.path.join(top, path) for path in script.get("path", []))]
    settings = {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)),
        "REAL_DATA": os.path.join(work, "data", script.get("data", "few")),
        "REAL_STEPS": str(script.get("steps", 0)),
        "REAL_COUNTERS": counters,
        "REAL_SNAPSHOT": os.path.join(top, "snapshot.pickle") if snapshot else "",
        "TORCH_HOME": os.path.join(work, "data/torch"),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    return {**os.environ, **settings, "PATH": os.path.join(HERE, "bin") + os.pathsep + os.environ["PATH"]}


def last_line(text):
    return (text.strip().splitlines() or ["nothing was said"])[-1][:ERROR]


def run(command, work, script, place, counters, options):
    """What a command wrote and how it ended, in seconds; only the row of an error if it takes too long."""
    top, folder = place
    seen = environment(work, script, top, counters, options.snapshot)
    began = time.monotonic()
    try:
        ran = subprocess.run(command, cwd=folder, env=seen, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return None, {"error": f"not done after {SECONDS} seconds"}
    return ran, {"seconds": round(time.monotonic() - began, 1)}


def on_card(work, script, options):
    top, folder = placed(work, script, "card")
    counters = os.path.join(top, ".counters.json")
    command = [sys.executable, *shlex.split(script.get("launch", "")), *shlex.split(script["run"])]
    ran, row = run(command, work, script, (top, folder), counters, options)
    if ran is None:
        return row
    if ran.returncode:
        return {**row, "error": last_line(ran.stderr)}
    try:
        with open(counters) as file:
            return {**row, **json.load(file)}
    except (OSError, ValueError):
        return {**row, "error": "the card was not used"}


def predicted(work, script, options):
    top, folder = placed(work, script, "predicted")
    oomph = os.path.abspath(shutil.which(options.oomph) or options.oomph)
    command = [oomph, "predict", "--gpu", options.gpu, "--python", sys.executable, "--steps", "0", "--format", "json", "--no-recording"]
    command += ["--ranks", "1"] if script.get("launch") else []
    command += options.more + shlex.split(script["run"])
    ran, row = run(command, work, script, (top, folder), "", options)
    if ran is None:
        return row
    with open(os.path.join(top, ".said"), "w") as file:
        file.write(ran.stderr)
    try:
        result = json.loads(ran.stdout)
    except ValueError:
        return {**row, "error": last_line(ran.stderr)}
    result = result.get("predictions", [result])[0]
    if not result.get("peak"):
        return {**row, "error": str(result.get("error")).splitlines()[0][:ERROR]}
    row |= {"allocated": result["peak"]["allocated"], "reserved": result["peak"]["reserved"], "total": result["total"], "fits": result["fits"]}
    for field in ("range", "estimated", "error"):
        if result.get(field):
            row[field] = result[field] if field != "error" else result[field].splitlines()[0][:ERROR]
    return row


def run_all(work, how, one, options):
    """Every script, several at a time, a line for each as it ends; rows of scripts that did not run now are kept."""
    _, scripts = suite(options.only)
    path = os.path.join(work, f"{how}.jsonl")
    # What the card said is kept run by run; of predictions, the last.
    rows = read(path) if how == "predicted" else {}
    before = read_all(path) if how == "card" else []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(one, work, script, options): script for script in scripts}
        for done in concurrent.futures.as_completed(running):
            name = running[done]["name"]
            row = done.result()
            rows[name] = {"name": name, **row}
            print(name, json.dumps(row), flush=True)
            with open(path + ".new", "w") as file:
                file.writelines(json.dumps(row) + "\n" for row in [*before, *rows.values()])
            os.replace(path + ".new", path)


def read_all(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return list(map(json.loads, file))


def read(path):
    return {row["name"]: row for row in read_all(path)}


def off_by(low, high, predicted):
    """Percent, from the nearest of what the card said."""
    return 100 * (predicted / low - 1) if predicted < low else 100 * (predicted / high - 1) if predicted > high else 0.0


def judged(name, script, card, row):
    """A line of the table, and how it ended: "right", "in the range", "not known", "wrong" or "no answer"."""
    allocated = [run["allocated"] for run in card]
    reserved = [run["reserved"] for run in card]
    seen = lambda values: f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
    link = f"[{name}](https://github.com/{script['repository']}/blob/{{commit}}/{os.path.normpath(os.path.join(script.get('folder', '.'), script['run'].split()[0]))})"
    line = [link, seen(allocated), "", "", seen(reserved), "", "", ""]
    if "fits" not in row:
        return [*line[:7], f"no answer: {row['error']}"], "no answer"
    if row["fits"] is None:
        return [*line[:7], f"not known: {row.get('error', 'the card lies in the range')}"], "not known"
    errors = off_by(min(allocated), max(allocated), row["allocated"]), off_by(min(reserved), max(reserved), row["reserved"])
    line[2:4] = f"{row['allocated']:,}", f"{errors[0]:+.2f} %"
    line[5:7] = f"{row['reserved']:,}", f"{errors[1]:+.2f} %"
    spread = row.get("range") or row.get("estimated")
    if spread:
        low, high = (row["reserved"] + spread[end] - row["total"] for end in ("low", "high"))
        line[7] = f"said to be {low:,} to {high:,}"
    if abs(errors[0]) <= ALLOCATED and abs(errors[1]) <= RESERVED:
        return line, "right"
    if spread and min(reserved) >= low and max(reserved) <= high and abs(errors[0]) <= ALLOCATED:
        return line, "in the range"
    return line, "wrong"


def table(work):
    repositories, scripts = suite("")
    runs, predictions = {}, read(os.path.join(work, "predicted.jsonl"))
    for row in read_all(os.path.join(work, "card.jsonl")):
        if "allocated" in row:
            runs.setdefault(row["name"], []).append(row)
    ends, lines = {}, []
    for script in scripts:
        name = script["name"]
        if name not in runs or name not in predictions:
            ends.setdefault("not run", []).append(name)
            continue
        line, end = judged(name, script, runs[name], predictions[name])
        ends.setdefault(end, []).append(name)
        lines.append("| " + " | ".join([*line, end]).replace("{commit}", repositories[script["repository"]]["commit"]) + " |")
    counted = sum(map(len, ends.values())) - len(ends.get("not run", []))
    for end, names in ends.items():
        print(f"{len(names)} of {counted} {end}" + (f": {', '.join(names)}" if end != "right" else ""))
    exact = [name for name in ends.get("right", []) if all(predictions[name][key] in {run[key] for run in runs[name]} for key in ("allocated", "reserved"))]
    print(f"{len(exact)} to the byte, allocated and reserved")
    print("\n| script | allocated on the card | predicted | off by | reserved on the card | predicted | off by | what oomph said of it | |")
    print("|---|---:|---:|---:|---:|---:|---:|---|---|")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["fetch", "data", "card", "predict", "table"])
    parser.add_argument("--work", default=WORK)
    parser.add_argument("--mirror", help="where the repositories lie instead of on GitHub: /mirrors/{owner}/{name}.git")
    parser.add_argument("--only", default="", help="those with one of these words in their name")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--snapshot", action="store_true", help="keep PyTorch's history of allocations, snapshot.pickle, beside each script")
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("more", nargs="*", help="further options of oomph predict, after --")
    options = parser.parse_args()
    work = os.path.abspath(options.work)
    os.makedirs(work, exist_ok=True)
    if options.verb == "fetch":
        fetch(work, options.mirror, options.only)
    elif options.verb == "data":
        sys.path.insert(0, HERE)
        import data

        data.make(os.path.join(work, "data"))
    elif options.verb == "card":
        run_all(work, "card", on_card, options)
    elif options.verb == "predict":
        run_all(work, "predicted", predicted, options)
    else:
        table(work)


if __name__ == "__main__":
    main()
