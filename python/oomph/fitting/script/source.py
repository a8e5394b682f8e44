"""Reads a training step off a script's source: the lines that make the loss, as a function, and the lines to write instead of them.

What it is given was seen by ``watching``: the function, the lines of the model's call and of ``backward``, and what names stood for. It takes the
statements between them that the loss depends on. It knows nothing of memory.
"""

from __future__ import annotations

import ast
import builtins
import copy
import linecache
import textwrap
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from oomph.fitting.errors import FitError
from oomph.fitting.losses.loss_of import LossOf
from oomph.fitting.script.watching import Backward, Place, Seen, tensors_in
from oomph.live.library_code import is_installed

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What may run what is in them more than once.
_REPEATS = (*_LOOPS, ast.comprehension, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)
_CONTAINERS = (list, dict, set, deque)
# Methods that change a container, for objects that cannot be inspected.
_CONTAINER_METHODS = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "remove", "clear"}


class NotRead(FitError):
    """The step cannot be read off the source; the message is why."""


@dataclass(frozen=True)
class Line:
    """A change to the script: lines that go (from ``line`` to ``end``), or text that comes before ``line``."""

    file: str
    line: int
    end: int
    remove: bool
    text: str

    def to_dict(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "end_line": self.end, "kind": "remove" if self.remove else "add", "text": self.text}


