"""The learned width on real data: torch and the estimator are the same function, and find the same answer.

Age, body mass index, blood pressure and s5 (the logarithm of triglycerides) of 442 patients, and how far their diabetes
had gone a year later (Efron et al. 2004; the data come with scikit-learn). A patient is predicted from all others by
how alike they are, with features in units of their standard deviations:

    f(x) = sum_i softmax_i(-|(x - x_i) / h|^2 / 2) y_i

The best h makes the squared error of leave-one-out least. In torch h is a parameter of `KernelAttention`: the mask
`NotSelf` takes away the own key, and L-BFGS follows the gradient. `NadarayaWatsonRegressor` searches by itself. With
the same h the two differ by rounding, about 1e-13. Both find h = 0.715 for all features; and both find that, with a
width for each, age has nothing to say: its kernel grows so wide that all patients are of the same age to it.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score

import regard as rg
from regard.nn import KernelAttention

NAMES = ["age", "bmi", "bp", "s5"]
WIDE = 50.0  # standard deviations: whoever is compared, the difference no longer counts
data = load_diabetes(scaled=False)
order = np.random.default_rng(0).permutation(len(data.target))
test, train = np.split(order, [len(order) // 4])
columns = data.data[:, [data.feature_names.index(name) for name in NAMES]]
X, y = (columns - columns[train].mean(axis=0)) / columns[train].std(axis=0), data.target
x, value, new = torch.tensor(X[train]), torch.tensor(y[train, None]), torch.tensor(X[test])


def error(attention: KernelAttention) -> torch.Tensor:
    """Mean squared error of leave-one-out, in units of the variance."""
    return (attention(x, x, value, mask=rg.NotSelf()) - value).square().mean() / value.var(correction=0)


def learned(width: str, start: float) -> KernelAttention:
    """The attention with the width that L-BFGS finds from this start."""
    attention = KernelAttention("gaussian", dim=len(NAMES), width=width, bandwidth=start, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(
        attention.parameters(), max_iter=200, tolerance_grad=1e-8, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = error(attention)
        loss.backward()
        return loss

    optimizer.step(closure)
    return attention


def shown(title: str, bandwidth: np.ndarray, loss: float, predicted: np.ndarray) -> None:
    """A line of the table."""
    widths = "  ".join("wide " if h > WIDE else f"{h:.3f}" for h in bandwidth)
    print(f"{title:<30} {widths}  {loss:.4f}  {r2_score(y[test], predicted):.3f}")


print(f"{'standard deviations':<30} {'  '.join(f'{name:<5}' for name in NAMES)}  error   R2 of new patients")
for title, width, rule in (("one width", "scalar", "loo_shared"), ("a width each", "feature", "loo")):
    attention = min((learned(width, start) for start in (0.5, 1.0, 2.0)), key=lambda found: error(found).item())
    with torch.no_grad():
        h = attention.bandwidth.expand(len(NAMES)).numpy()
        predicted = attention(new, x, value)[:, 0].numpy()
        shown(f"{title}, torch", h, error(attention).item(), predicted)
    model = rg.NadarayaWatsonRegressor(bandwidth=rule, random_state=0).fit(X[train], y[train])
    loss = np.mean((model.leave_one_out() - y[train]) ** 2) / y[train].var()
    shown(f"{title}, estimator", model.bandwidth_, loss, model.predict(X[test]))

    same = rg.NadarayaWatsonRegressor(bandwidth=h).fit(X[train], y[train]).predict(X[test])
    print(f"{title}: with torch's, the estimator predicts the same, up to {abs(same - predicted).max():.0e}")
    counts = (h < WIDE) | (model.bandwidth_ < WIDE)
    apart = abs(h / model.bandwidth_ - 1)[counts].max()
    print(f"{title}: what they found agrees to {apart:.0e}")
