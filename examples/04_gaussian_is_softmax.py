"""With a Gaussian kernel, Nadaraya-Watson's ratio is a softmax, and the softmax is right where the ratio is 0 / 0.

    f(x) = sum_i K(x - x_i) y_i / sum_j K(x - x_j) = sum_i softmax_i(-(x - x_i)^2 / 2) y_i

Far from all keys each kernel rounds to 0. A softmax takes the largest score away first, so that one weight stays.
"""

from __future__ import annotations

import numpy as np

import regard as rg


def ratio(x: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Equation (1) of the tutorial as it stands, with the kernel of equation (3)."""
    kernel = np.exp(-((x[:, None] - keys) ** 2) / 2) / np.sqrt(2 * np.pi)
    with np.errstate(invalid="ignore"):
        return kernel @ values / kernel.sum(axis=1)


rng = np.random.default_rng(0)
keys = rng.uniform(0, 5, 50)
values = np.sin(keys)
queries = np.array([0.0, 2.5, 5.0, 10.0, 20.0, 40.0, 50.0, 1000.0])
by_ratio = ratio(queries, keys, values)
by_softmax = rg.attention_pool(queries, keys, values, rg.Gaussian(1.0))

print(f"{'query':>6}  {'ratio':>10}  {'softmax':>10}")
for query, a, b in zip(queries, by_ratio, by_softmax, strict=True):
    print(f"{query:6.1f}  {a:10.6f}  {b:10.6f}")
there = np.isfinite(by_ratio)
print(f"where the ratio has digits, they agree to {np.max(np.abs(by_ratio - by_softmax)[there]):.0e}")
print(f"the value of the nearest key is {values[np.argmax(keys)]:.6f}")
