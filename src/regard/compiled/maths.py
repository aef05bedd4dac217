"""The maths namespace that the fused engine hands to a formula: scalar functions that inline, select and vectorise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

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

# 2^t = 2^(n - 1) 2^(g + 1), n the integer nearest to t: adding ROUND rounds to n, and leaves the exponent of 2^(n - 1)
# in the low bits. That exponent is 0, and then the factor is, where the product would not be a normal number.
LOG2E_32, LOG2E_64 = F(1.4426950408889634), D(1.4426950408889634)
ROUND_32, ROUND_64 = F(1.5 * 2**23 + 126), D(1.5 * 2**52 + 1022)


@njit(**EXACT)
def exp2_32(t: Any) -> Any:
    """2^t in float32, t < 127.5; exactly 0 below -125.5, NaN of NaN. Minimax polynomial on [-1/2, 1/2]: 1.9e-9."""
    c = F(-126.0) if t < F(-126.0) else t
    r = c + ROUND_32
    g = c - (r - ROUND_32)
    p = F(0.0003069162485189736)
    p = p * g + F(0.0026799861807376146)
    p = p * g + F(0.019236978143453598)
    p = p * g + F(0.11100657284259796)
    p = p * g + F(0.48045292496681213)
    p = p * g + F(1.3862943649291992)
    p = p * g + F(2.0)
    return p * float32_of(W(bits32(r) << W(23)))


@njit(**EXACT)
def exp2_64(t: Any) -> Any:
    """2^t in float64, t < 1023.5; exactly 0 below -1021.5, NaN of NaN. Minimax polynomial on [-1/2, 1/2]: 3.1e-18."""
    c = D(-1022.0) if t < D(-1022.0) else t
    r = c + ROUND_64
    g = c - (r - ROUND_64)
    p = D(8.870561889220673e-10)
    p = p * g + D(1.4148211252491318e-08)
    p = p * g + D(2.0356396066657056e-07)
    p = p * g + D(2.643086617918926e-06)
    p = p * g + D(3.050546697992161e-05)
    p = p * g + D(0.0003080706092502923)
    p = p * g + D(0.00266671162935799)
    p = p * g + D(0.01923625821517667)
    p = p * g + D(0.11100821732963985)
    p = p * g + D(0.4804530139182031)
    p = p * g + D(1.3862943611198906)
    p = p * g + D(2.0)
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


def exp2(x: Any) -> Any:
    """2^x in the dtype of x; exactly 0 where that is not a normal number, and not for large x."""
    raise NotImplementedError("compiled code only")


def exp(x: Any) -> Any:
    """e^x, in the same manner."""
    raise NotImplementedError("compiled code only")


@overload(exp2, jit_options=EXACT)
def _exp2(x: Any) -> Any:
    def narrow(x: Any) -> Any:
        return exp2_32(x)

    def wide(x: Any) -> Any:
        return exp2_64(x)

    return narrow if x == types.float32 else wide


@overload(exp, jit_options=EXACT)
def _exp(x: Any) -> Any:
    def narrow(x: Any) -> Any:
        return exp2_32(x * LOG2E_32)

    def wide(x: Any) -> Any:
        return exp2_64(x * LOG2E_64)

    return narrow if x == types.float32 else wide


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
    return x - x + F(1.0)  # in the dtype of x


@njit(**EXACT)
def full_like(x: Any, value: Any) -> Any:
    return x - x + value
