"""Prints what limits the compiled loops: the vector operations of their machine code, and how many the processor does.

The limit is the rate of multiply-adds on whole vectors in registers, measured beside each loop, one thread alone and
one per CPU. Operations of a loop are counted in its machine code: those on whole vectors, without moves and loads.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

os.environ["NUMBA_CACHE_DIR"] = tempfile.mkdtemp()  # what comes from the disk does not show its machine code
atexit.register(shutil.rmtree, os.environ["NUMBA_CACHE_DIR"], ignore_errors=True)

from numba import njit  # noqa: E402

from regard.compiled import maths, products, threads  # noqa: E402
from regard.engines.fused import binding  # noqa: E402
from regard.scores import SCORES, Additive  # noqa: E402

LANES = 16  # float32 numbers of a vector
ROUNDS = 9
WORK = 400_000
TILE = 1024  # keys
STORE = re.compile(r"vmov\w+\s+%zmm\d+, .*\(")
LOOPS = {
    "gaussian, d = 1": ("gaussian", 1),
    "gaussian, d = 3": ("gaussian", 3),
    "epanechnikov, d = 3": ("epanechnikov", 3),
    "tricube, d = 3": ("tricube", 3),
    "laplacian, d = 3": ("laplacian", 3),
    "cauchy, d = 3": ("cauchy", 3),
}


@njit(nogil=True, **maths.SUMS)
def multiply_add(a, b, c, times):  # type: ignore[no-untyped-def]
    """16 multiply-adds of vectors for each row of b, ``times`` over."""
    for _ in range(times):
        products.more(a, 0, a.shape[1], 1, b, 0, c, 0, c[0], len(b))


def seconds(run: Callable[[], object], count: int) -> float:
    """The median time of ``run`` on so many threads at once."""
    found = []
    with ThreadPoolExecutor(count) as pool:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for done in [pool.submit(run) for _ in range(count)]:
                done.result()
            found.append(time.perf_counter() - start)
    return float(np.median(found))


def peak(count: int) -> float:
    """Vector operations a nanosecond of all threads together."""
    rows = 256
    a, b = np.ones((products.ROWS, rows), np.float32), np.zeros((rows, products.LANES["float32"]), np.float32)
    turns = WORK // rows

    def run() -> None:
        multiply_add(a, b, np.zeros((products.ROWS, products.LANES["float32"]), np.float32), turns)

    run()
    return 2 * products.ROWS * rows * turns * count / seconds(run, count) / 1e9


def innermost(code: str) -> list[list[str]]:
    """The blocks that jump back to themselves."""
    found, label, block = [], "", []
    for line in map(str.strip, code.splitlines()):
        named = re.match(r"(\.?\w+):", line)
        if named:
            label, block = named[1], []
        elif line and line[0] not in ".#":
            block.append(line)
            if re.fullmatch(rf"j\w+\s+{re.escape(label)}", line) and label:
                found.append(block)
    return found


def operations(code: str) -> float:
    """Vector operations for each number of the longest loop over whole vectors."""
    writing = [block for block in innermost(code) if any(map(STORE.match, block))]
    longest = max(writing, key=lambda block: sum("zmm" in line for line in block))
    wide = [line.split()[0] for line in longest if "zmm" in line]
    stored = sum(map(bool, map(STORE.match, longest)))
    counted = sum(not name.startswith(("vmov", "vbroadcast", "vpbroadcast")) for name in wide)
    return counted / stored / LANES


def main() -> None:
    cpus = threads.thread_count()
    dtype = np.dtype(np.float32)
    print(f"{cpus} CPUs; billions a second, the limit by vector multiply-adds and what is seen; medians of {ROUNDS}")
    print(
        f"{'loop':22}{'operations':>12}" + "".join(f"{f'{n} threads':>14}{'limit':>8}{'share':>7}" for n in (1, cpus))
    )
    rng = np.random.default_rng(0)
    for name, (score, features) in LOOPS.items():
        kernel = SCORES[score]
        made = binding.scorer("fill", "squared_distance", features, True, kernel.kernel, kernel.slope, 0, dtype)
        report(name, made, rng.normal(size=(8, features)), rng.normal(size=(features, TILE)), 1, cpus)
    hidden = 64
    made = binding.scorer("fill", "additive", 0, False, Additive.formula, Additive.slope, 0, dtype)
    query = np.concatenate([np.exp(rng.normal(size=(8, hidden))), rng.normal(size=(8, hidden))], axis=1)
    report("additive, a unit", made, query, np.exp(rng.normal(size=(hidden, TILE))), hidden, cpus, 8)


def report(
    name: str, made: object, query: np.ndarray, key: np.ndarray, units: int, cpus: int, together: int = 1
) -> None:
    """One line: operations of a vector, billions of pairs (or units, so many ``together``) a second, the limit."""
    dtype = np.float32
    q, k = query.astype(dtype), np.ascontiguousarray(key, dtype)
    p, value = np.ones((8, 2), dtype), np.zeros((1, TILE), dtype)
    turns = WORK // TILE

    @njit(nogil=True)
    def call(fill, q, k, p, tile, u, most, value, pooled, turns):  # type: ignore[no-untyped-def]
        for _ in range(turns):
            fill(True, q, k, p, 0, 8, 0, TILE, tile, u, most, value, pooled)

    def run() -> None:
        tile, u = np.zeros((8, TILE), dtype), np.zeros((8, TILE), dtype)
        call(made, q, k, p, tile, u, np.zeros(TILE, dtype), value, np.zeros(TILE, dtype), turns)

    run()
    each = operations(made.cres.library.get_asm_str()) / together  # type: ignore[attr-defined]
    line = f"{name:22}{each * LANES:12.1f}"
    for count in (1, cpus):
        seen = 8 * TILE * turns * units * count / seconds(run, count) / 1e9
        limit = peak(count) / each
        line += f"{seen:14.2f}{limit:8.2f}{seen / limit:7.0%}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
