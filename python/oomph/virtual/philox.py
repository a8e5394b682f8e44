"""The random numbers that a card would have drawn, computed on the CPU.

PyTorch's CUDA kernels draw with Philox4x32-10 as cuRAND has it: a thread's words follow from the seed, the thread's number
and the generator's offset alone. What differs between operations is which thread writes which element, and what its words
become; both are followed here, for PyTorch 2.1 and later. Integers, uniform numbers, Bernoulli trials, masks of dropout and
permutations are the card's, bit for bit. Where the card approximates a logarithm or a sine in hardware (normal, log-normal,
exponential, Cauchy and geometric numbers, multinomial), they are the card's but for that approximation:
docs/measured/philox.md has the differences.

Boundary: numbers only. Who draws, when, and where the values go is the caller's; nothing here touches a device.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from torch._ops import OpOverload

    # By argument of an operation; what a kernel makes of numbers; what a distribution draws, by the arguments and what it draws into.
    Named = dict[str, Any]
    Transform = Callable[[torch.Tensor], torch.Tensor]
    Distribution = Callable[["_Card", Named, Any], Any]

    class Sample(Protocol):
        """What a call of cuRAND gives: ``values`` of them at most."""

        values: int

        def __call__(self, words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]: ...


Tensor = torch.Tensor

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
_LOW = (1 << 32) - 1
_BLOCK = 256  # threads in a block of PyTorch's distribution kernels
_CHUNK = (1 << 15) - 256  # threads computed at a time: they fit into a core's cache, and PyTorch does not spread them over several
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


def state(generator: torch.Generator) -> tuple[int, int]:
    """The seed and the offset of a CUDA generator (``torch.cuda.default_generators[index]``, or the one an operation is given)."""
    return struct.unpack("<QQ", bytes(generator.get_state().tolist()))


def follows(func: OpOverload) -> bool:
    """Whether ``draw`` may give something for this operation."""
    return func.namespace == "aten" and _name(func) in _OPERATIONS


@torch.no_grad()
def draw(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    out: Any,
    seed: int,
    offset: int,
    multiprocessors: int,
    threads_per_multiprocessor: int,
) -> Any:
    """What the card would have drawn into ``out``, as a CPU tensor of its shape and dtype; None where the kernels are not followed.

    ``out`` is what the operation returned or wrote into: its shape, strides and dtype are read, not its data. ``seed`` and
    ``offset`` are those of the operation's generator *before* it ran, from ``state`` or from the 16 bytes of
    ``torch.cuda.get_rng_state()``. The two numbers of the card are ``multi_processor_count`` and
    ``max_threads_per_multi_processor`` of ``torch.cuda.get_device_properties``.

    Tensors of weights, probabilities, means or deviations among the arguments must be CPU tensors that hold the true values,
    strided as the originals; with others the answer is None. For ``native_dropout``, whose input is not read, ``out`` is the
    pair that it returned, and so is the answer: None for the output, which is computed, and the mask, which is drawn.
    """
    if not follows(func) or offset % 4:
        return None
    arguments = func._schema.arguments
    named = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    named.update(zip((argument.name for argument in arguments), args), **kwargs)
    card = _Card(seed % (1 << 64), offset, multiprocessors * (threads_per_multiprocessor // _BLOCK))
    return _OPERATIONS[_name(func)](card, named, out)


def _name(func: OpOverload) -> str:
    return func._schema.name.partition("::")[2].rstrip("_")


class _Card:
    """A generator's seed and offset, and how many blocks of threads run at once."""

    def __init__(self, seed: int, offset: int, blocks: int) -> None:
        self.seed, self.offset, self.blocks = seed, offset, blocks
        self.keys = [((seed + turn * 0x9E3779B9) & _LOW, ((seed >> 32) + turn * 0xBB67AE85) & _LOW) for turn in range(10)]
        self.buffers = torch._VF.empty(6, _CHUNK, dtype=torch.int64, device="cpu").unbind()

    def threads(self, numel: int) -> int:
        return _BLOCK * max(1, min(self.blocks, -(-numel // _BLOCK)))

    def words(self, call: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The four words of 32 bits that ``curand4`` gives to each of these threads at its ``call``-th call, until the next of this."""
        a, b, c, d, e, f = (buffer[: stop - start] for buffer in self.buffers)
        (key_a, key_c), (next_a, next_c), *keys = self.keys
        counter = self.offset // 4 + call
        # In the first two rounds half of the state is the same for all threads.
        from_a = (counter & _LOW) * 0xD2511F53
        from_c = (from_a >> 32 ^ key_c) * 0xCD9E8D57
        torch.mul(torch._VF.arange(start, stop, out=c, device="cpu"), 0xCD9E8D57, out=b)
        torch.bitwise_right_shift(b, 32, out=a).bitwise_xor_(counter >> 32 ^ key_a).bitwise_and_(_LOW)
        torch.mul(a, 0xD2511F53, out=d)
        torch.bitwise_right_shift(d, 32, out=c).bitwise_xor_(from_a & _LOW ^ next_c).bitwise_and_(_LOW)
        torch.bitwise_xor(b, from_c >> 32 ^ next_a, out=a).bitwise_and_(_LOW)
        b.fill_(from_c & _LOW)
        for key_a, key_c in keys:
            # The upper halves of b and d are not cleared between rounds: they fall away.
            d.bitwise_xor_(torch.bitwise_right_shift(torch.mul(a, 0xD2511F53, out=e), 32, out=a)).bitwise_xor_(key_c).bitwise_and_(_LOW)
            b.bitwise_xor_(torch.bitwise_right_shift(torch.mul(c, 0xCD9E8D57, out=f), 32, out=c)).bitwise_xor_(key_a).bitwise_and_(_LOW)
            a, b, c, d, e, f = b, f, d, e, a, c
        return a, b.bitwise_and_(_LOW), c, d.bitwise_and_(_LOW)

    def in_turns(self, numel: int, dtype: torch.dtype, sample: Sample, transform: Transform) -> torch.Tensor:
        """``distribution_elementwise_grid_stride_kernel``: the first value of a call to all threads, then the second."""
        flat = torch._VF.empty(numel, dtype=dtype, device="cpu")
        threads = self.threads(numel)
        for call, base in enumerate(range(0, numel, threads * sample.values)):
            wanted = min(threads * sample.values, numel - base)
            for start in range(0, min(threads, wanted), _CHUNK):
                stop = min(start + _CHUNK, threads, wanted)
                for turn, value in enumerate(sample(self.words(call, start, stop), -(-(wanted - start) // threads))):
                    part = flat[base + turn * threads + start : base + min(turn * threads + stop, wanted)]
                    part.copy_(transform(value[: len(part)]))
        return flat

    def in_vectors(self, numel: int, size: int, limit: torch.Tensor) -> torch.Tensor:
        """``fused_dropout_kernel_vec``: whether numbers are below the limit; a thread writes ``size`` neighbours at a time."""
        flat = torch._VF.empty(numel // size, size, dtype=torch.bool, device="cpu")
        threads, calls = self.threads(numel), -(-size // 4)
        for turn, base in enumerate(range(0, len(flat), threads)):
            wanted = min(threads, len(flat) - base)
            for start in range(0, wanted, _CHUNK):
                stop = min(start + _CHUNK, wanted)
                for call in range(calls):
                    for place, word in enumerate(self.words(turn * calls + call, start, stop)[:size]):
                        flat[base + start : base + stop, 4 * call + place] = _real(word) < limit
        return flat.view(-1)


def _values(number: int) -> Callable[[Any], Sample]:
    """How many values a call of cuRAND gives; the function makes as many of them as are wanted."""

    def mark(sample: Any) -> Sample:
        sample.values = number
        return sample

    return mark


def _real(word: torch.Tensor) -> torch.Tensor:
    """``_curand_uniform``: in (0, 1]."""
    return word.to(torch.float32).mul_(2.0**-32).add_(2.0**-33)


def _real_double(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return (low ^ (high << 21)).to(torch.float64).mul_(2.0**-53).add_(2.0**-54)


@_values(4)
def _bits(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    return words[:wanted]


@_values(2)
def _wide_bits(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    return [words[2 * turn] << 32 | words[2 * turn + 1] for turn in range(wanted)]


@_values(4)
def _uniforms(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    return [_real(word) for word in words[:wanted]]


@_values(2)
def _uniforms_double(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    return [_real_double(words[2 * turn], words[2 * turn + 1]) for turn in range(wanted)]


@_values(4)
def _normals(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    """Box and Muller's, two at a time. The step of the angle is a product of floats in cuRAND."""
    values, step = [], 2.0**-32 * 6.2831854820251465
    for pair in range(0, wanted, 2):
        radius = _real(words[pair]).log_().mul_(-2.0).sqrt_()
        angle = words[pair + 1].to(torch.float32).to(torch.float64).mul_(step).add_(step / 2).to(torch.float32)
        values += [radius * wave() for wave in (angle.sin, angle.cos)[: wanted - pair]]
    return values


@_values(2)
def _normals_double(words: Sequence[torch.Tensor], wanted: int) -> Sequence[torch.Tensor]:
    radius = _real_double(words[0], words[1]).log_().mul_(-2.0).sqrt_()
    turn = _real_double(words[2], words[3]) * 2
    # Whole quarters are taken off first, which is exact: sines near zero keep their digits, as with CUDA's sincospi.
    quarter = (turn * 2).round_()
    angle, quarter = (turn - quarter / 2) * math.pi, quarter.to(torch.int64) & 3
    sine, cosine = angle.sin(), angle.cos()
    odd, negative = quarter & 1 == 1, torch._VF.tensor([[1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64, device="cpu")
    waves = torch.where(odd, cosine, sine) * negative[0][quarter], torch.where(odd, sine, cosine) * negative[1][quarter]
    return [radius * wave for wave in waves[:wanted]]


def _multiply_add(values: torch.Tensor, factor: float, summand: float) -> torch.Tensor:
    """``values * factor + summand`` in one rounding, as a card does it. The scalars are numbers of the values' dtype."""
    if (factor, summand) == (1, 0):
        return values
    if summand == 0 or abs(math.frexp(factor)[0]) == 0.5:
        return values.mul_(factor).add_(summand)
    wide = values.to(torch.float64)
    product = wide * factor
    total = product + summand
    back = total - product
    rest = (product - (total - back)) + (summand - back)
    if values.dtype == torch.float64:
        high, factor_high = (134217729.0 * x - (134217729.0 * x - x) for x in (wide, factor))
        low, factor_low = wide - high, factor - factor_high
        return total + (rest + (((high * factor_high - product) + high * factor_low + low * factor_high) + low * factor_low))
    # In double precision the product is exact. The sum is rounded to odd, which makes rounding it again harmless.
    bits = total.view(torch.int64)
    bits += ((rest > 0) == (total > 0)).to(torch.int64).mul_(2).sub_(1) * ((rest != 0) & (bits & 1 == 0))
    return total.to(torch.float32)


def _layout(tensor: torch.Tensor) -> tuple[list[int], int] | None:
    """The dimensions in TensorIterator's order, from the widest stride to the narrowest, and how many elements lie from the first
    to the last; None where elements overlap."""
    order, extent = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)), 1
    for dim in reversed(order):
        if tensor.size(dim) > 1:
            if tensor.stride(dim) < extent:
                return None
            extent += (tensor.size(dim) - 1) * tensor.stride(dim)
    return order, extent


def _placed(flat: torch.Tensor, out: torch.Tensor, order: list[int]) -> torch.Tensor:
    return flat.view([out.size(dim) for dim in order]).permute(sorted(range(len(order)), key=order.__getitem__))


def _fill(card: _Card, out: torch.Tensor, sample: Sample, transform: Transform) -> torch.Tensor | None:
    """A distribution kernel over ``out``; None where its bytes are so far apart that PyTorch launches several."""
    layout = _layout(out)
    if layout is None or (layout[1] - 1) * out.element_size() >= (1 << 31) - 1:
        return None
    return _placed(card.in_turns(out.numel(), out.dtype, sample, transform), out, layout[0])


def _fill_uniform(card: _Card, out: torch.Tensor, transform: Transform) -> torch.Tensor | None:
    return _fill(card, out, _uniforms_double if out.dtype == torch.float64 else _uniforms, transform)


def _fill_normal(card: _Card, out: torch.Tensor, mean: float, deviation: float, transform: Transform = lambda values: values) -> torch.Tensor | None:
    """A complex tensor is filled as one of its real and imaginary parts, as in ``_uniform``."""
    if out.is_complex():
        return _joined(_fill_normal(card, _parts(out), mean, deviation / math.sqrt(2)))
    mean, deviation = _scalar(mean, out), _scalar(deviation, out)
    sample = _normals_double if out.dtype == torch.float64 else _normals
    return _fill(card, out, sample, lambda values: transform(_multiply_add(values, deviation, mean)))


def _parts(out: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device="meta"))


def _joined(parts: torch.Tensor | None) -> torch.Tensor | None:
    return None if parts is None else torch.view_as_complex(parts.contiguous())


def _computed(out: torch.Tensor) -> torch.dtype:
    """The dtype that kernels compute in."""
    return torch.float64 if out.dtype == torch.float64 else torch.float32


def _scalar(value: float, out: torch.Tensor) -> float:
    return torch._VF.tensor(value, dtype=_computed(out), device="cpu").item()


def _uniform(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    if out.is_complex():
        return _joined(_uniform(card, named, _parts(out)))
    low, high = (torch._VF.tensor(named.get(name, usual), dtype=out.dtype, device="cpu") for name, usual in (("from", 0.0), ("to", 1.0)))
    width = (high - low).item()

    def transform(values: torch.Tensor) -> torch.Tensor:
        values = _multiply_add(values, width, low.item()).to(out.dtype)
        return values.masked_fill_(values == high, low)

    return _fill_uniform(card, out, transform)


def _normal(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    mean, deviation = named.get("mean", 0.0), named.get("std", 1.0)
    if not isinstance(mean, Tensor) and not isinstance(deviation, Tensor):
        return _fill_normal(card, out, mean, deviation)
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in (mean, deviation)):
        return None
    values = _fill_normal(card, out, 0.0, 1.0 if isinstance(deviation, Tensor) else deviation)
    if values is not None and isinstance(deviation, Tensor):
        values = values.mul_(deviation)
    return None if values is None else values.add_(mean)


def _exponential(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    rate = -1.0 / torch._VF.tensor(named.get("lambd", 1.0), dtype=_computed(out), device="cpu")
    least = -torch.finfo(_computed(out)).eps / 2
    return _fill_uniform(card, out, lambda values: values.log().masked_fill_(values >= 1.0 + least, least).mul_(rate))


def _cauchy(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    median, sigma, pi = (_scalar(value, out) for value in (named["median"], named["sigma"], math.pi))
    edge = 0.0 if out.dtype == torch.float64 else torch.finfo(torch.float32).eps
    clipped = lambda values: values.clamp_(edge, 1.0 - edge)
    return _fill_uniform(card, out, lambda values: clipped(values).sub_(0.5).mul_(pi).tan_().mul_(sigma).add_(median))


def _geometric(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    missed = torch.log1p(-torch._VF.tensor(named["p"], dtype=_computed(out), device="cpu"))
    return _fill_uniform(card, out, lambda values: values.log_().div_(missed).ceil_())


def _bernoulli(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    probability: Any = named.get("p", named.get("self"))
    if not isinstance(probability, Tensor):
        limit = _scalar(probability, out)
        return _fill_uniform(card, out, lambda values: values < limit)
    # bernoulli_tensor_cuda_kernel: a thread has four neighbours, and a number that is the probability itself counts.
    if probability.device.type != "cpu" or not out.is_contiguous():
        return None
    limits = probability.to(_computed(out)).expand(out.shape).reshape(-1)
    flat = torch._VF.empty(out.numel(), dtype=out.dtype, device="cpu")
    for start in range(0, out.numel(), 4 * _CHUNK):
        part = flat[start : start + 4 * _CHUNK]
        words = card.words(0, start // 4, -(-(start + len(part)) // 4))
        values = torch.stack([_real(word) for word in words], 1).flatten()[: len(part)]
        part.copy_(values <= limits[start : start + len(part)])
    return flat.view(out.shape)


def _integers(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    """``random_`` and ``randint``, in all their forms."""
    low: Any = named.get("from", named.get("low", 0))
    high: Any = named.get("to", named.get("high"))
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    digits = _DIGITS.get(out.dtype)
    largest = 1 << digits if digits else 1 if out.dtype == torch.bool else torch.iinfo(out.dtype).max
    if high is None and "from" not in named:
        wide = out.dtype in (torch.int64, torch.float64)
        return _fill(card, out, _wide_bits if wide else _bits, lambda bits: _modulo(bits, largest + 1))
    if high is None and low == -(1 << 63):
        return _fill(card, out, _wide_bits, lambda bits: bits)
    high = largest + 1 if high is None else high
    if digits and max(-low, high - 1) > largest:  # PyTorch rounds these bounds to numbers of the dtype
        return None
    span = high - low
    return _fill(card, out, _sample_below(span, out.dtype), lambda bits: _modulo(bits, span).add_(low))


def _sample_below(span: int, dtype: torch.dtype) -> Sample:
    """Since 2.7, 64 bits are drawn where a remainder of 32 would favour small numbers."""
    if _VERSION >= (2, 7):
        return _wide_bits if span >= 1 << 28 else _bits
    return _wide_bits if span >= 1 << 32 and dtype in (torch.int64, *_DIGITS) and dtype != torch.float16 else _bits


def _modulo(bits: torch.Tensor, span: int) -> torch.Tensor:
    """The remainder of numbers without a sign. PyTorch's have one: the upper half of the numbers of 64 bits is negative."""
    if span & (span - 1) == 0:
        return bits & (span - 1)
    if span > 1 << 63:
        signed, sign = span - (1 << 64), -(1 << 63)
        return torch.where(bits ^ sign >= signed ^ sign, bits - signed, bits)
    rest, lack = bits.remainder(span), (1 << 64) % span
    return torch.where(bits >= 0, rest, torch.where(rest >= span - lack, rest - (span - lack), rest + lack))


def _permutation(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor:
    """``randperm``: indices sorted by random keys of as many bits as make equal ones rare; those are shuffled once more."""
    number = named["n"]
    bits = min(64, math.ceil(math.log2(number - (6.0 * number * number + 1) / (math.log(0.9) * 12))))
    dtype = torch.int32 if bits <= 32 else torch.int64
    least, span = torch.iinfo(dtype).min, (1 << torch.iinfo(dtype).bits) - 1
    sample = _sample_below(span, dtype)
    keys = card.in_turns(number, dtype, sample, lambda words: _modulo(words, span).add_(least))
    keys, order = (keys if bits in (32, 64) else keys & (1 << bits) - 1).sort(stable=True)
    turns = card.threads(number) * (sample.values if _VERSION >= (2, 4) else 4)
    later = _Card(card.seed, card.offset + 4 * -(-number // turns), card.blocks)
    edges = torch.nn.functional.pad((keys[1:] == keys[:-1]).to(torch.int8), (1, 1)).diff()
    for start, stop in zip((edges > 0).nonzero().flatten().tolist(), (edges < 0).nonzero().flatten().tolist()):
        for drawn, index in enumerate(range(stop - start, 0, -1)):
            other = start + later.words(drawn // 4, start, start + 1)[drawn % 4].item() % (index + 1)
            order[[start + index, other]] = order[[other, start + index]]
    return order.to(out.dtype)


def _dropout(card: _Card, named: Named, out: tuple[torch.Tensor, torch.Tensor]) -> tuple[None, torch.Tensor]:
    source, mask, probability = named["input"], out[1], named["p"]
    if named["train"] is False or probability == 1 or mask.numel() == 0:
        return None, torch._VF.full(mask.shape, named["train"] is False, dtype=mask.dtype, device="cpu")
    # None leaves one neighbour, and is not looked into.
    layout: Any = _layout(source)
    neighbours = 1
    limit = torch._VF.tensor([1.0 - probability], dtype=_computed(source), device="cpu")  # not a scalar, which would take the numbers' dtype
    if layout is not None and layout[1] == source.numel():
        # As many as begin where a vector of them may, and as 16 bytes hold; before 2.7, four at most.
        neighbours = 8 if _VERSION >= (2, 7) else 4
        while source.storage_offset() % neighbours:
            neighbours //= 2
        neighbours = min(neighbours, 16 // source.element_size() if _VERSION >= (2, 7) else 4)
        while mask.numel() % neighbours:
            neighbours //= 2
    if neighbours == 1:  # by index, whatever the strides are
        return None, card.in_turns(mask.numel(), torch.bool, _uniforms, lambda values: values < limit).view(mask.shape)
    return None, _placed(card.in_vectors(mask.numel(), neighbours, limit), mask, layout[0])


def _multinomial(card: _Card, named: Named, out: torch.Tensor) -> torch.Tensor | None:
    """Without replacement, or of one: where weights are largest after a division by exponential numbers."""
    weights = named["self"]
    if weights.device.type != "cpu" or (named["replacement"] and named["num_samples"] != 1):
        return None
    noise = _exponential(card, {}, weights)
    return None if noise is None else (weights / noise).topk(named["num_samples"], -1).indices


_OPERATIONS: dict[str, Distribution] = {
    "bernoulli": _bernoulli,
    "cauchy": _cauchy,
    "exponential": _exponential,
    "geometric": _geometric,
    "log_normal": lambda card, named, out: _fill_normal(card, out, named["mean"], named["std"], torch.exp),
    "multinomial": _multinomial,
    "native_dropout": _dropout,
    "normal": _normal,
    "normal_functional": _normal,
    "rand": _uniform,
    "rand_like": _uniform,
    "randint": _integers,
    "randint_like": _integers,
    "randn": _normal,
    "randn_like": _normal,
    "random": _integers,
    "randperm": _permutation,
    "uniform": _uniform,
}
