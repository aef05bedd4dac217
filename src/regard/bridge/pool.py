"""An engine's sums as torch operations; their first derivative is the engine's own, the others are sums over tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.arrays import traced
from regard.bridge.batched import Tensors, in_front, widened
from regard.bridge.tile_sum import Plan, TileSum
from regard.engines.base import Engine
from regard.engines.tiled import Tiled
from regard.partial import Partial
from regard.problem import (
    Problem,
    block,
    exponentials_backward,
    pool_backward,
    query_tiles,
    reached,
    score_tile,
    spoil,
)


@dataclass(frozen=True, eq=False)
class Job:
    """What an engine computes, ``(max (..., Q), *sums)``, and the plan of its backward, of (max, *arrays, *grads)."""

    run: Callable[..., Tensors]
    backward: Plan
    batched: Callable[[int], Job]  # the same of a batch, the first axis of each array that has it


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

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], job: Job, *arrays: torch.Tensor) -> tuple[Tensors, tuple[int, ...]]:
        moved = in_front(job.backward.problem, arrays, in_dims[1:])
        sums: Tensors = EngineSums.apply(job.batched(info.batch_size), *moved)
        return sums, (0,) * len(sums)


def recorded(problem: Problem) -> bool:
    """Whether torch records what is done with these arrays, for derivatives of any kind or to trace it."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    return any(traced(a) or (a.requires_grad and torch.is_grad_enabled()) for a in problem.arrays)


def pool(engine: Engine, problem: Problem) -> Partial:
    """The engine's Partial of torch tensors, differentiable to any order."""
    hidden = any(traced(x) for x in _flags(problem))  # a transform's own tensors may not enter an operation unseen
    top, weight_sum, value_sum = EngineSums.apply(
        _sums(engine, _unflagged(problem) if hidden else problem), *problem.arrays
    )
    sums = weight_sum[..., 0], value_sum
    return Partial(top, *(_spoiled(problem, *sums) if hidden else sums))


def weights(problem: Problem) -> torch.Tensor:
    """The weights of torch tensors, (..., Q, K), differentiable to any order."""
    _, e = EngineSums.apply(_exponentials(_unflagged(problem)), *problem.arrays)
    total = e.sum(-1, keepdim=True)
    shown: torch.Tensor = e / torch.where(total == 0, 1.0, total)
    flags = _flags(problem)
    if problem.bad_query is None and problem.bad_key is None and problem.bad_bias is None:
        return shown
    if any(traced(x) for x in flags):
        bad, _ = _seen(problem)
        return shown if bad is None else torch.where((bad > 0) & (e > 0), torch.nan, shown)
    with torch.no_grad():
        spoiled = Tiled().weights(problem)
    return torch.where(torch.isnan(spoiled), torch.nan, shown)  # by selection: no gradient through what is lost


def _sums(engine: Engine, problem: Problem) -> Job:
    """The job of ``pool``."""

    def fit(p: Problem) -> Engine:
        return engine if engine.cannot(p) is None else Tiled()  # what was traced before can be looked at only here

    def run(*arrays: torch.Tensor) -> Tensors:
        now = problem.with_arrays(arrays)
        p = fit(now).pool(now)
        return p.max, p.weight_sum[..., None], p.value_sum

    def function(queries: slice, keys: slice, top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        return tuple(pool_backward(problem, xs[:-2], queries, keys, top, *xs[-2:]))

    def fast(top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        now = problem.with_arrays(xs[:-2])
        return fit(now).backward(now, top[..., 0], xs[-2][..., 0], xs[-1])

    labels = ("q", *problem.labels, "q", "q")
    plan = Plan(problem, function, labels, tuple(range(1, 1 + len(problem.arrays))), fast)
    return Job(run, plan, lambda batch: _sums(engine, widened(problem, batch)))


def _exponentials(problem: Problem) -> Job:
    """The job of ``weights``."""

    def run(*arrays: torch.Tensor) -> Tensors:
        return Tiled().exponentials(problem.with_arrays(arrays))

    def function(queries: slice, keys: slice, top: torch.Tensor, *xs: torch.Tensor) -> Tensors:
        return tuple(exponentials_backward(problem, xs[:-1], queries, keys, top, xs[-1]))

    plan = Plan(problem, function, ("q", *problem.labels, "qk"), tuple(range(1, 1 + len(problem.arrays))))
    return Job(run, plan, lambda batch: _exponentials(widened(problem, batch)))


def _flags(problem: Problem) -> tuple[torch.Tensor, ...]:
    given = problem.bad_query, problem.bad_key, problem.bad_bias, problem.bad_value
    return tuple(x for x in given if x is not None)


def _unflagged(problem: Problem) -> Problem:
    return replace(problem, bad_query=None, bad_key=None, bad_bias=None, bad_value=None)


def _seen(problem: Problem) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """How many non-finite things each query sees, see ``reached``; by operations that a transform follows."""
    rows: list[torch.Tensor] = []
    columns: list[torch.Tensor] = []
    with torch.no_grad():
        for queries, key_tiles in query_tiles(problem):
            row = column = None
            for keys in key_tiles or [slice(0, 0)]:
                s = score_tile(problem, block(problem, queries, keys), queries, keys).scores
                more_row, more_column = reached(problem, s, queries, keys)
                row = more_row if row is None else row + more_row
                column = more_column if column is None else column + more_column
            rows += [] if row is None else [row]
            columns += [] if column is None else [column]
    return torch.cat(rows, -2) if rows else None, torch.cat(columns, -2) if columns else None


def _spoiled(problem: Problem, weight_sum: torch.Tensor, value_sum: torch.Tensor) -> Tensors:
    """The sums with NaN or inf where something non-finite is seen."""
    return spoil(torch, (weight_sum, value_sum), *_seen(problem))
