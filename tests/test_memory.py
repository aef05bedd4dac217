"""Memory of the tiled engine is O((Q + K) D + tile), forward and backward: twice the pairs each way, twice at most."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg

BUDGET = 40_000  # numbers in a tile: 320 kB, so that what is not a tile shows


def additive(hidden: int = 5) -> rg.Score:
    rng = np.random.default_rng(0)
    return rg.Additive(rng.normal(size=(hidden, 3)), rng.normal(size=(hidden, 3)), rng.normal(size=hidden))


SCORES = {"gaussian": rg.Gaussian(1.1), "dot_product": rg.ScaledDotProduct(), "additive": additive()}
# what goes along: each way of saying something about pairs that is not an array of all pairs
OPTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing": lambda n: {},
    "dropout": lambda n: {"dropout": 0.5, "seed": 1},
    "bias": lambda n: {"bias": np.linspace(-1, 1, n)},
    "row_of_keys": lambda n: {"mask": np.arange(n)[None] % 3 > 0},
    "column_of_queries": lambda n: {"mask": np.arange(n)[:, None] % 3 > 0},
    "causal": lambda n: {"mask": rg.Causal()},
    "segments": lambda n: {"mask": rg.Segments(np.arange(n) // 100)},
    "combined": lambda n: {"mask": ~rg.Window(5, 5) & (rg.Causal() | rg.NotSelf()) & rg.ValidLength(n - 1)},
    "bad_value": lambda n: {"bias": np.where(np.arange(n) == n // 2, np.nan, 0.0)},
}


def arrays(n: int, dtype: Any = np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    return [rng.normal(size=(n, d)).astype(dtype) for d in (3, 3, 2)]


def peak(run: Callable[[], Any]) -> int:
    """The most bytes that NumPy held at once above what was there before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def tiles_of_a_third_of_a_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.problem.BUDGET", BUDGET)
    monkeypatch.setattr("regard.masks.base.TILE", 128)


CASES = [("gaussian", o) for o in OPTIONS] + [
    ("dot_product", "nothing"),
    ("additive", "nothing"),
    ("additive", "causal"),
]


@pytest.mark.usefixtures("tiles_of_a_third_of_a_megabyte")
@pytest.mark.parametrize(("score", "option"), CASES)
def test_numpy_holds_what_is_linear_and_a_tile(score, option):
    def run(n: int) -> int:
        given, options = arrays(n), OPTIONS[option](n)
        return peak(lambda: rg.attention_pool_gradients(1.0, *given, SCORES[score], engine="tiled", **options))

    n = 1009
    small, large = run(n), run(2 * n)
    assert large < 2 * small
    assert large < (2 * n) ** 2 * 8 / 8  # all scores at once would be 33 MB


@pytest.mark.usefixtures("tiles_of_a_third_of_a_megabyte")
def test_the_reference_does_hold_all_pairs():
    """What the test above would measure if an engine held all scores."""
    given = arrays(1009)
    assert peak(lambda: rg.attention_pool(*given, SCORES["gaussian"], engine="reference")) > 1009**2 * 8


class Largest(TorchDispatchMode):
    """Remembers the largest number of entries that any torch operation put out."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor):
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.element_size())
        return out


@pytest.mark.usefixtures("tiles_of_a_third_of_a_megabyte")
@pytest.mark.parametrize(("score", "option"), CASES)
def test_torch_never_makes_an_array_of_all_pairs(score, option):
    """In the forward, the backward, and the backward of the backward."""
    n = 499
    given = [torch.tensor(x, requires_grad=True) for x in arrays(n)]
    options = OPTIONS[option](n)
    if "bias" in options:
        options["bias"] = torch.as_tensor(options["bias"])
    with Largest() as largest:
        out = rg.attention_pool(*given, SCORES[score], engine="tiled", **options)
        grads = torch.autograd.grad(out.nansum(), given, create_graph=True)
        sum(g.nan_to_num().square().sum() for g in grads).backward()
    assert largest.entries <= BUDGET < n * n / 6


PROGRAM = """
import resource, sys
import torch
import regard as rg

torch.set_num_threads(1)  # another test may run beside this one

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def run(n):
    query, key, value = (torch.randn(n, d, requires_grad=True) for d in (24, 16, 8))
    {score}
    rg.attention_pool(query, key, value, score, engine="tiled").square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (query, key, value))

torch.manual_seed(0)
run(50)
before = most()
run({n})
print(most() - before)
"""


def resident(score: str, n: int) -> int:
    """By how many bytes the peak of a process grows through a forward and a backward."""
    pytest.importorskip("resource", reason="only POSIX tells a process its peak memory")
    program = PROGRAM.format(score=score, n=n)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_torch_keeps_no_tile():
    """All float32 scores of this pooling take 1.07 GB; what autograd keeps is linear."""
    n = 16_384
    grown = resident("score = rg.Bilinear(torch.randn(24, 16) / 20)", n)
    assert grown < 16_384**2 * 4 / 8


def test_additive_4096_by_4096_with_256_hidden_units_fits_into_a_gigabyte():
    """The tensor of all pairs and hidden units would take 17 GB in float32."""
    score = """weights = [torch.randn(256, 24) / 5, torch.randn(256, 16) / 4, torch.randn(256) / 16]
    score = rg.Additive(*(w.requires_grad_() for w in weights))"""
    assert resident(score, 4096) < 1e9