@dataclass
class Step:
    """A training step: what ``oomph.fit`` takes, live and as text."""

    model: torch.nn.Module
    loss: Callable[..., Any] | None
    batch: Any
    #: As they are written in the script.
    model_text: str
    optimizer_text: str
    loss_text: str
    batch_text: str
    #: The definition of the loss function, where the script has none.
    definition: str
    #: How the call begins: other libraries' loops have functions of their own.
    call_text: str = "oomph.fit("
    #: Operations of the script's own graph that this loss leaves out: scaling for float16, division for accumulation.
    left_out: Counter[str] = field(default_factory=Counter)
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Reader:
    """One step of one script. ``arguments`` stands behind what ``oomph.fit`` must be given."""

    def __init__(self, seen: Seen, optimizer: torch.optim.Optimizer, arguments: str) -> None:
        backward = seen.backward
        if backward is None:
            raise NotRead("no model was called before backward() in the same function, or in what it calls")
        self.backward: Backward = backward
        self.seen, self.optimizer, self.arguments = seen, optimizer, arguments
        self.source = linecache.getlines(backward.file)
        if not self.source:
            raise NotRead(f"{backward.file}: the source is not there")
        self.tree = ast.parse("".join(self.source))
        # The globals of a script know already what came after the model's call.
        self.is_main = backward.globals.get("__name__") == "__main__"
        self.names = dict(backward.locals) if backward.function == "<module>" else {**backward.globals, **backward.locals}

    # -- the whole

    def read(self) -> Step:
        """While the script's names are there: the function and the batch."""
        backward = self.backward
        places = self.seen.backward_places
        if len(places) > 1:
            lines = " and ".join(str(place.line) for place in places)
            raise NotRead(f"backward is called on lines {lines} for one step: oomph.fit takes one loss, so add them up and call it once")
        model = self.find_model()
        function = self.find_function()
        region = _region(function.body, backward.called_on, backward.backward_on, ())
        if region is None:
            raise NotRead(f"line {backward.called_on} (the model) and line {backward.backward_on} (backward) are not in one block of {backward.function}")
        self.block, self.first, self.last, self.loops = region
        self.model = model
        self.left_out: Counter[str] = Counter()
        self.notes: list[str] = []
        self.divisions: set[int] = set()
        loss = self.loss_expression()
        kept, _ = self.slice(self.block[self.first : self.last], _loads(loss))
        replace = _Replace(self, model)
        kept = [replace.visit(copy.deepcopy(statement)) for statement in kept]
        expression = replace.visit(copy.deepcopy(loss))
        self.made_there = replace.made_there
        batch = self.find_batch(kept, expression, replace.hoisted)
        self.function, self.kept, self.loss = function, kept, loss
        step = self.compose(model, [*self.copies(kept, expression, batch), *kept], expression, batch)
        step.left_out, step.notes = self.left_out, self.notes
        self.names = {}
        self.made_there = {name: (None, text) for name, (_, text) in self.made_there.items()}
        return step

    def find_model(self) -> torch.nn.Module:
        """The one module that was called, or the one that owns those that were."""
        trained = {id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]}
        models = [model for model in self.backward.models if any(id(parameter) in trained for parameter in model.parameters())]
        if not models:
            raise NotRead("the model that was called has no parameter of the optimizer's")
        if len(models) == 1:
            return models[0]
        owners = [value for value in self.names.values() if isinstance(value, torch.nn.Module)]
        owner = getattr(self.names.get("self"), "__dict__", {})
        owners += [value for value in [self.names.get("self"), *owner.values()] if isinstance(value, torch.nn.Module)]
        for owner in owners:
            parts = set(map(id, owner.modules()))
            if all(id(model) in parts for model in models):
                return owner
        called = ", ".join(type(model).__name__ for model in models)
        raise NotRead(f"one loss comes from several models ({called}): oomph.fit takes one. Put them into one torch.nn.Module whose forward calls them")

    def find_function(self) -> Any:
        backward = self.backward
        if backward.function == "<module>":
            return self.tree
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == backward.function:
                if min([node.lineno, *(one.lineno for one in node.decorator_list)]) == backward.first_line_of_function:
                    return node
        raise NotRead(f"{backward.file}: the function {backward.function} is not there")

    def loss_expression(self) -> ast.expr:
        """What backward is called on, without what scales it."""
        line = self.backward.backward_on
        # Several statements may stand on one line.
        there = [_simple_at(one, line) for one in self.block[self.last :] if _contains(one, line)]
        calls = [node for simple in there for node in ast.walk(simple) if isinstance(node, ast.Call)]
        found: ast.expr | None = None
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
                found = call.func.value
                # accelerator.backward(loss), fabric.backward(loss)
                if call.args and not isinstance(self.value(found, self.backward.after), torch.Tensor) and isinstance(found, (ast.Name, ast.Attribute)):
                    found = call.args[0]
                    # They divide and scale by themselves.
                    self.left_out.update(["DivBackward0", "MulBackward0"])
                break
        if found is None and calls and calls[0].args:
            found = calls[0].args[0]
        if found is None:
            raise NotRead(f"line {line}: what backward is called on has no name")
        while True:
            if isinstance(found, ast.Call) and len(found.args) == 1 and self.is_scaler(found.func):
                self.left_out["MulBackward0"] += 1
                found = found.args[0]
            elif isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div) and self.is_accumulation(found.right):
                found = found.left
            else:
                return found

    def is_scaler(self, function: ast.expr) -> bool:
        """Whether it is ``scale`` of a GradScaler."""
        return isinstance(function, ast.Attribute) and function.attr == "scale" and isinstance(self.value(function.value), torch.amp.GradScaler)

    def is_accumulation(self, divisor: ast.expr) -> bool:
        """Whether a loss is divided by it because a step has so many backward passes: a mean over the whole batch does not need that."""
        value, times = self.value(divisor), self.seen.backwards
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if times > 1 and value == times:
            self.left_out["DivBackward0"] += 1
            return True
        if isinstance(value, int) and value > 1:
            written = ast.unparse(divisor) if isinstance(divisor, ast.Constant) else f"{ast.unparse(divisor)} ({value})"
            advice = "which is kept: if that is for gradient accumulation, leave it out, and give the whole batch at once"
            self.notes.append(f"line {divisor.lineno} divides by {written}, {advice}")
        return False

    # -- the statements that count

    def slice(self, statements: list[ast.stmt], needed: set[str]) -> tuple[list[ast.stmt], set[str]]:
        """The statements that these names depend on, and the names that those need."""
        kept: list[ast.stmt] = []
        for statement in reversed(statements):
            stored, changed = _stores(statement), self.changed(statement, needed)
            if not changed and not stored & {path.split(".")[0] for path in needed}:
                continue
            if isinstance(statement, (ast.With, ast.AsyncWith)):
                inner, needed = self.slice(statement.body, needed)
                if not inner:
                    continue
                statement = copy.copy(statement)
                statement.body = inner
                needed |= {path for item in statement.items for path in _loads(item)}
            else:
                name, divisor = _division(statement)
                whole = self.backward.after.get(name)
                if divisor is not None and isinstance(whole, torch.Tensor) and whole.numel() == 1 and self.is_accumulation(divisor):
                    self.divisions.add(statement.lineno)
                    continue
                if isinstance(statement, (ast.Assign, ast.AnnAssign)):
                    needed = {path for path in needed if path.split(".")[0] not in stored}
                needed = needed | _loads(statement)
            kept.insert(0, statement)
        return kept, needed

    def changed(self, statement: ast.stmt, needed: set[str]) -> set[str]:
        """Those of the needed names that the statement changes in place: ``x[i] = …``, ``x.y = …``, ``x.add_(…)``."""
        alone = {id(one.value) for one in ast.walk(statement) if isinstance(one, ast.Expr)}
        found: set[str] = set()
        for node in ast.walk(statement):
            if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                found |= {path} if (path := _path(node)) is not None and _touches(path, needed) else set()
            elif isinstance(node, ast.Call):
                found |= set(self.changed_by_call(node, needed, id(node) in alone))
        return {path.split(".")[0] for path in found}

    def changed_by_call(self, call: ast.Call, needed: set[str], alone: bool) -> Iterator[str]:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
        in_place = name.endswith("_") and not name.endswith("__")
        if isinstance(call.func, ast.Attribute) and (path := _path(call.func.value)) is not None and _touches(path, needed):
            value = self.value(call.func.value, self.backward.after)
            if isinstance(value, torch.Tensor) or value is None:
                if in_place or name == "register_hook" or (value is None and alone and name in _CONTAINER_METHODS):
                    yield path
                    return
            elif isinstance(value, _CONTAINERS):
                if name in _CONTAINER_METHODS:
                    yield path
                    return
            elif alone and path in needed and not self.belongs_to_model(value) and not isinstance(value, types.ModuleType):
                raise NotRead(f"line {call.lineno} calls {ast.unparse(call.func)}, and the loss depends on {path}: what it changes cannot be seen")
        inside = any(one.arg == "inplace" and isinstance(one.value, ast.Constant) and one.value.value is True for one in call.keywords)
        if in_place or inside or any(one.arg == "out" for one in call.keywords):
            given = [*call.args[:1], *(one.value for one in call.keywords if one.arg in ("out", "input"))]
            yield from (path for one in given if (path := _path(one)) is not None and _touches(path, needed))

    def belongs_to_model(self, value: Any) -> bool:
        """train() and zero_grad() of the model say nothing about a loss that was made before."""
        if not isinstance(value, torch.nn.Module):
            return False
        return any(one is value for one in self.model.modules()) or any(one is self.model for one in value.modules())

    def copies(self, kept: list[ast.stmt], expression: ast.expr, batch: dict[str, tuple[Any, str]]) -> list[ast.stmt]:
        """What is changed in place must be the function's own: it may be called more than once with a batch."""
        free = _free(kept, expression)
        changed = {name: statement.lineno for statement in kept for name in self.changed(statement, set(free))}
        for name, line in changed.items():
            if name == "model" or not isinstance(batch.get(name, (None,))[0], torch.Tensor):
                raise NotRead(f"line {line} changes {name}, which is made before the model is called: make it, or change it, in one place")
        for statement in kept:
            again = sorted(name for name in _stores(statement) if name in free and name in self.names and name not in batch)
            if again:
                raise NotRead(f"line {statement.lineno} goes on with {again[0]}, which is made before the model is called: make it after that")
        unseen = sorted(name for name in self.backward.written if name in free and name not in changed)
        if unseen:
            raise NotRead(f"{' and '.join(unseen)} changed between the model's call and backward, by a statement that is not understood")
        return [ast.copy_location(ast.parse(f"{name} = {name}.clone()").body[0], kept[0]) for name in changed]

    def value(self, node: ast.expr, names: Mapping[str, Any] | None = None) -> Any:
        """The value of an expression, if it can be read without calling anything of the script."""
        if any(isinstance(one, (ast.Call, ast.Await, ast.Yield, ast.NamedExpr)) for one in ast.walk(node)):
            return None
        try:
            return eval(compile(ast.fix_missing_locations(ast.Expression(copy.deepcopy(node))), "<step>", "eval"), dict(self.names if names is None else {**self.names, **names}))
        except Exception:
            return None

    # -- the batch

    def is_batch(self, value: Any) -> bool:
        """Whether there are tensors in it that have all samples."""
        if isinstance(value, torch.nn.Module):
            return False
        found: list[torch.Tensor] = []
        tensors_in(torch, value, found)
        count = self.backward.samples
        return any(one.dim() > 0 and one.shape[0] == count and not isinstance(one, torch.nn.Parameter) for one in found)

    def find_batch(self, kept: list[ast.stmt], expression: ast.expr, hoisted: dict[str, ast.expr]) -> dict[str, tuple[Any, str]]:
        """The names that are given anew for every step: what they are, and how that is written outside of the function."""
        if self.backward.samples is None:
            raise NotRead("the model is not called with tensors that share a first dimension, the samples")
        batch = {}
        for name in _free(kept, expression):
            if name in self.made_there:
                batch[name] = (self.made_there[name][0], name)
            elif name in hoisted:
                batch[name] = (self.value(hoisted[name]), ast.unparse(hoisted[name]))
            elif name in self.names and name != "model" and self.is_batch(self.names[name]):
                batch[name] = (self.names[name], name)
        if not batch:
            raise NotRead(f"line {self.backward.called_on}: what the model is called with has no name. Give the batch a name before that line")
        return batch

    # -- what is made of it

    def compose(self, model: torch.nn.Module, kept: list[ast.stmt], expression: ast.expr, batch: dict[str, tuple[Any, str]]) -> Step:
        texts: dict[str, Any] = {"model_text": self.name_of(model), "optimizer_text": self.name_of(self.optimizer)}
        accelerator = next((name for name, value in self.names.items() if type(value).__name__ == "Accelerator"), None)
        if accelerator is not None:
            texts["call_text"] = f"oomph.fit_accelerate({accelerator}, "
        elif self.seen.scalers:
            self.arguments += f", scaler={self.name_of(self.seen.scalers[-1])}"
        names = list(batch)
        values, written = [value for value, _ in batch.values()], [text for _, text in batch.values()]
        whole, whole_text = (values[0], written[0]) if len(values) == 1 else (tuple(values), f"({', '.join(written)})")
        alone = _inlined(kept, expression)
        given = self.own_loss(alone, batch) if alone is not None else None
        if given is not None:
            function, text, whole, whole_text = given
            return Step(model, function, whole, loss_text=text, batch_text=whole_text, definition="", **texts)
        head = [f"{', '.join(names)} = batch"] if len(names) > 1 else []
        last = kept[-1] if kept else None
        if isinstance(last, ast.Assign) and isinstance(expression, ast.Name) and [ast.unparse(target) for target in last.targets] == [expression.id]:
            kept, expression = kept[:-1], last.value
        body = [*head, *(ast.unparse(ast.fix_missing_locations(statement)) for statement in kept), f"return {ast.unparse(ast.fix_missing_locations(expression))}"]
        definition = f"def loss_fn(model, {'batch' if len(names) > 1 else names[0]}):\n" + textwrap.indent("\n".join(body), "    ")
        # No more than it needs: what it holds stays on the card.
        space = {name: self.names[name] for name in _free(kept, expression) if name in self.names and name not in batch}
        exec(compile(definition, "<the loss of the script>", "exec"), space)
        return Step(model, space["loss_fn"], whole, loss_text="loss_fn", batch_text=whole_text, definition=definition, **texts)

    def own_loss(self, expression: ast.expr, batch: dict[str, tuple[Any, str]]) -> tuple[Any, str, Any, str] | None:
        """Where the script's own function is what oomph.fit takes: (function, its text, the batch, its text)."""

        def is_model(node: ast.AST) -> bool:
            return isinstance(node, ast.Name) and node.id == "model"

        def is_one(node: ast.AST) -> bool:
            return isinstance(node, ast.Name) and node.id in batch

        names = list(batch)
        if isinstance(expression, ast.Attribute) and expression.attr == "loss" and isinstance(expression.value, ast.Call) and is_model(expression.value.func):
            call = expression.value
            if not call.args and len(call.keywords) == 1 and call.keywords[0].arg is None and is_one(call.keywords[0].value) and len(names) == 1:
                value, text = batch[names[0]]
                return (None, "None", value, text) if isinstance(value, Mapping) else None
        if not isinstance(expression, ast.Call) or expression.keywords or len(expression.args) != 2:
            return None
        function, (output, target) = self.value(expression.func), expression.args
        if not callable(function) or any(is_one(node) for node in ast.walk(expression.func)):
            return None
        text = ast.unparse(expression.func)
        if is_model(output) and is_one(target) and len(names) == 1 and LossOf(function).takes_model:
            return function, text, *batch[names[0]]
        if LossOf(function).takes_model or not is_one(target) or not isinstance(output, ast.Call) or not is_model(output.func) or output.keywords:
            return None
        assert isinstance(target, ast.Name)
        inputs = [node.id for node in output.args if is_one(node) and isinstance(node, ast.Name)]
        if len(inputs) != len(output.args) or not inputs or sorted([*inputs, target.id]) != sorted(names):
            return None
        values, texts = zip(*(batch[name] for name in inputs))
        if len(inputs) == 1 and isinstance(values[0], torch.Tensor):
            first, first_text = values[0], texts[0]
        elif len(inputs) > 1:
            first, first_text = values, f"({', '.join(texts)})"
        else:
            return None
        value, written = batch[target.id]
        return function, text, (first, value), f"({first_text}, {written})"

    def name_of(self, thing: Any) -> str:
        """How the function calls it."""
        for name, value in {**self.backward.globals, **self.backward.locals}.items():
            prepared = type(value).__name__ == "AcceleratedOptimizer" and value.optimizer is thing
            if (value is thing or prepared) and not name.startswith("__"):
                return name
        owner = self.names.get("self")
        for name, value in getattr(owner, "__dict__", {}).items():
            if value is thing:
                return f"self.{name}"
        modules = getattr(owner, "_modules", None) or {}
        return next((f"self.{name}" for name, value in modules.items() if value is thing), f"<the {_kind(thing)}>")

    # -- lines

    def write_lines(self, step: Step) -> None:
        """Once the whole step was seen: what goes and what comes, in the order of the file."""
        file, kept, loss = self.backward.file, self.kept, self.loss
        gone = {(one.lineno, one.end_lineno) for one in self.block[self.first : self.last] if any(one.lineno == other.lineno for other in kept)}
        gone.add((self.block[self.last].lineno, self.block[self.last].end_lineno))
        for place in [*self.seen.zeroed, *self.seen.stepped, *self.seen.scaled, *(place for place, _ in self.seen.clipped)]:
            statement = _statement_at(self.tree, place.line) if place.file == file else None
            if statement is not None:
                gone.add((statement.lineno, statement.end_lineno))
        at = self.block[self.first].lineno
        starts = _joined([(start, end) for start, end in gone if end is not None])
        # A block that would be left empty goes as a whole; the one that gets the new lines is not.
        for block in ast.walk(self.function):
            if isinstance(block, (ast.If, ast.With)) and not getattr(block, "orelse", None) and not _contains(block, at):
                if all(any(start <= one.lineno and (one.end_lineno or 0) <= end for start, end in starts) for one in block.body):
                    starts = _joined([*starts, (block.lineno, block.end_lineno or block.lineno)])
        indent = " " * self.block[self.first].col_offset
        lines = [Line(file, start, end, True, "".join(self.source[start - 1 : end]).rstrip("\n")) for start, end in starts]
        lines += [Line(place.file, place.line, place.line, True, linecache.getline(place.file, place.line).rstrip("\n")) for place in self._elsewhere(file)]
        name = loss.id if isinstance(loss, ast.Name) else "loss"
        fit = self.free_name("fit")
        # A function that is called for every epoch, or every batch, must not plan each time.
        again = "" if self.function is self.tree or (self.is_main and _runs_once(self.tree, self.function)) else ", reuse=True"
        made = f"{step.call_text}{step.model_text}, {step.optimizer_text}, loss={step.loss_text}, batch={step.batch_text}{self.arguments}{again})"
        made_there = [f"{indent}{name} = {text}" for name, (_, text) in self.made_there.items()]
        comes = [f"{indent}{name} = {fit}.step({step.batch_text})"]
        before, before_indent = (self.loops[0].lineno, " " * self.loops[0].col_offset) if self.loops else (at, indent)
        once = [textwrap.indent(step.definition, before_indent)] if step.definition else []
        if self.loops:
            once.append(f"{before_indent}{fit} = None")
            comes = [*made_there, f"{indent}{fit} = {fit} or {made}", *comes]
        else:
            once += [*made_there, f"{indent}{fit} = {made}"]
        imports = [node for node in self.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__"]
        if not any(alias.name == "oomph" for node in imports if isinstance(node, ast.Import) for alias in node.names):
            first = imports[0].lineno if imports else 1
            lines.append(Line(file, first, first, False, "import oomph"))
        lines.append(Line(file, before, before, False, "\n".join(once)))
        lines.append(Line(file, at, at, False, "\n".join(comes)))
        step.lines = sorted(lines, key=lambda line: (line.file != file, line.line, not line.remove))
        self.say_what_goes_too(step)
        self.say_what_is_used_later(step, starts, name)

    def free_name(self, name: str) -> str:
        """A name that the script does not use."""
        nodes = list(ast.walk(self.tree))
        taken = {node.id for node in nodes if isinstance(node, ast.Name)} | {node.arg for node in nodes if isinstance(node, ast.arg)}
        taken |= {found for node in nodes for found in (_stores(node) if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)) else ())}
        return name if name not in taken else next(f"oomph_{name}{number or ''}" for number in range(99) if f"oomph_{name}{number or ''}" not in taken)

    def _elsewhere(self, file: str) -> Iterable[Place]:
        places = [*self.seen.zeroed, *self.seen.stepped, *self.seen.scaled, *(place for place, _ in self.seen.clipped)]
        return (place for place in dict.fromkeys(places) if place.file != file and not is_installed(place.file))

    def say_what_goes_too(self, step: Step) -> None:
        """What is no part of the loss, in a block that is removed."""
        kept = {one.lineno for statement in self.kept for one in ast.walk(statement) if isinstance(one, ast.stmt)}
        for block in self.block[self.first : self.last]:
            if block.lineno not in kept:
                continue
            lines = sorted({one.lineno for one in ast.walk(block) if isinstance(one, ast.stmt) and not _blocks(one)} - kept - self.divisions)
            if lines:
                words = "lines " + ", ".join(map(str, lines)) + " are" if len(lines) > 1 else f"line {lines[0]} is"
                step.notes.append(f"{words} no part of the loss and removed with the block around: put what you need of it behind fit.step")

    def say_what_is_used_later(self, step: Step, gone: list[tuple[int, int]], loss: str) -> None:
        made = {name for statement in self.kept for name in _stores(statement)} - {loss}
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in made and node.lineno >= self.block[self.first].lineno:
                if not any(start <= node.lineno <= end for start, end in gone):
                    step.notes.append(f"line {node.lineno} uses {node.id}, which fit.step does not give back: it gives the loss")
                    made.discard(node.id)


