"""What several test files share: the cases of the grid, walked from the list of scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.engines import ENGINES
from regard.scores import SCORES
from regard.scores.base import Kernel

torch.set_num_threads(1)  # the cores are pytest-xdist's


@dataclass(frozen=True)
class Case:
    """A score with the sizes of query and key it wants; ``make(convert)`` builds it from converted parameters."""

    name: str
    make: Callable[[Callable[[Any], Any]], rg.Score]
    query_dim: int
    key_dim: int
    data: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] = lambda rng, shape: rng.normal(size=shape)

    @property
    def coded(self) -> bool:
        """Whether query and key are codes, which have no neighbourhood."""
        return self.data is positions

    def arrays(self, seed: int, queries: int, keys: int, values: int, lead: tuple[int, ...] = ()) -> tuple[Any, ...]:
        rng = np.random.default_rng(seed)
        query = self.data(rng, (*lead, queries, self.query_dim))
        key = self.data(rng, (*lead, keys, self.key_dim))
        return query, key, rng.normal(size=(*lead, keys, values))


def positions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(0, 4, size=shape).astype(float)


def mixed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.normal(size=shape)
    x[..., 2] = rng.integers(0, 3, size=shape[:-1])
    return x


def bounded(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-0.9, 2.9, size=shape)


def weight(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# what is not a radial kernel needs parameters of its own; kernels come from the list by themselves
OTHERS = {
    "additive": Case("additive", lambda c: rg.Additive(c(weight(1, 5, 3)), c(weight(2, 5, 2)), c(weight(3, 5))), 3, 2),
    "aitchison_aitken": Case("aitchison_aitken", lambda c: rg.AitchisonAitken(c(0.3), levels=4), 1, 1, positions),
    "beta": Case("beta", lambda c: rg.Beta(c(np.array([0.2, 0.5])), low=-1.0, high=3.0), 2, 2, bounded),
    "bilinear": Case("bilinear", lambda c: rg.Bilinear(c(weight(4, 3, 2))), 3, 2),
    "constant": Case("constant", lambda c: rg.Constant(), 3, 2),
    "cosine_similarity": Case("cosine_similarity", lambda c: rg.CosineSimilarity(c(2.5)), 3, 3),
    "gamma": Case("gamma", lambda c: rg.Gamma(c(np.array([0.2, 0.5])), low=-1.0), 2, 2, bounded),
    "li_racine": Case("li_racine", lambda c: rg.LiRacine(c(0.4)), 1, 1, positions),
    "offset_table": Case("offset_table", lambda c: rg.OffsetTable(c(weight(5, 5, 3))), 2, 2, positions),
    "ordered_li_racine": Case("ordered_li_racine", lambda c: rg.OrderedLiRacine(c(0.7)), 1, 1, positions),
    "scaled_dot_product": Case("scaled_dot_product", lambda c: rg.ScaledDotProduct(c(0.8)), 3, 3),
    "wang_van_ryzin": Case("wang_van_ryzin", lambda c: rg.WangVanRyzin(c(0.6)), 1, 1, positions),
}
KERNELS = {
    name: Case(name, lambda c, score=score: score(c(np.array([2.1, 3.3]))), 2, 2)
    for name, score in SCORES.items()
    if issubclass(score, Kernel)
}
COMPOSED = {
    "product": Case(
        "product",
        lambda c: (
            rg.RationalQuadratic(c(0.9), alpha=c(1.7)).on([0])
            + 0.5 * rg.Tricube(c(3.7)).on([1])
            + rg.AitchisonAitken(c(0.2), levels=3).on([2])
        ),
        3,
        3,
        mixed,
    ),
    "metric": Case("metric", lambda c: rg.Matern32(c(1.3)).through(c(weight(6, 4, 3))), 3, 3),
    "scaled": Case("scaled", lambda c: c(np.array(1.5)) * rg.Cauchy(c(0.8)), 2, 2),
    "capped": Case("capped", lambda c: rg.SoftCap(rg.ScaledDotProduct(c(0.8)), c(1.3)), 3, 3),
    "capped_support": Case(
        "capped_support", lambda c: rg.SoftCap(c(np.array(1.5)) * rg.Tricube(c(3.7)).on([0]), c(1.1)), 2, 2
    ),
}
CASES = {**KERNELS, **OTHERS, **COMPOSED}
assert set(KERNELS) | set(OTHERS) == set(SCORES), "a score that is no kernel needs an entry in OTHERS"


def numpy_front(dtype: str) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x, dtype=dtype)


def torch_front(dtype: str) -> Callable[[Any], Any]:
    return lambda x: torch.as_tensor(np.asarray(x), dtype=getattr(torch, dtype))


FRONTS = {"numpy": numpy_front, "torch": torch_front}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=sorted(KERNELS))
def kernel(request: pytest.FixtureRequest) -> type[Kernel]:
    return SCORES[request.param]


@pytest.fixture(params=sorted(FRONTS))
def front(request: pytest.FixtureRequest) -> Callable[[str], Callable[[Any], Any]]:
    return FRONTS[request.param]


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the cells of the grid that an engine says it cannot run: a score, or a library."""
    gone = [item for item in items if isinstance(item, pytest.Function) and cannot(item)]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in set(gone)]


def cannot(item: pytest.Function) -> bool:
    """Whether the engine of this cell cannot run its score on arrays of its library; what says neither is asked."""
    cell = item.callspec.params if hasattr(item, "callspec") else {}
    name = cell.get("engine")
    if name not in ENGINES or not {"case", "kernel"} & set(cell):
        return False
    fronts = [cell["front"]] if "front" in cell else ["numpy"] if "numpy" in item.name else sorted(FRONTS)
    return all(refuses(name, KERNELS[cell["kernel"]] if "kernel" in cell else CASES[cell["case"]], f) for f in fronts)


@cache
def refuses(engine: str, case: Case, front: str) -> bool:
    """Whether the engine cannot run this score on arrays of this library, by its own word."""
    c = FRONTS[front]("float32")
    try:
        rg.attention_pool(*map(c, case.arrays(0, 3, 5, 2)), case.make(c), engine=engine)
    except ValueError as error:
        return f'engine "{engine}" cannot run this' in str(error)
    return False


@pytest.fixture(autouse=True)
def exact(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws hold the engine of a stated error at its least one; that it keeps the others is tested apart."""
    if getattr(getattr(request.node, "callspec", None), "params", {}).get("engine") == "lowdim":
        monkeypatch.setattr("regard.engines.lowdim.LowDim.rtol", 1e-15)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """A test of an engine that says it cannot run what the test asks is skipped, with the engine's reason."""
    try:
        return (yield)
    except ValueError as error:
        if "engine" in getattr(getattr(item, "callspec", None), "params", ()) and "cannot run this" in str(error):
            pytest.skip(str(error))
        raise


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few pairs, so that a small problem has many, and their borders fit nothing."""
    monkeypatch.setattr("regard.problem.BUDGET", 350)


@pytest.fixture(scope="session")
def to_numpy() -> Callable[[Any], np.ndarray]:
    return lambda x: x.detach().to(torch.float64).numpy() if isinstance(x, torch.Tensor) else np.asarray(x, float)
