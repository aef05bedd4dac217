"""Loop bodies to machine code: bound to a dtype, a pairing and a formula, compiled when first needed, kept on disk.

Numba's disk cache finds a function by its file and name, and never finds one that closes over another. So each loop
body becomes a new function object, whose globals are what it is bound to, and whose name says what that was: a hash of
the code and constants of the formula and of all that it calls.
"""

from __future__ import annotations

import hashlib
import operator
import os
import threading
import types as python_types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numba import config, njit, types
from numba.core import ir
from numba.core.caching import FunctionCache
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.types.function_type import CompileResultWAP
from numba.core.untyped_passes import IRProcessing

from regard.engines.fused import loops, maths
from regard.scores.base import FAR
from regard.scores.pairings import Pairing

VERSION = "22"  # part of every name: raise it when maths or this file changes, which Numba's cache does not see
BOUND = (
    "drop",
    "copy",
    "largest",
    "summed",
    "weighed",
    "edit",
    "fill_term",
    "back_term",
    "add_values",
    "to_weights",
    "to_values",
)
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):  # no fork in the middle of a compilation: the child could never end it
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)
if config.DISABLE_JIT:
    raise ImportError("NUMBA_DISABLE_JIT is set")


@register_pass(mutates_CFG=False, analysis_only=False)
class NarrowLiterals(FunctionPass):
    """Number literals of a float32 formula become float32: ``0.5 * u`` would be float64, and take twice as long."""

    _name = "regard_narrow_literals"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        if types.float32 not in state.args:
            return False
        assigned = [s for b in state.func_ir.blocks.values() for s in b.body if isinstance(s, ir.Assign)]
        exponents = {
            s.value.rhs.name
            for s in assigned
            if isinstance(s.value, ir.Expr) and s.value.op == "binop" and s.value.fn is operator.pow
        }
        for s in assigned:
            literal = isinstance(s.value, ir.Const | ir.Global) and type(s.value.value) in (int, float)
            if literal and s.target.name not in exponents:
                s.value = ir.Const(np.float32(s.value.value), s.value.loc)
        return True


class Narrowing(CompilerBase):
    """Numba's own pipeline and NarrowLiterals; for formulas only, since it would turn an index into a float."""

    def define_pipelines(self) -> list[Any]:
        pipeline = DefaultPassBuilder.define_nopython_pipeline(self.state)
        pipeline.add_pass_after(NarrowLiterals, IRProcessing)
        pipeline.finalize()
        return [pipeline]


def fingerprint(function: Callable[..., Any]) -> str:
    """A hash of the code and constants of a function and of all that it names, however deep."""
    parts: list[str] = []

    def visit(f: Any, seen: frozenset[Any]) -> None:
        code = f.__code__
        parts.extend([code.co_code.hex(), repr(code.co_names), repr(code.co_consts)])
        for name in code.co_names:
            found = f.__globals__.get(name)
            if isinstance(found, int | float):
                parts.append(repr(found))
            elif isinstance(found, python_types.FunctionType) and found not in seen:
                visit(found, seen | {found})

    visit(function, frozenset({function}))
    return hashlib.sha1("|".join(parts).encode()).hexdigest()[:12]


