"""Write the reference from the code: commands.md and rules.md by the command, python.md from the package's sources.

    python docs/reference/make.py --oomph target/debug/oomph [--check]

`make reference` builds the command and calls this; a test calls it with what is committed. The package is parsed and not imported: what it says
does not depend on which of torch, transformers and Lightning are installed here.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "python"
# Modules that people import, in the order of the page.
MODULES = ("oomph", "oomph.data", "oomph.host")
# A signature longer than this is written one parameter a line.
WIDTH = 100

# Where the extension module makes its classes, with what they mean.
NATIVE = HERE.parents[1] / "crates" / "oomph-python" / "src" / "errors.rs"

PYTHON_HEAD = """\
# Python

Made from the code by `make reference`: change the docstrings in `python/oomph`, not this page. All of it is there after `pip install .` in a checkout;
what needs PyTorch, Lightning or transformers imports it when it is called. In notebooks, `%load_ext oomph`: [the guide](../guides/notebook.md).
"""
RULES_HEAD = """\
# Rules

Made from the code by `make reference`: change the header of a rule's file (`crates/oomph-explain/src/rules`, for RAM `src/host/rules`), not this page. `oomph rule CODE` prints the
same. [Add a rule](../../CONTRIBUTING.md#add-a-rule).
"""


def pages(command: str) -> dict[str, str]:
    """The name of each page, and what must stand in it."""

    def printed(*words: str) -> str:
        return subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout

    rules = "\n".join([RULES_HEAD, printed("rule", "--format", "markdown"), printed("rule", "--full", "--format", "markdown")])
    return {"commands.md": printed("man", "--markdown"), "rules.md": rules, "python.md": python()}


def python() -> str:
    parts = [PYTHON_HEAD, "\n".join(f"- [`{name}`](#{_anchor(name)}): {_sentence(ast.get_docstring(_parsed(name)))}" for name in MODULES) + "\n"]
    for module in MODULES:
        parts.append(f"## {module}\n")
        parts.append(_prose(_without_title(ast.get_docstring(_parsed(module)))))
        names = [name for name in _public(module) if f"{module}.{name}" not in MODULES]
        # Functions are what people look for; classes are mostly what they give.
        found = sorted(((name, _find(module, name)) for name in names), key=lambda one: (isinstance(one[1][1], ast.ClassDef), one[0].lower()))
        for name, (home, definition) in found:
            parts.append(_shown(f"{module}.{name}", home, definition))
    return "\n".join(part for part in parts if part)


def _parsed(module: str) -> ast.Module:
    path = PACKAGE.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text(encoding="utf-8"))


def _public(module: str) -> list[str]:
    """The names of `__all__`, which may be put together in several lines."""
    names: list[str] = []
    for node in _parsed(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target if isinstance(node, ast.AugAssign) else None
        if isinstance(target, ast.Name) and target.id == "__all__":
            names += ast.literal_eval(node.value)
    return names


def _find(module: str, name: str) -> tuple[str, ast.FunctionDef | ast.ClassDef]:
    """The module in which a name is defined, and its definition: imports are followed, those for type checkers too."""
    tree = _parsed(module)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return module, node
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and (made := re.fullmatch(r"type\[(\w+)\]", ast.unparse(node.annotation))):
            # A class of the extension module, which says here what it is.
            means = re.search(rf'\b{name},\s+\w+,\s+"(.*)"', NATIVE.read_text(encoding="utf-8"))
            return module, ast.parse(f"class {name}({made[1]}): {means[1] if means else ''!r}").body[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("oomph") and name in [alias.name for alias in node.names]:
            return _find(node.module, name)
    raise LookupError(f"{name} is in __all__ of {module}, and is not defined in a way that docs/reference/make.py follows")


def _shown(name: str, home: str, definition: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(definition, ast.FunctionDef):
        return "\n".join([f"### {name}\n", _code(_signature(name, definition)), _prose(ast.get_docstring(definition))])
    parts = [f"### {name}\n"]
    fields, methods = _members(home, definition)
    start = next((method for method in methods if method.name == "__init__"), None)
    # Whose errors are caught with it; bases of our own are not documented.
    bases = [ast.unparse(base) for base in definition.bases if hasattr(builtins, ast.unparse(base))]
    if start is not None and _is_made_by_people(definition):
        parts.append(_code(_signature(name, start, is_method=True, gives=False)))
    elif bases:
        parts.append(_code(f"class {name}({', '.join(bases)})"))
    parts.append(_prose(ast.get_docstring(definition)))
    if fields:
        parts.append("\n".join(f"- `{field}`" for field in fields) + "\n")
    said = []
    for method in methods:
        text = ast.get_docstring(method)
        if method.name.startswith("_") or text is None:
            continue
        decorators = [ast.unparse(decorator) for decorator in method.decorator_list]
        typed = f".{method.name}" if "property" in decorators else _signature(f".{method.name}", method, is_method="staticmethod" not in decorators)
        said.append(f"- `{' '.join(typed.split()).replace('( ', '(').replace(', )', ')')}`: {' '.join(_quoted(text).split())}\n")
    return "\n".join([*parts, "".join(said)]) if said else "\n".join(parts)


def _is_made_by_people(definition: ast.ClassDef) -> bool:
    """Callbacks are; what functions give is not, and how that is put together is not documented."""
    return definition.name in ("FitCallback", "FitLightning")


def _members(module: str, definition: ast.ClassDef) -> tuple[list[str], list[ast.FunctionDef]]:
    """Fields of dataclasses, and methods, those of bases within the package included."""
    fields, methods = [], []
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list)
    for node in definition.body:
        if isinstance(node, ast.FunctionDef):
            methods.append(node)
        elif is_dataclass and isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            fields.append(f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}")
    for base in definition.bases:
        try:
            more_fields, more_methods = _members(*_find(module, ast.unparse(base)))
        except LookupError:
            continue
        known = {method.name for method in methods}
        fields = more_fields + fields
        methods += [method for method in more_methods if method.name not in known]
    return fields, methods


def _signature(name: str, function: ast.FunctionDef, is_method: bool = False, gives: bool = True) -> str:
    arguments = function.args
    if is_method:
        own = arguments.posonlyargs or arguments.args
        del own[:1]
    result = f" -> {ast.unparse(function.returns)}" if gives and function.returns is not None and ast.unparse(function.returns) != "None" else ""
    parameters = _parameters(arguments)
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"


def _parameters(arguments: ast.arguments) -> list[str]:
    """Each as people write it."""

    def plain(one: ast.arg, default: ast.expr | None = None, before: str = "") -> str:
        typed = f"{before}{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else f"{before}{one.arg}"
        if default is None:
            return typed
        value = ast.unparse(default)
        if isinstance(default, ast.Constant) and isinstance(default.value, str) and '"' not in value and "\\" not in value:
            value = f'"{default.value}"'
        return f"{typed} = {value}" if one.annotation else f"{typed}={value}"

    in_order = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(in_order) - len(arguments.defaults)) + arguments.defaults
    parts = [plain(*one) for one in zip(in_order, defaults)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        parts.append(plain(arguments.vararg, before="*"))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [plain(*one) for one in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [*parts, plain(arguments.kwarg, before="**")] if arguments.kwarg else parts


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _prose(text: str | None) -> str:
    """A docstring as Markdown: examples become code."""
    if not text:
        return ""
    out, example = [], []
    for line in [*inspect.cleandoc(text).split("\n"), ""]:
        if line.startswith(">>> ") or (example and line.strip()):
            example.append(re.sub(r"\s*# doctest: .*", "", line))
            continue
        if example:
            out += ["```python", *example, "```"]
            example = []
        out.append(_quoted(line))
    return "\n".join(out).rstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """Code between single backticks, as Markdown has it."""
    return re.sub(r":\w+:`", "`", text).replace("``", "`")


def _without_title(text: str | None) -> str:
    """A module's docstring less its first line, which the list at the top has."""
    return (text or "").partition("\n\n")[2]


def _sentence(text: str | None) -> str:
    line = " ".join((text or "").partition("\n\n")[0].split())
    return _quoted(re.sub(r"^`*oomph(\.\w+)?`*: ", "", line))


def _anchor(name: str) -> str:
    return name.replace(".", "").lower()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oomph", default="oomph", help="the command")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not what the code says")
    options = parser.parse_args()
    stale = []
    for name, text in pages(options.oomph).items():
        path = HERE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale' if options.check else 'written'}: {', '.join(stale)}")
    if stale and options.check:
        print("type: make reference")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
