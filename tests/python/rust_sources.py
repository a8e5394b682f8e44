"""Rust as text, for tests that read the crates and build nothing: a file without comments and strings, what of it is for tests, and which names its `use` lines bring in."""

import pathlib
import re

CRATES = pathlib.Path(__file__).resolve().parents[2] / "crates"

_CHARACTER = r"'(?:\\(?:u\{\w+\}|x\w\w|.)|[^\\'\n])'"
# A lifetime is no character: nothing closes it.
_NOT_CODE = re.compile(rf'(?=[/"\'rbc])(?://[^\n]*|/\*.*?\*/|\b[bc]?r(?P<hashes>#*)".*?"(?P=hashes)|(?:\b[bc])?"(?:\\.|[^"\\])*"|(?:\bb)?{_CHARACTER})', re.DOTALL)
# Attributes whose string is a path: `#[serde(deserialize_with = "handed::path")]`; and that of `#[path = "…"]`, which is a file's.
_NAMES_A_FUNCTION = re.compile(r"(?:with|default) = $")
_NAMES_A_FILE = re.compile(r"\[path = $")
_BRACKETS = re.compile(r"[\[\](){};]")
_FOR_TESTS = re.compile(r"#\[cfg\((?:test|all\(test\b[^\]]*\))\)\]")
_ENDS_WITH_A_SEMICOLON = re.compile(r"\s*(?:pub(?:\([^)]*\))?\s+)?(?:use|static|let|const(?!\s+(?:fn|unsafe|extern)))\b")
_USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use ([^;]+);")


def code(text):
    """A file without comments, and with empty strings."""

    def instead(found):
        if found[0].startswith("/"):
            return " "
        before = text[max(0, found.start() - 12) : found.start()]
        if _NAMES_A_FILE.search(before):
            return found[0]
        return f" {found[0][1:-1]} " if _NAMES_A_FUNCTION.search(before) else '""'

    return _NOT_CODE.sub(instead, text)


def end_of(text, start, until_semicolon=False):
    """Where the item ends that begins there: behind its last bracket, or its semicolon."""
    depth = 0
    for bracket in _BRACKETS.finditer(text, start):
        if bracket[0] == ";":
            if depth == 0:
                return bracket.end()
        elif bracket[0] in "([{":
            depth += 1
        else:
            depth -= 1
            if depth == 0 and bracket[0] == "}" and not until_semicolon:
                return bracket.end()
    return len(text)


def split(text):
    """Code as (what is built, what is there for tests alone)."""
    built, tests, at = [], [], 0
    while found := _FOR_TESTS.search(text, at):
        start = found.end()
        while further := re.compile(r"\s*#\[[^\]]*\]").match(text, start):
            start = further.end()
        end = end_of(text, start, until_semicolon=_ENDS_WITH_A_SEMICOLON.match(text, start))
        built.append(text[at : found.start()])
        tests.append(text[start:end])
        at = end
    return "".join([*built, text[at:]]), "".join(tests)


def modules(root):
    """Each file below a `src`: the module it is, its path, what is built of it, and what is for tests. Of a module that is there for tests alone nothing is built: `None`."""
    read, for_tests = {}, set()
    for path in sorted(root.rglob("*.rs")):
        name = path.relative_to(root).with_suffix("").parts
        name = name[:-1] if name[-1] in ("mod", "lib") else name
        read[name] = path, *split(code(path.read_text()))
        for_tests |= {(*name, module) for module in re.findall(r"\bmod (\w+);", read[name][-1])}
    for name, (path, built, tests) in read.items():
        is_for_tests = any(name[:length] in for_tests for length in range(1, len(name) + 1))
        yield name, path, *((None, built + tests) if is_for_tests else (built, tests))


def imports(text):
    """What each `use` brings in: whether it shows it to others, the path, and the name that it has here (`*` for all)."""
    for public, tree in _USE.findall(text):
        for path, name in _leaves("".join(re.sub(r"\s+as\s+", "=", tree).split())):
            yield bool(public), tuple(path.split("::")), name


def without_imports(text):
    return _USE.sub("", text)


def _leaves(tree):
    """`a::{self,b,c::d=e}` as `a`, `a::b` and `a::c::d`, each with its name."""
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, name = tree.partition("=")
        path = path.removesuffix("::self")
        yield path, name or path.rpartition("::")[2]
        return
    parts, depth = [""], 0
    for letter in rest.removesuffix("}"):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    for part in filter(None, parts):
        yield from _leaves(head + part)
