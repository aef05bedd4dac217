"""Threads, processes, interrupts and the disk cache of the fused engine, and what it does where Numba is broken."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import dask
import joblib
import numpy as np
import pytest
import torch

import regard as rg
from regard.compiled import compiling, threads
from regard.engines.fused import engine
from regard.estimators.inputs import threads_of
from regard.pooling import _Call

Q, K, V = 83, 1117, 3


def arrays(seed=0, queries=Q, keys=K, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s).astype(dtype) for s in ((queries, 2), (keys, 2), (keys, V)))


def pooled(seed=0, **options):
    return rg.attention_pool(*arrays(seed), rg.Gaussian(0.3), engine="fused", **options)


def everything(count, *given, **options):
    """All that the engine can be asked for, on so many threads."""
    query, key, _ = given
    score = rg.Gaussian(0.3)
    options |= {"engine": "fused", "threads": count}
    out, grads = rg.attention_pool_gradients(np.cos, *given, score, **options)
    options.pop("dropout", None), options.pop("seed", None)
    return [
        out,
        *grads[:3],
        *([] if grads.bias is None else [grads.bias]),
        *grads.score.values(),
        rg.attention_weights(query, key, score, **options),
        *rg.top_attention(query, key, score, n=7, **options),
    ]


def fresh(code, *arguments, python=(), **environment):
    """What a fresh process printed that ran this code; it must end well."""
    command = [sys.executable, *python, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


# --- how many threads -------------------------------------------------------------------------------------------------
def steps(body):
    """A job of one step."""

    def work(job):
        yield
        return body(job)

    return work


def test_as_many_threads_work_as_were_asked_for():
    together = threading.Barrier(3)
    for _ in range(2):  # the second time with threads that are there
        threads.run(steps(lambda job: together.wait(timeout=20)), range(3), 3)


def test_one_thread_is_the_calling_one():
    seen = []
    threads.run(steps(lambda job: seen.append(threading.get_ident())), range(3), 1)
    assert set(seen) == {threading.get_ident()}


CALLS = {
    "attention_pool": lambda a, **o: rg.attention_pool(*a, rg.Gaussian(0.3), **o),
    "attention_weights": lambda a, **o: rg.attention_weights(*a[:2], rg.Gaussian(0.3), **o),
    "top_attention": lambda a, **o: rg.top_attention(*a[:2], rg.Gaussian(0.3), **o),
    "partial_pool": lambda a, **o: rg.partial_pool(*a, rg.Gaussian(0.3), **o),
    "attention_pool_gradients": lambda a, **o: rg.attention_pool_gradients(1.0, *a, rg.Gaussian(0.3), **o),
}


@pytest.fixture
def asked(monkeypatch):
    """What ``thread_count`` was given, call after call."""
    found = []
    count = threads.thread_count
    monkeypatch.setattr(threads, "thread_count", lambda n=None: found.append(n) or count(n))
    return found


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("count", [5, np.int64(1), None])
def test_the_argument_reaches_the_engine(asked, name, count):
    CALLS[name](arrays(), engine="fused", threads=count)
    assert asked
    assert set(asked) == {count}


def test_the_argument_reaches_the_backward_of_torch(asked):
    query, key, value = (torch.tensor(x, requires_grad=True) for x in arrays())
    out = rg.attention_pool(query, key, value, rg.Gaussian(0.3), engine="fused", threads=3)
    forward = len(asked)
    out.sum().backward()
    assert len(asked) > forward
    assert set(asked) == {3}


@pytest.mark.parametrize("name", sorted(CALLS))
@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2"])
def test_what_is_no_number_of_threads_is_refused(name, count):
    text = f"`threads` must be a whole number of at least 1, or None; got {count!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        CALLS[name](arrays(), threads=count)


def test_the_argument_comes_before_the_environment_and_that_before_torch(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert threads.thread_count(3) == 3
    assert threads.thread_count() == 4
    for nothing in ("", "zero", "0", "-2"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert threads.thread_count() == 5
    monkeypatch.delitem(sys.modules, "torch")
    assert threads.thread_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert threads.thread_count() == os.cpu_count()


@pytest.mark.parametrize(("n_jobs", "count"), [(None, None), (1, 1), (np.int64(3), 3), (-1, 6), (-2, 5), (-9, 1)])
def test_n_jobs_means_what_it_means_to_joblib(monkeypatch, n_jobs, count):
    monkeypatch.setattr("regard.estimators.inputs.cpu_count", lambda: 6)
    assert threads_of(n_jobs) == count


def test_n_jobs_of_none_is_what_the_context_of_joblib_says():
    with joblib.parallel_config(n_jobs=7):
        assert threads_of(None) == 7
        assert threads_of(2) == 2
    with joblib.parallel_config(n_jobs=-1):
        assert threads_of(None) == joblib.cpu_count()


MODELS = {
    "NadarayaWatsonRegressor": lambda **o: rg.NadarayaWatsonRegressor(engine="fused", **o),
    "NadarayaWatsonClassifier": lambda **o: rg.NadarayaWatsonClassifier(engine="fused", **o),
    "AttentionRegressor": lambda **o: rg.AttentionRegressor("gaussian", max_iter=99, engine="fused", **o),
    "AttentionClassifier": lambda **o: rg.AttentionClassifier("gaussian", max_iter=99, engine="fused", **o),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_n_jobs_of_an_estimator_reaches_the_engine_and_may_be_set_after_the_fit(asked, name):
    x = np.random.default_rng(0).normal(size=(30, 2))
    model = MODELS[name](n_jobs=2, random_state=0).fit(x, x[:, 0] > 0)
    assert 2 in asked
    asked.clear()
    model.set_params(n_jobs=3)
    model.predict(x), model.leave_one_out(), model.attention(x)
    assert set(asked) == {3}


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("n_jobs", [0, 1.5, True])
def test_what_is_no_number_of_jobs_is_refused(name, n_jobs):
    text = f"`n_jobs` must be None or a whole number other than 0, such as -1 for all CPUs; got {n_jobs!r}."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        MODELS[name](n_jobs=n_jobs).fit(np.arange(4.0)[:, None], [0, 1, 0, 1])


# --- the same numbers -------------------------------------------------------------------------------------------------
OPTIONS = {
    "nothing": {},
    "window": {"mask": rg.Window(40, 17, offset=300)},
    "not_self": {"mask": rg.NotSelf(offset=0)},
    "array": {"mask": np.random.default_rng(1).uniform(size=(Q, K)) > 0.5},
    "bias": {"bias": np.random.default_rng(1).normal(size=(Q, K))},
    "dropout": {"dropout": 0.5, "seed": 3},
}


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_all_results_are_bit_identical_for_any_number_of_threads_and_however_jobs_are_cut(monkeypatch, option):
    expected = everything(1, *arrays(), **OPTIONS[option])
    for count, work in ((3, engine.WORK), (1, 1), (2, 1)):  # one: a call of a loop for each tile
        monkeypatch.setattr(engine, "WORK", work)
        for a, b in zip(everything(count, *arrays(), **OPTIONS[option]), expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_results_come_in_order_one_at_a_time():
    seen, inside = [], threading.Lock()

    def then(result):
        assert inside.acquire(blocking=False)
        seen.append(result)
        time.sleep(0.001)
        inside.release()

    def slow(job):
        time.sleep(0.02 if job % 5 == 0 else 0)
        return job * job

    threads.run(steps(slow), range(40), 4, then)
    assert seen == [n * n for n in range(40)]


def test_an_error_of_any_thread_ends_the_others_and_is_raised():
    done = []

    def fail(job):
        if job == 3:
            raise ArithmeticError("job 3")
        time.sleep(0.01)
        done.append(job)

    for _ in range(5):  # by the calling thread or by another
        done.clear()
        with pytest.raises(ArithmeticError, match="job 3"):
            threads.run(steps(fail), range(1000), 3)
        assert len(done) < 100
        count = len(done)
        time.sleep(0.03)
        assert len(done) == count  # nothing goes on behind the caller's back
    np.testing.assert_array_equal(pooled(threads=3), pooled(threads=1))


def test_nothing_goes_on_behind_the_back_of_a_caller_that_fails():
    begun, ended = threading.Event(), []

    def body(job):
        if threading.current_thread() is threading.main_thread():
            begun.wait()
            raise ArithmeticError
        begun.set()
        time.sleep(0.1)
        ended.append(job)

    with pytest.raises(ArithmeticError):
        threads.run(steps(body), range(9), 2)
    assert len(ended) == 1


def test_an_interrupt_reaches_a_caller_that_waits_for_the_others():
    begun = threading.Event()

    def work(job):
        if threading.current_thread() is threading.main_thread():
            begun.wait()
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            return
        begun.set()
        for _ in range(1000):
            time.sleep(0.01)
            yield

    start = time.perf_counter()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process that runs tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.run(work, range(2), 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize("work", [1, 1 << 16, 1 << 26])
@pytest.mark.parametrize("mask", [None, rg.Window(7000, 50, offset=9000), rg.Causal(offset=20_000)])
def test_no_call_of_a_loop_is_long_and_together_they_see_all_pairs(monkeypatch, work, mask):
    monkeypatch.setattr(engine, "WORK", work)
    queries, keys = 131, 50_021
    x = np.zeros((keys, 1))
    run = engine.Run(_Call(x[:queries], x, x, rg.Gaussian(1.0), mask, None, "softmax").problem)
    seen = np.zeros((queries, keys), int)
    for job in (run.job(*place) for place in run.places()):
        for (start, stop, *_), i, j in job.pieces():
            low, high = start[i:j].min(), stop[i:j].max()
            assert (high - low) * (j - i) * job.width <= max(work, job.width * engine.TALL * engine.BYTES)
            for n in range(i, j):
                seen[job.queries.start + n, start[n] : stop[n]] += 1
    everything = np.ones((queries, keys), bool)
    expected = everything if mask is None else mask.tile(run.layout, slice(0, queries), slice(0, keys))
    np.testing.assert_array_equal(seen, expected)


def test_the_others_stand_in_the_callers_context():
    with np.errstate(all="raise"):
        with pytest.raises(FloatingPointError):
            threads.run(steps(lambda job: np.float64(1e300) * 1e300), range(8), 4)
        with np.errstate(all="ignore"):
            threads.run(steps(lambda job: np.float64(1e300) * 1e300), range(8), 4)


def test_without_any_thread_to_be_had_the_calling_one_does_it_all(monkeypatch):
    expected = pooled()

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.ThreadPoolExecutor, "submit", refuse)
    np.testing.assert_array_equal(pooled(threads=3), expected)


def test_a_call_at_the_end_of_the_interpreter_still_works():
    code = """if True:
        import atexit, numpy as np, regard as rg
        x = np.ones((900, 2))
        pool = lambda: rg.attention_pool(x, x, x, rg.Gaussian(0.3), engine="fused", threads=2)
        atexit.register(lambda: print(pool().sum()))
        pool()
    """
    assert fresh(code).stdout.strip() == "1800.0"


# --- other people's threads and processes -----------------------------------------------------------------------------
SEEDS = range(6)


@pytest.fixture(scope="module")
def alone():
    return [pooled(seed) for seed in SEEDS]


def test_joblib_threads(alone):
    found = joblib.Parallel(4, backend="threading")(joblib.delayed(pooled)(seed, threads=2) for seed in SEEDS)
    for mine, theirs in zip(found, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_joblib_processes(alone):
    call = joblib.delayed(rg.attention_pool)
    jobs = [call(*arrays(seed), rg.Gaussian(0.3), engine="fused", threads=2) for seed in SEEDS[:2]]
    for mine, theirs in zip(joblib.Parallel(2, backend="loky")(jobs), alone, strict=False):
        np.testing.assert_array_equal(mine, theirs)


def test_dask_threads(alone):
    jobs = [dask.delayed(pooled, pure=False)(seed, threads=2) for seed in SEEDS]
    for mine, theirs in zip(dask.compute(*jobs, scheduler="threads", num_workers=4), alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


LOADER = """
import sys
import numpy as np, torch, regard as rg

