"""Prints how long the first call of the fused engine takes in a fresh process: with an empty cache and with a full one.

Beside it what Numba takes by itself, to make ready for a function of one line that is in the cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

RUNS = 5
CALLS = {
    "forward": "rg.attention_pool(x, x, x, score, engine='fused')",
    "forward and backward": "rg.attention_pool_gradients(1.0, x, x, x, score, engine='fused')",
    "weights": "rg.attention_weights(x, x, score, engine='fused')",
}
SCORES = {
    "Gaussian": "rg.Gaussian(1.0)",
    "additive": "rg.Additive(w, w, w[0])",
    "dot product": "rg.ScaledDotProduct()",
}
PROGRAM = """
import time

def seconds(run, *arguments, **options):
    start = time.perf_counter()
    run(*arguments, **options)
    return time.perf_counter() - start

def ready():
    numba.njit(numba.float64(numba.float64), cache=True)(one)

def one(x):
    return x + 1

imported = seconds(__import__, "numba")
import numba, numpy as np, regard as rg
trivial = seconds(ready) if {ready} else 0.0
w = np.random.default_rng(0).normal(size=(3, 3))
x = np.random.default_rng(1).normal(size=(64, 3)).astype(np.{dtype})
score = {score}
print(imported, trivial, seconds(lambda: {call}))
"""


def fresh(folder: str, *, ready: bool = False, **what: str) -> list[float]:
    """Seconds to import Numba, to make it ready (0 if that was not asked for), and of the call."""
    program = os.path.join(folder, "program.py")  # a file: Numba keeps nothing of what has none
    with open(program, "w") as file:
        file.write(PROGRAM.format(ready=ready, **what))
    environment = {**os.environ, "NUMBA_CACHE_DIR": os.path.join(folder, "cache")}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, env=environment)
    return [float(x) for x in done.stdout.split()]


if __name__ == "__main__":
    print("seconds beyond `import numba`; warm: the minimum of five, and of these Numba's own; cold: once")
    for dtype in ("float32", "float64"):
        for score, made in SCORES.items():
            for name, call in CALLS.items():
                with tempfile.TemporaryDirectory() as folder:
                    what = {"dtype": dtype, "score": made, "call": call}
                    _, _, cold = fresh(folder, **what)
                    warm = min(fresh(folder, **what)[2] for _ in range(RUNS))
                    fresh(folder, ready=True, **what)
                    own = min(fresh(folder, ready=True, **what)[1] for _ in range(RUNS))
                    print(f"{dtype} {score:12} {name:21} cold {cold:6.2f}   warm {warm:5.3f}, Numba's own {own:5.3f}")
