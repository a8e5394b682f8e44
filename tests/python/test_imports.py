"""No two files of the Python package import each other, directly or in a circle.

Read off the sources with `ast`, nothing is imported. An import inside a function counts as one at the top: it hides a circle and does not undo it. Not counted:

- what stands under ``if TYPE_CHECKING``: it is never run, and a name in an annotation ties no file to another;
- that importing ``oomph.a.b`` runs ``oomph/__init__.py`` and ``oomph/a/__init__.py`` first: Python does this for every module, and packages that re-export
  their modules would all be circles. What a package's ``__init__`` is *asked* for (``from oomph import fit``) counts.
"""

import ast

import pytest
from conftest import ROOT

PACKAGE = ROOT / "python" / "oomph"
# The command lays the files of `live` beside those of `virtual` in a child (oomph-predict/src/stage.rs), where they import each other as siblings.
LAID_BESIDE = {"oomph.virtual": "oomph.live"}


def files():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ["oomph", *path.relative_to(PACKAGE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(tree):
    """All of a tree but what is there for type checkers alone."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        types_only = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        waiting += node.orelse if types_only else ast.iter_child_nodes(node)


def imported(name, path, source, known):
    """The files of ours that one file imports."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, package, known)


def _from(node, package, known):
    bases = [node.module or ""]
    if node.level:
        above = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
        bases = [f"{base}.{node.module}" if node.module else base for base in (above, LAID_BESIDE.get(above)) if base is not None]
    for alias in node.names:
        modules = [module for base in bases for module in (f"{base}.{alias.name}", base) if module in known]
        yield from modules[:1]


def circles(graph):
    """The sets of files that can all be reached from each other."""
    reached = {name: reachable(name, graph) for name in graph}
    rings = {frozenset([name, *(other for other in reached[name] if name in reached[other])]) for name in graph if name in reached[name]}
    return sorted(sorted(ring) for ring in rings)


def reachable(name, graph):
    found, waiting = set(), list(graph[name])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += graph[one]
    return found


def test_no_files_of_the_package_import_each_other():
    known = files()
    graph = {name: set(imported(name, path, path.read_text(), known)) - {name} for name, path in known.items()}
    assert graph["oomph.virtual.child"] >= {"oomph.live.imports", "oomph.virtual.phases"}, "the walk does not see what is there"
    assert circles(graph) == []


@pytest.mark.parametrize(
    "sources, circle",
    [
        ({"a": "from p.b import x", "b": "def f():\n    from p import a"}, [["p.a", "p.b"]]),
        ({"a": "from .b import x", "b": "import p.c", "c": "from . import a"}, [["p.a", "p.b", "p.c"]]),
        ({"a": "from p.b import x", "b": "if TYPE_CHECKING:\n    from p.a import X"}, []),
        ({"a": "from p.b import x", "b": "import p"}, []),
    ],
)
def test_circles_are_seen_where_they_are(sources, circle, tmp_path):
    known = {"p": tmp_path / "__init__.py"} | {f"p.{name}": tmp_path / f"{name}.py" for name in sources}
    graph = {"p": set()} | {f"p.{name}": set(imported(f"p.{name}", known[f"p.{name}"], source, known)) for name, source in sources.items()}
    assert circles(graph) == circle
