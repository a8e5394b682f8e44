"""Print the tables of settings.md: what a GPU reserved under other settings beside what the replay of one recording says.

python docs/measured/settings.py [path of oomph]
"""

import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"


def replayed(oomph, recording, conf):
    command = [oomph, "replay", str(FIXTURES / recording), "--conf", conf, "--memory", "16TiB", "--torch", "2.11", "--format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def main():
    oomph = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target" / "release" / "oomph")
    by_setting = collections.defaultdict(lambda: [0, 0, 0, 0.0])
    off = []
    for line in (FIXTURES / "settings" / "truth.jsonl").read_text().splitlines():
        truth = json.loads(line)
        replay = replayed(oomph, truth["recording"], truth["conf"])
        ours, theirs = replay["peak"]["reserved"], truth["reserved"]
        sums = by_setting[truth["conf"] or "defaults"]
        sums[0] += 1
        sums[1] += ours == theirs
        sums[2] += replay["exact"]
        why = ", ".join(reason["code"] for reason in replay["why"])
        if "deferred_frees" not in why:
            sums[3] = max(sums[3], abs(ours / theirs - 1))
        if ours != theirs:
            off.append(f"| `{truth['case']}` | `{truth['conf']}` | {theirs:,} | {ours:,} | {100 * (ours / theirs - 1):+.2f} % | {why} |")
    print("| setting | runs | to the byte | said to be exact | worst error |\n|---|---:|---:|---:|---:|")
    for conf, (runs, equal, claimed, worst) in by_setting.items():
        print(f"| `{conf}` | {runs} | {equal} | {claimed} | {100 * worst:.2f} % |")
    total = [sum(row[i] for row in by_setting.values()) for i in range(3)]
    print(f"| all | {total[0]} | {total[1]} | {total[2]} | {100 * max(row[3] for row in by_setting.values()):.2f} % |\n")
    print("| case | setting | GPU's peak reserved | replayed | error | why it was not said to be exact |\n|---|---|---:|---:|---:|---|")
    print("\n".join(off))


if __name__ == "__main__":
    main()
