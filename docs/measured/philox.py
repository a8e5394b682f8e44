"""Print the tables of philox.md: what a card drew beside what python/oomph/virtual/philox.py computes of it.

    python docs/measured/philox.py [--module python/oomph/virtual/philox.py] [--golden fixtures/philox.json]

Needs a GPU, PyTorch and that module, nothing else of oomph. --golden writes what tests/python/test_philox.py, which takes its
operations from here, holds the module to without a GPU.
"""

import argparse
import collections
import ctypes
import hashlib
import importlib.util
import json
import math
import pathlib
import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = (1, 5, 255, 256, 257, 1000, 70_001, 1 << 20, 3_000_001)
FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
SEEDS = (1234, 0xFEDCBA9876543210)
GOLDEN_SIZE = 20_002
# More than four numbers for each of the H200's 270,336 threads; one dtype of each kernel.
GOLDEN_LARGE = {("rand", torch.float32): 1_200_002, ("randint(3 * 10**9)", torch.int64): 700_002, ("dropout 0.5", torch.float16): 2_300_008}


class Draw:
    """One form of one operation: its overload, its arguments for a device and a number of elements, and whether it is exact."""

    def __init__(self, form, operation, arguments, dtypes=FLOATS, exact=True, sizes=SIZES):
        packet, overload = operation.split(".")
        self.form, self.arguments, self.dtypes, self.exact, self.sizes = form, arguments, dtypes, exact, sizes
        self.func = getattr(getattr(torch.ops.aten, packet), overload)


def made(name, *lead, **more):
    return lambda device, size, dtype: ((*lead, [size]), {"dtype": dtype, "device": device, **more})


def filled(*values):
    return lambda device, size, dtype: ((torch.empty(size, dtype=dtype, device=device), *values), {})


def ramp(device, size, dtype):
    """Values between 0 and 1 that every device has alike."""
    return (torch.arange(size, device=device) % 97).to(torch.float64).div(97).to(dtype)


def view(change, *values):
    """A tensor of some 5/4 of the size, seen through ``change``."""

    def arguments(device, size, dtype):
        edge = math.isqrt(size) // 2 * 2 + 3
        return (change(torch.empty(edge, edge, dtype=dtype, device=device)), *values), {}

    return arguments


