"""`oomph run --ram`: what it says beside what the kernel counts and what memray finds, what it costs, and what it survives.

    python docs/measured/ram.py --oomph target/release/oomph --python VENV/bin/python [--only NAME,NAME] truth|imports|cost|hour|seed|killed|robust [...]

Builds nothing. The Python that is named needs memray, memory_profiler, scalene, numpy, scipy, pandas, pyarrow, polars, scikit-learn, pillow, torch, safetensors
and transformers, and filprofiler where it is to be compared; what is missing is said. The machine needs to be still: times are the least of several runs.

truth    twenty programs, each with its peak somewhere else: the peak of anonymous memory that oomph says, beside what another process reads in
         /proc/PID/status a thousand times a second, under oomph and without it; and bytes by line at the peak beside memray's.
imports  bytes of imports beside what the allocators say of themselves, and memray's: it does not see what a library's constructors ask for.
cost     seconds of the work (by the program's own clock, so without start-up), the highest resident set and bytes of the file, under each tool.
hour     how the file of a program that goes on and on grows.
seed     the table by line of a program whose large arrays change their type, beside memory_profiler's.
killed   SIGKILL at random moments of a program that fills the memory, a control group's limit, and a limit of the address space.
robust   what a preloaded library could break: with it and without it.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

MIB = 1 << 20

# Each with what is prepared by another process before it, and itself. Line numbers are counted from the first line of the second.
PROGRAMS = {
    "NumPy copies": (
        "",
        """
        import numpy as np
        table = np.ones((1 << 17, 60))
        small = table[:1000].copy()
        twice = np.concatenate([table, table])
        narrow = twice.astype("float32")
        del twice, table
        wide = narrow[:60000].astype("float64")
        scaled = wide * 2 + 1
        """,
    ),
    "NumPy threads": (
        "",
        """
        import concurrent.futures
        import numpy as np
        def part(number):
            rows = np.random.default_rng(number).standard_normal((60_000, 40))
            ranks = np.argsort(rows, axis=0)
            return rows[ranks[:100, 0]]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            parts = list(pool.map(part, range(24)))
        kept = [np.ones(1 << 20) for _ in range(16)]
        """,
    ),
    "pandas, CSV": (
        """
        import numpy as np, pandas as pd
        rng = np.random.default_rng(0)
        n = 400_000
        pd.DataFrame({"key": rng.integers(0, 50_000, n), "city": rng.choice(["Oslo", "Lima", "Kyoto", "Accra"], n), "price": rng.random(n), "count": rng.integers(0, 9, n)}).to_csv("sales.csv", index=False)
        """,
        """
        import pandas as pd
        sales = pd.read_csv("sales.csv")
        prices = sales.groupby("key", as_index=False)["price"].mean()
        joined = sales.merge(prices, on="key", suffixes=("", "_mean"))
        joined["above"] = joined["price"] > joined["price_mean"]
        both = pd.concat([joined, joined])
        by_city = both.groupby(["city", "above"]).agg({"price": "sum", "count": "mean"})
        del both, joined
        again = sales.sort_values("price")
        """,
    ),
    "pandas, objects": (
        "",
        """
        import pandas as pd
        names = pd.Series([f"customer number {i}" for i in range(400_000)], dtype=object)
        frame = pd.DataFrame({"name": names, "tags": [[i, i + 1] for i in range(400_000)]})
        frame["upper"] = frame["name"].map(str.upper)
        frame["first"] = frame["tags"].map(lambda tags: {"first": tags[0]})
        del names
        short = frame.head(1000).copy()
        del frame
        """,
    ),
    "polars": (
        """
        import numpy as np, polars as pl
        rng = np.random.default_rng(0)
        n = 1_500_000
        pl.DataFrame({"key": rng.integers(0, 100_000, n), "value": rng.random(n), "name": ["n%d" % (i % 1000) for i in range(n)]}).write_parquet("table.parquet")
        """,
        """
        import polars as pl
        table = pl.read_parquet("table.parquet")
        sums = table.group_by("key").agg(pl.col("value").sum().alias("sum"))
        joined = table.join(sums, on="key")
        ordered = joined.sort("value")
        del joined
        counts = ordered.group_by("name").len()
        del ordered, table
        """,
    ),
    "PyTorch training": (
        "",
        """
        import torch
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())])
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(4):
            batch = torch.randn(4096, 1024)
            out = model(batch)
            loss = out.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "torch.load": (
        """
        import torch
        model = torch.nn.Sequential(*[torch.nn.Linear(1600, 1600) for _ in range(12)])
        torch.save(model.state_dict(), "model.pt")
        """,
        """
        import torch
        model = torch.nn.Sequential(*[torch.nn.Linear(1600, 1600) for _ in range(12)])
        state = torch.load("model.pt")
        half = {name: tensor.to(torch.float16) for name, tensor in state.items()}
        model.load_state_dict(state)
        del state
        out = model(torch.randn(8, 1600))
        """,
    ),
    "safetensors": (
        """
        import torch
        from safetensors.torch import save_file
        save_file({f"layer{i}": torch.randn(1600, 1600) for i in range(12)}, "model.safetensors")
        """,
        """
        import torch
        from safetensors.torch import load_file
        state = load_file("model.safetensors")
        doubled = {name: tensor.double() for name, tensor in state.items()}
        del state
        total = sum(tensor.sum() for tensor in doubled.values())
        """,
    ),
    "transformers": (
        """
        from transformers import GPT2Config, GPT2LMHeadModel
        GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8, vocab_size=20000)).save_pretrained("gpt2-small")
        """,
        """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel
        fresh = GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8, vocab_size=20000))
        fresh.save_pretrained("copy")
        model = GPT2LMHeadModel.from_pretrained("gpt2-small")
        tokens = torch.randint(0, 20000, (4, 256))
        out = model(tokens, labels=tokens)
        out.loss.backward()
        del out, fresh
        said = model.generate(tokens[:, :16], max_new_tokens=8, do_sample=False, pad_token_id=0)
        """,
    ),
    "DataLoader": (
        "",
        """
        import numpy as np, torch
        class Pictures(torch.utils.data.Dataset):
            def __init__(self):
                self.raw = np.random.default_rng(0).integers(0, 255, (600, 256, 256), dtype=np.uint8)
            def __len__(self):
                return len(self.raw)
            def __getitem__(self, index):
                noise = np.random.default_rng(index).standard_normal((256, 256))
                return torch.from_numpy((self.raw[index] + noise).astype("float32"))
        pictures = Pictures()
        loader = torch.utils.data.DataLoader(pictures, batch_size=32, num_workers=2)
        kept = []
        for batch in loader:
            kept.append(batch.mean(0))
        gathered = torch.stack([pictures[i] for i in range(300)])
        """,
    ),
    "multiprocessing": (
        "",
        """
        import multiprocessing
        import numpy as np
        def work(seed):
            rows = np.random.default_rng(seed).random((1_000_000, 8))
            return rows.mean(axis=0)
        shared = np.ones(8 << 20)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            means = pool.map(work, range(6))
        more = np.ones((len(means), 4 << 20))
        """,
    ),
    "scikit-learn": (
        "",
        """
        import numpy as np
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.decomposition import PCA
        from sklearn.preprocessing import StandardScaler
        rng = np.random.default_rng(0)
        table = rng.standard_normal((120_000, 60))
        scaled = StandardScaler().fit_transform(table)
        small = PCA(8).fit_transform(scaled[:20_000])
        target = table[:, 0] * 2 + rng.random(len(table))
        del scaled
        forest = RandomForestRegressor(n_estimators=6, random_state=0).fit(table[:20_000, :20], target[:20_000])
        guesses = forest.predict(table[:, :20])
        """,
    ),
    "Pillow": (
        """
        import numpy as np
        from PIL import Image
        rng = np.random.default_rng(0)
        for number in range(12):
            Image.fromarray(rng.integers(0, 255, (300, 400, 3), dtype=np.uint8)).resize((2400, 1800)).save(f"picture{number}.jpg")
        """,
        """
        import numpy as np
        from PIL import Image
        opened = [Image.open(f"picture{number}.jpg").convert("RGB") for number in range(12)]
        arrays = [np.asarray(one, dtype="float32") for one in opened[:6]]
        stacked = np.stack(arrays) / 255
        del arrays, opened
        thumbnails = [Image.fromarray((one * 255).astype("uint8")).resize((200, 150)) for one in stacked]
        """,
    ),
    "Python numbers": (
        "",
        """
        squares = [i * i + 1000 for i in range(1_000_000)]
        ratios = [i / 7 for i in range(1_000_000)]
        pairs = list(zip(squares, ratios))
        del squares
        ordered = sorted(pairs, key=lambda pair: pair[1], reverse=True)
        del pairs, ratios
        """,
    ),
    "Python text and dicts": (
        "",
        """
        class Customer:
            def __init__(self, number):
                self.number, self.name = number, f"customer {number}"
        words = ["word number %d of many" % i for i in range(500_000)]
        index = {word: place for place, word in enumerate(words)}
        customers = [Customer(i) for i in range(300_000)]
        grouped = {}
        for word in words:
            grouped.setdefault(word[-3:], set()).add(word)
        del index
        text = "\\n".join(words)
        """,
    ),
    "JSON": (
        """
        import json
        rows = [{"id": i, "name": f"customer {i}", "scores": [i / 3, i / 7], "address": {"city": "Oslo", "number": i % 90}} for i in range(150_000)]
        json.dump(rows, open("rows.json", "w"))
        """,
        """
        import json
        text = open("rows.json").read()
        rows = json.loads(text)
        del text
        flat = [(row["id"], row["address"]["city"], sum(row["scores"])) for row in rows]
        out = json.dumps(rows)
        del rows
        """,
    ),
    "Parquet, pyarrow": (
        """
        import numpy as np, pyarrow as pa, pyarrow.parquet as pq
        rng = np.random.default_rng(0)
        n = 2_000_000
        pq.write_table(pa.table({"key": rng.integers(0, 1000, n), "value": rng.random(n), "name": pa.array(["n%d" % (i % 5000) for i in range(n)])}), "table.parquet")
        """,
        """
        import pyarrow.parquet as pq
        import pyarrow.compute as pc
        table = pq.read_table("table.parquet")
        chosen = table.filter(pc.greater(table["value"], 0.2))
        sums = chosen.group_by("key").aggregate([("value", "sum")])
        frame = chosen.to_pandas()
        del table, chosen
        top = frame.nlargest(1000, "value")
        """,
    ),
    "SciPy, sparse": (
        "",
        """
        import numpy as np, scipy.sparse as sparse
        rng = np.random.default_rng(0)
        left = sparse.random(40_000, 40_000, density=0.0008, format="csr", random_state=rng)
        right = left.tocsc()
        product = left @ left.T[:, :6000]
        dense = product[:2000].toarray()
        del product
        total = dense.sum() + right.sum()
        """,
    ),
    "generators that free": (
        "",
        """
        import numpy as np
        def blocks():
            for number in range(40):
                yield np.random.default_rng(number).random(600_000)
        def widened(source):
            for block in source:
                yield np.column_stack([block, block * 2, block ** 2])
        sums = [rows.sum() for rows in widened(blocks())]
        lines = (f"{i},{i * i}" for i in range(300_000))
        lengths = [len(line) for line in lines]
        """,
    ),
    "buffers that grow": (
        "",
        """
        import io
        data = bytearray()
        for number in range(60):
            data += b"x" * (1 << 20)
        text = io.StringIO()
        for number in range(200_000):
            text.write("line %d of this file\\n" % number)
        whole = text.getvalue()
        parts = whole.split("\\n")
        del data
        chunks = [bytes(part, "utf8") for part in parts]
        """,
    ),
    # Five that were written after the recorder was finished, and not tuned for.
    "a mapped file, read and closed": (
        """
        import numpy as np
        np.random.default_rng(0).random(40 << 20).tofile("numbers.bin")
        """,
        """
        import numpy as np
        mapped = np.memmap("numbers.bin", dtype=float, mode="r")
        total = float(mapped.sum())
        first = np.array(mapped[: 8 << 20])
        del mapped
        changed = np.memmap("numbers.bin", dtype=float, mode="c")
        changed[: 12 << 20] += total
        del changed
        after = np.ones(6 << 20)
        """,
    ),
    "SQLite and pickle": (
        "",
        """
        import pickle, sqlite3
        base = sqlite3.connect(":memory:")
        base.execute("create table rows (id integer, name text, value real)")
        base.executemany("insert into rows values (?, ?, ?)", ((i, "name %d" % i, i / 3) for i in range(600_000)))
        rows = base.execute("select * from rows where value > 50000").fetchall()
        text = pickle.dumps(rows)
        again = pickle.loads(text)
        """,
    ),
    "groups and a merge": (
        "",
        """
        import numpy as np, pandas as pd
        rng = np.random.default_rng(0)
        left = pd.DataFrame({"key": rng.integers(0, 40_000, 1_500_000), "a": rng.random(1_500_000), "b": rng.random(1_500_000)})
        right = left.groupby("key").agg({"a": ["mean", "std"], "b": "max"})
        right.columns = ["m", "s", "x"]
        both = left.merge(right, left_on="key", right_index=True)
        ordered = both.sort_values(["key", "a"])
        """,
    ),
    "embeddings, looked up by threads": (
        "",
        """
        import torch
        from concurrent.futures import ThreadPoolExecutor
        table = torch.nn.Embedding(200_000, 128)
        def look(seed):
            with torch.no_grad():
                rows = table(torch.randint(0, 200_000, (40_000,), generator=torch.Generator().manual_seed(seed)))
                return torch.nn.functional.normalize(rows).half()
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(look, range(9)))
        whole = torch.cat(found)
        """,
    ),
    "a grid of models": (
        "",
        """
        import numpy as np
        from sklearn.linear_model import Ridge
        from sklearn.model_selection import GridSearchCV
        from sklearn.preprocessing import PolynomialFeatures
        rng = np.random.default_rng(0)
        table = PolynomialFeatures(2).fit_transform(rng.random((30_000, 24)))
        target = table @ rng.random(table.shape[1])
        search = GridSearchCV(Ridge(), {"alpha": [0.1, 1, 10]}, cv=3).fit(table, target)
        """,
    ),
}

