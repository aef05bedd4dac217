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
SUMS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"}}
EXACT: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "nsz"}}
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


@njit(**SUMS)
def exp2_32(t: Any) -> Any:
    """2^t in float32, t < 128; 0 below the smallest normal number. Truncation, and a polynomial on (-1, 0]: 2.5e-9."""
    c = max(t, F(-126.0))
    n = W(c)
    f = c - F(n)
    p = F(0.00010932892393299026)
    p = p * f + F(0.0012755401353185156)
    p = p * f + F(0.009579859972768908)
    p = p * f + F(0.05549093211490295)
    p = p * f + F(0.24022433120843853)
    p = p * f + F(0.6931470452096826)
    p = p * f + F(0.9999999986201363)
    e = p * float32_of(W((n + W(127)) << W(23)))
    return e if t > F(-126.0) else F(0.0)


@njit(**SUMS)
def exp2_64(t: Any) -> Any:
    """2^t in float64, t < 1024; 0 below the smallest normal number. A polynomial on (-1, 0]: 4e-18."""
    c = max(t, D(-1022.0))
    n = L(c)
    f = c - D(n)
    p = D(3.1507390587168893e-10)
    p = p * f + D(6.735117241338206e-09)
    p = p * f + D(1.0131305186136003e-07)
    p = p * f + D(1.3211092599653664e-06)
    p = p * f + D(1.5252459463419028e-05)
    p = p * f + D(0.00015403518926360732)
    p = p * f + D(0.0013333557830196537)
    p = p * f + D(0.009618129102091552)
    p = p * f + D(0.05550410866424895)
    p = p * f + D(0.24022650695907008)
    p = p * f + D(0.6931471805599446)
    p = p * f + D(1.0)
    e = p * float64_of(L((n + L(1023)) << L(52)))
    return e if t > D(-1022.0) else D(0.0)


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
