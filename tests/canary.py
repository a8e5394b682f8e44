"""Predicts a dozen programs under the newest of NVIDIA's libraries and under those that PyTorch asks for: `make canary`, before each release.

The virtual GPU stands in for these libraries and asks the installed cuDNN about a card, so that one that comes out today may break tomorrow's predictions. Two
environments are made in .venv-canary: `pinned`, with the newest PyTorch as PyPI resolves it (pre-releases too), and `newest`, the same with the newest version of each
of NVIDIA's packages, whatever PyTorch asks for. A table says for each program what changed. Exit code 1: a program fails under the newest, or a peak differs by more than
1 %, unless it is one of convolutions and oomph was tried with that cuDNN (`tried` in crates/oomph-predict/src/refusal.rs, which is raised when somebody has looked).

It compares oomph with itself; whether a peak is true, only a card says (docs/measured). It installs nothing outside of its folder, and needs PyPI, but no GPU.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests" / "programs"
# A marker of a pre-release has uv take those of this package, and of no other.
PYTORCH = ("torch>=2.11.dev0", "torchvision>=0.26.dev0", "transformers", "numpy", "cloudpickle")
# A peak that moves by more is looked at by somebody.
LIMIT = 0.01

# Their workspaces are cuDNN's own choice, which each version makes anew: of a version that oomph was tried with, another peak is no failure.
CONVOLUTIONS = ("autocast_fp16.py", "convnet_benchmark.py", "diffusion_unet.py", "vae_or_gan.py")
CASES = (
    *CONVOLUTIONS,
    "plain_loop.py",
    "attention_half.py",
    "lstm.py",
    "fft_and_linalg.py",
    "embedding_bag.py",
    "sparse.py",
    "ddp.py --ranks 2",
    "compiled.py",
    "generate.py",
)
# No program of tests/programs multiplies sparse matrices.
SPARSE = """
import torch

torch.manual_seed(0)
dense = torch.randn(4096, 512, device="cuda", requires_grad=True)
weights = torch.randn(4096, 4096).relu_().cuda()
torch.sparse.mm(weights.to_sparse(), dense).sum().backward()
with torch.no_grad():
    weights.to_sparse_csr() @ dense
    halved = torch.tensor([0, 0, 1, 1]).tile(1024, 1024).cuda().half()
    torch.sparse.to_sparse_semi_structured(halved) @ dense.half()
"""


class Environment:
    """A virtual environment, and what is predicted in it."""

    def __init__(self, name, options):
        self.folder, self.options = options.folder / name, options
        self.python = self.folder / "bin" / "python"

    def uv(self, *words):
        done = subprocess.run([sys.executable, "-m", "uv", *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"uv {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def install(self, *packages):
        if any(not word.startswith("--") for word in packages):
            self.uv("pip", "install", "--quiet", "--python", self.python, *packages)

    def make(self):
        """Anew each time: uv keeps what it fetched."""
        self.uv("venv", "--quiet", "--clear", "--python", sys.executable, self.folder)
        self.install(*PYTORCH)

    def versions(self):
        found = {one["name"]: one["version"] for one in json.loads(self.uv("pip", "list", "--format", "json", "--python", self.python))}
        return {name: version for name, version in found.items() if name.startswith("nvidia-") or name == "torch"}

    def imports(self):
        """The last line of what PyTorch says where it cannot be imported."""
        done = subprocess.run([self.python, "-c", "import torch"], capture_output=True, text=True)
        return done.stderr.strip().splitlines()[-1] if done.returncode else None

    def predict(self, case):
        program, *words = case.split()
        path = self.options.folder / program if program == "sparse.py" else PROGRAMS / program
        command = [self.options.oomph, "predict", "--gpu", self.options.gpu, "--python", self.python, "--format", "json", "--no-recording", *words, path]
        try:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=self.options.timeout, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return {"error": f"it took more than {self.options.timeout} seconds"}
        try:
            result = json.loads(done.stdout)
        except ValueError:
            said = [line for line in done.stderr.splitlines() if line.startswith("error:")] or done.stderr.splitlines()[-1:]
            return {"error": said[0] if said else f"exit code {done.returncode}"}
        result = result.get("predictions", [result])[0]
        if result["ended"] == "failed" or result["fits"] is None and not result["range"]:
            return {"error": result["error"] or "it is not known whether it fits"}
        return {
            **{key: result["peak"][key] for key in ("allocated", "reserved")},
            "unmodelled": {call["name"] for call in result["unmodelled_calls"]},
        }


def newer(pinned, packages):
    """What to install of each: its newest version that has the library's name as PyTorch asks for it, which ends with the major number."""
    return [f"{name}<{int(pinned[name].split('.')[0]) + 1}" for name in packages]


