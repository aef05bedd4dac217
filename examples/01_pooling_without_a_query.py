"""Pooling without a query sees what catches the eye, and only that: average, maximum, a dense layer over positions.

A row of black balls with a white one among them. The maximum finds the white ball wherever it lies. The average knows
that there is one. A dense layer, taught on rows whose white ball lies in the middle, sees it nowhere else. None of them
can be asked for the black ball that is marked with a cross: that takes a query.
"""

from __future__ import annotations

import numpy as np
import torch

import regard as rg

BALLS, MIDDLE = 7, 3


def row(white: int) -> np.ndarray:
    """(balls, 1): how bright each ball is."""
    return np.eye(BALLS)[white][:, None]


dense = rg.nn.DensePooling(BALLS)
dense.weight.data = torch.eye(BALLS)[[MIDDLE]]  # what least squares finds if the white ball always lies in the middle

print(f"{'white ball at':>13}  {'maximum':>7}  {'average':>7}  {'dense layer':>11}")
seen = []
for at in range(BALLS):
    bright = row(at)
    answers = rg.max_pool(bright), rg.average_pool(bright), dense(torch.tensor(bright).float()).detach()
    seen.append([float(answer[0]) for answer in answers])
    print(f"{at:>13}  {seen[-1][0]:7.2f}  {seen[-1][1]:7.2f}  {seen[-1][2]:11.2f}")
maximum, _, layer = np.transpose(seen)
print(f"seen at {np.sum(maximum == 1)} of {BALLS} places by the maximum, at {np.sum(layer == 1)} by the dense layer")

# With a query the same balls give another answer for another question.
has_a_cross = np.eye(BALLS)[5]
key = np.hstack([row(MIDDLE), has_a_cross[:, None]])  # (balls, 2): how bright, whether there is a cross
position = np.arange(BALLS)[:, None]
query = 20.0 * np.array([[1.0, 0.0], [0.0, 1.0]])  # looking for: the brightest, the one with the cross
found = rg.attention_pool(query, key, position, rg.ScaledDotProduct())
print(f"asked for the white ball: {found[0, 0]:.2f}, asked for the cross: {found[1, 0]:.2f}")
