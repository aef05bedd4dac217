"""Memory of all but the reference is O((Q + K) D + tile), forward and backward: twice the rows, twice at most."""

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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("score", "option"), CASES)
def test_the_fused_engine_holds_what_is_linear(score, option, threads):
    def run(n: int) -> int:
        given, options = arrays(n), OPTIONS[option](n)
        options |= {"engine": "fused", "threads": threads}
        return peak(lambda: rg.attention_pool_gradients(1.0, *given, SCORES[score], **options))

    n = 2999
    run(n)  # compiled
    small, large = run(n), run(2 * n)
    assert large < 2 * small + 200_000  # which threads do their jobs at once is not always the same
    assert large < (2 * n) ** 2 / 2  # half a byte a pair


@pytest.mark.parametrize("score", [rg.ScaledDotProduct(), rg.Gaussian(1.1)])
def test_the_fused_engine_holds_grouped_keys_once_and_heads_only_while_it_works_on_them(score):
    batch, heads, queries, keys, dim = 2, 16, 29, 4099, 32
    rng = np.random.default_rng(0)
    query = rng.normal(size=(batch, heads, queries, dim))
    key, value = rng.normal(size=(2, batch, 1, keys, dim))
    options = {"engine": "fused", "threads": 1}
    rg.attention_pool_gradients(1.0, query, key, value, score, **options)  # compiled
    rg.attention_pool(query, key, value, score, **options)
    both = key.nbytes + value.nbytes
    # prepared and transposed: nothing per query head, of which there are 16
    assert peak(lambda: rg.attention_pool(query, key, value, score, **options)) < 2.5 * both
    assert peak(lambda: rg.attention_pool_gradients(1.0, query, key, value, score, **options)) < 5 * both
    # a part of the gradients of each of 32 heads at once would be four times as much
    key, value = (np.broadcast_to(x, (batch, heads, keys, dim)).copy() for x in (key, value))
    both = key.nbytes + value.nbytes
    assert peak(lambda: rg.attention_pool_gradients(1.0, query, key, value, score, **options)) < 4 * both


@pytest.mark.parametrize("option", ["bias", "mask"])
def test_the_fused_engine_takes_fewer_queries_at_once_where_there_are_many_keys(option):
    """Where a job has an array of its pairs: of the mask, or of the gradient of the bias."""
    queries, keys = 2003, 40_009
    given = arrays(keys)
    mask = rg.Segments(np.arange(queries) // 10, np.arange(keys) // 200) | rg.NotSelf(offset=0)  # no range of keys
    options = OPTIONS["bias"](keys) if option == "bias" else {"mask": mask}
    options |= {"engine": "fused", "threads": 1}

    def run() -> None:
        rg.attention_pool_gradients(1.0, given[0][:queries], *given[1:], SCORES["gaussian"], **options)

    run()  # compiled
    assert peak(run) < queries * keys / 3  # the smallest array of as many pairs as a job has queries else, and all keys


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
    rg.attention_pool(query, key, value, score, engine="{engine}").square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (query, key, value))

torch.manual_seed(0)
run(50)
before = most()
run({n})
print(most() - before)
"""


def resident(score: str, n: int, engine: str = "tiled") -> int:
    """By how many bytes the peak of a process grows through a forward and a backward."""
    pytest.importorskip("resource", reason="only POSIX tells a process its peak memory")
    program = PROGRAM.format(score=score, n=n, engine=engine)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_torch_keeps_no_tile():
    """All float32 scores of this pooling take 1.07 GB; what autograd keeps is linear."""
    n = 16_384
    grown = resident("score = rg.Bilinear(torch.randn(24, 16) / 20)", n)
    assert grown < 16_384**2 * 4 / 8


ADDITIVE = """weights = [torch.randn(256, 24) / 25, torch.randn(256, 16) / 16, torch.randn(256) / 16]
    score = rg.Additive(*(w.requires_grad_() for w in weights))"""


def test_additive_4096_by_4096_with_256_hidden_units_fits_into_a_gigabyte():
    """The tensor of all pairs and hidden units would take 17 GB in float32."""
    assert resident(ADDITIVE, 4096) < 1e9


def test_the_fused_engine_does_it_in_a_quarter_of_a_gigabyte():
    assert resident(ADDITIVE, 4096, "fused") < 256e6
