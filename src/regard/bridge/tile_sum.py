"""Sums over tiles, differentiable to any order in O(tile) memory.

A sum over tiles is a function of cut tensors, summed over the tiles. Its vector-Jacobian product is again such a sum,
and so is its Jacobian-vector product: derivatives of every order need no more memory than a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.bridge.batched import Tensors, in_front, widened
from regard.problem import Problem, put, query_tiles, take


@dataclass(frozen=True, eq=False)
class Plan:
    """``function(queries, keys, *cut tensors) -> cut outputs``; an output is like the input of number ``outputs[n]``.

    One opaque argument: torch.func would flatten a tuple. ``fast`` computes the whole sum at once where an engine can.
    """

    problem: Problem
    function: Callable[..., Tensors]
    labels: tuple[str, ...]  # how each input is cut, see regard.problem.take
    outputs: tuple[int, ...]
    fast: Callable[..., Tensors] | None = None

    def run(self, *tensors: torch.Tensor) -> Tensors:
        """The sum over all tiles."""
        if self.fast is not None:
            return self.fast(*tensors)
        sums = [torch.zeros_like(tensors[n]) for n in self.outputs]
        for queries, key_tiles in query_tiles(self.problem):
            for keys in key_tiles:
                parts = [take(x, label, queries, keys) for x, label in zip(tensors, self.labels, strict=True)]
                for total, n, part in zip(sums, self.outputs, self.function(queries, keys, *parts), strict=True):
                    put(total, self.labels[n], queries, keys, part)
        return tuple(sums)

    def batched(self, batch: int) -> Plan:
        """The plan of the same sum for a batch, the first axis of each tensor that has it, in full rank."""
        return replace(self, problem=widened(self.problem, batch), fast=None)

    def vjp(self, wanted: tuple[int, ...]) -> Plan:
        """The plan of the gradients to the wanted inputs: of the inputs and then the outputs' cotangents."""
        count = len(self.labels)

        def function(queries: slice, keys: slice, *xs: torch.Tensor) -> Tensors:
            inner = _of(self.function, queries, keys, xs[:count], wanted)
            pulled: Tensors = torch.func.vjp(inner, *(xs[n] for n in wanted))[1](xs[count:])
            return pulled

        return Plan(self.problem, function, self.labels + tuple(self.labels[n] for n in self.outputs), wanted)

    def jvp(self, moving: tuple[int, ...]) -> Plan:
        """The plan of the outputs' tangents: of the inputs and then the tangents of the moving ones."""
        count = len(self.labels)

        def function(queries: slice, keys: slice, *xs: torch.Tensor) -> Tensors:
            inner = _of(self.function, queries, keys, xs[:count], moving)
            primals = tuple(xs[n] for n in moving)

            def pull(*cotangents: torch.Tensor) -> Tensors:
                pulled: Tensors = torch.func.vjp(inner, *primals)[1](cotangents)
                return pulled

            # dual numbers do not nest; a pull-back is linear, and its own pull-back is the push-forward
            zeros = tuple(torch.zeros_like(y) for y in inner(*primals))
            pushed: Tensors = torch.func.vjp(pull, *zeros)[1](xs[count:])
            return pushed

        return Plan(self.problem, function, self.labels + tuple(self.labels[n] for n in moving), self.outputs)


def _of(
    function: Callable[..., Tensors], queries: slice, keys: slice, xs: Tensors, which: tuple[int, ...]
) -> Callable[..., Tensors]:
    """The function of some of its inputs."""

    def inner(*some: torch.Tensor) -> Tensors:
        full = list(xs)
        for n, x in zip(which, some, strict=True):
            full[n] = x
        return tuple(function(queries, keys, *full))

    return inner


class TileSum(torch.autograd.Function):
    """A plan's sum as a torch operation; its derivatives are TileSums."""

    @staticmethod
    def forward(plan: Plan, *xs: torch.Tensor) -> Tensors:
        return plan.run(*xs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.plan, *xs = inputs
        ctx.save_for_backward(*xs)
        ctx.save_for_forward(*xs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        xs = ctx.saved_tensors
        wanted = tuple(n for n in range(len(xs)) if ctx.needs_input_grad[1 + n])
        got = dict(zip(wanted, TileSum.apply(ctx.plan.vjp(wanted), *xs, *grads), strict=True))
        return None, *(got.get(n) for n in range(len(xs)))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> Tensors:
        xs = ctx.saved_tensors
        moving = tuple(n for n, t in enumerate(tangents) if t is not None)
        pushed: Tensors = TileSum.apply(ctx.plan.jvp(moving), *xs, *(t for t in tangents if t is not None))
        return pushed

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], plan: Plan, *xs: torch.Tensor) -> tuple[Tensors, tuple[int, ...]]:
        moved = in_front(plan.problem, xs, in_dims[1:], info.batch_size)
        sums = TileSum.apply(plan.batched(info.batch_size), *moved)
        own = [
            x.shape if axis is None else x.movedim(axis, 0).shape[1:] for x, axis in zip(xs, in_dims[1:], strict=True)
        ]
        out = tuple(s.reshape(info.batch_size, *own[n]) for s, n in zip(sums, plan.outputs, strict=True))
        return out, (0,) * len(out)
