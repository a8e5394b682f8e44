"""``oomph plan`` and ``oomph.plan``: the least number of cards for each way, held to the sums of what is shared; what is typed to start it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import oomph
import pytest
import yaml
from oomph import _plan

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
# 12 blocks of 8 MiB each in float32: with gradients and Adam's state four times that.
PROGRAM = """
import argparse, os, torch, torch.distributed as dist
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--how", default="ddp")
how = parser.parse_args().how
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
if how == "pairs" and dist.get_world_size() % 2:
    raise ValueError("ranks come in pairs")
model = nn.Sequential(*[nn.Linear(1448, 1448, bias=False) for _ in range(12)]).cuda()
if how == "ddp":
    trained = nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    trained = fully_shard(model)
optimizer = torch.optim.AdamW(trained.parameters())
for _ in range(4):
    trained(torch.randn(8, 1448, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PARAMETERS = 12 * 1448 * 1448 * 4


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """Two that have room for NCCL and less, or more, than the model's state."""
    path = tmp_path_factory.mktemp("cards") / "gpus.toml"
    card = '[[gpu]]\nname = "{name}"\ntitle = "Card {name}"\nmemory = {memory}\ncontext = 0\ncompute_capability = "{capability}"\nsms = 40\n{more}'
    sizes = (("small", 760, "7.5", ""), ("large", 2000, "8.0", 'accelerator = "A100-80GB"\n'))
    path.write_text("\n".join(card.format(name=name, memory=size * MIB, capability=capability, more=more) for name, size, capability, more in sizes))
    return {**os.environ, "OOMPH_GPUS": str(path)}


@pytest.fixture(scope="module")
def planned(oomph, warm, cards, tmp_path_factory):
    """The whole table of one script: two ways that it has, and one that wants even numbers."""
    script = tmp_path_factory.mktemp("plan") / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    options = ("--python", warm(sys.executable), "--gpus", "small,large", "--ranks", "1..2", "--sweep", "how=ddp,fsdp,pairs")
    code, out, err = oomph("plan", *options, "--format", "json", script, env=cards, timeout=900)
    assert code == 0, err
    return json.loads(out), err, script


def test_each_way_has_the_fewest_cards_that_it_fits(planned):
    found, err, _ = planned
    assert found["fits"] and found["ways"] == ["--how ddp", "--how fsdp", "--how pairs"]
    cards = {(row["gpu"], row["way"].removeprefix("--how ")): row["cards"] for row in found["rows"]}
    # DDP holds all of it on each rank: more cards do not help.
    assert cards["large", "ddp"] == 1 and cards["small", "ddp"] is None
    # Of what is sharded each has a part; NCCL takes most of these small cards.
    assert cards["large", "fsdp"] == 1
    assert cards["small", "fsdp"] == 2
    # A number with which the script does not run is passed over.
    assert cards["large", "pairs"] == 2
    for row in found["rows"]:
        if row["cards"] is not None:
            memory = {"small": 760, "large": 2000}[row["gpu"]] * MIB
            assert row["margin"] == memory - row["total"] >= 0
    # Without a limit, and perhaps on the card itself: no more.
    runs = [line for line in err.splitlines() if line.startswith("running")]
    assert max(map(runs.count, runs)) <= 2 and runs.count("running 1 rank on virtual Card small, --how ddp") == 1


def test_the_best_comes_first_by_cards_and_then_by_what_is_sent(planned):
    rows = [row for row in planned[0]["rows"] if row["cards"] is not None]
    keys = [(row["cards"], row["sent"]["within"] + row["sent"]["between"]) for row in rows]
    assert keys == sorted(keys)
    assert all(row["cards"] is None for row in planned[0]["rows"][len(rows) :])


def test_what_is_sent_is_the_sum_of_what_is_shared(planned):
    for row in planned[0]["rows"]:
        if row["cards"] in (None, 1):
            continue
        ranks, sent = row["cards"], row["sent"]["within"]
        # Parameters are gathered for the forward and the backward pass, but for the root's and the last block's, and gradients summed: a ring hands on all but the own part.
        whole = (ranks - 1) / ranks * PARAMETERS
        assert 2 * whole < sent <= 3.01 * whole
        assert row["sent"]["between"] == 0


def test_what_is_typed_starts_what_was_planned(planned):
    found, _, script = planned
    (row,) = (row for row in found["rows"] if row["gpu"] == "large" and row["way"] == "--how pairs")
    launch = row["launch"]
    assert launch["torchrun"] == f"torchrun --standalone --nproc-per-node 2 {script} --how pairs"
    assert launch["slurm"] == "#SBATCH --nodes=1 --ntasks-per-node=1 --gpus-per-node=2"
    assert yaml.safe_load(launch["skypilot"]) == {"resources": {"accelerators": "A100-80GB:2"}}
    pod = {"nodeSelector": {"nvidia.com/gpu.product": "Card-large"}, "containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]}
    assert yaml.safe_load(launch["kubernetes"]) == {"spec": pod}
    assert launch["as_it_is"] is None
    assert launch["ray"] == 'ScalingConfig(num_workers=2, use_gpu=True, accelerator_type="A100-80G")'
    low, high = row["seconds"]["low"], row["seconds"]["high"]
    assert 0 < low < high < 1


def test_several_machines_are_told_apart(oomph, warm, cards, planned):
    script = planned[2]
    options = ("--python", warm(sys.executable), "--gpus", "large", "--ranks", "2", "--per-node", "1", script, "--how", "fsdp")
    code, out, err = oomph("plan", *options, env=cards, timeout=900)
    assert code == 0, err
    assert out.startswith("It takes 2 × Card large so far; validation was not reached\n")
    assert f"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 --nproc-per-node 1 {script} --how fsdp" in out
    assert "#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=1" in out
    assert f"Next: oomph predict --gpu large --ranks 2 --per-node 1 {script} --how fsdp" in out
    typed = {name: line.removeprefix(f"  {name}").strip() for line in out.splitlines() for name in ("SkyPilot", "Kubernetes") if line.startswith(f"  {name} ")}
    assert yaml.safe_load(typed["SkyPilot"]) == {"num_nodes": 2, "resources": {"accelerators": "A100-80GB:1"}}
    job = yaml.safe_load(typed["Kubernetes"])["spec"]
    assert (job["parallelism"], job["completions"]) == (2, 2) and job["template"]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def test_what_fits_nowhere_is_a_finding_and_what_fails_says_why(oomph, warm, cards, planned, tmp_path):
    options = ("--python", warm(sys.executable), "--gpus", "small", "--ranks", "1")
    code, out, _ = oomph("plan", *options, planned[2], env=cards, timeout=900)
    assert code == 1 and out.startswith("Not with any of these cards") and "does not fit with up to 1" in out
    alone = tmp_path / "alone.py"
    alone.write_text("import torch\nkept = torch.ones(1 << 28, device='cuda')\nfor _ in range(4):\n    torch.nn.Linear(8, 8).cuda()(torch.ones(8, device='cuda'))\n")
    code, out, _ = oomph("plan", *options[:-1], "2", alone, env=cards, timeout=900)
    assert code == 1 and "This script's ranks never talk to each other" in out
    # What fails at once does not keep the next way from being run.
    picky = tmp_path / "picky.py"
    picky.write_text(
        "import sys\nif 'bad' in sys.argv[-1]: sys.exit('no such way')\nimport torch\nfor _ in range(4):\n    torch.nn.Linear(8, 8).cuda()(torch.ones(8, device='cuda'))\n"
    )
    code, out, _ = oomph("plan", *options[:-1], "2", "--sweep", "how=bad,good", picky, env=cards, timeout=900)
    assert code == 0 and "how=good" in out and "does not run so: " in out
    # Of the one it is known that it does not fit, of the other nothing.
    picky.write_text("import sys\nif 'bad' in sys.argv[-1]: sys.exit('no such way')\nimport torch\nkept = torch.ones(1 << 28, device='cuda')\n")
    code, out, _ = oomph("plan", *options, "--sweep", "how=bad,good", picky, env=cards, timeout=900)
    assert code == 2 and out.startswith("Not with any of these cards in the ways that run, and others fail\n")
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\ntorch.ones(1, device='cuda')\nraise ValueError('three heads')\n")
    code, out, _ = oomph("plan", *options, broken, env=cards, timeout=900)
    assert code == 2 and out.startswith("Not known: the program fails\n") and "does not run so: " in out and "three heads" in out
    assert f"Next: oomph predict --gpu small --ranks 1 {broken}" in out


def test_a_program_that_starts_its_ranks_is_started_as_it_is(oomph, warm, cards, tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        textwrap.dedent("""
        import torch

        def main(rank):
            model = torch.nn.Linear(64, 64).to(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4):
                model(torch.ones(8, 64, device=rank)).sum().backward()
                optimizer.step()

        if __name__ == "__main__":
            torch.multiprocessing.spawn(main, nprocs=torch.cuda.device_count())
        """)
    )
    code, out, err = oomph("plan", "--python", warm(sys.executable), "--gpus", "small", "--ranks", "2", script, env=cards, timeout=900)
    assert code == 0, err
    assert f"  as it is    python {script}\n" in out and "torchrun" not in out and "Ray Train" not in out


# -- oomph.plan


def test_a_model_is_planned_without_a_script(cards, tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

            def forward(self, x):
                return x + self.down(torch.relu(self.up(x)))

        def make_model():
            with torch.device("meta"):
                return nn.Sequential(*[Block() for _ in range(12)])

        def make_optimizer(parameters):
            return torch.optim.AdamW(parameters)

        def make_batch():
            return torch.randn(4, 512), torch.randn(4, 512)
        """)
    )
    code = """
    import json, torch, oomph, mine
    found = oomph.plan(mine.make_model, mine.make_optimizer, mine.make_batch, gpus=["large"], loss=torch.nn.functional.mse_loss, ranks=2, how=["replicate", "shard"], checkpoint=["none"])
    print(json.dumps([[row.way, row.cards, row.total, row.sent, row.launch["torchrun"]] for row in found.rows]))
    print(found)
    """
    environment = {**cards, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    (first, second) = json.loads(done.stdout.splitlines()[0])
    parameters = 12 * (2 * 512 * 2048 + 2048 + 512) * 4
    # Gradients are summed, and no more: each hands on half of them, twice.
    assert first[:2] == ["replicate", 2] and parameters <= first[3] < 1.01 * parameters
    assert second[:2] == ["shard", 2] and parameters < second[3] < 1.6 * parameters
    assert first[4] == "torchrun --standalone --nproc-per-node 2 train.py"
    # Parameters, gradients, two of state and DistributedDataParallel's buckets; half of the first four, where they are shared, and a block that is gathered.
    assert 1.6 * parameters < first[2] - second[2] < 3.5 * parameters
    assert "2 × large, replicate: " in done.stdout and "ray: ScalingConfig(num_workers=2" in done.stdout


def test_what_cannot_be_found_by_name_is_refused():
    with pytest.raises(oomph.PredictionError, match="cannot be found by name"):
        oomph.plan(lambda: None, print, [1], gpus="t4")
    with pytest.raises(ValueError, match="how='fsdp': it takes 'replicate', 'hybrid'"):
        oomph.plan(print, print, [1], gpus="t4", how="fsdp")
    with pytest.raises(ValueError, match="ranks='many': it takes a range"):
        oomph.plan(print, print, [1], gpus="t4", ranks="many")
    assert _plan._ways_that_apply("1..64", 8) == ["replicate", "hybrid", "shard", "shard-offload"]
    assert _plan._ways_that_apply("2,4", 8) == ["replicate", "shard", "shard-offload"]
    assert _plan._ways_that_apply("1", 8) == ["replicate", "shard-offload"]
