"""Print the table of README.md: what the GPU counted beside what oomph works out, for every recording with truth.

python docs/measured/peaks.py [path of oomph]
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures" / "h200"
EARLIER = ("bert_var16", "generate8", "gpt24", "leak_history8", "mlp64", "resnet5016", "seed_fragment4")


def rows(oomph):
    for line in (FIXTURES / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        path = FIXTURES / f"{truth['case']}.pickle.xz"
        explained = subprocess.run([oomph, "explain", "--format", "json", str(path)], capture_output=True, text=True)
        peak = json.loads(explained.stdout)["devices"][0]["peak"]
        counted = {name: truth["stats"][f"{name}_bytes.all.peak"] for name in ("allocated", "reserved")}
        mark = " *" if truth["case"].startswith(EARLIER) else ""
        cells = [counted["allocated"], peak["allocated"], counted["reserved"], peak["reserved"]]
        yield f"| `{truth['case']}`{mark} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


if __name__ == "__main__":
    print("| case | GPU's peak allocated | oomph's | GPU's peak reserved | oomph's |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(rows(sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target" / "release" / "oomph"))))