class Pooled(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, n):
        rng = np.random.default_rng(n)
        x, y = torch.tensor(rng.normal(size=(700, 2))), torch.tensor(rng.normal(size=(700, 3)), requires_grad=True)
        out = rg.attention_pool(x, x, y, rg.Gaussian(0.3), engine="fused", threads=2)
        out.square().sum().backward()
        return torch.cat([out.detach(), y.grad])

if __name__ == "__main__":
    expected = [Pooled()[n] for n in range(4)]  # the threads of this process are running
    loader = torch.utils.data.DataLoader(
        Pooled(), batch_size=None, num_workers=2, multiprocessing_context=sys.argv[1], persistent_workers=True
    )
    for _ in range(2):
        for mine, theirs in zip(loader, expected, strict=True):
            assert torch.equal(mine, theirs)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(tmp_path, start):
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    command = [sys.executable, str(script), start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr


def _answer(queue):
    compiling.MADE.clear()  # so that it has to take the lock and to load again
    together = threading.Barrier(2)  # two threads of its own
    threads.run(steps(lambda job: together.wait(timeout=20)), range(2), 2)
    queue.put(pooled(threads=2))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the warning of what is tested here
def test_no_fork_falls_into_a_compilation(alone):
    started = threading.Event()

    def compile_for_a_while():
        with compiling.LOCK:
            started.set()
            time.sleep(0.3)

    other = threading.Thread(target=compile_for_a_while)
    pooled(threads=2)  # the threads of this process are running
    other.start()
    started.wait()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_answer, args=(queue,), daemon=True)
    child.start()
    np.testing.assert_array_equal(queue.get(timeout=60), alone[0])
    child.join(60)
    other.join()
    np.testing.assert_array_equal(pooled(threads=2), alone[0])  # the parent's lock is free again


