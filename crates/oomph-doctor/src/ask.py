# What `oomph doctor` asks an interpreter: where PyTorch is, what it was built for, which packages lie beside it.
# Nothing is imported but the standard library, and nothing of the current folder.
import sys

sys.path = [place for place in sys.path if place]

import ast  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402

PACKAGES = re.compile(
    r"(torch|torchaudio|torchvision|triton|pytorch[_-]triton\w*|nvidia_\w+|cuda_toolkit|oomph|tensorflow|tensorflow_cpu|jaxlib|jax_cuda\w*)-([^-]+)(?:-[^-]+)?\.(?:dist|egg)-info$",
    re.IGNORECASE,
)


def literals(path):
    """The names that a file assigns plain values to; it is read, not run."""
    values = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        tree = ast.parse(file.read(1 << 16))
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(getattr(statement, "value", None), ast.Constant):
            values.update((target.id, statement.value.value) for target in targets if isinstance(target, ast.Name))
    return values


def requirements(folder):
    try:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            head = file.read(1 << 20).split("\n\n", 1)[0]
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in head.splitlines() if line.startswith("Requires-Dist:")]


def text(value):
    return value if isinstance(value, str) else None


def torch_in(folder):
    try:
        facts = literals(os.path.join(folder, "version.py"))
    except (OSError, SyntaxError, ValueError):
        return None
    return {
        "folder": folder,
        "is_in_environment": sys.prefix != sys.base_prefix and folder.startswith(os.path.join(os.path.realpath(sys.prefix), "")),
        "version": text(facts.get("__version__")) or "?",
        "cuda": text(facts.get("cuda")),
        "hip": text(facts.get("hip")),
    }


found = {
    "version": ".".join(map(str, sys.version_info[:3])),
    "executable": sys.executable or "",
    "prefix": sys.prefix,
    "is_environment": sys.prefix != sys.base_prefix,
    "is_conda": os.path.isdir(os.path.join(sys.prefix, "conda-meta")),
    "has_pip": False,
    "machine": os.uname().machine,
    "torch": [],
    "packages": {},
    "torch_requires": [],
    "toolkit_requires": [],
    "oomph": None,
}
seen = set()
for place in map(os.path.realpath, sys.path):
    if place in seen or not os.path.isdir(place):
        continue
    seen.add(place)
    try:
        names = sorted(os.listdir(place))
    except OSError:
        continue
    if "torch" in names:
        torch = torch_in(os.path.join(place, "torch"))
        found["torch"] += [torch] if torch else []
    # What `-m pip` runs.
    found["has_pip"] |= os.path.isfile(os.path.join(place, "pip", "__main__.py"))
    if "oomph" in names and found["oomph"] is None:
        try:
            found["oomph"] = text(literals(os.path.join(place, "oomph", "_version.py")).get("VERSION"))
        except (OSError, SyntaxError, ValueError):
            pass
    for name in names:
        match = PACKAGES.match(name)
        if not match:
            continue
        package = match[1].lower().replace("_", "-")
        for key, owner in (("torch_requires", "torch"), ("toolkit_requires", "cuda-toolkit")):
            if package == owner and not found[key]:
                found[key] = requirements(os.path.join(place, name))
        found["packages"].setdefault(package, []).append(match[2])
if not found["torch"]:
    # A build that is used from where it was built.
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    for folder in list((spec and spec.submodule_search_locations) or [])[:1]:
        torch = torch_in(folder)
        found["torch"] += [torch] if torch else []
print(json.dumps(found))