# Follows a process and all it starts: the highest of what the kernel counts of each, read about a thousand times a second. Allocates next to nothing.
POLLER = r"""
import json, os, signal, sys, time
root, over = int(sys.argv[1]), []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
known = {}
def field(text, name):
    at = text.find(name)
    return 0 if at < 0 else int(text[at + len(name):text.index(b"kB", at)]) << 10
def look(pid):
    if pid not in known:
        try:
            known[pid] = [os.open(f"/proc/{pid}/status", os.O_RDONLY), 0, 0, 0, "", 0]
        except OSError:
            return
    try:
        known[pid][4] = open(f"/proc/{pid}/cmdline").read().replace("\0", " ") or known[pid][4]
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in open(f"/proc/{pid}/task/{task}/children").read().split():
                look(int(child))
    except OSError:
        pass
print("ready", flush=True)
turn = 0
while not over:
    if turn % 25 == 0:
        look(root)
    turn += 1
    for one in known.values():
        if one[0] is None:
            continue
        try:
            text = os.pread(one[0], 4096, 0)
        except OSError:
            os.close(one[0])
            one[0] = None
            continue
        anonymous = field(text, b"RssAnon:") + field(text, b"VmSwap:")
        if anonymous == 0 and b"VmHWM" not in text:
            continue
        one[1] = max(one[1], anonymous)
        one[2] = max(one[2], field(text, b"VmRSS:"))
        one[3] = max(one[3], field(text, b"VmHWM:"))
        one[5] += 1
    time.sleep(0.0007)
print(json.dumps({pid: {"anonymous": one[1], "resident": one[2], "most": one[3], "command": one[4], "reads": one[5]} for pid, one in known.items()}))
"""

