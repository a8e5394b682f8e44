"""What is said of programs that the fixtures do not have, and what must not be said of them."""

import pytest
from synthetic import APPLY, CALL, LINEAR, MIB, OPTIMIZER, TO_DEVICE, Program, lib, train


def codes(reported):
    return [finding["code"] for finding in reported["findings"]]


def kinds(reported):
    return {row["kind"]: row["bytes"] for row in reported["devices"][0]["at_peak"]["by_kind"]}


@pytest.fixture
def explained(explain, tmp_path):
    def run(program, **options):
        return explain(program.dump(tmp_path / "snapshot.pickle", **options))

    return run


def test_a_plain_loop_is_the_measure(explained):
    program = Program()
    train(program)
    reported = explained(program)
    assert codes(reported) == ["OM304"]
    assert kinds(reported) == {"activations": 320 * MIB, "parameters": 48 * MIB}
    assert reported["devices"][0]["steps"]["count"] == 4


def test_a_step_run_as_the_optimizers_closure(explained):
    """Lightning, LBFGS: the whole step runs inside optimizer.step(closure)."""
    program = Program()
    train(program, outside=OPTIMIZER, step=lambda program, body: program.optimizer_step(body=body))
    assert kinds(explained(program))["activations"] == 320 * MIB


def test_custom_autograd_functions_are_called_in_the_forward_pass(explained):
    """torch.compile, flash attention: Function.apply is the forward pass's entry as well as the backward pass's."""
    program = Program()
    compiled = lib("torch/_functorch/_aot_autograd/runtime_wrappers.py", 1525, "forward")
    train(program, forward=(compiled, APPLY, lib("torch/_dynamo/eval_frame.py", 574, "_fn"), CALL))
    assert kinds(explained(program))["activations"] == 320 * MIB


@pytest.mark.parametrize("file", ["/tmp/ipykernel_123/55.py", "<ipython-input-3-abc>", "/home/user/torch/train.py"])
def test_notebook_cells_are_the_users_own(explained, file):
    program = Program(file)
    train(program)
    line = explained(program)["devices"][0]["at_peak"]["by_line"][0]
    shown = "In[3]" if file.startswith("<ipython") else file
    assert (line["file"], line["line"], line["own"]) == (shown, 15, True)


def test_generated_code_is_not_the_users_own(explained):
    program = Program()
    generated = {"name": "forward", "filename": "<eval_with_key>.5", "line": 7}
    train(program, forward=(generated, CALL))
    assert explained(program)["devices"][0]["at_peak"]["by_line"][0]["line"] == 15


def dies(program, device_free=50):
    for _ in range(4):
        program.alloc(12, TO_DEVICE, program.line(10))
    blocks = [program.alloc(40, LINEAR, CALL, program.line(15), program.line(30)) for _ in range(8)]
    program.out_of_memory(400, device_free, LINEAR, CALL, program.line(15), program.line(30))
    return blocks


def test_death_in_the_first_forward_pass_is_not_called_inference(explained):
    program = Program()
    dies(program)
    reported = explained(program)
    assert "OM202" not in codes(reported)
    (oom,) = reported["devices"][0]["ooms"]
    assert oom["fatal"] and oom["reason"] == "out_of_memory" and not oom["limited"]
    # The device had 50 of the 400 MiB: 350 more would have done.
    assert reported["findings"][0]["cause"] == "one_temporary"


def test_a_handlers_allocation_does_not_undo_a_death(explained, oomph, tmp_path):
    program = Program()
    for block in dies(program):
        program.free(block, program.line(50))
    program.alloc(0.001, program.line(60, "report"))
    reported = explained(program)
    assert [oom["outcome"] for oom in reported["devices"][0]["ooms"]] == ["fatal"]
    code, out, _ = oomph("check", program.dump(tmp_path / "died.pickle"), "--max-peak", "10GiB")
    assert code == 1 and out.startswith("died:")


def test_a_search_for_a_batch_size_goes_on(explained):
    program = Program()
    for block in dies(program):
        program.free(block, program.line(50))
    for _ in range(4):
        program.alloc(40, LINEAR, CALL, program.line(15), program.line(30))
    assert [oom["outcome"] for oom in explained(program)["devices"][0]["ooms"]] == ["caught_by_program"]


