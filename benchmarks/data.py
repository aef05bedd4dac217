"""The numbers of a case, its exact answer, and how far an answer is from it."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.cases import Case
from benchmarks.formulas import plainly, scaled

Tensor = torch.Tensor
Inputs = dict[str, Tensor]  # query, key, value, and the parameters of the score
Pool = Callable[[Inputs], Tensor]
SAMPLE = 64  # queries whose answers are compared


def inputs_of(case: Case) -> Inputs:
    """Standard normal arrays; weights that make the projections of the additive score as large as the case says."""
    torch.manual_seed(zlib.crc32(f"{case.score} {case.dim}".encode()))
    shapes = {"query": (case.queries, case.dim), "key": (case.keys, case.dim), "value": (case.keys, case.values)}
    made = {name: torch.randn(*case.lead, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    if case.spread:
        made |= {name: torch.rand(*made[name].shape, dtype=torch.float64) * case.spread for name in ("query", "key")}
    if case.hidden:
        scale = case.size / case.dim**0.5
        made["query_weight"], made["key_weight"] = torch.randn(2, case.hidden, case.dim, dtype=torch.float64) * scale
        made["value_weight"] = torch.randn(case.hidden, dtype=torch.float64) / case.hidden**0.5
    if case.select:  # something to be found
        made["value"] = torch.sin(2 * made["key"][:, :1]) + 0.3 * made["value"]
    dtype = getattr(torch, case.dtype)
    return {name: x.to(dtype).requires_grad_(case.backward) for name, x in made.items()}


def cotangent_of(case: Case, rows: Tensor | None = None) -> Tensor | None:
    """What is pulled back, or None if the case has no backward; 0 outside the rows if there are any."""
    if not case.backward:
        return None
    torch.manual_seed(1)
    whole = torch.randn(*case.lead, case.queries, case.values, dtype=torch.float64).to(getattr(torch, case.dtype))
    if rows is None:
        return whole
    sparse = torch.zeros_like(whole)
    sparse[..., rows, :] = whole[..., rows, :]
    return sparse


def run(pool: Pool, inputs: Inputs, cotangent: Tensor | None) -> list[Tensor]:
    """The pooled values, and the gradients to all inputs if there is something to pull back."""
    out = pool(inputs)
    if cotangent is None:
        return [out]
    return [out.detach(), *torch.autograd.grad(out, list(inputs.values()), cotangent)]


def sample(case: Case) -> Tensor:
    """The queries that are compared, the first and the last among them."""
    return torch.linspace(0, case.queries - 1, min(SAMPLE, case.queries)).long()


def in_long_double(case: Case, inputs: Inputs, rows: Tensor) -> Tensor:
    """The pooled values of a kernel."""
    if case.score not in ("gaussian", "epanechnikov") or case.backward or case.lead:
        raise NotImplementedError(f"case {case.name} needs an exact answer beyond float64.")
    query, key = (x.numpy().astype(np.longdouble) for x in scaled(case, inputs))
    value, out = inputs["value"].numpy().astype(np.longdouble), []
    for q in query[rows]:
        u = np.square(q - key).sum(-1)
        w = np.exp(-u / 2) if case.score == "gaussian" else np.maximum(1 - u, 0)
        out.append(w @ value / w.sum())
    return torch.from_numpy(np.array(out).astype(np.float64))


class Least:
    """The least leave-one-out error that descents from many bandwidths reach, by a formula written here.

    The error of bandwidths is how much larger a part of it theirs is.
    """

    STARTS, STEPS, LIMIT = 12, 60, 1e-5

    def __init__(self, inputs: Inputs) -> None:
        self.key, self.value, self.cotangent, self.limits = inputs["key"], inputs["value"], None, [self.LIMIT]
        torch.manual_seed(2)
        spread = self.key.std(0)
        starts = (torch.rand(self.STARTS, len(spread), dtype=torch.float64) * 5 - 3.5).exp() * spread
        self.least = min(self._descend(start) for start in starts)

    def of(self, bandwidth: Tensor) -> Tensor:
        """The mean squared error of each value by the others."""
        key = self.key / bandwidth
        u = (key[:, None] - key).square().sum(-1)
        w = torch.softmax((-u / 2).fill_diagonal_(-torch.inf), -1)
        return (w @ self.value - self.value).square().mean()

    def _descend(self, start: Tensor) -> float:
        log = start.log().requires_grad_()
        optimiser = torch.optim.LBFGS([log], max_iter=self.STEPS, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            error = self.of(log.exp())
            error.backward()
            return error

        optimiser.step(closure)
        return float(self.of(log.detach().exp()))

    def errors(self, found: list[Tensor]) -> list[float]:
        """Of the bandwidths that were found."""
        return [float(self.of(found[0].double())) / self.least - 1]

    def right(self, errors: list[float]) -> bool:
        """Nothing much lower is known; NaN is wrong."""
        return errors[0] <= self.LIMIT


class Answer:
    """The exact answer for a sample of queries, and the error that eager torch makes there in the case's dtype.

    Exact means float64, from differences, by formulas written here; for float64 it means long double. The cotangent of
    the check is 0 for all other queries, so that the gradients to keys, values and parameters are those of the sample.
    """

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self.case, self.rows = case, sample(case)
        self.cotangent = cotangent_of(case, self.rows)
        self.most = float(inputs["value"].detach().abs().max())
        wide = case.dtype == "float64"
        self.exact = [in_long_double(case, inputs, self.rows)] if wide else self._of_sample(inputs, torch.float64)
        if case.rtol:  # all pairs of the sample would not fit
            self.limits = [case.rtol]
            return
        inside = torch.float64 if wide else torch.float32  # what half precision is computed in
        eager = [x.to(getattr(torch, case.dtype)) for x in self._of_sample(inputs, inside)]
        least = 4 * torch.finfo(inside).eps
        self.limits = [10 * error + least for error in self._errors(eager)]

    def _of_sample(self, inputs: Inputs, dtype: torch.dtype) -> list[Tensor]:
        cut = {name: x.detach()[..., self.rows, :] if name == "query" else x.detach() for name, x in inputs.items()}
        cut = {name: x.to(dtype).requires_grad_(self.case.backward) for name, x in cut.items()}
        pulled = None if self.cotangent is None else self.cotangent[..., self.rows, :].to(dtype)
        return run(lambda given: plainly(self.case, given), cut, pulled)

    def _errors(self, found: list[Tensor]) -> list[float]:
        """max |out - exact| / max |value|; of a gradient max |it - exact| / max |exact|."""
        scales = [self.most, *(float(x.abs().max()) for x in self.exact[1:])]
        differences = [(a.double() - b).abs().max() for a, b in zip(found, self.exact, strict=True)]
        return [float(d) / (scale or 1.0) for d, scale in zip(differences, scales, strict=True)]

    def errors(self, found: list[Tensor]) -> list[float]:
        """The errors of an answer for all queries, at the sample."""
        wanted = (*self.case.lead, self.case.queries, self.case.values)
        if tuple(found[0].shape) != wanted:
            raise ValueError(f"it answered with an array {tuple(found[0].shape)}; {wanted} was asked for.")
        by_query = (found[0], *found[1:2])
        return self._errors([*(x[..., self.rows, :] for x in by_query), *found[2:]])

    def right(self, errors: list[float]) -> bool:
        """No error is over ten times that of eager torch and 4 units in the last place; NaN is."""
        return all(error <= limit for error, limit in zip(errors, self.limits, strict=True))


def answer_of(case: Case, inputs: Inputs) -> Answer | Least:
    """What the answers to a case are compared with."""
    return Least(inputs) if case.select else Answer(case, inputs)