# --- interrupts -------------------------------------------------------------------------------------------------------
INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np

what, count, queries, keys = sys.argv[1], *map(int, sys.argv[2:])
if what == "torch":
    import torch
import regard as rg

def call(queries, keys):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=s) for s in ((queries, 3), (keys, 3), (keys, 2)))
    options = {"engine": "fused", "threads": count}
    if what == "forward":
        return rg.attention_pool(q, k, v, rg.Gaussian(1.0), **options)
    if what == "backward":  # the forward is interrupted below
        return rg.attention_pool_gradients(start, q, k, v, rg.Gaussian(1.0), **options)[1].key
    if what == "top":
        return rg.top_attention(q, k, rg.Gaussian(1.0), **options)[0]
    k = torch.tensor(k, requires_grad=True)
    out = rg.attention_pool(torch.tensor(q), k, torch.tensor(v), rg.Gaussian(1.0), **options)
    start(out)
    out.sum().backward()
    return k.grad.numpy()

begun, sent = threading.Event(), []

def start(out):
    begun.set()
    return 1.0

def interrupt():
    begun.wait()
    time.sleep(0.2)
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

before = call(83, 1117)
begun.clear()
sender = threading.Thread(target=interrupt)
sender.start()
if what in ("forward", "top"):
    begun.set()