def test_a_library_is_recognised_under_cpp_frames(explained):
    """With stacks="all" two attempts of one Python call differ in their C++ frames."""
    program = Program()
    attempt = [{"name": f"cudnn::try{n}()", "filename": "??", "line": 0} for n in (1, 2)]
    python = (lib("torch/nn/modules/conv.py", 548, "_conv_forward"), CALL, program.line(15))
    program.alloc(40, *python)
    program.out_of_memory(4000, 50, attempt[0], *python)
    program.alloc(40, attempt[1], *python)
    assert [oom["outcome"] for oom in explained(program)["devices"][0]["ooms"]] == ["caught_by_library"]


def test_holes_and_the_devices_rest_together_would_have_served(explained):
    program = Program()
    blocks = [program.alloc(50, program.line(5)) for _ in range(40)]
    # One segment each: join them into one by hand, as if they had been cut from it.
    base = 0x7F0000000000
    program.events = [e for e in program.events if e["action"] != "segment_alloc"]
    for index, (_block, event) in enumerate(zip(blocks, program.events)):
        event["addr"] = base + index * 50 * MIB
    program.event("segment_alloc", base, 2000 * MIB, [program.line(5)])
    program.events.insert(0, program.events.pop())
    snapshot = program.snapshot()
    for index in range(0, 20, 2):
        address = base + index * 50 * MIB
        program.event("free_requested", address, 50 * MIB, [program.line(6)])
        program.event("free_completed", address, 50 * MIB, [program.line(6)])
    program.out_of_memory(1000, 700, program.line(7))
    held = [i for i in range(40) if i >= 20 or i % 2]
    snapshot["device_traces"] = [program.events]
    state = {True: "active_allocated", False: "inactive"}
    snapshot["segments"] = [dict(snapshot["segments"][0], address=base, total_size=2000 * MIB, blocks=[
        {"address": base + i * 50 * MIB, "size": 50 * MIB, "requested_size": 50 * MIB, "state": state[i in held], "frames": []}
        for i in range(40)
    ])]  # fmt: skip
    program.snapshot = lambda **_: snapshot
    reported = explained(program)
    (oom,) = reported["devices"][0]["ooms"]
    assert (oom["reason"], oom["usable_free"], oom["largest_free"]) == ("fragmentation", 500 * MIB, 50 * MIB)
    assert "OM401" in codes(reported)


def test_a_leak_in_one_of_two_optimizers_steps(explained):
    """A GAN: two optimizer steps a round, of which one leaks."""
    program = Program()
    leak = lambda index, blocks: blocks[:2] if index % 2 else []
    train(program, steps=16, leak=leak)
    reported = explained(program)
    growth = next(finding for finding in reported["findings"] if finding["code"] == "OM201")
    assert growth["where"][0]["line"] == 15
    assert "80.0 MiB" in growth["title"]


def test_loops_that_prepare_are_not_steps(explained):
    program = Program()
    for _ in range(6):
        program.alloc(12, program.line(10))
        program.alloc(2, program.line(11))
    for _ in range(4):
        program.alloc(10, TO_DEVICE, program.line(14))
    for _ in range(10):
        data = program.alloc(12, program.line(20))
        block = program.alloc(20, LINEAR, CALL, program.line(21))
        program.free(block, program.line(21))
        program.free(data, program.line(21))
    reported = explained(program)
    assert reported["devices"][0]["steps"]["count"] == 10
    assert "OM201" not in codes(reported)


def test_weights_copies_and_buckets_are_not_called_duplicates_or_inputs(explained):
    program = Program()
    weights = [program.alloc(64, program.line(22, "__init__"), program.line(10)) for _ in range(8)]
    copy = lib("torch/nn/parameter.py", 68, "__deepcopy__")
    [program.alloc(64, copy, program.line(12)) for _ in range(8)]
    bucket = lib("torch/nn/parallel/distributed.py", 1190, "_ddp_init_helper")
    [program.alloc(25, bucket, program.line(14)) for _ in range(10)]
    train(program)
    reported = explained(program)
    assert len(weights) == 8 and "OM203" not in codes(reported)
    found = kinds(reported)
    assert found["parameters"] == (8 * 64 + 48) * MIB
    assert found.get("inputs", 0) == 0
    # Of 25 MiB a segment of 26 is made, and the rest stays with the block.
    assert found["gradients"] >= 10 * 26 * MIB


