"""An engine's sums as torch operations; their first derivative is the engine's own, the others are sums over tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from regard.arrays import traced
from regard.bridge.tile_sum import Plan, Tensors, TileSum
from regard.engines.base import Engine
from regard.engines.tiled import Tiled
from regard.partial import Partial
from regard.problem import Problem, exponentials_backward, pool_backward


@dataclass(frozen=True, eq=False)
class Job:
    """What an engine computes, ``(max (..., Q), *sums)``, and the plan of its backward, of (max, *arrays, *grads)."""

    run: Callable[..., Tensors]
    backward: Plan


class EngineSums(torch.autograd.Function):
    """(max, *sums) of an engine. The maximum is a constant shift: it has no derivative."""

    @staticmethod
    def forward(job: Job, *arrays: torch.Tensor) -> Tensors:
        return job.run(*(a.detach() for a in arrays))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        job, *arrays = inputs
        top, *sums = output
        ctx.backward_plan, ctx.sums = job.backward, [(s.shape, s.dtype, s.device) for s in sums]
        ctx.mark_non_differentiable(top)
        ctx.save_for_backward(top, *arrays)
        ctx.save_for_forward(top, *arrays)

    @staticmethod
    def backward(ctx: Any, _: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        top, *arrays = ctx.saved_tensors
        got = TileSum.apply(ctx.backward_plan, top[..., None], *arrays, *grads)
        return None, *(g if need else None for g, need in zip(got, ctx.needs_input_grad[1:], strict=True))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        top, *arrays = ctx.saved_tensors
        moving = [torch.zeros_like(a) if t is None else t for t, a in zip(tangents, arrays, strict=True)]
        # the backward is linear in its cotangents, so pulling the tangents back through it pushes them forward
        zeros = [torch.zeros(s, dtype=dtype, device=device) for s, dtype, device in ctx.sums]
        first = 1 + len(arrays)
        plan = ctx.backward_plan.vjp(tuple(range(first, first + len(zeros))))
        return None, *TileSum.apply(plan, top[..., None], *arrays, *zeros, *moving)


def recorded(problem: Problem) -> bool:
    """Whether torch records what is done with these arrays, for derivatives of any kind or to trace it."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return any(traced(a) or (a.requires_grad and torch.is_grad_enabled()) for a in problem.arrays)


def pool(engine: Engine, problem: Problem) -> Partial:
    """The engine's Partial of torch tensors, differentiable to any order."""
    clean = problem.arrays

    def run(*arrays: torch.Tensor) -> Tensors:
        p = engine.pool(problem.with_arrays(arrays))
        return p.max, p.weight_sum[..., None], p.value_sum

    def function(queries: slice, keys: slice, top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        return tuple(pool_backward(problem, xs[:-2], queries, keys, top, *xs[-2:]))

    def fast(top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        return engine.backward(problem.with_arrays(xs[:-2]), top[..., 0], xs[-2][..., 0], xs[-1])

    labels = ("q", *problem.labels, "q", "q")
    plan = Plan(problem, function, labels, tuple(range(1, 1 + len(clean))), fast)
    top, weight_sum, value_sum = EngineSums.apply(Job(run, plan), *clean)
    return Partial(top, weight_sum[..., 0], value_sum)


def weights(problem: Problem) -> torch.Tensor:
    """The weights of torch tensors, (..., Q, K), differentiable to any order."""
    tiled = Tiled()
    clean = problem.arrays

    def run(*arrays: torch.Tensor) -> Tensors:
        return tiled.exponentials(problem.with_arrays(arrays))

    def function(queries: slice, keys: slice, top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        return tuple(exponentials_backward(problem, xs[:-1], queries, keys, top, xs[-1]))

    plan = Plan(problem, function, ("q", *problem.labels, "qk"), tuple(range(1, 1 + len(clean))))
    _, e = EngineSums.apply(Job(run, plan), *clean)
    total = e.sum(-1, keepdim=True)
    shown: torch.Tensor = e / torch.where(total == 0, 1.0, total)
    if problem.bad_query is None and problem.bad_key is None and problem.bad_bias is None:
        return shown
    with torch.no_grad():
        spoiled = tiled.weights(problem)
    return torch.where(torch.isnan(spoiled), torch.nan, shown)  # by selection: no gradient through what is lost
