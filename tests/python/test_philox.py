"""The random numbers of a card, computed on the CPU (`python/oomph/virtual/philox.py`), against numbers that an H200 drew."""

import importlib.util
import json
import pathlib

import pytest

torch = pytest.importorskip("torch")

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "fixtures" / "philox.json").read_text())
CARD = GOLDEN["multiprocessors"], GOLDEN["threads"]
aten = torch.ops.aten


def load(name, *path):
    specification = importlib.util.spec_from_file_location(name, ROOT.joinpath(*path))
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


philox = load("philox", "python", "oomph", "virtual", "philox.py")
measured = load("measured_philox", "docs", "measured", "philox.py")
DRAWS = {draw.form: draw for draw in measured.DRAWS}


def drawn(draw, dtype, size, seed, offset):
    args, kwargs = draw.arguments("cpu", size, dtype)
    out = draw.func(*args, **kwargs)  # of the CPU's own numbers, which are not read
    return measured.drawn(philox.draw(draw.func, args, kwargs, out, seed, offset, *CARD))


def test_what_the_card_drew():
    recorded = {(record["form"], record["dtype"]) for record in GOLDEN["draws"]}
    assert recorded == {(draw.form, str(dtype)) for draw in measured.DRAWS for dtype in draw.dtypes}
    wrong = []
    for record in GOLDEN["draws"]:
        draw, dtype = DRAWS[record["form"]], getattr(torch, record["dtype"].removeprefix("torch."))
        values = drawn(draw, dtype, record["size"], record["seed"], record["offset"])
        if draw.exact:
            same = measured.digest(values) == record["sha256"]
        else:
            theirs = torch.tensor(record["values"], dtype=torch.float64)
            ours = torch.tensor(measured.some(values), dtype=torch.float64)
            near = torch.finfo(dtype).eps * (8 if dtype in (torch.float64, torch.complex128) else 1) if dtype.is_floating_point or dtype.is_complex else 0
            near = max(near, 4e-6) if near > 1e-12 else near  # what the card's sines and logarithms of float32 are good for
            same = bool(((ours - theirs).abs() <= near * theirs.abs().clamp(min=1)).all())
        if not same:
            wrong.append((record["form"], record["dtype"]))
    assert not wrong


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


def test_a_known_beginning():
    """What torch.manual_seed(0) gives on every card."""
    rand = philox.draw(aten.rand.default, ([3],), {}, meta(3), 0, 0, *CARD)
    assert [round(value, 4) for value in rand.tolist()] == [0.3990, 0.5167, 0.0249]
    randn = philox.draw(aten.randn.default, ([3],), {}, meta(3), 0, 0, *CARD)
    assert [round(value, 4) for value in randn.tolist()] == [-0.9247, -0.4253, -2.6438]


def test_what_is_not_followed():
    draw = lambda func, args, out, offset=0: philox.draw(func, args, {}, out, 0, offset, *CARD)
    assert philox.follows(aten.rand.default) and philox.follows(aten.native_dropout.default)
    assert not philox.follows(aten.add.Tensor) and draw(aten.add.Tensor, (meta(2), meta(2)), meta(2)) is None
    overlapping = meta(3).expand(2, 3)
    assert draw(aten.uniform_.default, (overlapping,), overlapping) is None
    large = meta((1 << 29) + 1)
    assert draw(aten.uniform_.default, (large,), large) is None
    assert draw(aten.bernoulli.default, (meta(5),), meta(5)) is None, "probabilities that are not known"
    assert draw(aten.multinomial.default, (torch.ones(5), 3, True), meta(3, dtype=torch.int64)) is None
    assert draw(aten.rand.default, ([3],), meta(3), offset=2) is None
    assert draw(aten.rand.default, ([0, 3],), meta(0, 3)).shape == (0, 3)


def test_under_a_default_device():
    """A program may have set one; the numbers are computed on the CPU all the same."""
    with torch.device("meta"):
        assert philox.draw(aten.randperm.default, (300,), {}, meta(300, dtype=torch.int64), 3, 0, *CARD).sort().values.tolist() == list(range(300))


def test_dropout_before_vectors_of_eight(monkeypatch):
    """Until 2.6 a thread wrote four neighbours of any dtype, as it still does of float32."""
    mask = lambda dtype: philox.draw(aten.native_dropout.default, (meta(1000, dtype=dtype), 0.25, True), {}, (None, meta(1000, dtype=torch.bool)), 7, 4, *CARD)[1]
    now = {dtype: mask(dtype) for dtype in (torch.float16, torch.float32, torch.float64)}
    assert not torch.equal(now[torch.float16], now[torch.float32]) and not torch.equal(now[torch.float64], now[torch.float32])
    monkeypatch.setattr(philox, "_VERSION", (2, 6))
    assert all(torch.equal(mask(dtype), now[torch.float32]) for dtype in now)
