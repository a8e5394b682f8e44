"""Predictions beside an H200's counters: plain training loops of six families of models (tests/programs/grid.py)."""

import json

import pytest
from conftest import FIXTURES, PYTHON_2_11

# Of fixtures/grid.jsonl, as grid.py takes them. Rows in float16 are left out: on the GPU their first steps overflow.
ROWS = """
mlp 64 --dtype fp32 --optim adamw
mlp 64 --dtype fp32 --optim adamw_single
mlp 4096 --dtype bf16 --optim adamw
resnet50 8 --dtype fp32 --optim adamw
resnet50 8 --dtype bf16 --optim adamw
mobilenet 16 --dtype fp32 --optim adamw_fused
mobilenet 16 --dtype bf16 --optim adamw
vit 8 --dtype fp32 --optim adamw
vit 32 --dtype bf16 --optim adamw
gpt2 2 --dtype fp32 --optim adamw_single
gpt2 8 --dtype fp32 --optim sgd
gpt2 8 --dtype bf16 --optim adamw --ckpt
bert 8 --dtype fp32 --optim adamw
bert 64 --dtype bf16 --optim adamw
bert 64 --dtype fp32 --optim adamw --ckpt
""".strip().split("\n")


def measured():
    """What the GPU said, by the words that grid.py takes."""
    rows = {}
    for line in (FIXTURES / "grid.jsonl").read_text().splitlines():
        row = json.loads(line)
        checkpointed = " --ckpt" if row["ckpt"] else ""
        rows[f"{row['model']} {row['batch']} --dtype {row['dtype']} --optim {row['optim']}{checkpointed}"] = row
    return rows


def test_every_family_is_held_against_the_gpu():
    chosen = [measured()[words] for words in ROWS]
    assert {row["model"] for row in chosen} == {row["model"] for row in measured().values()}
    assert any(row["ckpt"] for row in chosen) and any(row["dtype"] == "bf16" for row in chosen)
    assert all(row["torch"] == "2.11.0+cu130" for row in chosen)


@pytest.mark.parametrize("words", ROWS)
def test_peaks_equal_what_the_gpu_reported(predict, warm, words):
    row = measured()[words]
    predicted = predict("--until", "steps", "grid.py", *words.split(), python=warm(PYTHON_2_11))
    assert predicted.code == 0, predicted.err
    assert predicted.reported["steps"] == 3
    allocated, reserved = predicted.peak
    assert allocated == pytest.approx(row["peak_allocated"], rel=0.003)
    assert reserved == pytest.approx(row["peak_reserved"], rel=0.01)
