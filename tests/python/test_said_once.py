"""What the Python package says once: each rule has one home, and a second that appears fails here. Read as text; what is shared with Rust is compared with it."""

import ast
import re

import pytest
from conftest import ROOT

PACKAGE = ROOT / "python" / "oomph"
SOURCES = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}


def code_of(source):
    """The source without docstrings and comments: what is said about a rule is not the rule."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


CODE = {name: code_of(source) for name, source in SOURCES.items()}


@pytest.mark.parametrize(
    "rule, pattern, homes",
    [
        ("whose code a file is", r"(site|dist)-packages|[\"']/torch/[\"']", {"live/library_code.py"}),
        ("what cuBLAS, cuDNN and the driver say when memory is refused", r"ALLOC_FAILED|(CUDA|HIP) out of memory", {"live/out_of_memory.py"}),
        # The recorder watches handlers of PyTorch's own exception, pinning waits for an error of CUDA's that may have the same words, and sizes are tried by a script that has nothing but PyTorch.
        ("which exception PyTorch raises then", r"OutOfMemoryError", {"live/out_of_memory.py", "live/recording.py", "_pinned.py", "models/sizes.py"}),
        ("a line that is written over", r"x1b\[K", {"_progress.py"}),
        ("how long is too short for a line of progress", r"_QUIET_SECONDS *=", {"_progress.py"}),
        ("the unlimited card, which is the command's", r"\d ?TiB", set()),
        ("what may be allowed", r"(?m)^ALLOWED\b", {"fitting/techniques/training.py", "fitting/techniques/inference.py"}),
        ("agreement of ranks", r"ReduceOp", {"fitting/running/ranks.py"}),
    ],
)
def test_a_rule_has_one_home(rule, pattern, homes):
    assert {name for name, code in CODE.items() if re.search(pattern, code)} == homes


@pytest.mark.parametrize("name", ["is_library", "is_installed", "is_torch", "is_out_of_memory", "any_of", "worst"])
def test_a_question_is_answered_by_one_function(name):
    assert sum(len(re.findall(rf"\bdef _?{name}\(", code)) for code in CODE.values()) == 1


def test_files_are_told_from_libraries_as_rust_does():
    from oomph.live.library_code import is_library

    cases = [line.split(" ", 1) for line in (ROOT / "crates" / "oomph-words" / "library_code.txt").read_text().splitlines()]
    assert [(whose, file) for whose, file in cases if is_library(file) != (whose == "library")] == []


def test_pytorch_is_told_from_a_folder_of_that_name():
    from oomph.live.library_code import is_installed, is_torch

    assert is_torch("/usr/lib/python3.12/site-packages/torch/_compile.py") and is_torch("/opt/pytorch/torch/nn/init.py") and is_torch("torch/nn/init.py")
    assert not is_torch("/home/user/torch/train.py") and not is_torch("/usr/lib/python3.12/site-packages/torchvision/models/resnet.py")
    assert is_installed("/usr/lib/python3/dist-packages/x.py") and not is_installed("/usr/lib/python3.12/threading.py")


def test_the_command_allows_what_the_techniques_say():
    from oomph.fitting.techniques.training import ALLOWED

    (listed,) = re.findall(r"const ALLOWED: \[&str; \d+\] = \[(.*)\];", (ROOT / "crates/oomph-cli/src/commands/fit.rs").read_text())
    assert re.findall(r'"(.+?)"', listed) == list(ALLOWED)
