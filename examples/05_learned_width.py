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


def error(attention: KernelAttention) -> torch.Tensor:
    """Mean squared error of leave-one-out: without NotSelf, the best width would be 0 and each point its own answer."""
    return (attention(X, X, y, mask=rg.NotSelf()) - y).square().mean()


def learned(width: str) -> KernelAttention:
    """The attention with the width of least error."""
    attention = KernelAttention("gaussian", dim=2, width=width)
    optimizer = torch.optim.LBFGS(attention.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = error(attention)
        loss.backward()
        return loss

    optimizer.step(closure)
    return attention


average = (rg.attention_pool(X, X, y, rg.Constant(), mask=rg.NotSelf()) - y).square().mean()
print(f"{'average pooling':<28} {average:.3f}")
for width in ("scalar", "feature", "matrix"):
    attention = learned(width)
    print(f"{'torch, ' + width:<28} {error(attention).item():.3f}")
across = attention.weight.detach() @ torch.tensor([[1.0, 1.0], [1.0, -1.0]])
along, beside = across.norm(dim=0).tolist()
print(f"the matrix stretches the direction that matters {along / beside:.0f} times as much as the other")

models = {
    "estimator, one per feature": rg.NadarayaWatsonRegressor(random_state=0),
    "estimator, matrix": rg.AttentionRegressor("gaussian", hidden_dim=2, alpha=0.0, random_state=0),
}
for name, model in models.items():
    target = y[:, 0].numpy()
    others = model.fit(X.numpy(), target).leave_one_out()
    print(f"{name:<28} {np.mean((others - target) ** 2):.3f}")