def bound(body: Callable[..., Any], tag: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The loop body as a function of its own, with these globals, under a name that says so."""
    name = f"{body.__name__}_{tag}"
    code = body.__code__.replace(co_name=name, co_qualname=name)
    function = python_types.FunctionType(code, {**body.__globals__, **names}, name)
    function.__qualname__, function.__module__ = name, body.__module__
    return function


def formula(function: Callable[..., Any]) -> Any:
    """A formula or slope compiled, with the helpers that it names."""
    helpers = {
        name: njit(found, pipeline_class=Narrowing, **maths.EXACT)
        for name in function.__code__.co_names
        if isinstance(found := function.__globals__.get(name), python_types.FunctionType)
    }
    own = python_types.FunctionType(function.__code__, {**function.__globals__, **helpers}, function.__name__)
    return njit(own, pipeline_class=Narrowing, **maths.EXACT)


def constants(dtype: Any) -> dict[str, Any]:
    """What the loop bodies call by names in capitals, in a dtype."""
    narrow = dtype == np.float32
    real = np.float32 if narrow else np.float64
    return {
        "ZERO": real(0),
        "ONE": real(1),
        "TWO": real(2),
        "FOUR": real(4),
        "SCALE": real(loops.SCALE[np.dtype(dtype).name]),
        "LOG2": real(1.4426950408889634),
        "MINUS_INF": real(-np.inf),
        "FAR": real(min(FAR, float(np.finfo(dtype).max))),
        "exp2": maths.exp2_32 if narrow else maths.exp2_64,
        "tanh": maths.tanh_32 if narrow else maths.tanh_64,
        "larger": maths.larger32 if narrow else maths.larger64,
        "wide_vectors": maths.wide_vectors,
        "times": maths.times,
        "maths": maths,
    }


class Cache(FunctionCache):
    """Numba's disk cache, but neither a folder that cannot be written nor a file that cannot be read is an error."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except Exception:
            with suppress(Exception):
                self.flush()  # what is compiled now takes its place
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(Exception):
            super().save_overload(signature, data)


def compiled(body: Callable[..., Any], tag: str, names: dict[str, Any], signature: Any) -> Any:
    """The bound body, compiled for the signature, from the disk if it is there."""
    function = bound(body, tag, names)
    made = njit(nogil=True, **maths.SUMS)(function)
    with suppress(Exception):  # no folder that could be a cache
        made._cache = Cache(function)
    made.compile(signature)
    made.disable_compile()
    return made


class Signatures:
    """The types of all that is compiled, in a dtype: what is given is C-contiguous."""

    def __init__(self, dtype: Any) -> None:
        real, n = types.float32 if dtype == np.float32 else types.float64, types.int64
        row, matrix = types.Array(real, 1, "C"), types.Array(real, 2, "C")
        whole, flags = types.Array(n, 1, "C"), types.Array(types.boolean, 2, "C")
        tile = (matrix, matrix, matrix, n, n, n, n, matrix, matrix)
        self.fill = types.void(types.boolean, *tile, row, matrix, row)
        self.back = types.void(*tile, matrix, matrix, matrix, matrix)
        fills, backs = ((types.FunctionType(s),) * loops.SLOTS for s in (self.fill, self.back))
        terms = types.UniTuple(types.UniTuple(matrix, 3), loops.SLOTS)
        edits = (whole, whole, whole, flags, matrix)
        dropout = (types.Array(n, 2, "C"), n, n, real)
        self.forward = types.void(
            n, *fills, terms, matrix, *edits, *dropout, types.boolean, row, row, matrix, matrix, n, n
        )
        self.scores = types.void(n, *fills, terms, matrix, *edits, matrix, matrix, n, n)
        self.backward = types.void(
            n, *fills, *backs, terms, terms, matrix, *edits, *dropout, row, row, matrix, matrix, matrix, matrix, n, n
        )


MADE: dict[Any, Any] = {}


def scorer(kind: str, pairing: str, near: int, kernel: bool, of: Any, slope: Any, parameters: int, dtype: Any) -> Any:
    """``fill`` or ``back`` of a pairing and a formula, as a first-class function: one signature for all.

    ``near`` is how many features are paired together with the formula, 1 to 4, and 4 more if there are others before
    them; 0 where none are. ``kernel`` says that ``of`` is one, and no logarithm.
    """
    body = f"{kind}_near" if near else kind
    key = (body, near, kernel, pairing, of, slope, parameters, dtype)
    with LOCK:
        if key not in MADE:
            tag = f"{pairing}{near}{'k' * kernel}_{parameters}_{dtype}_{fingerprint(of)}{fingerprint(slope)}_{VERSION}"
            names = constants(dtype)
            names |= {"BLOCK": loops.BLOCK.get(pairing, 8), "FOLD": loops.FOLD.get(pairing, 1)}
            names |= {"START": names["ZERO" if kernel else "MINUS_INF"], "KERNEL": kernel}
            names |= {"NEAR": (near - 1) % 4 + 1, "MORE": near > 4}

            def part(name: str, options: dict[str, Any] = maths.SUMS) -> Any:
                return njit(bound(getattr(loops, name), tag, names), **options)

            names |= {name: part(name) for name in ("squares_1", "squares_2", "squares_4", "add", "weighed")}
            names |= {name: part(name, maths.EXACT) for name in ("rescale", "rescale_slope")}
            names |= {"gather": part("sum_of" if kernel else "larger_of")}
            names |= {"formula_at": _at("formula", of, parameters, names)}
            names |= {"squares": part(f"squares_{(near - 1) % 4 + 1}"), "pair": part(f"pair_{pairing}")}
            names |= {"pair_tile": part("pair_tile")}
            if kind == "back":
                names |= {"slope_at": _at("slope", slope, parameters, names), "pair_back": part(f"back_{pairing}")}
                names |= {"back_tile": part("back_tile")}
            made = compiled(getattr(loops, body), tag, names, getattr(Signatures(dtype), kind))
            MADE[key] = CompileResultWAP(next(iter(made.overloads.values())))
        return MADE[key]


def _at(kind: str, function: Any, parameters: int, names: dict[str, Any]) -> Any:
    body = getattr(loops, f"_{kind}_at{parameters}")
    return njit(bound(body, fingerprint(function), {**names, kind: formula(function)}), **maths.EXACT)


def driver(name: str, dtype: Any) -> Any:
    """``forward``, ``backward`` or ``scores`` in a dtype; one for all scores."""
    with LOCK:
        if (name, dtype) not in MADE:
            names = constants(dtype)
            tag = f"{dtype}_{VERSION}"
            inner = {n: njit(bound(getattr(loops, n), tag, names), **maths.SUMS) for n in BOUND}
            signature = getattr(Signatures(dtype), name)
            made = compiled(getattr(loops, name), tag, {**names, **inner}, signature)
            # called without the dispatcher, which would ask for the types of all arguments every time
            MADE[name, dtype] = next(iter(made.overloads.values())).entry_point
        return MADE[name, dtype]


def known(pairing: Pairing) -> bool:
    """Whether there is a loop body for this pairing."""
    return hasattr(loops, f"pair_{pairing.name}")