MEMRAY_LINES = r"""
import json, sys
from memray import FileReader
path, script = sys.argv[1:]
reader = FileReader(path)
lines, total = {}, 0
for record in reader.get_high_watermark_allocation_records(merge_threads=True):
    line = next((str(frame[2]) for frame in record.stack_trace() if frame[1] == script), "other")
    lines[line] = lines.get(line, 0) + record.size
    total += record.size
print(json.dumps({"total": total, "lines": lines}))
"""


def mib(value):
    return f"{value / MIB:,.1f}"


def percent(part, whole):
    return f"{100 * part / whole:+.1f} %" if whole else "-"


class Bench:
    def __init__(self, args):
        self.oomph, self.python, self.args = str(pathlib.Path(args.oomph).resolve()), args.python, args
        self.folder = pathlib.Path(args.folder or tempfile.mkdtemp(prefix="oomph-ram-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        # `oomph run --ram` has Arrow ask the C library, whose blocks are seen; so do the others here, so that it is the same program.
        self.environment = {**os.environ, "NO_COLOR": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "ARROW_DEFAULT_MEMORY_POOL": "system"}

    def place(self, name, keep=False):
        folder = self.folder / name.replace(" ", "-").replace(",", "").replace("/", "-")
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, folder, text, name="program.py"):
        path = folder / name
        path.write_text(textwrap.dedent(text).lstrip("\n"))
        return path

    def plain(self, script, *arguments):
        return [self.python, str(script), *arguments]

    def under(self, script, *arguments):
        return [self.oomph, "run", "-q", "--ram", "--python", self.python, str(script), *arguments]

    def call(self, command, folder, timeout=600, **more):
        """Runs a command; what it has started is ended with it."""
        environment = {**self.environment, **more.pop("env", {})}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more)
        began = time.perf_counter()
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, "", f"took longer than {timeout} s", time.perf_counter() - began
        return process.returncode, out, err, time.perf_counter() - began

    def explained(self, path):
        done = subprocess.run([self.oomph, "explain", "--format", "json", str(path)], capture_output=True, text=True, env=self.environment)
        if done.returncode not in (0, 1) or not done.stdout:
            raise RuntimeError(f"{path}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    def polled(self, command, folder):
        """Runs a command beside the poller: what the kernel counted of each process of it."""
        process = subprocess.Popen(command, cwd=folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        poller = subprocess.Popen([sys.executable, "-IS", "-c", POLLER, str(process.pid)], stdout=subprocess.PIPE, text=True)
        if os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, poller.pid, -15)
        err = process.stderr.read()
        code = process.wait()
        poller.terminate()
        found = json.loads(poller.stdout.read().split("\n", 1)[1])
        if code != 0:
            raise RuntimeError(f"{command[0]}: {code}: {err[-600:]}")
        return {int(pid): one for pid, one in found.items()}


def of_script(found, script):
    """The processes of a script, as the poller has them: the program first, then what it started."""
    return [one | {"pid": pid} for pid, one in found.items() if str(script) in one["command"] and " run " not in one["command"]]


def lines_of(explanation, script):
    lines = {}
    for line in explanation["host"]["lines"]:
        place = line["place"] or {}
        key = str(place["line"]) if place.get("file") == str(script) else "other"
        held = lines.setdefault(key, [0, 0.0])
        held[0] += line["bytes"]
        held[1] += float(line["error"]) ** 2
    return {key: (held, variance**0.5) for key, (held, variance) in lines.items()}


def truth(bench):
    chosen = {name: both for name, both in PROGRAMS.items() if not bench.args.only or name in bench.args.only}
    peaks, workers, all_lines, totals = [], [], [], []
    for name, (before, text) in chosen.items():
        folder = bench.place(name, keep=True)
        for old in folder.glob("program-ram*.oomph"):
            old.unlink()
        script = bench.write(folder, text)
        kept = folder / "memray.json"
        try:
            if before and not kept.exists():
                code, _, err, _ = bench.call([bench.python, "-c", textwrap.dedent(before)], folder)
                assert code == 0, err[-500:]
            plain = of_script(bench.polled(bench.plain(script), folder), script)
            under = of_script(bench.polled(bench.under(script), folder), script)
            recordings = [folder / "program-ram.oomph", *sorted(folder.glob("program-ram-*.oomph"))]
            host = bench.explained(recordings[0])["host"]
            lines = lines_of({"host": host}, script)
            if not kept.exists():
                code, _, err, _ = bench.call([bench.python, "-m", "memray", "run", "-q", "--trace-python-allocators", "-o", "memray.bin", "-f", str(script)], folder)
                assert code == 0, err[-500:]
                code, out, err, _ = bench.call([bench.python, "-c", MEMRAY_LINES, "memray.bin", str(script)], folder)
                assert code == 0, err[-500:]
                kept.write_text(out)
                (folder / "memray.bin").unlink()
            theirs = json.loads(kept.read_text())
        except (AssertionError, RuntimeError, json.JSONDecodeError) as error:
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
            continue
        peaks.append((name, plain[0], under[0], host))
        totals.append((name, host["asked"], theirs["total"]))
        for path in recordings[1:]:
            pid = int(path.stem.rsplit("-", 1)[1])
            seen = next((one for one in under if one["pid"] == pid), None)
            workers.append((name, pid, seen, bench.explained(path)["host"]))
        limit = 0.02 * max(theirs["total"], host["asked"])
        for line in sorted({*lines, *theirs["lines"]}, key=lambda line: int(line) if line.isdigit() else 1 << 30):
            (ours, error), other = lines.get(line, (0, 0.0)), theirs["lines"].get(line, 0)
            if max(ours, other) >= limit:
                shown = "not the script's" if line == "other" else script.read_text().splitlines()[int(line) - 1].strip()
                all_lines.append((name, line, shown, ours, error, other))
        print(
            f"{name}: kernel {mib(under[0]['anonymous'])}, oomph {mib(host['anonymous'])}, plain {mib(plain[0]['anonymous'])}; asked {mib(host['asked'])}, memray {mib(theirs['total'])}",
            file=sys.stderr,
            flush=True,
        )

    print("Peak of anonymous memory, MiB. The poller's own gap is the kernel's high-water mark of all pages minus the highest that was polled.\n")
    print("| program | kernel, plain | kernel, under oomph | poller's gap | oomph says | off | recorder's own |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    near = 0
    for name, plain, under, host in peaks:
        # Where the kernel's high-water mark is beyond what was read, oomph says both.
        said = [host["anonymous"], host["anonymous_by_mark"] or host["anonymous"]]
        off = min((each - under["anonymous"] for each in said), key=abs)
        near += abs(off) <= 0.02 * under["anonymous"]
        shown = mib(said[0]) if said[0] == said[1] else f"{mib(said[0])} to {mib(said[1])}"
        gap = host["most_resident"] - under["resident"]
        print(
            f"| {name} | {mib(plain['anonymous'])} | {mib(under['anonymous'])} | {mib(max(0, gap))} | {shown} | {percent(off, under['anonymous'])} | {mib(under['anonymous'] - plain['anonymous'])} |"
        )
    print(f"\n{near} of {len(peaks)} are within 2 %.\n")
    if workers:
        print("Processes that these programs started, which have recordings of their own:\n")
        print("| program | kernel, under oomph | oomph says | off |\n|---|---:|---:|---:|")
        for name, _, seen, host in workers:
            seen = seen and seen["anonymous"]
            print(f"| {name} | {mib(seen) if seen else 'not polled'} | {mib(host['anonymous'])} | {percent(host['anonymous'] - seen, seen) if seen else '-'} |")
        print()

    print("Bytes asked for at the peak, MiB, in all and by line (lines above 2 % of it):\n")
    print("| program | oomph | memray | off | lines | within 5 % | within 5 % or what oomph says it may be off by |\n|---|---:|---:|---:|---:|---:|---:|")
    misses = []
    sums = [0, 0, 0]
    for name, asked, total in totals:
        rows = [row for row in all_lines if row[0] == name]
        within = [abs(ours - other) <= 0.05 * other for _, _, _, ours, _, other in rows]
        loose = [abs(ours - other) <= max(0.05 * other, error) for _, _, _, ours, error, other in rows]
        misses += [row for row, is_near in zip(rows, within) if not is_near]
        sums = [before + more for before, more in zip(sums, (len(rows), sum(within), sum(loose)))]
        print(f"| {name} | {mib(asked)} | {mib(total)} | {percent(asked - total, total)} | {len(rows)} | {sum(within)} | {sum(loose)} |")
    print(f"| all | | | | {sums[0]} | {sums[1]} | {sums[2]} |")
    own = [row for row in all_lines if not row[2].startswith(("import ", "from ", "not the script's"))]
    within = sum(abs(ours - other) <= 0.05 * other for _, _, _, ours, _, other in own)
    print(f"\n{100 * sums[1] / max(1, sums[0]):.1f} % of the lines are within 5 %, {100 * sums[2] / max(1, sums[0]):.1f} % within that or what oomph says.")
    print(f"Without imports, and what is no line of the script: {within} of {len(own)}, {100 * within / max(1, len(own)):.1f} %. Each miss:\n")
    print("| program | line | | oomph | ± | memray | off |\n|---|---:|---|---:|---:|---:|---:|")
    for name, line, shown, ours, error, other in misses:
        shown = shown.replace("|", "\\|")
        shown = shown if len(shown) <= 60 else shown[:57] + "…"
        print(f"| {name} | {line} | `{shown}` | {mib(ours)} | {mib(error)} | {mib(other)} | {percent(ours - other, other)} |")


# What the C library's allocator and Python's own say of themselves, before and after an import: bytes in blocks that are in use, with what each block is rounded up by.
USED = r"""
import ctypes, os, re, sys
class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Counts
def used():
    counts = libc.mallinfo2()
    file = os.memfd_create("stats")
    kept = os.dup(2)
    os.dup2(file, 2)
    sys._debugmallocstats()
    os.dup2(kept, 2)
    text = os.pread(file, 1 << 20, 0).decode()
    os.close(file)
    return counts.uordblks + counts.hblkhd + int(re.search(r"# bytes in allocated blocks\s*=\s*([\d,]+)", text).group(1).replace(",", ""))
before = used()
__import__(sys.argv[1])
print(used() - before)
"""
MODULES = ("numpy", "pandas", "polars", "pyarrow.parquet", "sklearn.ensemble", "torch", "transformers.models.gpt2.modeling_gpt2")


def imports(bench):
    print("Bytes of one import, MiB: in use by what the allocators say of themselves (plain), and by line.\n")
    print("| module | allocators | oomph | ± | memray |\n|---|---:|---:|---:|---:|")
    for module in MODULES:
        folder = bench.place(f"import {module}")
        script = bench.write(folder, f"import {module}\n")
        _, out, err, _ = bench.call([bench.python, "-c", USED, module], folder)
        used = int(out)
        bench.call(bench.under(script), folder)
        ours, error = lines_of(bench.explained(folder / "program-ram.oomph"), script).get("1", (0, 0))
        bench.call([bench.python, "-m", "memray", "run", "-q", "--trace-python-allocators", "-o", "memray.bin", "-f", str(script)], folder)
        _, out, err, _ = bench.call([bench.python, "-c", MEMRAY_LINES, "memray.bin", str(script)], folder)
        print(f"| {module} | {mib(used)} | {mib(ours)} | {mib(error)} | {mib(json.loads(out)['lines'].get('1', 0))} |", flush=True)


# Each times its own work; `profile` is memory_profiler's decorator, or nothing. What has been imported before is not counted.
TIMED = """
import json, os, time
try:
    profile
except NameError:
    def profile(function):
        return function
{setup}
@profile
def work():
{work}
began, busy = time.perf_counter(), time.process_time()
work()
seconds, busy = time.perf_counter() - began, time.process_time() - busy
most = [int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
open(os.environ["RESULT"], "w").write(json.dumps({{"seconds": seconds, "busy": busy, "most": most}}))
"""

COSTS = {
    "pandas pipeline": (
        """
        import numpy as np, pandas as pd
        rng = np.random.default_rng(0)
        n = 400_000
        raw = pd.DataFrame({"key": rng.integers(0, 50_000, n), "group": rng.integers(0, 40, n), "price": rng.random(n), "count": rng.integers(0, 9, n)})
        """,
        """
        for turn in range(12):
            prices = raw.groupby("key", as_index=False)["price"].mean()
            joined = raw.merge(prices, on="key", suffixes=("", "_mean"))
            joined["above"] = joined["price"] > joined["price_mean"]
            both = pd.concat([joined, joined]).sort_values("price")
            by = both.groupby(["group", "above"]).agg({"price": "sum", "count": "mean"})
            wide = by.reset_index().pivot(index="group", columns="above", values="price")
        """,
    ),
    "NumPy loop": (
        """
        import numpy as np
        rng = np.random.default_rng(0)
        table = rng.random((2000, 500))
        """,
        """
        total = 0.0
        for turn in range(300):
            centred = table - table.mean(axis=0)
            scaled = centred / (centred.std(axis=0) + 1e-9)
            for row in scaled[:200]:
                part = row * 2 + 1
                total += part.sum()
        """,
    ),
    "allocation storm": (
        """
        import random
        random.seed(0)
        """,
        """
        for turn in range(10):
            words = ["word %d" % i for i in range(200_000)]
            index = {word: [i, str(i)] for i, word in enumerate(words)}
            pairs = [(word, {"n": i}) for i, word in enumerate(words)]
            numbers = [i * 1.5 for i in range(400_000)]
            joined = [left + right for left, right in zip(words, words)]
        """,
    ),
    "training step": (
        """
        import torch
        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU())])
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(512, 512)
        """,
        """
        for step in range(15):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
}


def tools(bench):
    """By its name: the command for a script in a folder, and the file that it leaves."""
    run = lambda *words: [bench.python, "-m", *words]
    return {
        "plain": (lambda script: bench.plain(script), None),
        "oomph run": (lambda script: [bench.oomph, "run", "-q", "--python", bench.python, str(script)], None),
        "oomph run --ram": (lambda script: bench.under(script), "work-ram.oomph"),
        "memray": (lambda script: run("memray", "run", "-q", "-f", "-o", "memray.bin", str(script)), "memray.bin"),
        "memray --trace-python-allocators": (lambda script: run("memray", "run", "-q", "-f", "--trace-python-allocators", "-o", "memray.bin", str(script)), "memray.bin"),
        "scalene": (lambda script: run("scalene", "run", "--memory", "-o", "scalene.json", str(script)), "scalene.json"),
        "fil": (lambda script: run("filprofiler", "--no-browser", "-o", "fil", "run", str(script)), None),
        "memory_profiler": (lambda script: run("memory_profiler", str(script)), None),
    }


def measured(bench, name, rounds, chosen, cap):
    folder = bench.place(f"cost {name}")
    setup, work = (textwrap.dedent(part).strip("\n") for part in COSTS[name])
    script = folder / "work.py"
    script.write_text(TIMED.format(setup=setup, work=textwrap.indent(work, "    ")))
    rows = {tool: [] for tool in chosen}
    ended = {}
    for _ in range(rounds):
        # In turns, so that a busy moment of the machine is everybody's.
        for tool in chosen:
            if tool in ended:
                continue
            command, left = tools(bench)[tool]
            for old in folder.glob("memray.bin*"):
                old.unlink()
            result = folder / "result.json"
            result.unlink(missing_ok=True)
            code, out, err, whole = bench.call(command(script), folder, timeout=cap, env={"RESULT": str(result)})
            if code is None:
                ended[tool] = f"> {cap} s"
                continue
            if not result.exists():
                ended[tool] = "failed"
                print(f"{name}, {tool}: {code}: {(err or out)[-400:]}", file=sys.stderr, flush=True)
                continue
            row = json.loads(result.read_text()) | {"whole": whole}
            row["file"] = (folder / left).stat().st_size if left and (folder / left).exists() else 0
            rows[tool].append(row)
            if whole > cap / 4:
                ended[tool] = None
    return rows, ended


def cost(bench):
    chosen = [tool for tool in tools(bench) if not bench.args.tools or tool in bench.args.tools]
    print(
        "Seconds of the work, and of processors in it: the least of the runs, in turns. Resident: the highest of the process, MiB. Start: the rest of the command, start-up and end.\n"
    )
    print("| program | tool | seconds | | processors | | resident | | file, MB | start | runs |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    summary = {}
    for name in COSTS:
        if bench.args.only and name not in bench.args.only:
            continue
        rows, ended = measured(bench, name, bench.args.rounds, chosen, bench.args.cap)
        base = min((row["seconds"] for row in rows.get("plain", [])), default=0)
        base_busy = min((row["busy"] for row in rows.get("plain", [])), default=0)
        base_most = min((row["most"] for row in rows.get("plain", [])), default=0)
        for tool, runs in rows.items():
            if not runs:
                print(f"| {name} | {tool} | {ended.get(tool)} | | | | | | | | |", flush=True)
                continue
            seconds, most = min(row["seconds"] for row in runs), min(row["most"] for row in runs)
            busy = min(row["busy"] for row in runs)
            start = min(row["whole"] - row["seconds"] for row in runs)
            size = max(row["file"] for row in runs)
            summary[name, tool] = (seconds, base, busy, base_busy, most - base_most)
            print(
                f"| {name} | {tool} | {seconds:.2f} | {percent(seconds - base, base) if tool != 'plain' else ''} | {busy:.2f} | {percent(busy - base_busy, base_busy) if tool != 'plain' else ''} | {mib(most)} | {mib(most - base_most) if tool != 'plain' else ''} | {size / 1e6:.2f} | {start:.2f} | {len(runs)} |",
                flush=True,
            )
    print()
    for name, limit in (("pandas pipeline", 5), ("NumPy loop", 5), ("training step", 5), ("allocation storm", 30)):
        if (name, "oomph run --ram") in summary:
            seconds, base, busy, base_busy, more = summary[name, "oomph run --ram"]
            print(
                f"{name}: {percent(seconds - base, base)}, of processors {percent(busy - base_busy, base_busy)} (goal: at most {limit} %), {mib(more)} MiB more (goal: under 50): {'holds' if seconds <= base * (1 + limit / 100) and more < 50 * MIB else 'MISSED'}"
            )


# Programs that go on: one whose steps are alike, one that keeps a cache whose entries are replaced, one of objects, one that holds ever more.
GOES_ON = {
    "steps that are alike": """
        import sys, time
        import numpy as np
        end = time.monotonic() + float(sys.argv[1])
        while time.monotonic() < end:
            table = np.ones((1000, 1000))
            scaled = table * 2
            columns = [scaled[:, i].copy() for i in range(0, 1000, 10)]
            time.sleep(0.02)
        """,
    "pandas, batches of different lengths": """
        import random, sys, time
        import numpy as np, pandas as pd
        random.seed(0)
        end = time.monotonic() + float(sys.argv[1])
        totals = []
        while time.monotonic() < end:
            n = random.randrange(20_000, 200_000)
            frame = pd.DataFrame({"key": np.random.randint(0, 1000, n), "value": np.random.rand(n)})
            joined = frame.merge(frame.groupby("key", as_index=False).mean(), on="key")
            totals.append(joined["value_x"].sum())
        """,
    "a cache of 1,000 arrays, one replaced at a time": """
        import random, sys, time
        import numpy as np
        random.seed(0)
        end = time.monotonic() + float(sys.argv[1])
        cache = [None] * 1000
        while time.monotonic() < end:
            cache[random.randrange(1000)] = np.ones(20_000)
        """,
    "the same, of lengths that are all different": """
        import random, sys, time
        import numpy as np
        random.seed(0)
        end = time.monotonic() + float(sys.argv[1])
        cache = [None] * 1000
        while time.monotonic() < end:
            cache[random.randrange(1000)] = np.ones(random.randrange(10_000, 30_000))
        """,
    "objects in a dict, replaced": """
        import random, sys, time
        random.seed(0)
        end = time.monotonic() + float(sys.argv[1])
        held = {}
        while time.monotonic() < end:
            held[random.randrange(200_000)] = {"name": "n%d" % random.randrange(10**9), "values": [1.5, 2.5]}
        """,
    "a training": """
        import sys, time
        import torch
        end = time.monotonic() + float(sys.argv[1])
        model = torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())])
        optimizer = torch.optim.AdamW(model.parameters())
        while time.monotonic() < end:
            loss = model(torch.randn(256, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
}


def hour(bench):
    seconds = bench.args.seconds
    print(f"Bytes of the file after parts of {seconds} s, and what an hour would leave if it went on as in the last half: MB.\n")
    print("| program | " + " | ".join(f"{seconds * part // 4} s" for part in range(1, 5)) + " | an hour | events |\n|---|---:|---:|---:|---:|---:|---:|")
    for name, text in GOES_ON.items():
        if bench.args.only and name not in bench.args.only:
            continue
        folder = bench.place(f"hour {name}")
        script = bench.write(folder, text)
        process = subprocess.Popen(bench.under(script, str(seconds)), cwd=folder, env=bench.environment)
        file, sizes, began = folder / "program-ram.oomph", [], time.monotonic()
        for part in range(1, 5):
            time.sleep(max(0, began + seconds * part / 4 - time.monotonic()))
            sizes.append(file.stat().st_size if file.exists() else 0)
        process.wait()
        rate = (sizes[3] - sizes[1]) / (seconds / 2)
        whole = sizes[3] + rate * (3600 - seconds)
        events = bench.explained(file)["host"]["events"]
        print(f"| {name} | " + " | ".join(f"{size / 1e6:.2f}" for size in sizes) + f" | {whole / 1e6:.1f} | {events:,} |", flush=True)


SEED = """
import numpy as np
try:
    profile
except NameError:
    def profile(function):
        return function

@profile
def smaller():
    floats = np.random.rand(1_000_000, 100)
    small_floats = floats.astype(np.float32)
    print("floats", floats.nbytes, small_floats.nbytes)
    del floats
    integers = np.random.randint(0, 30_000, (1_000_000, 100))
    lowest, highest = integers.min(), integers.max()
    assert np.iinfo(np.int16).min <= lowest and highest <= np.iinfo(np.int16).max
    small_integers = integers.astype(np.int16)
    print("integers", integers.nbytes, small_integers.nbytes)
    del integers
    del small_floats, small_integers

smaller()
"""


def seed(bench):
    folder = bench.place("seed")
    bench.write(folder, SEED)
    code, out, err, _ = bench.call([bench.oomph, "run", "--ram", "--python", bench.python, "program.py"], folder)
    print(f"$ oomph run --ram program.py\n{out}{err}")
    print("$ oomph explain program-ram.oomph")
    done = subprocess.run([bench.oomph, "explain", "program-ram.oomph"], cwd=folder, capture_output=True, text=True, env={**bench.environment, "COLUMNS": "110"})
    print(done.stdout + done.stderr)
    code, out, err, _ = bench.call([bench.python, "-m", "memory_profiler", "program.py"], folder)
    print(f"$ python -m memory_profiler program.py\n{out}{err[-500:]}")


# Says in a file that the kernel keeps how much it held at the most before it took more.
FILLS = """
import mmap, sys, time
import numpy as np
limit = int(sys.argv[2])
file = open(sys.argv[1], "r+b")
said = mmap.mmap(file.fileno(), 4096)
held, small = [], []
print("begins", flush=True)
while True:
    held.append(np.ones(1 << 17))
    small.append([str(i) for i in range(500)])
    said[:8] = len(held).to_bytes(8, "little")
    if len(held) >= limit:
        held.clear()
        small.clear()
"""


def looked_at(bench, folder, script, wanted, told):
    """Whether a killed program's recording opens, names the line that held most, and how many of its bytes it has."""
    try:
        host = bench.explained(folder / "program-ram.oomph")["host"]
    except (RuntimeError, KeyError, TypeError, json.JSONDecodeError) as error:
        return False, False, str(error)[-160:]
    lines = {line: held for line, (held, _) in lines_of({"host": host}, script).items() if line != "other"}
    named = bool(lines) and max(lines, key=lines.get) == wanted
    return True, named, f"{mib(lines.get(wanted, 0))} of {mib(told)} MiB"


def killed(bench):
    random.seed(bench.args.random)
    wanted = str(1 + next(number for number, line in enumerate(FILLS.strip().splitlines()) if "held.append" in line))
    opens, names = 0, 0
    print("SIGKILL so many seconds after the program has begun to fill its memory (to 1.5 GiB, then again):\n")
    print("| after | opens | names the line | bytes of it | most that it ever held |\n|---:|---|---|---:|---:|")
    for turn in range(20):
        folder = bench.place(f"killed {turn}")
        script = bench.write(folder, FILLS)
        (folder / "said").write_bytes(bytes(4096))
        process = subprocess.Popen(bench.under(script, "said", "1500"), cwd=folder, env=bench.environment, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        after = random.uniform(0, 2.5) if turn else 0.02
        child = int((pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() or ["0"])[-1])
        end, most = time.monotonic() + after, 0
        while time.monotonic() < end:
            most = max(most, int.from_bytes((folder / "said").read_bytes()[:8], "little"))
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        code = process.wait(60)
        most = max(most, int.from_bytes((folder / "said").read_bytes()[:8], "little"))
        did_open, did_name, held = looked_at(bench, folder, script, wanted, most * MIB)
        opens, names = opens + did_open, names + did_name
        print(f"| {after:.2f} s | {'yes' if did_open else 'NO'} | {'yes' if did_name else 'NO'} | {held} | {most} | {'' if code == 137 else code}", flush=True)
    print(f"\n{opens} of 20 open, {names} of 20 name the line.\n")

    group = pathlib.Path("/sys/fs/cgroup/memory")
    is_first = group.is_dir()
    group = (group if is_first else pathlib.Path("/sys/fs/cgroup")) / f"oomph-ram-{os.getpid()}"
    for turn in range(3):
        folder = bench.place(f"control group {turn}")
        script = bench.write(folder, FILLS)
        (folder / "said").write_bytes(bytes(4096))
        try:
            group.mkdir()
            (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(600 * MIB))
        except OSError as error:
            print(f"no control group can be made here: {error}")
            break
        try:
            join = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
            code, _, err, _ = bench.call(bench.under(script, "said", "100000"), folder, timeout=120, preexec_fn=join)
        finally:
            time.sleep(0.3)
            group.rmdir()
        most = int.from_bytes((folder / "said").read_bytes()[:8], "little")
        did_open, did_name, held = looked_at(bench, folder, script, wanted, most * MIB)
        print(f"control group of 600 MiB: exit {code}, opens {did_open}, names the line {did_name}, {held}", flush=True)

    folder = bench.place("address space")
    script = bench.write(folder, FILLS)
    (folder / "said").write_bytes(bytes(4096))
    code, _, err, _ = bench.call(["bash", "-c", f"ulimit -v {2 << 20}; exec " + " ".join(bench.under(script, "said", "100000"))], folder, timeout=120)
    most = int.from_bytes((folder / "said").read_bytes()[:8], "little")
    did_open, did_name, held = looked_at(bench, folder, script, wanted, most * MIB)
    print(f"address space of 2 GiB: exit {code} ({err.strip().splitlines()[-1][:80] if err.strip() else ''}), opens {did_open}, names the line {did_name}, {held}")


ROBUST = {
    "ten thousand threads": """
        import threading
        def work():
            data = bytearray(100_000)
            return [str(i) for i in range(50)]
        for _ in range(20):
            threads = [threading.Thread(target=work) for _ in range(500)]
            [one.start() for one in threads]
            [one.join() for one in threads]
        print("done")
        """,
    "two thousand threads at once": """
        import threading
        threading.stack_size(256 << 10)
        gate = threading.Event()
        def work():
            data = bytearray(100_000)
            gate.wait()
            return len(data)
        threads = [threading.Thread(target=work) for _ in range(2000)]
        [one.start() for one in threads]
        gate.set()
        [one.join() for one in threads]
        print("done")
        """,
    "forks among threads that allocate": """
        import os, sys, threading, time
        import numpy as np
        end = time.monotonic() + 4
        def churn():
            while time.monotonic() < end:
                kept = [np.ones(1 << (5 + i % 12)) for i in range(300)]
                text = [str(i) * 3 for i in range(3000)]
        threads = [threading.Thread(target=churn) for _ in range(6)]
        [one.start() for one in threads]
        forks = 0
        while time.monotonic() < end:
            child = os.fork()
            if child == 0:
                kept = [np.ones(1 << 16) for _ in range(20)]
                os._exit(7)
            assert os.waitpid(child, 0)[1] == 7 << 8
            forks += 1
        [one.join() for one in threads]
        print("done")
        print(forks, "forks", file=sys.stderr)
        """,
    "handlers of signals that allocate (Python)": """
        import signal, time
        import numpy as np
        signal.signal(signal.SIGALRM, lambda *_: [np.ones(1 << 14), bytearray(1 << 18), [str(i) for i in range(20)]])
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        end = time.monotonic() + 4
        while time.monotonic() < end:
            kept = [np.ones(1 << (5 + i % 12)) for i in range(300)]
        signal.setitimer(signal.ITIMER_REAL, 0, 0)
        print("done")
        """,
    "every function that gives memory": """
        import ctypes, mmap
        libc = ctypes.CDLL(None)
        libc.malloc.restype = libc.realloc.restype = libc.calloc.restype = libc.memalign.restype = libc.aligned_alloc.restype = libc.valloc.restype = ctypes.c_void_p
        libc.malloc_usable_size.restype = ctypes.c_size_t
        p = ctypes.c_void_p
        for size in (0, 1, 63, 4096, 65535, 65536, 1 << 20, 1 << 26):
            a = libc.malloc(ctypes.c_size_t(size)); a = libc.realloc(p(a), ctypes.c_size_t(size * 2 + 1)); libc.free(p(a))
            b = libc.calloc(ctypes.c_size_t(size), ctypes.c_size_t(3)); libc.free(p(b))
            c = libc.memalign(ctypes.c_size_t(4096), ctypes.c_size_t(size)); assert (c or 0) % 4096 == 0; libc.free(p(c))
            d = libc.valloc(ctypes.c_size_t(size)); libc.free(p(d))
            e = p(); assert libc.posix_memalign(ctypes.byref(e), ctypes.c_size_t(64), ctypes.c_size_t(size)) == 0; libc.free(e)
        assert libc.malloc(ctypes.c_size_t((1 << 63) - 1)) is None
        assert libc.calloc(ctypes.c_size_t(1 << 62), ctypes.c_size_t(8)) is None
        libc.free(None)
        assert libc.realloc(p(libc.malloc(ctypes.c_size_t(100))), ctypes.c_size_t(0)) is None
        m = mmap.mmap(-1, 1 << 24); m.resize(1 << 25); m[:4] = b"abcd"; m.close()
        print("done")
        """,
    "MemoryError in 2 GiB of address space": """
        import resource
        import numpy as np
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        for _ in range(3):
            kept = []
            try:
                while True:
                    kept.append(np.ones(1 << 19))
            except MemoryError:
                count = len(kept)
                kept.clear()
        kept = []
        try:
            while True:
                kept.append([str(i) for i in range(1000)])
        except MemoryError:
            kept = None
        print("caught")
        """,
    "an address space that is full to the last page": """
        import mmap, resource
        import numpy as np
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        kept, size = [], 1 << 24
        while size >= 4096:
            try:
                kept.append(mmap.mmap(-1, size))
            except (MemoryError, OSError):
                size //= 2
        caught = 0
        for size in (1 << 22, 1 << 16, 1 << 20):
            try:
                kept.append(bytearray(size))
            except MemoryError:
                caught += 1
        kept = None
        print("done", caught > 0)
        """,
    "files of at most 64 KiB (RLIMIT_FSIZE)": """
        import resource, signal
        import numpy as np
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
        kept = []
        for i in range(20_000):
            kept.append(np.ones(9000))
            if i % 3 == 0:
                kept.pop(0)
            if len(kept) > 2000:
                kept.clear()
        print("done")
        """,
    "the process ends by os._exit": """
        import os
        import numpy as np
        kept = np.ones(1 << 22)
        print("done", flush=True)
        os._exit(3)
        """,
    "the process ends by abort": """
        import os
        import numpy as np
        kept = np.ones(1 << 22)
        print("done", flush=True)
        os.abort()
        """,
    "exec of another program": """
        import os, sys
        import numpy as np
        kept = np.ones(1 << 22)
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        print("done")
        """,
    "spawn, forkserver and subprocesses": """
        import multiprocessing, subprocess, sys
        def work(n):
            return len(bytearray(n))
        if __name__ == "__main__":
            for method in ("spawn", "forkserver", "fork"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(sum(pool.map(work, [1 << 20] * 8)))
            print(subprocess.run(["sh", "-c", "echo shell | cat"], capture_output=True, text=True).stdout)
            print(subprocess.run([sys.executable, "-c", "print(len(bytearray(1 << 25)))"], capture_output=True, text=True).stdout)
        """,
    "subinterpreters in threads": """
        import threading
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        def work():
            for _ in range(5):
                one = interpreters.create()
                interpreters.run_string(one, "kept = [str(i) for i in range(100_000)]; data = bytearray(1 << 20)")
                interpreters.destroy(one)
        threads = [threading.Thread(target=work) for _ in range(4)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        print("done")
        """,
    "asyncio with gc off": """
        import asyncio, gc
        gc.disable()
        async def one(i):
            await asyncio.sleep(0)
            return [bytearray(1000 + i)] * 3
        async def main():
            rows = await asyncio.gather(*[one(i) for i in range(20_000)])
            return sum(len(row[0]) for row in rows)
        print(asyncio.run(main()))
        """,
    "a very deep stack": """
        import sys
        sys.setrecursionlimit(30_000)
        def down(n):
            kept = bytearray(70_000) if n % 100 == 0 else [n]
            return 0 if n == 0 else 1 + down(n - 1)
        print(down(8000))
        """,
    "tracemalloc beside it": """
        import tracemalloc
        tracemalloc.start()
        kept = [str(i) for i in range(200_000)]
        print(tracemalloc.get_traced_memory()[0] > 10_000_000)
        tracemalloc.stop()
        """,
    "PYTHONMALLOC=debug": """
        kept = [str(i) for i in range(200_000)]
        print(len(kept))
        """,
    "PYTHONMALLOC=malloc": """
        kept = [str(i) for i in range(200_000)]
        print(len(kept))
        """,
    "LD_PRELOAD of jemalloc": """
        import numpy as np
        kept = [np.ones(1 << 17) for _ in range(100)]
        words = [str(i) for i in range(300_000)]
        print(len(kept), len(words), "libjemalloc" in open("/proc/self/maps").read())
        """,
    "LD_PRELOAD of mimalloc": """
        import numpy as np
        kept = [np.ones(1 << 17) for _ in range(100)]
        words = [str(i) for i in range(300_000)]
        print(len(kept), len(words), "libmimalloc" in open("/proc/self/maps").read())
        """,
}
FORKS = ROBUST["forks among threads that allocate"]
ROBUST["forks among threads, jemalloc"] = ROBUST["forks among threads, mimalloc"] = FORKS
PRELOADS = {
    "LD_PRELOAD of jemalloc": "libjemalloc.so.2",
    "LD_PRELOAD of mimalloc": "libmimalloc.so.2",
    "forks among threads, jemalloc": "libjemalloc.so.2",
    "forks among threads, mimalloc": "libmimalloc.so.2",
}

SIGNALS_IN_C = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* A handler that maps memory and forks while threads allocate: mmap is what a handler may call. */
static volatile sig_atomic_t calls;
static void handle(int number) {
    void *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) munmap(p, 1 << 20);
    calls++;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static void *churn(void *unused) {
    double end = now() + 4;
    unsigned seed = 7;
    void *kept[64] = {0};
    while (now() < end)
        for (int i = 0; i < 1000; i++) {
            int at = rand_r(&seed) % 64;
            free(kept[at]);
            kept[at] = malloc(1 << (4 + rand_r(&seed) % 16));
            if (i % 7 == 0) kept[at] = realloc(kept[at], 100000);
        }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return 0;
}
int main(void) {
    signal(SIGALRM, handle);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, 0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, churn, 0);
    double end = now() + 3.5;
    while (now() < end) {
        pid_t child = fork();
        if (child == 0) { free(malloc(200000)); _exit(5); }
        int status;
        while (waitpid(child, &status, 0) < 0);
        if (WEXITSTATUS(status) != 5) { printf("child %d\n", status); return 1; }
    }
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("done\n");
    return 0;
}
"""

FORK_HANDLERS_IN_C = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
/* What libraries do around a fork: they allocate, on both sides, while others allocate too. */
static void *kept, *first;
static volatile int over;
static void before(void) { kept = malloc(300000); }
static void after(void) { free(kept); free(malloc(300000)); }
static void first_before(void) { first = malloc(300000); }
static void first_after(void) { free(first); free(malloc(300000)); }
static void *churn(void *unused) {
    while (!over) { void *p = malloc(200000); p = realloc(p, 900000); free(p); free(malloc(30)); }
    return 0;
}
__attribute__((constructor(101))) static void early(void) { pthread_atfork(first_before, first_after, first_after); free(malloc(1 << 20)); }
__attribute__((destructor)) static void late(void) { free(malloc(1 << 20)); }
int main(void) {
    pthread_atfork(before, after, after);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, churn, 0);
    for (int i = 0; i < 300; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(200000));
            if (i % 10 == 0) { pid_t again = fork(); if (again == 0) _exit(0); waitpid(again, 0, 0); }
            exit(5);
        }
        int status;
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 5) { printf("child %d\n", status); return 1; }
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("done\n");
    return 0;
}
"""

MAPS_IN_C = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>
/* Ranges that are cut, grown, moved, mapped over and given back by madvise; errno after a failure and after a free. */
int main(void) {
    long page = 4096;
    for (int i = 0; i < 300; i++) {
        char *p = mmap(0, 256 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(p, 1, 256 * page);
        munmap(p + 64 * page, 64 * page);
        char *q = mmap(p + 64 * page, 64 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (q != p + 64 * page) return 1;
        q[5] = 7;
        char *r = mremap(p, 64 * page, 512 * page, MREMAP_MAYMOVE);
        if (r == MAP_FAILED || r[0] != 1) return 2;
        madvise(r, 32 * page, MADV_DONTNEED);
        if (r[0] != 0) return 3;
        munmap(r, 512 * page);
        if (r != p) munmap(p + 64 * page, 192 * page); else munmap(p + 128 * page, 128 * page);
        errno = 0;
        if (mmap(0, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED || errno != EINVAL) return 4;
        errno = 77;
        free(malloc(100000));
        if (errno != 77) return 5;
        void *out = 0;
        if (posix_memalign(&out, 3, 100) != EINVAL) return 6;
        if (malloc((size_t)-1) || errno != ENOMEM) return 7;
        char *s = reallocarray(0, 1000, 100);
        s = reallocarray(s, 2000, 100);
        free(s);
        if (reallocarray(0, (size_t)1 << 40, (size_t)1 << 40)) return 8;
    }
    void *low = sbrk(1 << 20);
    printf("done %d\n", low != (void *)-1);
    return 0;
}
"""

SMALL_IN_C = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    char *p = malloc(100 << 20);
    memset(p, 1, 100 << 20);
    for (int i = 0; i < 1000000; i++) free(malloc(i % 5000));
    printf("done %d\n", p[5]);
    return 0;
}
"""


def library(name):
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"):
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    return None


def robust(bench):
    print("| what | without | with `oomph run --ram` | | seconds | |\n|---|---|---|---|---:|---:|")
    worse = []

    def compare(what, folder, plain, under, timeout=180, recording="program-ram.oomph", **more):
        results = []
        for command in (plain, under):
            code, out, err, seconds = bench.call(command, folder, timeout=timeout, **more)
            last = out.strip().splitlines()[-1] if out.strip() else ""
            results.append((code, out, err, seconds, f"{'hangs' if code is None else f'exit {code}'}{', ' + last if last else ''}"))
        first, second = results
        # What dies by a signal gives 128 and its number from oomph.
        same_code = first[0] == second[0] or (first[0] is not None and first[0] < 0 and second[0] == 128 - first[0])
        holds = same_code and first[1] == second[1]
        opened = "-"
        if recording and (folder / recording).exists():
            try:
                bench.explained(folder / recording)
                opened = "opens"
            except (RuntimeError, json.JSONDecodeError) as error:
                opened, holds = f"DOES NOT OPEN: {str(error)[-80:]}", False
        print(f"| {what} | {first[4]} | {second[4]} | {opened} {'' if holds else 'WORSE'} | {first[3]:.1f} | {second[3]:.1f} |", flush=True)
        if not holds:
            worse.append(what)
            print(f"{what}:\n  without: {first[2].strip()[-500:]}\n  with: {second[2].strip()[-900:]}", file=sys.stderr, flush=True)

    for what, text in ROBUST.items():
        if bench.args.only and what not in bench.args.only:
            continue
        folder = bench.place(f"robust {what.split('(')[0]}")
        script = bench.write(folder, text)
        more = {}
        if what in PRELOADS:
            found = library(PRELOADS[what])
            if not found:
                print(f"| {what} | not installed here | | | | |")
                continue
            more["env"] = {"LD_PRELOAD": found}
        if what.startswith("PYTHONMALLOC="):
            more["env"] = {"PYTHONMALLOC": what.split("=")[1]}
        compare(what, folder, bench.plain(script), bench.under(script), **more)

    programs = {
        "handlers of signals, forks and threads in C": (SIGNALS_IN_C, []),
        "handlers of forks that allocate, in C": (FORK_HANDLERS_IN_C, []),
        "ranges that are cut and moved, in C": (MAPS_IN_C, []),
        "a program in C": (SMALL_IN_C, []),
        "a static program": (SMALL_IN_C, ["-static"]),
    }
    for what, (text, options) in programs.items():
        if bench.args.only and what not in bench.args.only:
            continue
        folder = bench.place(f"robust {what}")
        (folder / "program.c").write_text(text)
        if subprocess.run(["gcc", "-O1", "-pthread", *options, "-o", "program", "program.c"], cwd=folder).returncode:
            print(f"| {what} | cannot be built here | | | | |")
            continue
        compare(what, folder, ["./program"], [bench.oomph, "run", "-q", "--ram", "./program"])

    for python in bench.args.pythons:
        what = f"Python {pathlib.Path(python).parent.parent.name}"
        if bench.args.only and what not in bench.args.only:
            continue
        folder = bench.place(f"robust {what}")
        script = bench.write(folder, "kept = [bytearray(1 << 20) for _ in range(100)]\nwords = [str(i) for i in range(500_000)]\nprint(len(kept), len(words))\n")
        compare(what, folder, [python, str(script)], [bench.oomph, "run", "-q", "--ram", "--python", python, str(script)])
        if (folder / "program-ram.oomph").exists():
            lines = lines_of(bench.explained(folder / "program-ram.oomph"), script)
            print(f"|  | | lines: {', '.join(f'{line}: {mib(held)} MiB' for line, (held, _) in sorted(lines.items()))} | | | |")

    what = "a full disk (a tmpfs of 256 KiB)"
    if (not bench.args.only or what in bench.args.only) and os.geteuid() == 0:
        folder = bench.place("robust full disk")
        script = bench.write(folder, ROBUST["files of at most 64 KiB (RLIMIT_FSIZE)"].replace("resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))", "pass"))
        disk = folder / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]).returncode == 0:
            try:
                compare(what, disk, bench.plain(script), bench.under(script))
            finally:
                subprocess.run(["umount", str(disk)])
        else:
            print(f"| {what} | cannot be mounted here | | | | |")
    print(f"\n{len(worse)} are worse with it than without{': ' + ', '.join(worse) if worse else ''}.")


PARTS = {"truth": truth, "imports": imports, "cost": cost, "hour": hour, "seed": seed, "killed": killed, "robust": robust}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--oomph", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--folder", help="where programs, their data and recordings go; what memray found of a program is kept there, and used again")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="of a part's programs only these: 'NAME;NAME'")
    parser.add_argument("--tools", type=lambda text: text.split(","), help="cost: only these")
    parser.add_argument("--rounds", type=int, default=5, help="cost: runs of each")
    parser.add_argument("--cap", type=int, default=120, help="cost: seconds that one run may take; one that takes a quarter of it is run once")
    parser.add_argument("--seconds", type=int, default=120, help="hour: how long each program goes on")
    parser.add_argument("--random", type=int, default=0, help="killed: the seed of the moments")
    parser.add_argument("--pythons", type=lambda text: text.split(","), default=[], help="robust: further Pythons")
    args = parser.parse_args()
    bench = Bench(args)
    for part in args.parts:
        print(f"## {part}\n", flush=True)
        PARTS[part](bench)
        print(flush=True)


if __name__ == "__main__":
    main()
