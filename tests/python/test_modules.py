"""Files of a crate that use each other: read from the sources, so that nothing needs to be built.

What counts is a path that leads to an item of another file, outside tests. It may begin with `crate::` or `super::`, or with a name that a `use`
brought in (a module, its alias, a type), and is followed through `use` to the file that has the item. Naming a module is no use of it: after `use crate::json`, what stands behind `json::` is.
Nor is what a folder's own file calls of its children: a folder is one room, and what its files share is in that file. Not seen is who calls a method of a type that it does not name.
"""

import os
import re

import pytest
import rust_sources
from rust_sources import CRATES

# What is left to undo, by name: nothing is added here, and what is undone is taken out.
KNOWN = {
    # What is rendered, and how, is in the file of its verb; its JSON takes that, and is called by it.
    "oomph-report": [
        "data.rs json/profile.rs",
        "fit.rs json/fit.rs",
        "fix.rs json/patch.rs",
        "json/model.rs model.rs",
        "json/plan.rs plan.rs",
        "json/predict.rs predict.rs",
        "json/replay.rs replay.rs",
        "json/tune.rs tune.rs",
    ],
}


class Module:
    def __init__(self, text):
        self.imports = list(rust_sources.imports(text))
        self.body = re.sub(r"\bmod \w+;", "", rust_sources.without_imports(text))
        self.named, self.globs = {}, []
        for _, path, name in self.imports:
            if name == "*":
                self.globs.append(path)
            else:
                self.named.setdefault(name, []).append(path)


class Crate:
    def __init__(self, root):
        self.root = root
        self.modules, self.files = {}, {}
        # What `main.rs` is, and what lies in `bin`, are crates of their own, which nobody can use.
        built = {name: (path, text) for name, path, text, _ in rust_sources.modules(root) if text is not None and name[:1] not in (("main",), ("bin",))}
        self.known = built.keys()
        for name, (path, text) in built.items():
            self.add(name, path, text)
        self.macros = {}
        for name, module in self.modules.items():
            for macro in re.findall(r"macro_rules! (\w+)", module.body):
                self.macros.setdefault(macro, set()).add(name)

    def add(self, name, path, text):
        """A module, those that are written in it, and those that it has from elsewhere."""
        while inside := re.search(r"\bmod (\w+) \{", text):
            end = rust_sources.end_of(text, inside.start())
            self.add((*name, inside[1]), path, text[inside.end() : end - 1])
            text = text[: inside.start()] + text[end:]
        for file, module in re.findall(r'#\[path = "([^"]+)"\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))? )?mod (\w+);', text):
            elsewhere, child = (path.parent / file).resolve(), (*name, module)
            if child in self.known:
                self.files.setdefault(child, set()).add(os.path.relpath(elsewhere, self.root))
            else:
                self.add(child, elsewhere, rust_sources.split(rust_sources.code(elsewhere.read_text()))[0])
        self.modules[name] = Module(text)
        self.files.setdefault(name, set()).add(os.path.relpath(path, self.root))

    def homes(self, path, module, steps=16):
        """The modules that have what a path names, as seen from a module: several where it depends on features, `None` for what is a module itself."""
        base, path, is_ours = module, list(path), False
        while path and path[0] in ("crate", "$crate", "super", "self"):
            base, is_ours = {"super": base[:-1], "self": base}.get(path.pop(0), ()), True
        return self.homes_below(base, path, is_ours, steps)

    def homes_below(self, base, path, is_ours, steps):
        """As `homes`. What is not surely ours may be another crate's, the language's, or stand in the same file."""
        if not path or not steps:
            return set()
        first, rest = path[0], path[1:]
        is_module = (*base, first) in self.modules
        if is_module and rest:
            return self.homes_below((*base, first), rest, True, steps)
        found = set()
        for other in self.modules[base].named.get(first, ()):
            if other != (first,):
                found |= self.homes((*other, *rest), base, steps - 1)
        if not found and first != "*":
            for other in self.modules[base].globs:
                for home in self.homes(other, base, steps - 1) - {base, None}:
                    found |= self.homes_below(home, path, False, steps - 1)
        if found or not is_ours:
            return found
        exported = self.macros.get(first) if base == () else None
        return {None} if is_module else exported or {base}

    def uses(self, name):
        """What a module uses of others: the other, and the path as it is written. What lies in its own folder does not count: a folder's file calls its children, and has what they share."""
        module = self.modules[name]
        paths = {path for _, path, _ in module.imports}
        paths |= {tuple(path.split("::")) for path in re.findall(r"(?<![\w:$])(?:\$crate|[A-Za-z_]\w*)(?:::[A-Za-z_]\w*)+", module.body)}
        for path in sorted(paths):
            for home in self.homes(path, name) - {None}:
                if home[: len(name)] != name:
                    yield home, "::".join(path)
        for macro, homes in self.macros.items():
            if name not in homes and re.search(rf"\b{macro}!", module.body):
                yield from ((home, f"{macro}!") for home in homes if home[: len(name)] != name)

    def graph(self):
        """For each file, the others that it uses, and one path for each."""
        graph = {file: {} for files in self.files.values() for file in files}
        for name in self.modules:
            for home, path in self.uses(name):
                for file in self.files[name]:
                    for other in self.files[home] - {file}:
                        graph[file].setdefault(other, path)
        return graph


