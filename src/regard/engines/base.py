"""What an engine is. A new one is one file and one line in ``engines/__init__.py``."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from regard.arrays import Array
from regard.partial import Partial
from regard.problem import Problem, top_of, weights_of
from regard.straight import Straight


class Engine(Protocol):
    """Runs a problem, or says why it cannot. Only arrays, numbers and names cross into it (see ``Problem``)."""

    @property
    def name(self) -> str: ...

    @property
    def native(self) -> bool:
        """Whether torch differentiates its operations by itself; else ``backward`` and sums over tiles do."""
        ...

    def cannot(self, problem: Problem) -> str | None:
        """Why this engine cannot run the problem, or None."""
        ...

    def declines(self, problem: Problem) -> str | None:
        """Why "auto" should rather take another engine, or None."""
        ...

    def pool(self, problem: Problem) -> Partial:
        """The running maximum, weight sum and value sum of all keys."""
        ...

    def weights(self, problem: Problem) -> Array:
        """The weights, (..., Q, K), before dropout: the same numbers that ``pool`` uses."""
        ...

    def top(self, problem: Problem, n: int) -> tuple[Array, Array]:
        """The n largest weights of each query and their keys, (..., Q, n), descending, ties by lower index;
        where fewer than n keys are left, weight 0 and index -1."""
        ...

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        """Gradients to ``problem.arrays`` from those of the two sums; the maximum is constant."""
        ...


@runtime_checkable
class Direct(Protocol):
    """An engine that also takes inputs as they were given, see ``Straight``."""

    def direct(self, inputs: Straight) -> Array | None:
        """The pooled values; None where it would rather not, or where something is not finite."""
        ...


class Shown(Protocol):
    """``weights`` and ``top`` of an engine from its maximum and weight sum, by tiles of scores."""

    def pool(self, problem: Problem) -> Partial: ...

    def weights(self, problem: Problem) -> Array:
        partial = self.pool(problem)
        return weights_of(problem, partial.max, partial.weight_sum)

    def top(self, problem: Problem, n: int) -> tuple[Array, Array]:
        partial = self.pool(problem)
        return top_of(problem, partial.max, partial.weight_sum, n)
