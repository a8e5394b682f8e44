"""oomph in the loop of work: the GitHub action's script and the hooks of pre-commit, run as those services would run them."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import COMMAND, FIXTURES, ROOT

GIB = 1 << 30
# Adam over one layer: 5 times 16 MiB with its temporaries, and the context.
SCRIPT = """\
import sys
import torch
width = int(sys.argv[1])
model = torch.nn.Linear(width, width, bias=False, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(64, width, device="cuda")).sum().backward()
optimizer.step()
"""


@pytest.fixture
def action(tmp_path):
    """Runs the action's script in a folder, with inputs as the runner gives them; gives the exit code, the log, the summary and the outputs."""

    def run(**inputs):
        summary, output = tmp_path / "summary.md", tmp_path / "output"
        for file in (summary, output):
            file.write_text("")
        files = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output), "GITHUB_WORKSPACE": str(tmp_path)}
        given = {f"OOMPH_ACTION_{name.upper()}": value for name, value in inputs.items()}
        environment = {**os.environ, **files, **given, "PATH": f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}"}
        done = subprocess.run([sys.executable, str(ROOT / ".github/action/run.py")], cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr, summary.read_text(), dict(line.split("=", 1) for line in output.read_text().splitlines())

    return run


def test_the_action_checks_recordings(action):
    over, under = FIXTURES / "h200" / "foreach.pickle.xz", FIXTURES / "h200" / "fused.pickle.xz"
    code, log, summary, outputs = action(command="check", target=f"'{over}' {under}", limit="1.4GiB")
    assert (code, outputs) == (1, {"fits": "false", "peak-bytes": "1612709888", "limit-bytes": "1503238553"}), log
    assert re.search(r"^\| \S*foreach\.pickle\.xz \| 1\.50 GiB reserved \| 1\.40 GiB \| \*\*over\*\* \|$", summary, re.MULTILINE), summary
    assert re.search(r"^::error::\S+foreach\.pickle\.xz: 1\.50 GiB reserved at the peak, over the limit of 1\.40 GiB$", log, re.MULTILINE), log
    assert "OM302" in summary and "fused.pickle.xz" not in summary.partition("OM302")[2], "what is over is explained, and nothing else"
    code, log, summary, outputs = action(command="check", target=str(under), baseline=str(over), tolerance="2%")
    assert (code, outputs["fits"], outputs["peak-bytes"]) == (0, "true", "1310720000"), log
    assert "::error" not in log and summary.count("\n|---") == 1
    code, log, _, outputs = action(command="check", target=str(FIXTURES / "h200" / "real_oom.pickle.xz"), limit="2GiB")
    assert (code, outputs["fits"]) == (1, "false") and re.search(r"^::error::\S+: the program ran out of memory, so what it needs is not known$", log, re.MULTILINE), log


def test_the_action_predicts_scripts(action, warm, tmp_path):
    (tmp_path / "train me.py").write_text(SCRIPT)
    code, log, summary, outputs = action(command="predict", target="'train me.py' 2048", gpu="t4", limit="1GiB", options=f"--python {warm(sys.executable)}")
    assert (code, outputs["fits"], outputs["limit-bytes"]) == (0, "true", str(GIB)), log
    assert 185 << 20 < int(outputs["peak-bytes"]) < 225 << 20
    assert re.match(r"### oomph predict: fits: 0\.\d\d GiB of 1\.00 GiB on a virtual Tesla T4\n", summary), summary
    code, log, summary, outputs = action(command="predict", target="'train me.py' 8192", gpu="t4", limit="1GiB", options=f"--python {warm(sys.executable)}")
    assert (code, outputs["fits"]) == (1, "false") and int(outputs["peak-bytes"]) > 5 * (256 << 20), log
    assert re.search(r"^::error file=train me\.py,line=7::does not fit: 1\.\d\d GiB of 1\.00 GiB on a virtual Tesla T4$", log, re.MULTILINE), log
    assert "OM306" in summary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "summary.md", "train me.py"], "nothing is left in the checkout"


def test_the_action_says_what_is_wrong_with_its_inputs(action):
    assert action(command="chekc", target="x")[:2] == (2, "::error::command is 'chekc'; it is check or predict\n")
    assert action(command="check", target=" ")[1].startswith("::error::target is empty; name the script (predict) or the recordings (check)")
    code, log, summary, outputs = action(command="check", target="missing.oomph; touch hacked", limit="1GiB")
    assert (code, summary, outputs) == (2, "", {}) and "missing.oomph;" in log, log


def test_every_input_reaches_the_script():
    """By a variable of its name; none is written into a line of the shell."""
    text = (ROOT / "action.yml").read_text()
    inputs = set(re.findall(r"^  ([a-z-]+):$", text.partition("inputs:\n")[2].partition("outputs:\n")[0], re.MULTILINE))
    passed = dict(re.findall(r"OOMPH_ACTION_([A-Z]+): \$\{\{ inputs\.([a-z-]+) \}\}", text))
    assert inputs == {*passed.values(), "install", "working-directory"} and all(name.lower() == value for name, value in passed.items())
    asked = set(re.findall(r'"([A-Z]+)"', (ROOT / ".github/action/run.py").read_text()))
    assert set(passed) <= asked
    assert not re.search(r"run:.*\$\{\{", text)


def git(folder, *words):
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_hooks_of_pre_commit(warm, tmp_path):
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    for folder in (hooks, project):
        folder.mkdir()
        git(folder, "init", "-q")
    (hooks / ".pre-commit-hooks.yaml").write_text((ROOT / ".pre-commit-hooks.yaml").read_text())
    git(hooks, "add", ".")
    git(hooks, "commit", "-qm", "hooks")
    (project / "train.py").write_text(SCRIPT)
    (project / "run.pickle.xz").write_bytes((FIXTURES / "h200" / "foreach.pickle.xz").read_bytes())
    (project / ".pre-commit-config.yaml").write_text(f"""
repos:
  - repo: {hooks}
    rev: {git(hooks, "rev-parse", "HEAD")}
    hooks:
      - id: oomph-check
        args: [--max-peak, 2GiB]
      - id: oomph-predict
        args: [--gpu, t4, --memory, 1GiB, --python, "{warm(sys.executable)}", train.py, "8192"]
""")
    git(project, "add", ".")
    path = f"{pathlib.Path(COMMAND).parent}:{os.environ['PATH']}"

    def run(hook):
        environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home"), "PATH": path}
        done = subprocess.run([sys.executable, "-m", "pre_commit", "run", hook, "--color=never"], cwd=project, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, said = run("oomph-check")
    assert code == 0 and re.search(r"recordings are within the limit \(oomph check\)\.+Passed", said), said
    code, said = run("oomph-predict")
    assert code == 1 and re.search(r"the script still fits the card \(oomph predict\)\.+Failed", said), said
    assert re.search(r"does not fit: it needs 1\.\d\d GiB, \d+ MiB more than there is", said), said
    config = project / ".pre-commit-config.yaml"
    config.write_text(config.read_text().replace("2GiB", "1.4GiB").replace("8192", "1024"))
    git(project, "add", ".")
    code, said = run("oomph-check")
    assert code == 1 and "over: run.pickle.xz: 1.50 GiB reserved at the peak, 104 MiB above the limit 1.40 GiB" in said, said
    code, said = run("oomph-predict")
    assert code == 0 and "Passed" in said, said
