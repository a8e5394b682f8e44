"""Dependencies that nothing uses: read from the sources, so that nothing needs to be built.

What `[dependencies]` has is named by what is built of `src`, what `[dev-dependencies]` has by tests, examples or benchmarks, what `[build-dependencies]` has by `build.rs` or what it includes:
as `name::`, `name!`, `use name` or `extern crate name`. What `[workspace.dependencies]` has, a crate of the workspace uses.
"""

import re

import pytest
import rust_sources
import tomllib
from rust_sources import CRATES

KINDS = ("dependencies", "dev-dependencies", "build-dependencies")
# What no source names, by crate and name, and why it is there.
EXCEPTIONS = {
    ("oomph-data", "reqwest"): "object_store makes the requests with it; here it only gets `rustls-no-provider`, which object_store has no feature for",
    ("oomph-ram", "tempfile"): "the tests in files of oomph-record, which it compiles by their paths, use it",
}


def named(text):
    """What code names that may be another crate: not what it has under that name from elsewhere."""
    names = set(re.findall(r"(?<![\w$])(?<![\w>]::)([A-Za-z_]\w*)(?:::|!\s*[({\[])", text))
    names |= set(re.findall(r"\b(?:use|extern crate) (\w+)(?: as \w+)?;", text))
    brought_in = {name for _, path, name in rust_sources.imports(text) if path[0] != name}
    return names - brought_in - set(re.findall(r"\bmod (\w+)\b", text))


def sources(crate):
    """The names in what each kind of dependency is for."""
    names = {kind: set() for kind in KINDS}
    for _, _, built, tests in rust_sources.modules(crate / "src"):
        names["dependencies"] |= named(built or "")
        names["dev-dependencies"] |= named(tests)
    for folder in ("tests", "examples", "benches"):
        for path in crate.glob(f"{folder}/**/*.rs"):
            names["dev-dependencies"] |= named(rust_sources.code(path.read_text()))
    for path in crate.glob("build.rs"):
        included = [path.parent / file for file in re.findall(r'include!\("([^"]+)"\)', path.read_text())]
        for part in (path, *included):
            names["build-dependencies"] |= named(rust_sources.code(part.read_text()))
    return names


def dependencies(manifest):
    """Kind, name and what is asked of it, for every machine."""
    for table in (manifest, *manifest.get("target", {}).values()):
        for kind in KINDS:
            for name, asked in table.get(kind, {}).items():
                yield kind, name, asked if isinstance(asked, dict) else {}


def unused(crate):
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    names, listed = sources(crate), list(dependencies(manifest))
    always = {name for kind, name, asked in listed if kind == "dependencies" and not asked.get("optional")}
    for kind, name, asked in listed:
        if name.replace("-", "_") not in names[kind]:
            yield name, f"[{kind}] of {crate.name} has {name}, which nothing there names"
        elif kind == "dev-dependencies" and name in always and not asked.get("features"):
            yield name, f"[{kind}] of {crate.name} has {name}, which is a dependency already"


def test_every_dependency_is_used():
    found = [((crate.name, name), says) for crate in sorted(path.parent for path in CRATES.glob("*/Cargo.toml")) for name, says in unused(crate)]
    further = [says for one, says in found if one not in EXCEPTIONS]
    assert not further, "\n".join(["dependencies that nothing uses:", *further])
    assert EXCEPTIONS.keys() - dict(found).keys() == set(), "these are named now, or gone"


def test_every_dependency_of_the_workspace_is_one_of_a_crate():
    workspace = tomllib.loads((CRATES.parent / "Cargo.toml").read_text())["workspace"]["dependencies"]
    used = {name for path in CRATES.glob("*/Cargo.toml") for _, name, asked in dependencies(tomllib.loads(path.read_text())) if asked.get("workspace")}
    assert sorted(workspace.keys() - used) == []


@pytest.mark.parametrize(
    "listed, source, file, is_used",
    [
        ("[dependencies]\na-b = '1'", "use a_b::C;", "src/lib.rs", True),
        ("[dependencies]\na-b = '1'", "fn f() { ::a_b::c() }", "src/x.rs", True),
        ("[dependencies]\na-b = '1'", "fn f() { a_b!(1) }", "src/x.rs", True),
        ("[dependencies]\na-b = '1'", "use a_b as c;", "src/x.rs", True),
        ("[dependencies]\na = { package = 'b', version = '1' }", "#[derive(a::C)]\nstruct D;", "src/x.rs", True),
        ("[target.'cfg(unix)'.dependencies]\na = '1'", "fn f() { a::c() }", "src/x.rs", True),
        ("[target.'cfg(unix)'.dependencies]\na = '1'", "", "src/x.rs", False),
        ("[dependencies]\na = '1'", '/// a::c\nfn f() { "a::c"; a != b; crate::a::c() }', "src/x.rs", False),
        # A name of the crate's own.
        ("[dependencies]\na = '1'", "use crate::a;\nfn f() { a::c() }", "src/x.rs", False),
        ("[dependencies]\na = '1'", "mod a;\nfn f() { a::c() }", "src/x.rs", False),
        # Only where it is for.
        ("[dependencies]\na = '1'", "#[cfg(test)]\nmod tests { use a::c; }", "src/x.rs", False),
        ("[dev-dependencies]\na = '1'", "#[cfg(test)]\nmod tests { use a::c; }", "src/x.rs", True),
        ("[dev-dependencies]\na = '1'", "use a::c;", "tests/x/y.rs", True),
        ("[dev-dependencies]\na = '1'", "use a::c;", "src/x.rs", False),
        ("[build-dependencies]\na = '1'", "use a::c;", "build.rs", True),
        ("[build-dependencies]\na = '1'", 'include!("tests/x.rs");', "build.rs", False),
        ("[dependencies]\na = '1'\n[dev-dependencies]\na = '1'", "use a::c;\n#[cfg(test)]\nuse a::d;", "src/x.rs", False),
        ("[dependencies]\na = '1'\n[dev-dependencies]\na = { version = '1', features = ['f'] }", "use a::c;\n#[cfg(test)]\nuse a::d;", "src/x.rs", True),
    ],
)
def test_what_is_unused_is_seen(listed, source, file, is_used, tmp_path):
    for name, text in {"Cargo.toml": listed, "src/lib.rs": "", "tests/x.rs": "", file: source}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (not list(unused(tmp_path))) == is_used
