"""The definition: whole matrices, no tricks. Every engine answers to it."""

from __future__ import annotations

from regard.arrays import Array, size, take_along
from regard.partial import Partial
from regard.problem import Problem, block, dropout, pool_backward, reached, score_tile, spoil
from regard.weights import exponentials, running_maximum, softmax, weighted_sum


class Reference:
    """Scores, weights and pooled values of all queries and keys at once: O(Q K) memory, any array library.

    With torch its derivatives of every order are those of torch's own operations.
    """

    name = "reference"
    native = True  # its operations are differentiable by themselves

    def cannot(self, problem: Problem) -> str | None:
        """Why this engine cannot run the problem: it always can."""
        return None

    def declines(self, problem: Problem) -> str | None:
        """Why "auto" would rather not take it."""
        pairs = size(problem.rows) * problem.layout.keys
        return f"it would hold all {pairs:,} scores at once"

    def pool(self, problem: Problem) -> Partial:
        """sum_i exp(s_i - max) and sum_i exp(s_i - max) v_i."""
        xp, s = problem.xp, self.scores(problem)
        top = running_maximum(xp, s)
        w = exponentials(xp, s, top)
        kept = w * dropout(problem, *everything(problem)) if problem.dropout else w
        sums = xp.sum(w, axis=-1), weighted_sum(kept, problem.value)
        return Partial(top, *spoil(xp, sums, *reached(problem, s, *everything(problem))))

    def weights(self, problem: Problem) -> Array:
        """softmax(s), 0 for a key that is not there; before dropout."""
        xp, s = problem.xp, self.scores(problem)
        row, _ = reached(problem, s, *everything(problem))
        return softmax(xp, s) if row is None else xp.where((row > 0) & (s > -xp.inf), xp.nan, softmax(xp, s))

    def top(self, problem: Problem, n: int) -> tuple[Array, Array]:
        """The n largest weights and their keys, sorted."""
        xp, s = problem.xp, self.scores(problem)
        order = xp.argsort(-s, axis=-1, stable=True)[..., :n]
        found = xp.where(take_along(xp, s, order) == -xp.inf, -1, order)
        return take_along(xp, self.weights(problem), order), found

    def backward(
        self, problem: Problem, maximum: Array, grad_weight_sum: Array, grad_value_sum: Array
    ) -> tuple[Array, ...]:
        """Gradients of the two sums to ``problem.arrays``."""
        rows = maximum[..., None], grad_weight_sum[..., None], grad_value_sum
        return tuple(pool_backward(problem, problem.arrays, *everything(problem), *rows))

    def scores(self, problem: Problem) -> Array:
        """All scores with bias and mask, (..., Q, K); -inf where there is no key."""
        s = score_tile(problem, block(problem, *everything(problem)), *everything(problem)).scores
        return problem.xp.broadcast_to(s, (*problem.rows, problem.layout.keys))


def everything(problem: Problem) -> tuple[slice, slice]:
    """The tile that is the whole."""
    return slice(0, problem.layout.queries), slice(0, problem.layout.keys)
