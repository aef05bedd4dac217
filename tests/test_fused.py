"""What is particular to the fused engine: threads, processes, the disk cache, and the forms of the additive pairing."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
import torch

import regard as rg
from regard.compiled import maths, threads

Q, K, V = 83, 1117, 3


def problem(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype(dtype) for s in ((Q, 2), (K, 2), (K, V)))


def pooled(seed=0):
    return rg.attention_pool(*problem(seed=seed), rg.Gaussian(0.3), engine="fused")


@pytest.mark.parametrize("mask", [None, rg.Window(40, 17, offset=3), rg.NotSelf(offset=0), rg.ValidLength(531)])
def test_results_are_bit_identical_for_any_number_of_threads(monkeypatch, mask):
    query, key, value = problem(np.float32)
    found = []
    for count in ("1", "2", "3", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        assert threads.thread_count() == int(count)
        out, grads = rg.attention_pool_gradients(
            np.ones((Q, V), np.float32), query, key, value, rg.Gaussian(0.3), mask=mask, engine="fused"
        )
        found.append([out, *grads[:3], grads.score["bandwidth"]])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_number_of_threads_is_torchs_own_unless_the_environment_says_more(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert threads.thread_count() == 3
    finally:
        torch.set_num_threads(before)


def test_calls_from_many_threads_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    expected = [pooled(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as callers:
        for _ in range(5):
            for mine, theirs in zip(callers.map(pooled, range(6)), expected, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def _child(queue):
    queue.put(pooled())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the warning of what is tested here
def test_a_forked_child_has_threads_of_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    expected = pooled()  # the parent's threads are running
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    np.testing.assert_array_equal(got, expected)
    assert child.exitcode == 0


def test_a_fresh_process_gets_the_same_numbers(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    code = "import sys, numpy as np, regard as rg\n"
    code += "rng = np.random.default_rng(0)\n"
    code += f"q, k, v = (rng.normal(size=s) for s in (({Q}, 2), ({K}, 2), ({K}, {V})))\n"
    code += "sys.stdout.buffer.write(rg.attention_pool(q, k, v, rg.Gaussian(0.3), engine='fused').tobytes())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    np.testing.assert_array_equal(np.frombuffer(out).reshape(Q, V), pooled())


SCRIPT = """
import sys
import numpy as np, regard as rg
rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=s) for s in ((5, 2), (7, 2), (7, 3)))
a = rg.attention_pool(q, k, v, rg.Gaussian(0.3), engine=sys.argv[1])
b = rg.attention_pool(q, k, v, rg.Gaussian(0.3), engine="reference")
assert np.allclose(a, b, rtol=0, atol=1e-14)
many = np.zeros((1200, 2))
print(rg.choose_engine(many, many, many, rg.Gaussian(0.3)))
"""


def fresh(**environment):
    """A fresh process that pools once, without a warning."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, "fused"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    fresh(NUMBA_CACHE_DIR=str(blocked / "cache"))


def test_a_corrupt_cache_is_no_error_and_a_cache_is_used(tmp_path):
    fresh(NUMBA_CACHE_DIR=str(tmp_path))
    files = [f for f in tmp_path.rglob("*") if f.is_file()]
    assert {f.suffix for f in files} == {".nbi", ".nbc"}
    stamps = {f: f.stat().st_mtime_ns for f in files}
    fresh(NUMBA_CACHE_DIR=str(tmp_path))
    assert {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()} == stamps  # nothing was compiled
    for f in files:
        f.write_bytes(b"rubbish")
    fresh(NUMBA_CACHE_DIR=str(tmp_path))


