"""Products of small matrices in registers: the vector instructions that loops of scalars do not become by themselves.

    c[r, :] = (c[r, :] + or - d[:] +) sum_l a[r, l] b[l, :]

A row of ``b`` and ``c`` is LANES numbers, two vectors of the processor, and stays in registers over all l; of ``a`` one
number at a time is taken and may stand anywhere, so neither keys nor values are ever transposed or copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ROWS = 8  # of a block: 16 vectors of sums, which hide the latency of the additions
AT_ONCE = 4  # rows of a sum down the columns
LANES = {"float32": 32, "float64": 16}
INDEX = ir.IntType(64)


def _data(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """The address of an entry of an array by its place in memory."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [offset])


def _named(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """An LLVM intrinsic."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def _vector(element: Any, lanes: int) -> Any:
    return ir.VectorType(element, lanes)


def _load(builder: Any, address: Any, vector: Any, size: int) -> Any:
    found = builder.load(builder.bitcast(address, vector.as_pointer()))
    found.align = size
    return found


def _store(builder: Any, value: Any, address: Any, size: int) -> None:
    builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = size


def _spread(builder: Any, number: Any, vector: Any) -> Any:
    """A number in every lane."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        one, ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    )


class Loop:
    """``with Loop(builder, count, starts) as (n, values): ... ; values[:] = next``: values carried in registers."""

    def __init__(self, builder: Any, count: Any, starts: list[Any]) -> None:
        self.builder, self.count, self.starts = builder, count, starts

    def __enter__(self) -> tuple[Any, list[Any]]:
        b = self.builder
        before, self.head = b.block, b.append_basic_block("head")
        body, self.end = b.append_basic_block("body"), b.append_basic_block("end")
        b.branch(self.head)
        b.position_at_end(self.head)
        self.phis = [b.phi(x.type) for x in (self.count, *self.starts)]
        for phi, x in zip(self.phis, (ir.Constant(INDEX, 0), *self.starts), strict=True):
            phi.add_incoming(x, before)
        b.cbranch(b.icmp_signed("<", self.phis[0], self.count), body, self.end)
        b.position_at_end(body)
        self.values = list(self.phis[1:])
        return self.phis[0], self.values

    def __exit__(self, *_: Any) -> None:
        b = self.builder
        following = b.add(self.phis[0], ir.Constant(INDEX, 1))
        for phi, x in zip(self.phis, (following, *self.values), strict=True):
            phi.add_incoming(x, b.block)
        b.branch(self.head)
        b.position_at_end(self.end)
        self.values[:] = self.phis[1:]


def _product(rows: int, mode: str) -> Any:
    """c = product - d, with d one row ("minus"), or c += product ("plus"); places and steps count entries."""

    @intrinsic
    def product(
        context: Any, a: Any, a0: Any, a_row: Any, a_step: Any, b: Any, b0: Any, c: Any, c0: Any, d: Any, count: Any
    ) -> Any:
        kind = c.dtype

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, x0, x_row, x_step, y, y0, z, z0, w, n = args
            element, size = context.get_value_type(kind), kind.bitwidth // 8
            lanes = LANES[str(kind)] // 2
            vector = _vector(element, lanes)
            half, full = ir.Constant(INDEX, lanes), ir.Constant(INDEX, 2 * lanes)
            fma = _named(builder, f"llvm.fmuladd.v{lanes}f{8 * size}", vector, [vector] * 3)
            left, right = _data(context, builder, a, x, x0), _data(context, builder, b, y, y0)
            out, shift = _data(context, builder, c, z, z0), _data(context, builder, d, w, ir.Constant(INDEX, 0))
            row_at = [builder.gep(left, [builder.mul(x_row, ir.Constant(INDEX, r))]) for r in range(rows)]
            zero = ir.Constant(vector, None)
            with Loop(builder, n, [zero] * (2 * rows)) as (at, sums):
                b_at = builder.gep(right, [builder.mul(at, full)])
                pair = [_load(builder, b_at, vector, size), _load(builder, builder.gep(b_at, [half]), vector, size)]
                step = builder.mul(at, x_step)
                for r in range(rows):
                    number = _spread(builder, builder.load(builder.gep(row_at[r], [step])), vector)
                    for h in range(2):
                        sums[2 * r + h] = builder.call(fma, [number, pair[h], sums[2 * r + h]])
            for h in range(2):
                along = ir.Constant(INDEX, h * lanes)
                less = _load(builder, builder.gep(shift, [along]), vector, size) if mode == "minus" else None
                for r in range(rows):
                    place = builder.gep(out, [ir.Constant(INDEX, r * 2 * lanes + h * lanes)])
                    total = sums[2 * r + h]
                    if mode == "minus":
                        total = builder.fsub(total, less)
                    else:
                        total = builder.fadd(total, _load(builder, place, vector, size))
                    _store(builder, total, place, size)
            return context.get_dummy_value()

        n = types.int64
        return types.void(a, n, n, n, b, n, c, n, d, n), build

    return product


less, less_one = _product(ROWS, "minus"), _product(1, "minus")
more, more_four, more_one = (_product(rows, "plus") for rows in (ROWS, 4, 1))


def _down(how: str) -> Any:
    @intrinsic
    def down(context: Any, a: Any, out: Any, count: Any) -> Any:
        """The sum or the maximum of each column of ``a (count, LANES)``, added to or compared with ``out``."""
        kind = a.dtype

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            element, size = context.get_value_type(kind), kind.bitwidth // 8
            lanes = LANES[str(kind)] // 2
            vector = _vector(element, lanes)
            x, y = (_data(context, builder, k, v, ir.Constant(INDEX, 0)) for k, v in ((a, args[0]), (out, args[1])))
            places = [builder.gep(y, [ir.Constant(INDEX, h * lanes)]) for h in range(2)]
            largest = _named(builder, f"llvm.maxnum.v{lanes}f{8 * size}", vector, [vector] * 2)

            def joined(one: Any, other: Any) -> Any:
                if how == "sum":
                    return builder.fadd(one, other)
                return builder.call(largest, [one, other], fastmath=("nnan", "nsz"))

            # several rows at a time, side by side: an addition takes four times as long as it keeps the adder
            four = builder.sdiv(args[2], ir.Constant(INDEX, AT_ONCE))
            start = [_load(builder, p, vector, size) for p in places]
            begin = ir.Constant(vector, None if how == "sum" else [ir.Constant(element, -np.inf)] * lanes)
            starts = start + [begin] * (2 * AT_ONCE - 2)
            for count, rows, first in (
                (four, AT_ONCE, ir.Constant(INDEX, 0)),
                (builder.srem(args[2], ir.Constant(INDEX, AT_ONCE)), 1, builder.mul(four, ir.Constant(INDEX, AT_ONCE))),
            ):
                with Loop(builder, count, starts) as (at, found):
                    row = builder.add(first, builder.mul(at, ir.Constant(INDEX, rows)))
                    row = builder.gep(x, [builder.mul(row, ir.Constant(INDEX, 2 * lanes))])
                    for h in range(2 * rows):
                        place = builder.gep(row, [ir.Constant(INDEX, h * lanes)])
                        found[h] = joined(found[h], _load(builder, place, vector, size))
                starts = found
            for h in range(2):
                total = starts[h]
                for r in range(1, AT_ONCE):
                    total = joined(total, starts[2 * r + h])
                _store(builder, total, places[h], size)
            return context.get_dummy_value()

        return types.void(a, out, types.int64), build

    return down


add_columns, largest_of_columns = _down("sum"), _down("largest")


def _across(how: str) -> Any:
    @intrinsic
    def across(context: Any, a: Any, row: Any, count: Any) -> Any:
        """Each row of ``a (count, LANES)`` times a row, or less a row, in place."""
        kind = a.dtype

        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            element, size = context.get_value_type(kind), kind.bitwidth // 8
            lanes = LANES[str(kind)] // 2
            vector = _vector(element, lanes)
            x, y = (_data(context, builder, k, v, ir.Constant(INDEX, 0)) for k, v in ((a, args[0]), (row, args[1])))
            given = [_load(builder, builder.gep(y, [ir.Constant(INDEX, h * lanes)]), vector, size) for h in range(2)]
            with Loop(builder, args[2], []) as (at, _):
                start = builder.gep(x, [builder.mul(at, ir.Constant(INDEX, 2 * lanes))])
                for h in range(2):
                    place = builder.gep(start, [ir.Constant(INDEX, h * lanes)])
                    _store(builder, getattr(builder, how)(_load(builder, place, vector, size), given[h]), place, size)
            return context.get_dummy_value()

        return types.void(a, row, types.int64), build

    return across


times_row, less_row = _across("fmul"), _across("fsub")


@intrinsic
def turn(context: Any, a: Any, a0: Any, a_row: Any, b: Any, b0: Any, b_row: Any) -> Any:
    """b[j, i] = a[i, j], of as many rows and columns as a vector has numbers; offsets and rows count entries."""
    kind = a.dtype

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, x0, x_row, y, y0, y_row = args
        element, size = context.get_value_type(kind), kind.bitwidth // 8
        lanes = 64 // size
        vector, word = _vector(element, lanes), ir.IntType(32)
        start, end = _data(context, builder, a, x, x0), _data(context, builder, b, y, y0)
        rows = [
            _load(builder, builder.gep(start, [builder.mul(x_row, ir.Constant(INDEX, i))]), vector, size)
            for i in range(lanes)
        ]
        width = lanes // 2
        while width:  # swaps blocks of this width across the diagonal
            for i in (i for i in range(lanes) if not i & width):
                one, other = rows[i], rows[i + width]
                left = [k if not k & width else lanes + k - width for k in range(lanes)]
                right = [k + width if not k & width else lanes + k for k in range(lanes)]
                rows[i], rows[i + width] = (
                    builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(word, lanes), places))
                    for places in (left, right)
                )
            width //= 2
        for j in range(lanes):
            _store(builder, rows[j], builder.gep(end, [builder.mul(y_row, ir.Constant(INDEX, j))]), size)
        return context.get_dummy_value()

    n = types.int64
    return types.void(a, n, n, b, n, n), build