def test_weights_that_threads_of_transformers_load_are_weights(explained):
    program = Program()
    job = lib("transformers/core_model_loading.py", 1345, "_job")
    pool = lib("concurrent/futures/thread.py", 58, "run")
    [program.alloc(64, job, pool) for _ in range(8)]
    train(program)
    reported = explained(program)
    assert "OM203" not in codes(reported)
    assert kinds(reported)["parameters"] == (8 * 64 + 48) * MIB


@pytest.mark.parametrize("forget", ["all", "most"])
def test_without_the_beginning_reserved_is_not_held_against_allocated(explained, forget):
    program = Program()
    [program.alloc(100, TO_DEVICE, program.line(10)) for _ in range(2)]
    blocks = [program.alloc(200, LINEAR, CALL, program.line(15)) for _ in range(5)]
    for block in blocks:
        program.free(block, program.line(16))
    forgotten = len(program.events) - (0 if forget == "all" else 2)
    reported = explained(program, forget=forgotten)
    assert "OM401" not in codes(reported) and "OM901" in codes(reported)


def test_annotations_of_the_current_device_serve_another(explained):
    program = Program()
    train(program)
    reported = explained(program, device=1)
    (device,) = reported["devices"]
    assert device["ordinal"] == 1 and device["steps"]["found_by"] == "annotations"


def test_a_recorder_told_to_leave_completed_frees_out(explained):
    program = Program()
    train(program)
    program.events = [event for event in program.events if event["action"] != "free_completed"]
    reported = explained(program)
    assert reported["devices"][0]["completeness"]["contradictions"] == 0
    assert kinds(reported)["activations"] == 320 * MIB


def test_diff_follows_code_that_moved(oomph, tmp_path):
    paths = []
    for shift in (0, 1):
        program = Program()
        original = program.line
        program.line = lambda number, function="main": original(number + shift, function)
        train(program)
        paths.append(program.dump(tmp_path / f"{shift}.pickle"))
    code, out, _ = oomph("diff", *paths)
    assert code == 0 and "Every line holds the same at the peak." in out


def test_overflow_and_forward_tracebacks_survive_conversion(oomph, explain, tmp_path):
    import pickle

    program = Program()
    train(program)
    snapshot = program.snapshot()
    snapshot["trace_alloc_overflowed"], snapshot["trace_alloc_max_entries"] = [True], [5000]
    snapshot["device_traces"][0][-3]["forward_frames"] = ["line one\n", "line two\n"]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    for name in ("a.pickle", "a.json", "a.oomph"):
        code, _, err = oomph("convert", path, "-o", tmp_path / name)
        assert code == 0, err
        details = [d for f in explain(tmp_path / name)["findings"] if f["code"] == "OM901" for d in f["details"]]
        assert any("max_entries=5000" in detail for detail in details), name
    after = pickle.loads((tmp_path / "a.pickle").read_bytes())
    assert after["device_traces"][0][-3]["forward_frames"] == ["line one\nline two\n"]


def test_of_very_many_out_of_memories_the_first_and_last_are_looked_into(explained):
    program = Program()
    dies(program)
    for _ in range(249):
        program.out_of_memory(400, 50, LINEAR, CALL, program.line(15), program.line(30))
    ooms = explained(program)["devices"][0]["ooms"]
    assert [oom["outcome"] for oom in ooms] == ["caught_by_library"] * 249 + ["fatal"]
    assert [ooms[i]["reason"] for i in (0, 99, 100, 149, 150, 249)] == [
        "out_of_memory", "out_of_memory", "not_looked_into", "not_looked_into", "out_of_memory", "out_of_memory",
    ]  # fmt: skip
    assert ooms[100]["allocated"] is None
    # Right after one that was passed over, and the same request: looked into all the same.
    assert ooms[150]["allocated"] == ooms[249]["allocated"] == (4 * 12 + 8 * 40) * MIB
