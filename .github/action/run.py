"""What the action does (action.yml): runs `oomph check` or `oomph predict`, writes the result into the summary of the job and the outputs of the step, and
ends with the command's exit code. Inputs come by variables, as do the files that GitHub reads. Standard library alone; oomph is on the path.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile


def main() -> int:
    command = given("COMMAND")
    if command not in ("check", "predict"):
        return wrong(f"command is {command!r}; it is check or predict")
    if not words("TARGET"):
        return wrong("target is empty; name the script (predict) or the recordings (check)")
    return check() if command == "check" else predict()


def check() -> int:
    asked = ["check", *options({"--max-peak": "LIMIT", "--baseline": "BASELINE", "--tolerance": "TOLERANCE"}), *words("TARGET")]
    code, out = oomph(*asked, "--format", "json")
    if code not in (0, 1):
        return code
    checks = json.loads(out).get("checks") or [json.loads(out)]
    # The table once more, as people read it; to read a recording takes no time beside making one.
    summarize(oomph(*asked, "--format", "markdown", quiet=True)[1])
    for one in checks:
        if not one["passed"]:
            over = f"{gib(one['peak'])} {one['metric']} at the peak, over the limit of {gib(one['limit'])}"
            annotate(f"{one['file']}: {'the program ran out of memory, so what it needs is not known' if one['died'] else over}")
            summarize(oomph("explain", "--format", "markdown", one["file"], quiet=True)[1])
    put(code, max(one["peak"] for one in checks), checks[0]["limit"])
    return code


def predict() -> int:
    with tempfile.TemporaryDirectory(prefix="oomph-action-") as folder:
        recording = os.path.join(folder, "predicted.oomph")
        asked = options({"--gpu": "GPU", "--memory": "LIMIT"})
        code, out = oomph("predict", "--format", "json", "-o", recording, *asked, *words("TARGET"))
        if code not in (0, 1):
            return code
        found = json.loads(out)
        needs = found["total"] if found["fits"] else (found["needs"] or {}).get("total")
        taken = "more than that" if needs is None else gib(needs)
        close = ", too close to be sure" if found["close"] else ""
        said = f"{'fits' if found['fits'] else 'does not fit'}{close}: {taken} of {gib(found['gpu']['memory'])} on a virtual {found['gpu']['title']}"
        summarize(f"### oomph predict: {said}\n\n`{found['program'].replace('`', '')}`")
        for doubt in found["uncertain"]:
            summarize(f"- may be wrong: {plain(doubt['why'])}")
        if not found["fits"]:
            annotate(said, found["where"])
        if os.path.exists(recording):
            summarize(oomph("explain", "--format", "markdown", recording, quiet=True)[1])
    put(code, needs, found["gpu"]["memory"])
    return code


# -- what is asked


def given(name: str) -> str:
    return os.environ.get(f"OOMPH_ACTION_{name}", "").strip()


def words(name: str) -> list[str]:
    return shlex.split(given(name))


def options(inputs: dict[str, str]) -> list[str]:
    return [*(word for option, name in inputs.items() if given(name) for word in (option, given(name))), *words("OPTIONS")]


def oomph(*asked: str, quiet: bool = False) -> tuple[int, str]:
    """Runs the command; what it says beside its answer goes into the log, unless that was said already."""
    done = subprocess.run(["oomph", *asked], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None, text=True)
    return done.returncode, done.stdout


# -- what is said


def gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"


def plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def summarize(markdown: str) -> None:
    append("GITHUB_STEP_SUMMARY", f"{markdown.rstrip()}\n\n")


def put(code: int, peak: int | None, limit: int) -> None:
    append("GITHUB_OUTPUT", f"fits={'true' if code == 0 else 'false'}\npeak-bytes={'' if peak is None else peak}\nlimit-bytes={limit}\n")


def append(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


def annotate(message: str, where: dict | None = None) -> None:
    """An error at the line, if one is known and of this repository. Letters that GitHub takes for its own are written as it asks."""
    place = ""
    if where and where.get("file") and where.get("line"):
        root = os.environ.get("GITHUB_WORKSPACE") or os.getcwd()
        file = os.path.relpath(where["file"], root)
        place = "" if file.startswith("..") else f" file={escaped(file).replace(':', '%3A').replace(',', '%2C')},line={where['line']}"
    print(f"::error{place}::{escaped(message)}", flush=True)


def escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def wrong(message: str) -> int:
    print(f"::error::{escaped(message)}", flush=True)
    return 2


if __name__ == "__main__":
    sys.exit(main())