# --- bfloat16: the tile registers of AMX ---------------------------------------------------------------------------
SIDE = 16  # rows of a tile register, and numbers of 32 bits in a row; two registers make 32 rows, or 32 columns
WORD, BYTE = ir.IntType(32), ir.IntType(8)


def _tile(name: str, registers: tuple[int, ...], *shape: Any) -> Any:
    """An instruction on tile registers, as a function of the builder and what else it takes."""

    def emit(builder: Any, *arguments: Any) -> None:
        kinds = [BYTE] * len(registers) + [x.type for x in arguments]
        numbers = [ir.Constant(BYTE, n) for n in registers]
        builder.call(_named(builder, f"llvm.x86.{name}", ir.VoidType(), kinds), [*numbers, *arguments])

    return emit


def _bytes(builder: Any, address: Any) -> Any:
    return builder.bitcast(address, BYTE.as_pointer())


@intrinsic
def open_tiles(context: Any) -> Any:
    """All eight tile registers of this thread with 16 rows of 64 bytes."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        setting = bytes([1] + [0] * 15) + b"\x40\x00" * 8 + bytes(16) + b"\x10" * 8 + bytes(8)
        kind = ir.ArrayType(BYTE, 64)
        place = builder.alloca(kind)
        builder.store(ir.Constant(kind, bytearray(setting)), place)
        _tile("ldtilecfg", ())(builder, _bytes(builder, place))
        return context.get_dummy_value()

    return types.none(), build


@intrinsic
def close_tiles(context: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _tile("tilerelease", ())(builder)
        return context.get_dummy_value()

    return types.none(), build


def _tile_product(mode: str) -> Any:
    """32 x 32 numbers of c, = product + d, with d one row ("less"), or c += product ("more").

    ``a`` holds bfloat16 numbers in rows, ``b`` words of two that follow each other down a column; 32 l to a count.
    """

    @intrinsic
    def product(
        context: Any, a: Any, a0: Any, a_row: Any, a_step: Any, b: Any, b0: Any, c: Any, c0: Any, d: Any, count: Any
    ) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            x, x0, x_row, x_step, y, y0, z, z0, w, n = args
            left, right = _data(context, builder, a, x, x0), _data(context, builder, b, y, y0)
            out, start = _data(context, builder, c, z, z0), _data(context, builder, d, w, ir.Constant(INDEX, 0))
            wide = ir.Constant(INDEX, 8 * SIDE)  # bytes of a row of b or c
            row = builder.mul(x_row, ir.Constant(INDEX, 2))
            lower = builder.gep(left, [builder.mul(x_row, ir.Constant(INDEX, SIDE))])
            for r in range(2):
                for h in range(2):
                    place = builder.gep(out, [ir.Constant(INDEX, r * 2 * SIDE * SIDE + h * SIDE)])
                    first = builder.gep(start, [ir.Constant(INDEX, h * SIDE)])
                    at, step = (first, ir.Constant(INDEX, 0)) if mode == "less" else (place, wide)
                    _tile("tileloadd64", (2 * r + h,))(builder, _bytes(builder, at), step)
            with Loop(builder, n, []) as (turn, _):
                along = builder.mul(turn, x_step)
                down = builder.gep(right, [builder.mul(turn, ir.Constant(INDEX, 2 * SIDE * SIDE))])
                for register, at, step in (
                    (4, builder.gep(left, [along]), row),
                    (5, builder.gep(lower, [along]), row),
                    (6, down, wide),
                    (7, builder.gep(down, [ir.Constant(INDEX, SIDE)]), wide),
                ):
                    _tile("tileloadd64", (register,))(builder, _bytes(builder, at), step)
                for r in range(2):
                    for h in range(2):
                        _tile("tdpbf16ps", (2 * r + h, 4 + r, 6 + h))(builder)
            for r in range(2):
                for h in range(2):
                    place = builder.gep(out, [ir.Constant(INDEX, r * 2 * SIDE * SIDE + h * SIDE)])
                    _tile("tilestored64", (2 * r + h,))(builder, _bytes(builder, place), wide)
            return context.get_dummy_value()

        n = types.int64
        return types.void(a, n, n, n, b, n, c, n, d, n), build

    return product


tiles_less, tiles_more = _tile_product("less"), _tile_product("more")


# 2^f on [-1/2, 1/2] up to 7e-5, a thirtieth of a rounding to bfloat16; the constant first
POWER = (0.99992807, 0.69326099, 0.24261114, 0.05517167)
ROUND = 1.5 * 2**23 + 127  # adding it rounds to an integer n, and leaves n + 127 in the low bits


@intrinsic
def weigh_halves(context: Any, s: Any, less: Any, unit: Any, out: Any, total: Any, count: Any) -> Any:
    """2^(unit (s - less)) of float32 rows as bfloat16, two rows to a row of words; ``total`` is the sum of these.

    Scores that are not above ``less``, which is one row; exactly 0 of -inf.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector, words = _vector(ir.FloatType(), SIDE), _vector(WORD, SIDE)
        x, y, z, w = (
            _data(context, builder, k, v, ir.Constant(INDEX, 0))
            for k, v in ((s, args[0]), (out, args[3]), (total, args[4]), (less, args[1]))
        )
        fma = _named(builder, "llvm.fmuladd.v16f32", vector, [vector] * 3)
        larger = _named(builder, "llvm.maxnum.v16f32", vector, [vector] * 2)

        def real(n: float) -> Any:
            return ir.Constant(vector, [ir.Constant(ir.FloatType(), float(np.float32(n)))] * SIDE)

        half, high, bits, exponent = (ir.Constant(words, [n] * SIDE) for n in (0x8000, 0xFFFF0000, 16, 23))
        halves = [ir.Constant(INDEX, h * SIDE) for h in range(2)]
        factor = _spread(builder, args[2], vector)
        minus = builder.fsub(ir.Constant(vector, None), factor)
        shift = [builder.fmul(_load(builder, builder.gep(w, [h]), vector, 4), minus) for h in halves]
        zero = ir.Constant(vector, None)
        with Loop(builder, args[5], [zero] * 4) as (at, sums):
            row = builder.gep(x, [builder.mul(at, ir.Constant(INDEX, 4 * SIDE))])
            to = builder.gep(y, [builder.mul(at, ir.Constant(INDEX, 2 * SIDE))])
            for h in range(2):
                upper = []
                for r in range(2):
                    found = _load(builder, builder.gep(row, [ir.Constant(INDEX, (2 * r + h) * SIDE)]), vector, 4)
                    t = builder.call(fma, [found, factor, shift[h]])
                    t = builder.call(larger, [t, real(-127)], fastmath=("nnan", "nsz"))
                    n = builder.fadd(t, real(ROUND))
                    f = builder.fsub(t, builder.fsub(n, real(ROUND)))
                    p = real(POWER[-1])
                    for c in POWER[-2::-1]:
                        p = builder.call(fma, [p, f, real(c)])
                    scale = builder.bitcast(builder.shl(builder.bitcast(n, words), exponent), vector)
                    weight = builder.add(builder.bitcast(builder.fmul(p, scale), words), half)
                    kept = builder.and_(weight, high)
                    sums[2 * r + h] = builder.fadd(sums[2 * r + h], builder.bitcast(kept, vector))
                    upper.append(kept if r else builder.lshr(weight, bits))
                _store(builder, builder.or_(*upper), builder.gep(to, [halves[h]]), 4)
        for h in range(2):
            place = builder.gep(z, [halves[h]])
            _store(builder, builder.fadd(sums[h], sums[2 + h]), place, 4)
        return context.get_dummy_value()

    return types.void(s, less, types.float32, out, total, types.int64), build
