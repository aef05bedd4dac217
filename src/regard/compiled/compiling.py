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
from numba.core.untyped_passes import IRProcessing

from regard.compiled import maths
from regard.scores.base import FAR

VERSION = "24"  # part of every name: raise it when maths or this file changes, which Numba's cache does not see
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
        name: formula(found)
        for name in function.__code__.co_names
        if isinstance(found := function.__globals__.get(name), python_types.FunctionType)
    }
    own = python_types.FunctionType(function.__code__, {**function.__globals__, **helpers}, function.__name__)
    return njit(own, pipeline_class=Narrowing, **maths.EXACT)


def constants(dtype: Any) -> dict[str, Any]:
    """What loop bodies call by these names, in a dtype."""
    narrow = dtype == np.float32
    real = np.float32 if narrow else np.float64
    return {
        "ZERO": real(0),
        "ONE": real(1),
        "TWO": real(2),
        "FOUR": real(4),
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


MADE: dict[Any, Any] = {}  # what was compiled, by what it is bound to; under LOCK
