"""Scores oomph's headlines: ``make diagnose``, or ``python tests/diagnosis/score.py --oomph target/debug/oomph --python .venv/bin/python``.

Every program is run on a virtual T4 in its faulty and in its cured form. Counted are: whether the first headline names the cause and the line, whether
what oomph would change (``explain --fix``) makes it fit, and headlines about programs that have no fault. With ``--snapshots`` the same recordings are
explained without their census, as PyTorch's own snapshots would be. ``--budget 14.5GiB`` runs the faulty ones on the GPU that is there instead, held to that
much. ``--table`` prints Markdown for docs/measured.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import programs

# A healthy program may well have a large temporary or an optimizer that could be fused; it has none of these.
FAULTS = {
    "no_grad_missing", "graph_kept", "backward_once", "tensors_kept", "growing_cache", "kv_cache", "copy_of_weights", "broadcast", "attention_scores",
    "float64", "one_hot", "dataset_on_card", "outlier_batch", "fragmentation", "other_stream", "private_pool", "other_process",
}  # fmt: skip


class Scorer:
    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="diagnosis-"))
        self.folder.mkdir(parents=True, exist_ok=True)

    def oomph(self, *arguments, cwd=None):
        command = [self.options.oomph, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd, stdin=subprocess.DEVNULL)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"failed": done.stderr[-2000:], "findings": []}

    def predict(self, program, form, text):
        folder = self.folder / form / program.name
        folder.mkdir(parents=True, exist_ok=True)
        path, recording = program.write(folder, text), folder / "recording.oomph"
        if self.options.budget:
            budget = ["--quiet", "--budget", self.options.budget, "--python", self.options.python]
            command = [self.options.oomph, "run", *budget, "-o", str(recording), str(path), *program.arguments]
            subprocess.run(command, capture_output=True, timeout=300, cwd=folder, stdin=subprocess.DEVNULL)
            return self.oomph("explain", "--format", "json", recording), recording
        options = ["--gpu", "t4", "--steps", "0", "--python", self.options.python, "--format", "json"]
        if recording.exists() and self.options.again:
            return self.oomph("explain", "--format", "json", recording), recording
        return self.oomph("predict", *options, "-o", recording, path, *program.arguments, cwd=folder), recording

    def score(self, program):
        began = time.monotonic()
        row = {"name": program.name, "causes": program.causes, "held_out": program.held_out, "framework": program.framework}
        result, recording = self.predict(program, "faulty", program.faulty)
        row["died"] = result.get("ended") == "out_of_memory" or any(one["severity"] == "error" for one in result["findings"])
        row.update(self.judge(program, result["findings"]))
        if "failed" in result:
            row["failed"] = result["failed"]
        if program.has_fault:
            if self.options.snapshots:
                snapshot = recording.with_suffix(".pickle")
                subprocess.run([self.options.oomph, "convert", str(recording), "-o", str(snapshot), "--force"], capture_output=True)
                row["snapshot"] = self.judge(program, self.oomph("explain", "--format", "json", snapshot)["findings"])
            if self.options.fix:
                row["fix"] = self.fixed(program, recording)
            if self.options.budget:
                return {**row, "cured_fits": None, "alarm": None}
            cured, _ = self.predict(program, "cured", program.cured)
            row["cured_fits"] = cured.get("fits", not any(one["severity"] == "error" for one in cured["findings"]))
            row["alarm"] = alarm(cured["findings"])
        else:
            row["alarm"] = alarm(result["findings"])
        row["seconds"] = round(time.monotonic() - began, 1)
        return row

    def fixed(self, program, recording):
        """What `explain --fix` shows, and whether it says that the patched program fits."""
        script = recording.parent / (program.name + (".ipynb" if program.is_notebook else ".py"))
        arguments = ["explain", "--fix", "--gpu", "t4", "--python", self.options.python, "--format", "json", recording, "--", script, *program.arguments]
        patch = self.oomph(*arguments, cwd=recording.parent).get("patch") or {}
        checked = patch.get("checked") or {}
        return {"has": bool(patch.get("diff")), "fits": checked.get("fits")}

    def judge(self, program, findings):
        first = findings[0] if findings else {}
        where = next((one for one in first.get("where", []) if one.get("place") == "line"), {})
        named = [(where.get("line", 0), where.get("file", ""))]
        return {
            "said": first.get("cause") or first.get("code") or "nothing",
            "title": first.get("title", ""),
            "line": named[0][0],
            "cause_right": first.get("cause") in program.causes,
            "line_right": not program.lines or any(program.is_right(line, file) for line, file in named),
            "any_right": any(one.get("cause") in program.causes for one in findings),
        }


def alarm(findings):
    """A headline that names a fault, of a program that has none."""
    first = next((one for one in findings if one["severity"] in ("error", "warning")), None)
    if first is None:
        return None
    is_alarm = first["severity"] == "error" or first.get("cause") in FAULTS
    return f"{first.get('cause')}: {first['title']}" if is_alarm else None


def share(part, whole):
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def summary(rows):
    faulty = [row for row in rows if row["causes"] != ("none",)]
    tried = [row for row in faulty if row["cured_fits"] is not None]
    fixable = [row for row in faulty if row.get("fix", {}).get("has")]
    lines = {
        "first headline names the cause": share(sum(row["cause_right"] for row in faulty), len(faulty)),
        "its line is right": share(sum(row["line_right"] for row in faulty), len(faulty)),
        "any finding names the cause": share(sum(row["any_right"] for row in faulty), len(faulty)),
    }
    if tried:
        lines["cured program fits"] = share(sum(row["cured_fits"] for row in tried), len(tried))
        lines["false alarms on programs without the fault"] = share(sum(row["alarm"] is not None for row in rows), len(rows))
    if fixable:
        lines["oomph's own patch fits when applied"] = share(sum(row["fix"]["fits"] is True for row in fixable), len(fixable))
    if any("snapshot" in row for row in faulty):
        lines["the same without a census (PyTorch's snapshots)"] = share(sum(row["snapshot"]["cause_right"] for row in faulty), len(faulty))
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default="target/debug/oomph")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", help="names that match this")
    parser.add_argument("--set", choices=("all", "programs", "held_out"), default="all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--snapshots", action="store_true", help="also without the census")
    parser.add_argument("--fix", action="store_true", help="also what explain --fix would change, and whether it then fits")
    parser.add_argument("--keep", help="keep programs and recordings here")
    parser.add_argument("--again", action="store_true", help="with --keep: explain the recordings that are there, run nothing")
    parser.add_argument("--budget", help="on the GPU that is there, held to this much; without notebooks, and without cured programs")
    parser.add_argument("--json", help="write all rows here")
    parser.add_argument("--table", action="store_true", help="Markdown")
    options = parser.parse_args()
    for name in ("oomph", "python"):
        # Not resolved: a virtual environment's interpreter is a link, and means something by it.
        setattr(options, name, str(pathlib.Path(getattr(options, name)).absolute()))
    chosen = [
        one
        for one in programs.all_programs()
        if re.search(options.only, one.name)
        and (options.set == "all" or one.held_out == (options.set == "held_out"))
        and not (options.budget and (one.is_notebook or not one.has_fault))
    ]
    scorer, rows = Scorer(options), []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(scorer.score, chosen):
            rows.append(row)
            right = "ok " if row["causes"] == ("none",) or (row["cause_right"] and row["line_right"]) else "NOT"
            print(f"{right} {row['name']}: {'|'.join(row['causes'])} -> {row['said']} line {row['line']}{'' if row['line_right'] else ' (wrong)'}", file=sys.stderr)
            if right == "NOT":
                print(f"      {row['title'][:200]}", file=sys.stderr)
            for key in ("alarm", "failed"):
                if row.get(key):
                    print(f"      {key}: {row[key]}", file=sys.stderr)
            if row["causes"] != ("none",) and row["cured_fits"] is False:
                print("      the cured program does not fit", file=sys.stderr)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))
    show(rows, options.table)


def show(rows, table):
    groups = {"all": rows, "written for": [row for row in rows if not row["held_out"]], "kept aside": [row for row in rows if row["held_out"]]}
    groups = {name: group for name, group in groups.items() if group}
    columns = {name: summary(group) for name, group in groups.items()}
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    if table:
        print("| | " + " | ".join(f"{name} ({len(groups[name])})" for name in columns) + " |")
        print("|---" * (len(columns) + 1) + "|")
        for key in keys:
            print(f"| {key} | " + " | ".join(column.get(key, "") for column in columns.values()) + " |")
        print("\n| program | cause | headline says | line | cured fits | alarm |\n|---|---|---|---|---|---|")
        for row in rows:
            if not row["held_out"]:
                cause, alarm = "|".join(row["causes"]).replace("|", ", "), "yes" if row["alarm"] else ""
                line = "right" if row["line_right"] else "wrong"
                fits = "" if row["causes"] == ("none",) else "yes" if row["cured_fits"] else "no"
                print(f"| {row['name']} | {cause} | {row['said']} | {line if fits else ''} | {fits} | {alarm} |")
    else:
        for key in keys:
            print(f"{key:52} " + "   ".join(f"{name}: {column.get(key, '-')}" for name, column in columns.items()))


if __name__ == "__main__":
    main()
