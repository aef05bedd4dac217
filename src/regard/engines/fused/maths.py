"""The maths namespace that the fused engine hands to a formula: scalar functions that inline, select and vectorise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

# "reassoc" lets sums vectorise, but undoes the correction in log1p: formulas are compiled without it. None of these
# flags lets NaN or infinity lose its meaning.
# Without _nrt no array is counted: an atomic addition for every slice of a row took a quarter of the time. So loops
# allocate nothing.
SUMS: dict[str, Any] = {
    "_nrt": False,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"},
}
EXACT: dict[str, Any] = {"_nrt": False, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
F, W, D, L = np.float32, np.int32, np.float64, np.int64

inf = np.float32(np.inf)  # exact in every dtype, and promotes none


def _bitcast(source: Any, target: Any, kind: Any) -> Any:
    @intrinsic
    def cast(context: Any, x: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], kind)

        return target(source), build

    return cast


bits32 = _bitcast(types.float32, types.int32, ir.IntType(32))
float32_of = _bitcast(types.int32, types.float32, ir.FloatType())
bits64 = _bitcast(types.float64, types.int64, ir.IntType(64))
float64_of = _bitcast(types.int64, types.float64, ir.DoubleType())


@intrinsic
def wide_vectors(context: Any) -> Any:
    """Marks the function that calls it: where the processor has vectors of 512 bits, its loops use them.

    LLVM takes 256 bits on most of these processors, for the sake of programs that are not all loops.
    """

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # llvmlite checks names against its own list, which has no attribute with a value
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.none(), build


def _larger(kind: Any, of: Any) -> Any:
    @intrinsic
    def larger(context: Any, a: Any, b: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            maximum = builder.module.declare_intrinsic("llvm.maxnum", [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(maximum, args, fastmath=("nnan", "nsz"))

        return of(of, of), build

    return larger


# the larger of two numbers, neither of which is NaN: a maximum over a loop that vectorises
larger32 = _larger(ir.FloatType(), types.float32)
larger64 = _larger(ir.DoubleType(), types.float64)

# 2^t = 2^n 2^(g + 1/2), n the integer nearest to t - 1/2: adding ROUND rounds to n and leaves n + bias in the low bits
ROUND_32, ROUND_64 = F(1.5 * 2**23 + 127), D(1.5 * 2**52 + 1023)


@njit(**EXACT)
def exp2_32(t: Any) -> Any:
    """2^t in float32, t < 127; exactly 0 below -126, NaN of NaN. Minimax polynomial on [-1/2, 1/2]: 1.9e-9."""
    c = t - F(0.5)
    c = F(-127.49) if c < F(-127.49) else c  # n = -127, where the factor below is 0
    r = c + ROUND_32
    g = c - (r - ROUND_32)
    p = F(0.00021702256344724447)
    p = p * g + F(0.0018950364319607615)
    p = p * g + F(0.013602597638964653)
    p = p * g + F(0.07849350571632385)
    p = p * g + F(0.3397315442562103)
    p = p * g + F(0.9802581667900085)
    p = p * g + F(1.4142135381698608)
    return p * float32_of(W(bits32(r) << W(23)))


@njit(**EXACT)
def exp2_64(t: Any) -> Any:
    """2^t in float64, t < 1023; exactly 0 below -1022, NaN of NaN. Minimax polynomial on [-1/2, 1/2]: 3.1e-18."""
    c = t - D(0.5)
    c = D(-1023.49) if c < D(-1023.49) else c
    r = c + ROUND_64
    g = c - (r - ROUND_64)
    p = D(6.27243446480289e-10)
    p = p * g + D(1.0004296118296428e-08)
    p = p * g + D(1.4394145699252366e-07)
    p = p * g + D(1.8689444707938899e-06)
    p = p * g + D(2.157062256476488e-05)
    p = p * g + D(0.0002178388168851528)
    p = p * g + D(0.001885649876588062)
    p = p * g + D(0.013602088628606858)
    p = p * g + D(0.07849466324121836)
    p = p * g + D(0.33973158418307614)
    p = p * g + D(0.9802581434685472)
    p = p * g + D(1.4142135623730951)
    return p * float64_of(L(bits64(r) << L(52)))


@njit(**SUMS)
def tanh_32(x: Any) -> Any:
    """1 - 2 / (1 + e^2x), for the guarded additive pairing: absolute error of a rounding."""
    c = min(max(x, F(-20.0)), F(20.0))
    a = abs(c)
    e = exp2_32(a * F(-2.8853900817779268))
    t = (F(1.0) - e) / (F(1.0) + e)
    return t if c > F(0.0) else -t


@njit(**SUMS)
def tanh_64(x: Any) -> Any:
    """The same in float64."""
    c = min(max(x, D(-40.0)), D(40.0))
    a = abs(c)
    e = exp2_64(a * D(-2.8853900817779268))
    t = (D(1.0) - e) / (D(1.0) + e)
    return t if c > D(0.0) else -t


@njit(**EXACT)
def times(a: Any, b: Any) -> Any:
    """A product that stays one: where sums may be reordered, a common factor would be taken out of them."""
    return a * b


@njit(**EXACT)
def where(c: Any, a: Any, b: Any) -> Any:
    return a if c else b


@njit(**EXACT)
def log(x: Any) -> Any:
    return math.log(x)


@njit(**EXACT)
def log1p(x: Any) -> Any:
    return math.log1p(x)


@njit(**EXACT)
def exp(x: Any) -> Any:
    return math.exp(x)


@njit(**EXACT)
def sqrt(x: Any) -> Any:
    return math.sqrt(x)


@njit(**EXACT)
def sin(x: Any) -> Any:
    return math.sin(x)


@njit(**EXACT)
def tanh(x: Any) -> Any:
    return math.tanh(x)


@njit(**EXACT)
def zeros_like(x: Any) -> Any:
    return x - x


@njit(**EXACT)
def ones_like(x: Any) -> Any:
    return x - x + 1


@njit(**EXACT)
def full_like(x: Any, value: Any) -> Any:
    return x - x + value
