"""Files of a crate that use each other: read from the sources, so that nothing needs to be built.

What counts is a path that begins with `crate::` or `super::`, outside tests, followed through `pub use` to the file that has
the item. A module's own `use` of its submodules does not: it is how a folder shows what is in it.
"""

import pathlib
import re

CRATES = pathlib.Path(__file__).resolve().parents[2] / "crates"


def production(text):
    """A file without comments and without its tests."""
    text = re.sub(r"//[^\n]*", "", text)
    return re.split(r"^\s*#\[cfg\(test\)\]\n(?:\s*#\[.*\n)*\s*mod tests? \{", text, maxsplit=1, flags=re.MULTILINE)[0]


def leaves(tree):
    """`a::{b, c::d as e}` as `a::b` and `a::c::d`."""
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = tree.partition(" as ")
        yield path.strip(), name.strip() or path.strip().rpartition("::")[2]
        return
    parts, depth = [""], 0
    for letter in rest.rstrip().removesuffix("}"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    for part in filter(str.strip, parts):
        for path, name in leaves(part.strip()):
            yield head.strip() + path, name


class Crate:
    def __init__(self, root):
        self.root = root
        self.files, self.text = {}, {}
        for path in sorted(root.rglob("*.rs")):
            name = path.relative_to(root).with_suffix("").parts
            if name[-1] in ("mod", "lib", "main"):
                name = name[:-1]
            if "tests" not in name and "bin" not in name:
                self.files[name] = path.relative_to(root).as_posix()
                self.text[name] = production(path.read_text())
        self.shown = {module: self.reexports(module) for module in self.files}

    def reexports(self, module):
        shown = {}
        for tree in re.findall(r"^pub(?:\([^)]*\))? use ([^;]+);", self.text[module], re.MULTILINE):
            for path, name in leaves(tree):
                shown[name] = path
        return shown

    def module_of(self, path, module):
        """The file that has what `path` names, as seen from `module`."""
        for _ in range(8):
            base, parts = module, path.split("::")
            while parts[0] in ("crate", "super", "self"):
                base = {"crate": (), "super": base[:-1], "self": base}[parts.pop(0)]
                if not parts:
                    return base
            while parts and (*base, parts[0]) in self.files:
                base = (*base, parts.pop(0))
            if not parts or parts[0] not in self.shown.get(base, {}):
                return base
            path, module = "::".join([self.shown[base][parts[0]], *parts[1:]]), base
        return module

    def uses(self, module):
        text = self.text[module]
        paths = [path for tree in re.findall(r"\buse ([^;]+);", text) for path, _ in leaves(" ".join(tree.split()))]
        paths += re.findall(r"\b(?:crate|super)(?:::\w+)+", re.sub(r"\buse [^;]+;", "", text))
        for path in paths:
            if path.split("::")[0] in ("crate", "super"):
                yield self.module_of(path, module)

    def circles(self):
        """Sets of files each of which reaches every other."""
        graph = {module: {other for other in self.uses(module) if other in self.files} - {module} for module in self.files}
        reach = {}
        for start in graph:
            seen, todo = set(), [start]
            while todo:
                for other in graph[todo.pop()] - seen:
                    seen.add(other)
                    todo.append(other)
            reach[start] = seen
        return {frozenset(self.files[other] for other in reach[module] if module in reach[other]) for module in graph if module in reach[module]}


def test_no_files_use_each_other():
    found = {}
    for root in sorted(CRATES.glob("*/src")):
        if circles := Crate(root).circles():
            found[root.parent.name] = sorted(" ".join(sorted(circle)) for circle in circles)
    assert not found, "files that use each other"