try:
    call(queries, keys)
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
else:
    raise SystemExit("it was done before it was interrupted")
working = [t for t in threading.enumerate() if t.name.startswith("regard")]
assert len(working) == count - 1, working
np.testing.assert_array_equal(call(83, 1117), before)
print(time.perf_counter() - sent[0])
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no SIGINT to one process")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("what", "queries", "keys"),
    [
        ("forward", 300_000, 100_000),  # many jobs
        ("forward", 3_000, 3_000_000),  # of which each takes seconds
        ("backward", 8_000, 60_000),
        ("backward", 200, 3_000_000),
        ("torch", 8_000, 60_000),
        ("top", 100_000, 100_000),
    ],
)
def test_an_interrupt_ends_a_long_call_within_a_second_and_the_next_one_is_right(what, count, queries, keys):
    done = fresh(INTERRUPTED, what, str(count), str(queries), str(keys))
    assert float(done.stdout.split()[0]) < 1.0


# --- the disk cache ---------------------------------------------------------------------------------------------------
COMPILES = """
from numba.core import event
import numpy as np, regard as rg
with event.install_recorder("numba:compile") as compiled:
    from regard.engines.fused import engine
    assert not compiled.buffer, "something was compiled by an import"
    x = np.ones((5, 2))
    rg.attention_pool(x, x, x, rg.Gaussian(0.3), engine="fused")
print(len(compiled.buffer))
"""


