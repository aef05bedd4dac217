"""The matrix engine: dot products as products of matrices in the registers of the CPU, with the softmax between them.

The other compiled loops make one score at a time of a few features. Here 32 queries stand side by side in vectors, and
both products run at nearly the speed of the processor's multiplications; in bfloat16 its matrix unit does them.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np

from regard.arrays import Array, is_torch, size, surely_finite
from regard.engines.base import Shown
from regard.engines.fused import SMALL, missing
from regard.partial import Partial
from regard.problem import Problem
from regard.scores.base import Leaf
from regard.scores.pairings import dot_product
from regard.straight import Straight

MOST = 1e37  # that a score in bfloat16 may be, beyond which its sums could overflow
FEATURES = 16  # and value columns, from which on vectors of queries are full of work


class Matrix(Shown):
    """Pools by blocks of 32 queries and 128 keys, forward and backward, on several threads, in O((Q + K) D) memory.

    For NumPy arrays and torch tensors in CPU memory. Results do not depend on the number of threads.
    """

    name = "matrix"
    native = False

    def cannot(self, problem: Problem) -> str | None:
        value, (term, *others) = problem.value, problem.terms
        if not isinstance(value, np.ndarray) and not (is_torch(value) and value.device.type == "cpu"):
            return "it runs on NumPy arrays and on torch tensors in CPU memory"
        if str(value.dtype).removeprefix("torch.") not in ("float32", "float64"):
            return f"it computes in float32 and float64, not in {value.dtype}"
        if others or term.pairing is not dot_product or term.formula is not Leaf.formula or term.factor is not None:
            return "it knows the dot product alone"
        if problem.dropout:
            return "it drops nothing out"
        return missing()

    def declines(self, problem: Problem) -> str | None:
        pairs = size(problem.rows) * problem.layout.keys
        features, columns = problem.terms[0].key.shape[-1], problem.value.shape[-1]
        if pairs * features / 4 < SMALL:
            return f"for {pairs:,} pairs its loops are not worth loading"
        if min(features, columns) < FEATURES:
            return f"products of {features} features and {columns} value columns do not fill its vectors"
        plain = problem.given is None or (str(problem.given) == "torch.bfloat16" and not halves().unit())
        if is_torch(problem.value) and not problem.recorded and plain:
            return "PyTorch's own kernel is as fast where nothing is recorded"
        return None

    def direct(self, inputs: Straight) -> Array | None:
        features, columns = inputs.key.shape[-1], inputs.value.shape[-1]
        if str(inputs.value.dtype) != "torch.bfloat16" or features % 2 or inputs.work < SMALL:
            return None
        if min(features, columns) < FEATURES or missing() or not halves().unit():
            return None
        xp = sys.modules["torch"]
        bound = [float(max(-low, high)) for low, high in (xp.aminmax(x) for x in (inputs.query, inputs.key))]
        if not features * bound[0] * bound[1] < MOST or not surely_finite(xp, inputs.value):
            return None
        found: Array = halves().pool(inputs)
        return found

    def pool(self, problem: Problem) -> Partial:
        found: Partial = running().pool(problem)
        return found

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        found: tuple[Array, ...] = running().backward(problem, maximum, grad_weight_sum, grad_value_sum)
        return found


def running() -> ModuleType:
    """What runs the compiled loops."""
    from regard.engines.fused import multiplying

    return multiplying


def halves() -> ModuleType:
    """What runs them in bfloat16."""
    from regard.engines.fused import halves

    return halves
