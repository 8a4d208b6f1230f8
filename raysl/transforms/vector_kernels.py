"""Vector instructions for compiled loops, where Numba finds none by itself: LLVM's generic ones, so that they become
AVX2, AVX-512 or NEON on the processor at hand.

All functions take positions in flat memory, which nothing checks: the caller guarantees that all of them exist.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from raysl.transforms.programs import LINE

_code: Any = cgutils  # has no types
_operation: Any = intrinsic  # callers leave out its first argument, which mypy does not know

_BYTE, _WORD, _INT, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
BLOCK = 16
"""Side of the squares of `turn_block`."""
FLOATS = 16
"""Floats of the largest vector; loads are fastest at positions that are multiples of it."""
ALIGNED = 4 * FLOATS
"""Bytes of a vector of `FLOATS`."""
SUMS = 8 * FLOATS
"""Number of sums that `weigh_neighbors` makes at a time, and the least it takes."""


def _indices(values: list[int]) -> Any:
    return ir.Constant(ir.VectorType(_INT, len(values)), values)


def _interleave(is_upper: bool, num: int) -> Any:
    """Return the indices that take turns between two vectors of `num` bytes, from the lower or upper half of each 16.

    Processors interleave within 16 bytes; whole halves of 32 would take further instructions.
    """
    halves = [lane + 8 * is_upper for lane in range(0, num, 16)]
    return _indices([start + byte // 2 + num * (byte % 2) for start in halves for byte in range(16)])


def _vector(builder: Any, array: Any, offset: Any, num: int) -> Any:
    """Return a pointer to `num` bytes of an array."""
    return builder.bitcast(builder.gep(array, [offset]), ir.VectorType(_BYTE, num).as_pointer())


def _data(context: Any, builder: Any, kind: Any, array: Any, item: Any) -> Any:
    """Return a pointer to the first item of an array."""
    return builder.bitcast(context.make_array(kind)(context, builder, array).data, item.as_pointer())


def _repeated(builder: Any, value: Any, num: int) -> Any:
    """Return a vector with `num` times the same number."""
    empty = ir.Constant(ir.VectorType(value.type, num), ir.Undefined)
    first = builder.insert_element(empty, value, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, empty, _indices([0] * num))


@_operation
def turn_block(_typing: Any, pixels: Any, first: Any, step: Any, out: Any, out_first: Any, out_step: Any) -> Any:
    """Transpose 16 lines of 16 bytes: byte n of line m becomes byte m of line n.

    Args:
        pixels: array uint8.
        first: position of the first line in `pixels`.
        step: bytes from a line to the next.
        out: array uint8.
        out_first, out_step: position and step of the lines in `out`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature.args[0], args[0], _BYTE)
        target = _data(context, builder, signature.args[3], args[3], _BYTE)

        def line(array: Any, start: Any, stride: Any, number: int) -> Any:
            offset = builder.add(start, builder.mul(stride, ir.Constant(start.type, number)))
            return _vector(builder, array, offset, BLOCK)

        lines = [builder.load(line(source, args[1], args[2], number), align=1) for number in range(BLOCK)]
        halves = [_interleave(is_upper, BLOCK) for is_upper in (False, True)]
        # a line takes turns with the one eight lines on; after four rounds the square is transposed
        for _ in range(4):
            pairs = list(zip(lines[:8], lines[8:], strict=True))
            lines = [builder.shuffle_vector(*pair, half) for pair in pairs for half in halves]
        for number, value in enumerate(lines):
            builder.store(value, line(target, args[4], args[5], number), align=1)
        return context.get_dummy_value()

    return types.void(pixels, types.intp, types.intp, out, types.intp, types.intp), generate