def _kind(thing: Any) -> str:
    return "model" if isinstance(thing, torch.nn.Module) else "optimizer" if isinstance(thing, torch.optim.Optimizer) else "scaler"


class _Replace(ast.NodeTransformer):
    """Writes the model as ``model``, and gives a name to parts that are taken of something larger (``data[i : i + 8]``)."""

    def __init__(self, reader: Reader, model: torch.nn.Module) -> None:
        self.reader, self.model = reader, model
        #: What has a new name, by that name.
        self.hoisted: dict[str, ast.expr] = {}
        #: Batches that are made where the model is called (``model(next(batches))``): what they are, and how they are made.
        self.made_there: dict[str, tuple[Any, str]] = {}

    def _or_model(self, node: Any) -> Any:
        if isinstance(node.ctx, ast.Load) and self.reader.value(node) is self.model:
            return ast.copy_location(ast.Name("model", ast.Load()), node)
        return self.generic_visit(node)

    visit_Name = _or_model

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return self._or_model(node) if isinstance(node.value, ast.Name) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        node = cast(ast.Call, self.generic_visit(node))
        given = self.reader.backward.arguments
        if not isinstance(node.func, ast.Name) or node.func.id != "model" or len(given) != len(node.args):
            return node
        for index, (argument, value) in enumerate(zip(node.args, given)):
            names = [one.id for one in ast.walk(argument) if isinstance(one, ast.Name)]
            known = any(name in self.hoisted or self.reader.is_batch(self.reader.names.get(name)) for name in names)
            if any(isinstance(one, ast.Call) for one in ast.walk(argument)) and not known and self.reader.is_batch(value):
                name = "inputs" if len(given) == 1 else f"input_{index}"
                self.made_there[name] = (value, ast.unparse(argument))
                node.args[index] = ast.copy_location(ast.Name(name, ast.Load()), argument)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.ctx, ast.Load) and isinstance(node.value, (ast.Name, ast.Attribute)) and any(isinstance(one, ast.Name) for one in ast.walk(node.slice)):
            if not self.reader.is_batch(whole := self.reader.value(node.value)) or isinstance(whole, (list, tuple)):
                if self.reader.is_batch(self.reader.value(node)):
                    base = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                    names = (f"{base}_part{number or ''}" for number in range(99))
                    name = next(name for name in names if name not in self.hoisted or ast.dump(self.hoisted[name]) == ast.dump(node))
                    self.hoisted[name] = node
                    return ast.copy_location(ast.Name(name, ast.Load()), node)
        return self.generic_visit(node)


