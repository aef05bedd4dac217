"""Nadaraya-Watson regression with any kernel: what each makes of the motorcycle data, and a product of two kernels.

The bandwidth of each kernel is the one that predicts each measurement best from all the others.
"""

from __future__ import annotations

import numpy as np

import regard as rg
from regard.datasets import motorcycle
from regard.scores import kernels

times, accel = motorcycle()
X = times[:, None]

errors = {}
print(f"{'kernel':<18}  {'h, ms':>6}  {'leave-one-out error':>19}  {'at 20 ms':>8}")
for kernel in kernels():
    model = rg.NadarayaWatsonRegressor(kernel).fit(X, accel)
    errors[kernel] = np.sqrt(np.mean((model.leave_one_out() - accel) ** 2))
    print(f"{kernel:<18}  {model.bandwidth_[0]:6.3f}  {errors[kernel]:16.2f} g  {model.predict([[20.0]])[0]:6.1f} g")
print(f"best: {min(errors, key=errors.__getitem__)}; Gaussian: {errors['gaussian']:.2f} g")

# Scores add where kernels multiply: a number and a category in one distance.
rng = np.random.default_rng(0)
x, kind = rng.uniform(0, 6, 300), rng.integers(0, 3, 300)
y = np.sin(x) + np.array([0.0, 2.0, -2.0])[kind] + rng.normal(0, 0.1, 300)
both = np.column_stack([x, kind])
product = rg.Gaussian(1.0).on([0]) + rg.AitchisonAitken(0.3, levels=3).on([1])
for name, score in (("x alone", rg.Gaussian(1.0).on([0])), ("x and kind", product)):
    model = rg.NadarayaWatsonRegressor(score, random_state=0).fit(both, y)
    print(f"{name:<10}: leave-one-out error {np.sqrt(np.mean((model.leave_one_out() - y) ** 2)):.2f}")