def test_what_is_corrupt_is_compiled_once_more_and_then_kept(tmp_path):
    """Nothing is compiled by an import, either."""
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}

    def compiled():
        return int(fresh(COMPILES, python=("-W", "error"), **environment).stdout)

    assert compiled() > 0
    assert compiled() == 0
    for ending, left in ((".nbi", b"rubbish"), (".nbc", None)):
        for file in tmp_path.rglob(f"*{ending}"):
            file.write_bytes(file.read_bytes()[:3000] if left is None else left)
        assert compiled() > 0
        assert compiled() == 0


def test_a_full_disk_is_no_error(tmp_path):
    code = """if True:
        from numba.core.caching import IndexDataCacheFile
        def save(self, key, data):
            raise OSError("No space left on device")
        IndexDataCacheFile.save = save
    """
    done = fresh(code + COMPILES, python=("-W", "error"), NUMBA_CACHE_DIR=str(tmp_path))
    assert int(done.stdout) > 0


@pytest.mark.parametrize("text", ["raise ImportError('needs another NumPy')", "raise RuntimeError('is broken')"])
def test_a_numba_that_cannot_be_imported_is_one_warning(tmp_path, text):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text(text)
    code = """if True:
        import numpy as np, regard as rg
        x = np.random.default_rng(0).normal(size=(1200, 2))
        for _ in range(2):
            print(rg.choose_engine(x, x, x, rg.Gaussian(0.3)).name)
            a = rg.attention_pool(x, x, x, rg.Gaussian(0.3))
            b, _ = rg.attention_pool_gradients(1.0, x, x, x, rg.Gaussian(0.3))
            assert np.array_equal(a, b) and np.allclose(a, rg.attention_pool(x, x, x, rg.Gaussian(0.3), engine="tiled"))
        try:
            rg.attention_pool(x, x, x, rg.Gaussian(0.3), engine="fused")
        except ValueError as error:
            print(error)
    """
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = fresh(code, python=("-W", "always"), PYTHONPATH=path)
    why = text.split("'")[1]
    assert done.stdout.splitlines() == [
        "tiled",
        "tiled",
        f'engine "fused" cannot run this: Numba could not be loaded: {why}. Leave engine unset, or use engine="tiled".',
    ]
    assert done.stderr.count("Warning") == 1
    assert f"UserWarning: the fused engine is off, since Numba could not be loaded: {why}" in done.stderr


def test_numba_without_its_compiler_is_no_numba():
    code = """if True:
        import numpy as np, regard as rg
        x = np.zeros((1200, 2))
        print(rg.choose_engine(x, x, x, rg.Gaussian(0.3)))
    """
    done = fresh(code, NUMBA_DISABLE_JIT="1")
    first, *others = done.stdout.splitlines()
    assert first == "tiled: chosen"
    assert "fused: Numba could not be loaded: NUMBA_DISABLE_JIT is set" in others


def test_torchs_threads_are_put_to_sleep_before_several_of_ours_run_and_torch_goes_on(monkeypatch):
    asked, still = [], threads._still()

    def watched():
        asked.append(still())

    def work(job):
        yield

    monkeypatch.setattr(threads, "_still", lambda: watched)
    x = torch.ones(300, 300)
    for count, jobs, forked, times in ((2, 3, False, 1), (1, 3, False, 0), (2, 1, False, 0), (2, 3, True, 0)):
        monkeypatch.setattr(threads, "_forked", forked)  # a child has none of torch's threads, and would wait for them
        asked.clear()
        threads.run(work, range(jobs), count)
        assert len(asked) == times
        assert set(asked) <= {0, None}  # what OpenMP says when it could, and what is said where there is no OpenMP
        assert torch.equal(x @ x, torch.full((300, 300), 300.0))