def test_several_processes_fill_one_empty_cache(tmp_path):
    errors = []

    def one():
        try:
            fresh(NUMBA_CACHE_DIR=str(tmp_path))
        except AssertionError as error:
            errors.append(error)

    started = [threading.Thread(target=one) for _ in range(3)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    assert errors == []


NO_NUMBA = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
"""


def test_without_numba_everything_still_works_with_one_warning():
    code = NO_NUMBA + SCRIPT + "rg.choose_engine(many, many, many, rg.Gaussian(0.3))"
    done = subprocess.run([sys.executable, "-c", code, "auto"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[0] == "tiled: chosen"
    assert "fused: Numba could not be loaded: numba" in shown
    assert done.stderr.count("UserWarning: the fused engine is off, since Numba could not be loaded: numba") == 1


@pytest.mark.parametrize("size", [1e-4, 1e-2, 0.3, 1.0, 6.0, 30.0, 1e4, "mixed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_additive_scores_of_any_size_are_as_exact_as_eager_torch(size, dtype):
    """Scores, pooled values and gradients, within 1.1 times the error of eager torch and 4 units in the last place."""
    hidden, kind = 37, getattr(torch, dtype)
    eps = torch.finfo(kind).eps
    ours, theirs = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scale = np.geomspace(1e-4, 1e4, Q)[:, None] if size == "mixed" else size
        wide = [
            torch.tensor(x).to(kind)
            for x in (
                rng.normal(size=(Q, hidden)) * scale,
                rng.normal(size=(211, hidden)) * (1 if size == "mixed" else size),
            )
        ]
        v = torch.tensor(rng.normal(size=hidden) / 4).to(kind)
        value, cotangent = (torch.tensor(rng.normal(size=s)).to(kind) for s in ((211, V), (Q, V)))
        identity = torch.eye(hidden, dtype=torch.float64)

        def run(how, to, wide=wide, v=v, value=value, cotangent=cotangent, identity=identity):
            a, b, w, y = (x.to(to).requires_grad_() for x in (*wide, v, value))
            e = identity.to(to)
            out = how(a, b, w, y, e)
            return [
                out.detach().double(),
                *(g.double() for g in torch.autograd.grad(out, (a, b, w, y), cotangent.to(to))),
            ]

        def fused(a, b, w, y, e):
            return rg.attention_pool(a, b, y, rg.Additive(e, e, w), engine="fused")

        def eager(a, b, w, y, e):
            return torch.softmax(torch.tanh(a[:, None] + b) @ w, -1) @ y

        truth = run(eager, torch.float64) if dtype == "float32" else long_double(wide, v, value, cotangent)
        for errors, found in ((ours, run(fused, kind)), (theirs, run(eager, kind))):
            errors.append(
                [float((x - y).abs().max() / (y.abs().max() + 1e-300)) for x, y in zip(found, truth, strict=True)]
            )
    for mine, peer in zip(np.median(ours, 0), np.median(theirs, 0), strict=True):
        assert mine <= 1.1 * peer + 4 * eps


def long_double(wide, v, value, cotangent):
    """Pooled values and gradients in long double, returned in float64."""
    a, b, v, y, g = (x.numpy().astype(np.longdouble) for x in (*wide, v, value, cotangent))
    t = np.tanh(a[:, None] + b)
    s = t @ v
    w = np.exp(s - s.max(1, keepdims=True))
    w /= w.sum(1, keepdims=True)
    out = w @ y
    to_s = w * (g @ y.T - (g * out).sum(1, keepdims=True))
    to_t = to_s[..., None] * v * (1 - t * t)
    found = out, to_t.sum(1), to_t.sum(0), np.einsum("qk,qkh->h", to_s, t), w.T @ g
    return [torch.tensor(x.astype(np.float64)) for x in found]


@pytest.mark.parametrize("mask", [None, rg.Causal(), rg.Segments(np.arange(6007) // 100) | rg.NotSelf()])
def test_no_array_of_all_pairs_is_ever_held(mask):
    x = np.random.default_rng(0).normal(size=(6007, 2))

    def run():
        rg.attention_pool_gradients(np.ones_like(x), x, x, x, rg.Gaussian(0.5), mask=mask, engine="fused")

    run()  # compiled, and its threads started
    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] < 6007**2 / 2  # one byte a pair would be twice that
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp2_is_exact_to_a_rounding_and_ends_in_zero(dtype):
    real = np.dtype(dtype).type
    exp2 = maths.exp2_32 if dtype == "float32" else maths.exp2_64
    least = {"float32": -125.5, "float64": -1021.5}[dtype]
    rng = np.random.default_rng(0)
    points = [*rng.uniform(least, 0, 400), *rng.uniform(-2, 2, 400), *range(-40, 5), *(-n - 0.5 for n in range(9))]
    with mpmath.workdps(30):
        for t in map(real, points):
            exact = mpmath.power(2, mpmath.mpf(float(t)))
            assert abs(float(exp2(t)) / exact - 1) <= 0.75 * np.finfo(dtype).eps, t  # a rounding, and a bit of another
    assert exp2(real(0)) == 1
    assert exp2(real(least * 1.001)) == exp2(real(-1e30)) == exp2(real(-np.inf)) == 0
    assert np.isnan(exp2(real(np.nan)))


@pytest.mark.parametrize(
    "score", [rg.Triweight(1.0), rg.Tricube(1.0), rg.Cauchy(1e-7), rg.Cauchy(1e-12), rg.Uniform(1.0)]
)
@pytest.mark.parametrize("scale", [1.0, 1e-33])
def test_far_keys_keep_their_weights_where_kernels_are_summed_as_they_stand(score, scale):
    rng = np.random.default_rng(0)
    near_edge = 1 - np.array([1e-1, 1e-2, 1e-3, 1e-5, 1e-6])
    query = np.concatenate([near_edge, [0.3, 5.0, 2e3]]).astype(np.float32)[:, None]
    key = np.concatenate([np.zeros(3), rng.uniform(-1e-7, 0, 40)]).astype(np.float32)[:, None]
    value = (scale * rng.normal(size=(43, 2))).astype(np.float32)
    expected = rg.attention_pool(query, key, value, score, engine="reference")
    got = rg.attention_pool(query, key, value, score, engine="fused")
    assert np.abs(expected[:5]).min() > 0
    np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=2e-5)  # of 1 - u near the edge
    partial = rg.partial_pool(query, key, value, score, engine="fused")
    other = rg.partial_pool(query, key, value, score, engine="reference")
    np.testing.assert_allclose(partial.log_weight_sum, other.log_weight_sum, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 1e-25, 1e25])
def test_additive_value_weights_of_any_size(size):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=s).astype(np.float32) for s in ((5, 24), (41, 24), (41, 2)))
    weight = (rng.normal(size=24) * size).astype(np.float32)
    weight[:8] = 0  # a block without any
    weight[9] = min(size, 1e-3)
    eye = np.eye(24, dtype=np.float32)
    score = rg.Additive(eye, eye, weight)
    got = rg.attention_pool(query, key, value, score, engine="fused")
    np.testing.assert_allclose(got, rg.attention_pool(query, key, value, score, engine="reference"), rtol=0, atol=2e-6)


@pytest.mark.parametrize("features", range(1, 10))
@pytest.mark.parametrize("score", [rg.Gaussian(1.5), rg.RationalQuadratic(1.5, alpha=2.0), 0.5 * rg.Gaussian(1.5)])
def test_every_number_of_features_and_columns(score, features):
    rng = np.random.default_rng(features)
    query, key, value = (rng.normal(size=s) for s in ((11, features), (37, features), (37, features)))
    grad = rng.normal(size=(11, features))
    out, got = rg.attention_pool_gradients(grad, query, key, value, score, engine="fused")
    expected_out, expected = rg.attention_pool_gradients(grad, query, key, value, score, engine="reference")
    np.testing.assert_allclose(out, expected_out, rtol=0, atol=1e-14)
    for a, b in zip((*got[:3], *got.score.values()), (*expected[:3], *expected.score.values()), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
