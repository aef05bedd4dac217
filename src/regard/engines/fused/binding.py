"""Loop bodies of the fused engine bound to dtypes, pairings and formulas: what is compiled, and its signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.core.types.function_type import CompileResultWAP

from regard.compiled import compiling, maths
from regard.compiled.compiling import LOCK, MADE, VERSION, bound, compiled, fingerprint, formula
from regard.engines.fused import loops
from regard.scores.pairings import Pairing

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


def constants(dtype: Any) -> dict[str, Any]:
    """What the loop bodies call by names that are not theirs, in a dtype."""
    real = np.float32 if dtype == np.float32 else np.float64
    return {**compiling.constants(dtype), "SCALE": real(loops.SCALE[np.dtype(dtype).name])}


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
