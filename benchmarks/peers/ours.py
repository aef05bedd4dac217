"""Ours, by its front door."""

from __future__ import annotations

import torch

import regard as rg
from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool
from benchmarks.formulas import BANDWIDTHS


class Ours:
    name = "ours"
    title = "Regard"
    how = "`rg.attention_pool`, with the engine that it chooses; `rg.NadarayaWatsonRegressor` for bandwidths."
    compiles = False

    def cannot(self, case: Case) -> str | None:
        return None

    def pool(self, case: Case) -> Pool:
        def selected(given: Inputs) -> torch.Tensor:
            key, value = (given[name].numpy() for name in ("key", "value"))
            model = rg.NadarayaWatsonRegressor(engine=case.engine, random_state=0).fit(key, value[:, 0])
            return torch.from_numpy(model.bandwidth_)

        def pooled(given: Inputs) -> torch.Tensor:
            out = rg.attention_pool(*arguments(case, given), engine=case.engine, rtol=case.rtol)
            return torch.from_numpy(out) if case.library == "numpy" else out

        return selected if case.select else pooled


def arguments(case: Case, given: Inputs) -> tuple:
    """Query, key, value and score, of the library of the case."""
    if case.library == "numpy":
        given = {name: x.numpy() for name, x in given.items()}
    weights = [given[name] for name in ("query_weight", "key_weight", "value_weight") if name in given]
    bandwidth = [BANDWIDTHS[case.score]] if case.score in BANDWIDTHS else []
    makers = {**rg.SCORES, "dot_product": rg.ScaledDotProduct}
    return given["query"], given["key"], given["value"], makers[case.score](*bandwidth, *weights)


def chosen(case: Case, given: Inputs) -> str:
    """The engine that "auto" takes."""
    return rg.choose_engine(*arguments(case, given), rtol=case.rtol).name if case.engine == "auto" else case.engine