# -- names and blocks


def _loads(node: ast.AST) -> set[str]:
    """What is read, with its attributes: ``self.model``, ``logits``."""
    found: set[str] = set()

    def visit(one: ast.AST) -> None:
        if isinstance(one, (ast.Name, ast.Attribute)) and (path := _dotted(one)) is not None:
            if isinstance(one.ctx, ast.Load):
                found.add(path)
            elif isinstance(one, ast.Attribute):
                found.add(path.rpartition(".")[0])
            return
        if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
            found.add(one.target.id)
        for child in ast.iter_child_nodes(one):
            visit(child)

    visit(node)
    return found


def _dotted(node: ast.expr) -> str | None:
    """``a.b.c``, or None if it is anything but names."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Attribute):
        return None
    before = _dotted(node.value)
    return None if before is None else f"{before}.{node.attr}"


def _path(node: ast.expr) -> str | None:
    """What something is part of, or a view of: ``x`` for ``x[i].view(-1)``, ``out.logits`` for ``out.logits[i]``."""
    if isinstance(node, ast.Subscript):
        return _path(node.value)
    if isinstance(node, ast.Call):
        return _path(node.func.value) if isinstance(node.func, ast.Attribute) else None
    if isinstance(node, ast.Attribute):
        return _dotted(node) or _path(node.value)
    return _dotted(node)


def _touches(path: str, needed: set[str]) -> bool:
    return any(one == path or one.startswith(path + ".") or path.startswith(one + ".") for one in needed)


def _stores(node: ast.AST) -> set[str]:
    """Names that get a value, in this scope."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Lambda):
        return set()
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    found = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            # Its names are its own.
            found |= _stores(child.iter).union(*map(_stores, child.ifs))
        else:
            found |= _stores(child)
    return found


