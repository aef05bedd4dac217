"""The fused engine: compiled loops over tiles, for the CPU.

Numba and all that needs it is imported when the engine is first asked whether it can run a problem of some size.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import numpy as np

from regard.arrays import Array, is_torch, size
from regard.partial import Partial
from regard.problem import Problem

SMALL = 1 << 20  # pairs of a call, of four features each, below which others are done before Numba is imported


class Fused:
    """One pass over tiles that stay in cache, vectorised, on several threads, in O((Q + K) D) memory.

    For NumPy arrays and torch tensors in CPU memory. Results do not depend on the number of threads.
    """

    name = "fused"
    native = False

    def cannot(self, problem: Problem) -> str | None:
        value = problem.value
        if not isinstance(value, np.ndarray) and not (is_torch(value) and value.device.type == "cpu"):
            return "it runs on NumPy arrays and on torch tensors in CPU memory"
        if str(value.dtype).removeprefix("torch.") not in ("float32", "float64"):
            return f"it computes in float32 and float64, not in {value.dtype}"
        return missing() or running().why_not(problem)

    def declines(self, problem: Problem) -> str | None:
        pairs = size(problem.rows) * problem.layout.keys
        work = pairs * sum(max(t.key.shape[-1] / 4, 1) for t in problem.terms)
        return f"for {pairs:,} pairs its loops are not worth loading" if work < SMALL else None

    def pool(self, problem: Problem) -> Partial:
        found: Partial = running().pool(problem)
        return found

    def weights(self, problem: Problem) -> Array:
        return running().weights(problem)

    def top(self, problem: Problem, n: int) -> tuple[Array, Array]:
        found: tuple[Array, Array] = running().top(problem, n)
        return found

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        found: tuple[Array, ...] = running().backward(problem, maximum, grad_weight_sum, grad_value_sum)
        return found


@cache
def missing() -> str | None:
    """Why there are no compiled loops, which one warning says as well; None if there are."""
    try:
        running()
    except Exception as error:  # absent or broken: everything else works without it
        warnings.warn(f"the fused engine is off, since Numba could not be loaded: {error}", stacklevel=2)
        return f"Numba could not be loaded: {error}"
    return None


def running() -> ModuleType:
    """What runs the compiled loops."""
    from regard.engines.fused import engine

    return engine