def upgrade(environment, pinned):
    """Takes the newest of all libraries; leaves those as they were without which alone PyTorch cannot be imported. Gives why, by package."""
    packages = [name for name in pinned if name.startswith("nvidia-")]
    environment.install("--no-deps", "--upgrade", *newer(pinned, packages))
    why = environment.imports()
    if why is None:
        return {}
    say(f"PyTorch cannot be imported with all of them ({why}); trying each")
    moved = [name for name, version in environment.versions().items() if name in packages and version != pinned[name]]
    refused = {}
    for name in moved:
        environment.install("--no-deps", *(f"{one}=={pinned[one]}" for one in packages))
        environment.install("--no-deps", "--upgrade", *newer(pinned, [name]))
        if why_alone := environment.imports():
            refused[name] = why_alone
    environment.install("--no-deps", *(f"{name}=={pinned[name]}" for name in packages if name in refused))
    environment.install("--no-deps", "--upgrade", *newer(pinned, [name for name in moved if name not in refused]))
    if why := environment.imports():
        sys.exit(f"PyTorch cannot be imported with the newest of NVIDIA's libraries together, and can with each alone: {why}")
    return refused


def tried_cudnn():
    """The newest cuDNN that oomph says it was tried with."""
    text = (ROOT / "crates/oomph-predict/src/refusal.rs").read_text()
    return re.search(r'name: "cudnn",.*?tried: "([\d.]+)"', text, re.DOTALL)[1]


def as_numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def say(words):
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def size(count):
    return f"{count / (1 << 20):,.1f} MiB"


def compare(pinned, newest, limit=LIMIT):
    """What changed, in words, and whether that is a failure."""
    if "error" in newest:
        return (f"fails under both: {newest['error']}" if "error" in pinned else f"FAILS: {newest['error']}"), True
    if "error" in pinned:
        return f"fails under the pinned alone: {pinned['error']}", False
    changes, is_failure = [], False
    for key in ("allocated", "reserved"):
        change = newest[key] / max(pinned[key], 1) - 1
        if newest[key] != pinned[key]:
            changes.append(f"{key} {change:+.2%}")
            is_failure |= abs(change) > limit
    if calls := newest["unmodelled"] - pinned["unmodelled"]:
        changes.append("newly not modelled: " + ", ".join(sorted(calls)))
    return "; ".join(changes) or "same", is_failure


def show(program, pinned, newest, words):
    """A row of the table, as soon as it is known."""
    peaks = (size(one[key]) if key in one else "-" for one in (pinned, newest) for key in ("allocated", "reserved"))
    print(f"{program:<22}", *(f"{peak:>12}" for peak in peaks), f" {words}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oomph", type=pathlib.Path, default=ROOT / "target" / "debug" / "oomph")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / ".venv-canary", help="where the environments are made")
    parser.add_argument("--gpu", default="h200", help="the card")
    parser.add_argument("--only", default="", metavar="WORD,...", help="programs whose names have one of these in them")
    parser.add_argument("--again", action="store_true", help="take the environments as they are")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS", help="for each prediction")
    options = parser.parse_args()
    options.folder = options.folder.absolute()
    cases = [case for case in CASES if any(word in case for word in options.only.split(","))]
    if not cases:
        parser.error(f"no program has {options.only} in its name: {', '.join(CASES)}")
    pinned, newest = (Environment(name, options) for name in ("pinned", "newest"))
    refused = {}
    if not options.again:
        say("installing PyTorch and the libraries that it asks for")
        for environment in (pinned, newest):
            environment.make()
        say("taking the newest of NVIDIA's libraries")
        refused = upgrade(newest, pinned.versions())
    (options.folder / "sparse.py").write_text(SPARSE)
    asked, taken = pinned.versions(), newest.versions()
    print(f"PyTorch {asked['torch']}")
    for name, version in asked.items():
        why = f"; PyTorch cannot be imported with a newer one: {refused[name]}" if name in refused else ""
        if taken[name] != version or why:
            print(f"  {name} {version} -> {taken[name]}{why}")
    cudnn = next((version for name, version in taken.items() if name.startswith("nvidia-cudnn")), "0")
    is_tried = as_numbers(cudnn) <= as_numbers(tried_cudnn())
    print(f"oomph was tried with cuDNN {tried_cudnn()}" + ("" if is_tried else "; where all is well below, raise that in crates/oomph-predict/src/refusal.rs"))
    print(f"\n{'':<22} {'pinned':>25} {'newest':>25}\n{'program':<22}", *2 * (f"{'allocated':>12}", f"{'reserved':>12}"), " what changed", flush=True)
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, case in enumerate(cases, 1):
            say(f"{number} of {len(cases)}: {case}")
            results = list(pool.map(lambda environment: environment.predict(case), (pinned, newest)))
            words, is_failure = compare(*results, float("inf") if case in CONVOLUTIONS and is_tried else LIMIT)
            failures += is_failure
            show(case, *results, words)
    print(f"\n{len(cases)} programs under the newest libraries: " + (f"{failures} failed, or must be looked at" if failures else "all is well"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
