"""What `oomph top` costs: processor time and memory while it samples once a second, and what that makes of a day.

    cargo build --release && python3 bench/top.py --seconds 600

Runs it twice at a time: as lines of JSON into /dev/null, and as a screen in tmux. Reads /proc/<pid>/stat for processor time and
smaps_rollup for memory, at even times; what is read in the first tenth, while it starts, does not count for growth.

A leak would be one of each sample, so growth is said for a day of samples that are a second apart, whatever the interval here: with --interval 100ms
ten minutes are ten times as many samples. Where other programs come and go, the heap grows by a few pages with the number of processes, and stays there:
on a busy machine look at the three readings, not at the slope.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
DAY = 86_400


def processor(pid):
    """Seconds of processor time so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Resident bytes, and those of them that are no file's."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    of = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return of["Rss"], of["Anonymous"]


def slope(points):
    """Bytes a second, by least squares."""
    times = [t for t, _ in points]
    values = [v for _, v in points]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - middle) ** 2 for t in times)
    return sum((t - middle) * (v - mean) for t, v in points) / spread if spread else 0.0


class Screen:
    """It in a terminal of tmux."""

    def __init__(self, command):
        self.folder = tempfile.mkdtemp(prefix="tmux")
        self.environment = {**os.environ, "TMUX_TMPDIR": self.folder, "LC_ALL": "C.UTF-8"}
        self.environment.pop("TMUX", None)
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "160", "-y", "50", *command)
        self.pid = int(self.tmux("display-message", "-p", "#{pane_pid}"))

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-u", "-L", "bench", *words], env=self.environment, capture_output=True, text=True, check=True)
        return done.stdout

    def end(self):
        self.tmux("kill-server")
        shutil.rmtree(self.folder, ignore_errors=True)


class Lines:
    """It as lines of JSON."""

    def __init__(self, command):
        self.process = subprocess.Popen([*command, "--json-lines"], stdout=subprocess.DEVNULL)
        self.pid = self.process.pid

    def end(self):
        self.process.terminate()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", default=str(ROOT / "target" / "release" / "oomph"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--interval", default="1s")
    parser.add_argument("--check", action="store_true", help="fail if it takes 1 %% of a core or more, or would grow by 4 MiB or more a day")
    arguments = parser.parse_args()
    command = [arguments.oomph, "top", "--interval", arguments.interval]
    processes = sum(entry.isdigit() for entry in os.listdir("/proc"))
    print(f"{arguments.seconds:.0f} s, a sample every {arguments.interval}; {processes} processes on this machine, threads of the kernel included")
    kinds = {"lines of JSON": Lines(command)}
    if shutil.which("tmux"):
        kinds["screen, 160x50"] = Screen(command)
    else:
        print("there is no tmux: the screen is not measured")
    read = {name: [] for name in kinds}
    began = time.monotonic()
    steps = 60
    for step in range(steps + 1):
        time.sleep(max(0.0, began + 1 + step * arguments.seconds / steps - time.monotonic()))
        for name, kind in kinds.items():
            read[name].append((time.monotonic() - began, processor(kind.pid), *memory(kind.pid)))
    for kind in kinds.values():
        kind.end()
    holds = True
    number, unit = re.fullmatch(r"([\d.]+)(ms|s)", arguments.interval).groups()
    apart = float(number) / (1000 if unit == "ms" else 1)
    print(f"{'':16}{'% of a core':>12}{'RSS: begin':>14}{'middle':>12}{'end':>12}{'growth a day':>16}{'of one day':>22}")
    for name, points in read.items():
        settled = points[len(points) // 10 :]
        (from_time, from_spent, *_), (to_time, to_spent, *_) = settled[0], settled[-1]
        share = (to_spent - from_spent) / (to_time - from_time)
        # Heaps and stacks can grow; pages of the program that are read in have an end.
        growth = slope([(t, anonymous) for t, _, _, anonymous in settled]) * DAY * apart
        begin, middle, end = (points[at][2] / 2**20 for at in (len(points) // 10, len(points) // 2, -1))
        print(f"{name:16}{share * 100:>11.2f}%{begin:>10.1f} MiB{middle:>8.1f} MiB{end:>8.1f} MiB{growth / 2**20:>12.2f} MiB{share * DAY:>14.0f} s of core")
        # A slope over a short time is noise: one page more or less in 10 minutes is 0.6 MiB a day.
        holds = holds and share < 0.01 and growth < 4 * 2**20
    if arguments.check and not holds:
        sys.exit("over the bar: 1 % of a core, or 4 MiB of growth a day")


if __name__ == "__main__":
    main()