def circles(graph):
    """Sets of files each of which reaches every other."""
    reach = {}
    for start in graph:
        seen, todo = set(), [start]
        while todo:
            for other in graph[todo.pop()].keys() - seen:
                seen.add(other)
                todo.append(other)
        reach[start] = seen
    return {frozenset(other for other in reach[file] if file in reach[other]) for file in graph if file in reach[file]}


def test_no_further_files_use_each_other():
    known = {crate: {frozenset(circle.split()) for circle in listed} for crate, listed in KNOWN.items()}
    further, gone = [], []
    for root in sorted(CRATES.glob("*/src")):
        crate, graph = root.parent.name, Crate(root).graph()
        found, listed = circles(graph), known.pop(crate, set())
        for circle in found:
            if not any(circle <= other for other in listed):
                paths = [f"  {file} -> {other}: {path}" for file in sorted(circle) for other, path in sorted(graph[file].items()) if other in circle]
                further += [f"{crate}: {' '.join(sorted(circle))}", *paths]
        gone += [f"{crate}: {' '.join(sorted(circle))}" for circle in listed - found]
    assert not further, "\n".join(["files that use each other:", *further])
    assert not gone and not known, "\n".join(["undone, all or a part: take it out of the list, or write what is left", *gone, *known])


@pytest.mark.parametrize(
    "sources, circle",
    [
        # From a name that was brought in: a module, its alias, a type, what another file shows.
        ({"a.rs": "use crate::b;\nfn f() { b::g() }", "b.rs": "use crate::a::f;"}, "a.rs b.rs"),
        ({"a.rs": "use crate::b as c;\nfn f() { c::g() }", "b.rs": "fn g() { super::a::f() }"}, "a.rs b.rs"),
        ({"a.rs": "use crate::b::{self, c::D};\nfn f() { D::new() }", "b/mod.rs": "", "b/c.rs": "use crate::a::f;"}, "a.rs b/c.rs"),
        ({"a.rs": "use crate::b::D;", "b/mod.rs": "pub use c::D;", "b/c.rs": "use crate::a::f;"}, "a.rs b/c.rs"),
        ({"a.rs": "use super::*;\nfn f() { b::g() }", "b.rs": "use crate::a::f;"}, "a.rs b.rs"),
        ({"a.rs": "pub use other::Name;\nuse crate::b::g;", "b.rs": "use crate::a::Name;"}, "a.rs b.rs"),
        # A folder and its children.
        ({"a/mod.rs": "mod b;\nfn f() { b::g() }", "a/b.rs": "use super::f;"}, ""),
        ({"a/mod.rs": "mod b;", "a/b.rs": "use super::c::f;", "a/c.rs": "use super::b::g;"}, "a/b.rs a/c.rs"),
        # Macros, modules that are written in another's file, files from elsewhere.
        ({"a.rs": "#[macro_export]\nmacro_rules! m { () => { $crate::b::g() } }", "b.rs": "fn g() { crate::m!() }"}, "a.rs b.rs"),
        ({"a.rs": "mod inner { use super::super::b::g; }", "b.rs": "use crate::a::f;"}, "a.rs b.rs"),
        ({"a.rs": "mod inner { use super::b::g; }", "b.rs": "use crate::a::f;"}, ""),
        ({"a.rs": '#[path = "c.rs"]\nmod b;\nfn f() { b::g() }', "c.rs": "use crate::d::f;", "d.rs": "use crate::a::b::g;"}, "c.rs d.rs"),
        # What is no use.
        ({"a.rs": "use crate::b;\nuse crate::b::c::D;", "b/mod.rs": "use crate::a::f;", "b/c.rs": ""}, ""),
        ({"a.rs": '// crate::b::g\nfn f() { \'x\'; "crate::b::g"; r#"crate::b::g"# }', "b.rs": "use crate::a::f;"}, ""),
        ({"a.rs": "#[cfg(test)]\nuse crate::b::{g, h};\n#[cfg(test)]\nmod t { fn f() { crate::b::g() } }", "b.rs": "use crate::a::f;"}, ""),
        ({"lib.rs": "mod a; mod b; #[cfg(test)] mod t;", "a.rs": "use crate::t::f;", "b.rs": "", "t.rs": "use crate::a::g;"}, ""),
    ],
)
def test_circles_are_seen_where_they_are(sources, circle, tmp_path):
    for name, text in {"lib.rs": "", **sources}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert {" ".join(sorted(found)) for found in circles(Crate(tmp_path).graph())} == {circle} - {""}