def _division(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name, and what ``name /= steps`` and ``name = name / steps`` divide by; None if it is something else."""
    if isinstance(statement, ast.AugAssign):
        if isinstance(statement.op, ast.Div) and isinstance(statement.target, ast.Name):
            return statement.target.id, statement.value
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.BinOp):
        target, made = statement.targets[0], statement.value
        if isinstance(target, ast.Name) and isinstance(made.op, ast.Div) and isinstance(made.left, ast.Name) and made.left.id == target.id:
            return target.id, made.right
    return "", None


def _free(statements: list[ast.stmt], expression: ast.expr) -> list[str]:
    """Names that are read before they are set, in the order in which they are read."""
    free: dict[str, None] = {}
    defined: set[str] = set()

    def read(node: ast.AST) -> None:
        again = {id(one.target) for one in ast.walk(node) if isinstance(one, ast.AugAssign)}
        names = [one for one in ast.walk(node) if isinstance(one, ast.Name) and (isinstance(one.ctx, ast.Load) or id(one) in again)]
        for one in sorted(names, key=lambda one: (one.lineno, one.col_offset)):
            if one.id not in defined and not hasattr(builtins, one.id):
                free.setdefault(one.id)

    def run(node: ast.AST) -> None:
        blocks = _blocks(node) if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)) else []
        if not blocks:
            for part in [node.value, *node.targets] if isinstance(node, ast.Assign) else [node]:
                read(part)
            defined.update(_stores(node))
            return
        # What comes before its blocks: conditions, what a loop goes over, what `with` opens.
        for part in ast.iter_child_nodes(node):
            if not isinstance(part, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                read(part)
                defined.update(_stores(part))
        for block in blocks:
            for one in block:
                run(one)

    for node in [*statements, expression]:
        run(node)
    return list(free)


def _inlined(kept: list[ast.stmt], expression: ast.expr) -> ast.expr | None:
    """The whole as one expression, where every statement only gives a name to something."""
    made: dict[str, ast.expr] = {}

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            return copy.deepcopy(made[node.id]) if isinstance(node.ctx, ast.Load) and node.id in made else node

    for statement in kept:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
            return None
        made[statement.targets[0].id] = Put().visit(copy.deepcopy(statement.value))
    return Put().visit(copy.deepcopy(expression))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that follow one another as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _contains(node: Any, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _runs_once(tree: ast.Module, function: ast.AST) -> bool:
    """Whether a script runs a function once, as far as its source tells: it is called in one place, outside of loops, in what runs once itself."""
    parents = {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    seen: set[int] = set()
    while isinstance(function, _FUNCTIONS):
        name = function.name
        uses = [node for node in ast.walk(tree) if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)]
        same = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS) and node.name == name]
        if id(function) in seen or len(uses) != 1 or len(same) != 1 or function.decorator_list:
            return False
        seen.add(id(function))
        node = parents[id(uses[0])]
        if not isinstance(node, ast.Call) or node.func is not uses[0]:
            return False
        while not isinstance(node, (ast.Module, *_FUNCTIONS)):
            if isinstance(node, _REPEATS):
                return False
            node = parents[id(node)]
        function = node
    return True


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if isinstance(getattr(statement, name, None), list)]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])] + [case.body for case in getattr(statement, "cases", [])]
    return [block for block in blocks if block]


def _region(block: list[ast.stmt], first: int, last: int, loops: tuple[ast.stmt, ...]) -> tuple[list[ast.stmt], int, int, tuple[ast.stmt, ...]] | None:
    """The innermost block that has both lines, where they are in it, and the loops around."""
    start = next((index for index, one in enumerate(block) if _contains(one, first)), None)
    end = next((index for index, one in enumerate(block) if _contains(one, last)), None)
    if start is None or end is None or end < start:
        return None
    if start == end and _blocks(block[start]):
        around = (*loops, block[start]) if isinstance(block[start], _LOOPS) else loops
        return next((found for inner in _blocks(block[start]) if (found := _region(inner, first, last, around)) is not None), None)
    return block, start, end, loops


def _simple_at(statement: ast.stmt, line: int) -> ast.stmt:
    for block in _blocks(statement):
        for inner in block:
            if _contains(inner, line):
                return _simple_at(inner, line)
    return statement


def _statement_at(tree: ast.Module, line: int) -> ast.stmt | None:
    for statement in tree.body:
        if _contains(statement, line):
            return _simple_at(statement, line)
    return None