@_operation
def weigh_lines(
    _typing: Any,
    pixels: Any,
    first: Any,
    step: Any,
    count: Any,
    weights: Any,
    weights_first: Any,
    digits: Any,
    out: Any,
    out_first: Any,
    num: Any,
) -> Any:
    """Write the weighted sum of lines of pixels, rounded and cut to [0, 255].

    Args:
        pixels: array uint8.
        first: position of the first line.
        step: bytes from a line to the next.
        count: number of lines; an odd one reads one line more.
        weights: array int16 of C layout, with a weight of 0 behind an odd number.
        weights_first: position of the first weight.
        digits: binary digits of the weights behind the point, int32.
        out: array uint8.
        out_first: position of the sum in `out`.
        num: pixels of a line, at least `LINE`.
    """
    vector = ir.VectorType(_INT, LINE // 4)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature.args[0], args[0], _BYTE)
        scales = _data(context, builder, signature.args[4], args[4], _WORD)
        target = _data(context, builder, signature.args[7], args[7], _BYTE)
        start, stride, num_lines, weight, shift, at, length = (args[n] for n in (1, 2, 3, 5, 6, 8, 9))

        def constant(value: int) -> Any:
            return ir.Constant(start.type, value)

        one = ir.Constant(_INT, 1)
        rounding = _repeated(builder, builder.shl(one, builder.sub(shift, one)), LINE // 4)
        shifts = _repeated(builder, shift, LINE // 4)
        sums = [_code.alloca_once(builder, vector) for _ in range(4)]
        last = builder.sub(length, constant(LINE))
        loop = _code.for_range_slice(builder, constant(0), length, constant(LINE), start.type)
        with loop as (column, _):
            # the last pixels overlap with those before them, whose sums are written twice
            column = builder.select(builder.icmp_signed("<", column, last), column, last)
            for part in sums:
                builder.store(rounding, part)
            pairs = _code.for_range_slice(builder, constant(0), num_lines, constant(2), start.type)
            with pairs as (number, _):
                pair = builder.bitcast(builder.gep(scales, [builder.add(weight, number)]), _INT.as_pointer())
                line = builder.add(builder.add(start, builder.mul(number, stride)), column)
                offsets = line, builder.add(line, stride)
                lines = [builder.load(_vector(builder, source, offset, LINE), align=1) for offset in offsets]
                _weigh_pair(builder, lines, builder.load(pair, align=2), sums)
            pixels_out = _pack(builder, [builder.ashr(builder.load(part), shifts) for part in sums])
            builder.store(pixels_out, _vector(builder, target, builder.add(at, column), LINE), align=1)
        return context.get_dummy_value()

    size = types.intp
    arrays = (pixels, size, size, size, weights, size, types.int32, out, size, size)
    return types.void(*arrays), generate


def _weigh_pair(builder: Any, lines: list[Any], weights: Any, sums: list[Any]) -> None:
    """Add two weighted lines to the sums, a quarter of the pixels to each.

    Args:
        lines: two vectors of `LINE` bytes.
        weights: both weights, 16 bits each, in one number of 32 bits.
        sums: pointers to four vectors of `LINE // 4` numbers of 32 bits.
    """
    shorts = ir.VectorType(_WORD, LINE // 2)
    factors = builder.bitcast(_repeated(builder, weights, LINE // 4), shorts)
    factors = builder.sext(factors, ir.VectorType(_INT, LINE // 2))
    no_pixels = ir.Constant(ir.VectorType(_BYTE, LINE), [0] * LINE)
    halves = [_interleave(is_upper, LINE) for is_upper in (False, True)]
    quarters = [
        builder.shuffle_vector(builder.shuffle_vector(*lines, half), no_pixels, quarter)
        for half in halves
        for quarter in halves
    ]
    evens, odds = (_indices(list(range(start, LINE // 2, 2))) for start in (0, 1))
    # the form in which LLVM knows the instruction that multiplies 16-bit numbers and adds the pairs
    for part, quarter in zip(sums, quarters, strict=True):
        products = builder.mul(builder.zext(builder.bitcast(quarter, shorts), factors.type), factors)
        split = [builder.shuffle_vector(products, products, indices) for indices in (evens, odds)]
        builder.store(builder.add(builder.load(part), builder.add(*split)), part)


def _pack(builder: Any, quarters: list[Any]) -> Any:
    """Return the numbers of the four quarters of `_weigh_pair`, cut to [0, 255], as bytes in the order of the line."""
    both = _indices(list(range(LINE // 2)))
    low, high = (builder.shuffle_vector(*quarters[half : half + 2], both) for half in (0, 2))
    in_order = _indices([8 * (n % 16 // 4) + n // 16 * 4 + n % 4 for n in range(LINE)])
    total = builder.shuffle_vector(low, high, in_order)
    for sign, limit in (("<", 0), (">", 255)):
        bound = ir.Constant(total.type, [limit] * LINE)
        total = builder.select(builder.icmp_signed(sign, total, bound), bound, total)
    return builder.trunc(total, ir.VectorType(_BYTE, LINE))


@_operation
def weigh_neighbors(
    _typing: Any, values: Any, first: Any, step: Any, weights: Any, reach: Any, out: Any, num: Any
) -> Any:
    """Write the sums `weights[0] * value + weights[1] * (both neighbours at distance 1) + ...`, added in this order.

    Args:
        values: array float32.
        first: position of the first value; there are `reach * step` values before it, and behind the last one.
        step: values from a neighbour to the next.
        weights: array float32, of the value itself and of its neighbours at each distance.
        reach: the largest distance.
        out: array float32.
        num: number of sums, at least `SUMS`; the last ones are written twice.
    """
    vector = ir.VectorType(_FLOAT, FLOATS)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source, scales, target = (_data(context, builder, signature.args[n], args[n], _FLOAT) for n in (0, 3, 5))
        start, stride, furthest, length = (args[n] for n in (1, 2, 4, 6))

        def constant(value: int) -> Any:
            return ir.Constant(start.type, value)

        def vectors(array: Any, offset: Any) -> list[Any]:
            offsets = [builder.add(offset, constant(part * FLOATS)) for part in range(SUMS // FLOATS)]
            return [builder.bitcast(builder.gep(array, [one]), vector.as_pointer()) for one in offsets]

        def loaded(offset: Any) -> list[Any]:
            return [builder.load(pointer, align=4) for pointer in vectors(source, offset)]

        def weight(number: Any) -> Any:
            return _repeated(builder, builder.load(builder.gep(scales, [number])), FLOATS)

        sums = [_code.alloca_once(builder, vector) for _ in range(SUMS // FLOATS)]
        last = builder.sub(length, constant(SUMS))
        with _code.for_range_slice(builder, constant(0), length, constant(SUMS), start.type) as (column, _):
            column = builder.select(builder.icmp_signed("<", column, last), column, last)
            middle, scale = builder.add(start, column), weight(constant(0))
            for part, value in zip(sums, loaded(middle), strict=True):
                builder.store(builder.fmul(scale, value), part)
            distances = _code.for_range_slice(
                builder, constant(1), builder.add(furthest, constant(1)), constant(1), start.type
            )
            with distances as (distance, _):
                far, scale = builder.mul(distance, stride), weight(distance)
                pairs = zip(loaded(builder.sub(middle, far)), loaded(builder.add(middle, far)), strict=True)
                for part, pair in zip(sums, pairs, strict=True):
                    builder.store(builder.fadd(builder.load(part), builder.fmul(scale, builder.fadd(*pair))), part)
            for part, pointer in zip(sums, vectors(target, column), strict=True):
                builder.store(builder.load(part), pointer, align=4)
        return context.get_dummy_value()

    size = types.intp
    return types.void(values, size, size, weights, size, out, size), generate


@_operation
def normalize_line(
    _typing: Any, levels: Any, first: Any, out: Any, num: Any, coarse: Any, rest: Any, mean: Any, std: Any
) -> Any:
    """Write (level * coarse + level * rest - mean) / std for a line of levels, past the caches.

    Such a store does not first read the memory that it overwrites. For a result larger than the caches this halves the
    traffic.

    Args:
        levels: array uint8.
        first: position of the line in `levels` and in `out`, a multiple of `FLOATS`.
        out: array float32 that begins at a multiple of `ALIGNED` bytes.
        num: length of the line, a multiple of `FLOATS`.
        coarse, rest, mean, std: float32.
    """
    vector = ir.VectorType(_FLOAT, FLOATS)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _data(context, builder, signature.args[0], args[0], _BYTE)
        target = _data(context, builder, signature.args[2], args[2], _FLOAT)
        start, length = args[1], args[3]
        high, low, shift, scale = (_repeated(builder, value, FLOATS) for value in args[4:])
        streamed = builder.module.add_metadata([ir.Constant(_INT, 1)])

        def constant(value: int) -> Any:
            return ir.Constant(start.type, value)

        with _code.for_range_slice(builder, constant(0), length, constant(FLOATS), start.type) as (column, _):
            position = builder.add(start, column)
            pixels = builder.load(_vector(builder, source, position, FLOATS), align=1)
            values = builder.uitofp(builder.zext(pixels, ir.VectorType(_INT, FLOATS)), vector)
            values = builder.fadd(builder.fmul(values, high), builder.fmul(values, low))
            values = builder.fdiv(builder.fsub(values, shift), scale)
            pointer = builder.bitcast(builder.gep(target, [position]), vector.as_pointer())
            builder.store(values, pointer, align=ALIGNED).set_metadata("nontemporal", streamed)
        return context.get_dummy_value()

    size, number = types.intp, types.float32
    return types.void(levels, size, out, size, *[number] * 4), generate
