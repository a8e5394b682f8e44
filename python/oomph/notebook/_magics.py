"""The magics ``%oomph``, ``%%oomph`` and ``%%oomph_ram``: what can be typed, and which function answers."""

from __future__ import annotations

import ast
import os
import shlex
from typing import Any

from oomph._measure import gpus, ram
from oomph._ram import limit_if_known
from oomph._sizes import text
from oomph.notebook._ram_of_cell import RamOfCell
from oomph.notebook._recorded import recorded, running_recording
from oomph.notebook._show import Explained, say

_HELP = """What holds memory, and where it went.

    %oomph who       what holds GPU memory now, by variable name
    %oomph free      free what you did not name; print how much came back
    %oomph report    the page of the last cell that was recorded, or of a file: %oomph report train.oomph
    %oomph status    memory now, and what oomph does after a cell
    %oomph on        after a cell that changed memory, say so (this is the default)
    %oomph quiet     say nothing after cells, but explain when memory runs out
    %oomph off       do nothing after cells

    %%oomph          at the top of a cell: record the cell, and explain where its memory went
    %%oomph_ram      at the top of a cell: what each of its lines holds of RAM at the peak

After a cell that failed, oomph frees the variables of the functions that failed, so that they hold no memory; %tb still
prints the traceback. With %pdb on it leaves them alone.
"""


def register(notebook: Any) -> None:
    shell = notebook.shell

    def oomph(line: str = "", cell: str | None = None) -> Any:
        if cell is None:
            return _answer(notebook, line.strip())
        if words := line.partition("#")[0].strip():
            raise _usage(f"%%oomph takes no words, and got {words!r}: it records the cell below it. %oomph? says what %oomph takes")
        return _run_cell(notebook, cell)

    def oomph_ram(line: str, cell: str) -> Any:
        """Runs the cell, and shows what each of its lines holds of RAM at the peak: of what was allocated since the cell began."""
        if words := line.partition("#")[0].strip():
            raise _usage(f"%%oomph_ram takes no words, and got {words!r}: it measures the cell below it")
        return _run_ram(notebook, cell)

    oomph.__doc__ = _HELP
    shell.register_magic_function(oomph, magic_kind="line_cell", magic_name="oomph")
    shell.register_magic_function(oomph_ram, magic_kind="cell", magic_name="oomph_ram")


def unregister(shell: Any) -> None:
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("oomph", None)
    shell.magics_manager.magics["cell"].pop("oomph_ram", None)


def _answer(notebook: Any, word: str) -> Any:
    if word == "who":
        from oomph._who import who

        return who()
    if word == "free":
        from oomph._free import free

        return free()
    if word.split(maxsplit=1)[:1] == ["report"]:
        return _report(notebook, word.removeprefix("report").strip())
    if word in ("on", "quiet", "off"):
        notebook.mode = word
    elif word not in ("", "status"):
        print(f"%oomph {word}: who, free, report, status, on, quiet or off")
        return None
    for device, now in enumerate(gpus()):
        own = f"{text(now.allocated)} allocated, {text(now.reserved)} reserved by this program"
        print(f"GPU {device}: {own}; {text(now.used)} of {text(now.total)} in use")
    limit = limit_if_known()
    print(f"RAM: {text(ram().used)}{f' of {text(limit)}' if limit else ''}")
    print(f"oomph is {notebook.mode}")
    return None


def _usage(message: str) -> Exception:
    """What IPython shows as one line."""
    from IPython.core.error import UsageError

    error: Exception = UsageError(message)
    return error


def _report(notebook: Any, path: str) -> Any:
    from oomph._report import report

    try:
        named = shlex.split(path)
    except ValueError:
        raise _usage(f"%oomph report {path}: a quotation mark is not closed") from None
    if len(named) > 1:
        return report(*named)
    path = (named[0] if named else notebook.last_recording or running_recording()) or ""
    if not os.path.exists(path):
        print(f"%oomph report: {path}: there is no such file" if path else "%oomph report: no cell was recorded; %%oomph at the top of one does")
        return None
    return report(path)


def _run_cell(notebook: Any, cell: str) -> Any:
    """Runs a cell as IPython would, with a recording, and shows its explanation; gives the value of its last line."""
    try:
        return _run_recorded(notebook, cell)
    except BaseException as error:
        notebook.own_errors.expect(error, _run_recorded.__code__)
        raise


def _run_recorded(notebook: Any, cell: str) -> Any:
    _, steps = _compiled(notebook.shell, cell)
    value = None
    path = ""
    try:
        with recorded(notebook.shell.execution_count) as path:
            explained = Explained(path)
            notebook.after_the_traceback = explained
            for run, code in steps:
                value = run(code, notebook.shell.user_ns)
    finally:
        # What a failed cell left is what people want to see.
        if os.path.exists(path):
            notebook.last_recording = path
    notebook.after_the_traceback = None
    if os.path.exists(path):
        explained.show()
    else:
        say("oomph: nothing was recorded: the cell did not use CUDA")
    return value


def _run_ram(notebook: Any, cell: str) -> Any:
    """Runs a cell as IPython would, and shows its lines with what they hold of RAM; gives the value of its last line."""
    try:
        return _run_measured(notebook, cell)
    except BaseException as error:
        notebook.own_errors.expect(error, _run_measured.__code__)
        raise


def _run_measured(notebook: Any, cell: str) -> Any:
    name, steps = _compiled(notebook.shell, cell)
    measured = RamOfCell(name, cell)
    value = None
    with measured:
        for run, code in steps:
            value = run(code, notebook.shell.user_ns)
    return value


def _compiled(shell: Any, cell: str) -> tuple[str, list[tuple[Any, Any]]]:
    """The file that a cell pretends to be, and what runs it: all but the last line, and that if it has a value."""
    source = shell.transform_cell(cell)
    # Under the name that IPython gives to cells, so that tracebacks and recorded stacks show its lines.
    name = shell.compile.cache(source, shell.execution_count)
    body = shell.transform_ast(shell.compile.ast_parse(source, name)).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    steps = [(exec, shell.compile(ast.Module(body, []), name, "exec"))]
    if last is not None:
        steps.append((eval, shell.compile(last, name, "eval")))
    return name, steps