def image(values=(), odd=False):
    """Images in channels-last order."""

    def arguments(device, size, dtype):
        side = max(1, math.isqrt(size // 6)) // 2 * 2 + odd
        base = torch.empty(2 + odd, 3, side or 1, side or 1, dtype=dtype, device=device)
        return (base.to(memory_format=torch.channels_last), *values), {}

    return arguments


DRAWS = [
    Draw("rand", "rand.default", made("rand")),
    Draw("rand, complex", "rand.default", made("rand"), (torch.complex64, torch.complex128)),
    Draw("rand_like, channels last", "rand_like.default", image()),
    Draw("uniform_(-0.1, 0.3)", "uniform_.default", filled(-0.1, 0.3)),
    Draw("uniform_(0, 4)", "uniform_.default", filled(0.0, 4.0)),
    Draw("uniform_(-1/3, 1/3), transposed", "uniform_.default", view(lambda x: x.t(), -1 / 3, 1 / 3)),
    Draw("uniform_(), every second column", "uniform_.default", view(lambda x: x[:, ::2])),
    Draw("uniform_(), columns from 1 on, transposed", "uniform_.default", view(lambda x: x[:, 1:].t())),
    Draw("randint(10)", "randint.default", made("randint", 10), (*INTEGERS, torch.float32)),
    Draw("randint(-5, 100)", "randint.low", made("randint", -5, 100), (torch.int64, torch.int32, torch.int16, torch.float16, torch.bfloat16)),
    Draw("randint(2)", "randint.default", made("randint", 2), (torch.bool, torch.uint8, torch.int8)),
    Draw("randint(3 * 10**9)", "randint.default", made("randint", 3_000_000_000), (torch.int64,)),
    Draw("randint(-2**62, 2**62 + 12345)", "randint.low", made("randint", -(2**62), 2**62 + 12345), (torch.int64,)),
    Draw("randint(-2**63, 2**63 - 3)", "randint.low", made("randint", -(2**63), 2**63 - 3), (torch.int64,)),
    Draw("randint(-2**31, 2**31 - 1)", "randint.low", made("randint", -(2**31), 2**31 - 1), (torch.int32,)),
    Draw("randint_like(7, 50000)", "randint_like.low_dtype", filled(7, 50000), (torch.int64, torch.int32)),
    Draw("random_()", "random_.default", filled(), (*INTEGERS, torch.int8, torch.int16, torch.bool, *FLOATS)),
    Draw("random_(1000)", "random_.to", filled(1000), (torch.int64, torch.int32, torch.float32)),
    Draw("random_(3, None)", "random_.from", filled(3, None), (*INTEGERS, *FLOATS)),
    Draw("random_(-2**63, None)", "random_.from", filled(-(2**63), None), (torch.int64, torch.float32)),
    Draw("bernoulli_(0.3)", "bernoulli_.float", filled(0.3), (*FLOATS, *INTEGERS, torch.bool)),
    Draw("bernoulli(0.7)", "bernoulli.p", filled(0.7), (torch.float32, torch.float64)),
    Draw("bernoulli(tensor)", "bernoulli.default", lambda device, size, dtype: ((ramp(device, size, dtype),), {})),
    Draw(
        "bernoulli_(tensor)",
        "bernoulli_.Tensor",
        lambda device, size, dtype: ((torch.empty(size, dtype=dtype, device=device), ramp(device, size, torch.float32)), {}),
        (torch.float32, torch.bool, torch.int64),
    ),
    Draw("dropout 0.1", "native_dropout.default", filled(0.1, True)),
    Draw("dropout 0.5", "native_dropout.default", filled(0.5, True)),
    Draw("dropout 0.1, channels last", "native_dropout.default", image((0.1, True))),
    Draw("dropout 0.1, channels last, odd", "native_dropout.default", image((0.1, True), odd=True)),
    Draw("dropout 0.1, rows from 2 on", "native_dropout.default", view(lambda x: x.flatten()[x.size(0) * 2 :], 0.1, True)),
    Draw("dropout 0.1, from the second element on", "native_dropout.default", view(lambda x: x.flatten()[2 : x.numel() // 4 * 4 - 6], 0.1, True)),
    Draw("dropout 0.1, every second column", "native_dropout.default", view(lambda x: x[:, ::2], 0.1, True)),
    Draw(
        "randperm",
        "randperm.default",
        lambda device, size, dtype: ((size,), {"dtype": dtype, "device": device}),
        (torch.int64, torch.int32),
        sizes=(1, 2, *(10,) * 30, 100, *(1000,) * 10, 25_000, 30_000, 40_000, 100_000, 1_000_000),
    ),
    Draw("randn", "randn.default", made("randn"), exact=False),
    Draw("randn, complex", "randn.default", made("randn"), (torch.complex64, torch.complex128), exact=False),
    Draw("randn_like, channels last", "randn_like.default", image(), exact=False),
    Draw("normal_(0.5, 0.02)", "normal_.default", filled(0.5, 0.02), exact=False),
    Draw("normal(tensor, tensor)", "normal.Tensor_Tensor", lambda device, size, dtype: ((ramp(device, size, dtype), ramp(device, size, dtype)), {}), exact=False),
    Draw("log_normal_(1, 0.5)", "log_normal_.default", filled(1.0, 0.5), exact=False),
    Draw("exponential_(1.5)", "exponential_.default", filled(1.5), exact=False),
    Draw("cauchy_(0, 2)", "cauchy_.default", filled(0.0, 2.0), exact=False),
    Draw("geometric_(0.2)", "geometric_.default", filled(0.2), (torch.float32, torch.int64, torch.float64), exact=False),
    Draw(
        "multinomial, 1 of 97",
        "multinomial.default",
        lambda device, size, dtype: ((ramp(device, 97, dtype).add(1).expand(max(1, size // 97), 97).contiguous(), 1), {}),
        (torch.float32, torch.float16),
        exact=False,
        sizes=(1, 1000, 70_001, 1 << 20),
    ),
    Draw(
        "multinomial, 10 of all",
        "multinomial.default",
        lambda device, size, dtype: ((ramp(device, size, dtype).add(1), 10), {}),
        (torch.float32,),
        exact=False,
        sizes=(257, 70_001, 1 << 20),
    ),
]


def load(path):
    specification = importlib.util.spec_from_file_location("oomph_philox", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def drawn(value):
    """What of an operation's answer was drawn: of dropout's, the mask."""
    return value[1] if isinstance(value, tuple) else value


def digest(tensor):
    tensor = tensor.contiguous()
    return hashlib.sha256(ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())).hexdigest()[:16]


def some(tensor):
    """A few of the numbers, from the first to nearly the last."""
    picked = tensor.flatten()[:: max(1, tensor.numel() // 16)][:16]
    return (torch.view_as_real(picked) if picked.is_complex() else picked).flatten().tolist()


def places(apart, theirs, dtype):
    """Differences in units of the last place of the card's numbers; of 1, where those are smaller."""
    spacing = torch.finfo(dtype).eps * theirs.abs().to(torch.float64).clamp(min=1).log2().floor().exp2()
    return apart / spacing


class Row:
    """What was compared of one form in one dtype."""

    def __init__(self):
        self.draws = self.same_draws = self.numbers = self.same = self.missing = 0
        self.difference = self.places = 0.0

    def add(self, ours, theirs):
        self.draws += 1
        if ours is None:
            self.missing += 1
            return
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype and ours.device.type == "cpu", (ours.shape, theirs.shape, ours.dtype)
        equal = ours == theirs
        self.numbers += equal.numel()
        self.same += int(equal.sum())
        self.same_draws += bool(equal.all())
        if equal.all():
            return
        wide = torch.complex128 if ours.is_complex() else torch.float64
        apart = (ours.to(wide) - theirs.to(wide)).abs()
        self.difference = max(self.difference, float(apart.max()))
        if ours.is_floating_point() or ours.is_complex():
            self.places = max(self.places, float(places(apart, theirs, ours.dtype).max()))


class Watch(TorchDispatchMode):
    """A program's own calls, as a mode sees them."""

    def __init__(self, module, card, rows):
        super().__init__()
        self.module, self.card, self.rows = module, card, rows

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.module.state(torch.cuda.default_generators[0])
        out = func(*args, **(kwargs or {}))
        if self.module.follows(func):
            ours = self.module.draw(func, args, kwargs or {}, out, *before, *self.card)
            self.rows[str(func)].add(drawn(ours), drawn(out).cpu())
        elif self.module.state(torch.cuda.default_generators[0]) != before:
            self.rows[f"{func} (not followed)"].draws += 1
        return out


def program():
    """Random numbers as programs draw them."""
    functional = torch.nn.functional
    with torch.device("cuda"):
        torch.rand(3, 5), torch.randn(1000, 3), torch.randint(0, 50257, (8, 1024)), torch.randperm(10), torch.randperm(1000), torch.randperm(100_000)
        torch.normal(0.0, 0.02, (768, 768), device="cuda"), torch.bernoulli(torch.empty(1000, 7), 0.4), torch.empty(100, dtype=torch.int32).random_(0, 7)
        layers = [torch.nn.Linear(768, 3072), torch.nn.Conv2d(3, 64, 7), torch.nn.Embedding(1000, 64), torch.nn.LSTM(16, 32, 2), torch.nn.MultiheadAttention(64, 4)]
        torch.nn.init.xavier_uniform_(layers[0].weight), torch.nn.init.trunc_normal_(layers[0].weight, std=0.02), torch.nn.init.kaiming_normal_(layers[1].weight)
        for dtype in FLOATS:
            for p in (0.1, 0.5):
                functional.dropout(torch.ones(8, 128, 768, dtype=dtype), p, training=True)
                functional.dropout(torch.ones(3, 5, 7, dtype=dtype), p, training=True)
                functional.dropout(torch.ones(8, 128, 768, dtype=dtype), p, training=True, inplace=True)
        functional.dropout2d(torch.ones(8, 16, 32, 32), 0.2), functional.alpha_dropout(torch.ones(1000), 0.2, training=True)


def measure(module, card, generator):
    """Rows by form and dtype; one run over all, in which the offset goes on from draw to draw, for each seed."""
    rows = collections.defaultdict(Row)
    for seed in SEEDS:
        for number, draw in enumerate(DRAWS):
            # A few draws begin where the offset's upper half counts.
            begin = (1 << 34) - 8 + (number << 36) if number % 5 == 4 else 4 * number
            generator.set_state(torch.tensor(list(seed.to_bytes(8, "little") + begin.to_bytes(8, "little")), dtype=torch.uint8))
            for dtype in draw.dtypes:
                for size in draw.sizes:
                    before = module.state(generator)
                    args, kwargs = draw.arguments("cuda", size, dtype)
                    theirs = draw.func(*args, **kwargs)
                    theirs_here = drawn(theirs).cpu()
                    here_args, here_kwargs = draw.arguments("cpu", size, dtype)
                    ours = module.draw(draw.func, here_args, here_kwargs, theirs, *before, *card)
                    row = rows[draw.form, dtype]
                    row.add(drawn(ours), theirs_here)
                    if draw.exact and row.same_draws < row.draws:
                        print("differs:", draw.form, dtype, size, before, file=sys.stderr)
    return rows


def golden(generator):
    """A draw of each form and dtype from the card: of the exact ones a digest of all numbers, of each some numbers."""
    records = []
    for number, draw in enumerate(DRAWS):
        wanted = [(dtype, GOLDEN_LARGE.get((draw.form, dtype), GOLDEN_SIZE), 77 + number) for dtype in draw.dtypes]
        if draw.form == "randperm":  # of some seeds, equal keys come up
            wanted = [(torch.int64, 100, seed) for seed in range(12)] + [(torch.int64, 40_000, 1), (torch.int32, 1000, 2)]
        for dtype, size, seed in wanted:
            offset = 8 * number
            generator.set_state(torch.tensor(list(seed.to_bytes(8, "little") + offset.to_bytes(8, "little")), dtype=torch.uint8))
            args, kwargs = draw.arguments("cuda", size, dtype)
            values = drawn(draw.func(*args, **kwargs)).cpu()
            record = {"form": draw.form, "dtype": str(dtype), "size": size, "seed": seed, "offset": offset}
            if draw.exact:
                record["sha256"] = digest(values)
            else:
                digits = 17 if dtype in (torch.float64, torch.complex128) else 9
                record["values"] = [float(f"{value:.{digits}g}") for value in some(values)]
            records.append(record)
    return records


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", default=ROOT / "python" / "oomph" / "virtual" / "philox.py")
    parser.add_argument("--golden")
    options = parser.parse_args()
    module = load(options.module)
    properties = torch.cuda.get_device_properties(0)
    card = properties.multi_processor_count, properties.max_threads_per_multi_processor
    generator = torch.cuda.default_generators[0]
    print(f"{properties.name}, torch {torch.__version__}, {card[0]} multiprocessors of {card[1]} threads, Python {sys.version.split()[0]}\n")
    begun = time.perf_counter()
    rows = measure(module, card, generator)

    print("| form | dtypes | draws | numbers | equal |\n|---|---|---:|---:|---:|")
    name = lambda dtype: str(dtype).removeprefix("torch.")
    exact = {draw.form for draw in DRAWS if draw.exact}
    sums = lambda chosen: " | ".join(f"{sum(getattr(row, key) for row in chosen):,}" for key in ("draws", "numbers", "same"))
    for draw in DRAWS:
        if draw.exact:
            print(f"| {draw.form} | {', '.join(map(name, draw.dtypes))} | {sums([rows[draw.form, dtype] for dtype in draw.dtypes])} |")
    print(f"| all | | {sums([row for (form, _), row in rows.items() if form in exact])} |\n")

    print("| form | dtype | draws | numbers | equal | largest difference | in units of the last place |\n|---|---|---:|---:|---:|---:|---:|")
    for (form, dtype), row in rows.items():
        if form not in exact:
            places_text = f"{row.places:.3g}" if dtype.is_floating_point or dtype.is_complex else ""
            print(f"| {form} | {name(dtype)} | {row.draws} | {row.numbers:,} | {100 * row.same / row.numbers:.4f} % | {row.difference:.2g} | {places_text} |")

    watched = collections.defaultdict(Row)
    generator.manual_seed(99)
    with Watch(module, card, watched):
        program()
    print("\n| operation | draws | numbers | equal | largest difference |\n|---|---:|---:|---:|---:|")
    for operation, row in watched.items():
        print(f"| `{operation}` | {row.draws} | {row.numbers:,} | {row.same:,} | {row.difference:.1e} |")
    print(f"\n{time.perf_counter() - begun:.0f} s")

    print("\n| on one core | numbers a second |\n|---|---:|")
    torch.set_num_threads(1)
    for form in ("rand", "randn", "randint(10)", "bernoulli_(0.3)", "dropout 0.1"):
        draw = next(draw for draw in DRAWS if draw.form == form)
        for size in (100_000, 10_000_000):
            args, kwargs = draw.arguments("cpu", size, draw.dtypes[0])
            out = draw.func(*args, **kwargs)
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                module.draw(draw.func, args, kwargs, out, 1, 0, *card)
                times.append(time.perf_counter() - begun)
            print(f"| {form}, {size:,} {name(draw.dtypes[0])} | {size / min(times) / 1e6:.0f} million |")

    if options.golden:
        text = json.dumps({"card": properties.name, "torch": torch.__version__, "multiprocessors": card[0], "threads": card[1]})
        lines = ",\n".join(json.dumps(record) for record in golden(generator))
        pathlib.Path(options.golden).write_text(f'{text[:-1]}, "draws": [\n{lines}\n]}}\n')
    failed = [form for (form, _), row in rows.items() if form in exact and row.same != row.numbers or row.missing]
    sys.exit(f"differ: {sorted(set(failed))}" if failed else 0)


if __name__ == "__main__":
    main()
