"""Parametric attention pooling: the width of the kernel is learned, each point predicted from all the others.

Only one direction of the two features matters here. One width for both cannot say so, a width per feature neither, a
matrix can. In the estimator the search is built in; in torch any optimiser will do.
"""

from __future__ import annotations

import numpy as np
import torch

import regard as rg
from regard.nn import KernelAttention

torch.manual_seed(0)
X = torch.randn(300, 2)
y = torch.sin(2 * (X[:, :1] + X[:, 1:])) + 0.1 * torch.randn(300, 1)


def error(module: torch.nn.Module) -> torch.Tensor:
    """Mean squared error of leave-one-out: without NotSelf, the best width would be 0 and each point its own answer."""
    return (module(X, X, y, mask=rg.NotSelf()) - y).square().mean()


average = (rg.attention_pool(X, X, y, rg.Constant(), mask=rg.NotSelf()) - y).square().mean()
print(f"{'average pooling':<28} {average:.3f}")
for width in ("scalar", "feature", "matrix"):
    attention = KernelAttention("gaussian", dim=2, width=width, bandwidth=0.5)
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        loss = error(attention)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(f"{'torch, ' + width:<28} {error(attention):.3f}")
print("the learned matrix W, each row of it a direction that counts:")
print(attention.weight.detach().numpy().round(2))

models = {
    "estimator, one per feature": rg.NadarayaWatsonRegressor(random_state=0),
    "estimator, matrix": rg.AttentionRegressor("gaussian", hidden_dim=2, alpha=0.0, random_state=0),
}
for name, model in models.items():
    target = y[:, 0].numpy()
    others = model.fit(X.numpy(), target).leave_one_out()
    print(f"{name:<28} {np.mean((others - target) ** 2):.3f}")
