"""The first headline names the cause: a dozen of the programs of tests/diagnosis, in one process. `make diagnose` runs them all."""

import os
import subprocess
import sys

import pytest
from conftest import COMMAND, ROOT, chosen

DIAGNOSIS = ROOT / "tests" / "diagnosis"
sys.path.insert(0, str(DIAGNOSIS))

import programs  # noqa: E402

# What each does is in its head. One for each thing that a good colleague would say.
CHOSEN = (
    "validation_sums_losses", "inference_keeps_outputs", "hook_keeps_previews", "losses_listed_with_retained_graph", "weights_of_every_epoch", "all_validation_logits",
    "predictions_kept_under_no_grad", "micro_batches_summed", "billion_parameters_with_adam", "best_weights_cloned_on_card", "checkpoint_loaded_beside_model", "teacher_runs_with_gradients",
    "column_against_flat_target_in_mse", "default_type_set_to_double", "one_panorama_among_photographs", "own_attention_at_eight_thousand_tokens", "frames_stacked_each_step",
    "loss_summed_after_backward", "siamese_two_views",
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(request, tmp_path_factory):
    """The recordings of all that are asked for, made in one process."""
    folder = tmp_path_factory.mktemp("diagnosis")
    names = chosen(request, "name")
    for name in names:
        program = programs.read(DIAGNOSIS / "programs" / f"{name}.py")
        program.write(folder, program.faulty)
    command = [COMMAND, "run", "--quiet", "--python", sys.executable, "--gpu", "t4", "--no-recording", DIAGNOSIS / "several.py", folder, *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OOMPH_COMMAND": COMMAND}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.mark.parametrize("name", CHOSEN)
def test_the_first_headline_names_the_cause_and_its_line(recorded, explain, name):
    program = programs.read(DIAGNOSIS / "programs" / f"{name}.py")
    findings = explain(recorded / f"{name}.oomph")["findings"]
    if not program.has_fault:
        assert [finding["title"] for finding in findings if finding["severity"] != "note" and finding["cause"]] == []
        return
    first = findings[0]
    assert (first["severity"], first["cause"]) == ("error", program.causes[0]), first["title"]
    assert first["title"].startswith("Out of memory")
    line = next(place["line"] for place in first["where"] if place["place"] == "line")
    assert line in program.lines, f"{line}: {first['title']}"
    assert first["fixes"], "there is always something to do"


@pytest.mark.parametrize("path", sorted(DIAGNOSIS.glob("*/*.py")), ids=lambda path: path.stem)
def test_every_program_says_what_it_is_about(path):
    program = programs.read(path)
    assert program.source and program.what
    compile(program.faulty, str(path), "exec")
    if program.has_fault:
        assert program.lines, "the lines that may be named are marked"
        assert program.cured != program.faulty
        compile(program.cured, str(path), "exec")
