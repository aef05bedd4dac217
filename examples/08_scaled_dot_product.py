"""Scaled dot-product attention, softmax(Q K^T / sqrt(d)) V, and what the root is for.

The dot product of two vectors of d independent entries of variance 1 has variance d. Without the root, weights of long
vectors sit on a single key and pass hardly any gradient on to the scores; with it, d makes no difference.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

import regard as rg

KEYS = 64
torch.manual_seed(0)
print(f"{'d':>5}  {'heaviest weight':^18}  {'gradient of the scores':^22}")
print(f"{'':>5}  {'with root':>9}{'without':>9}  {'with root':>11}{'without':>11}")
for d in (4, 64, 1024):
    query = torch.randn(500, d, dtype=torch.float64)
    key, value = torch.randn(KEYS, d, dtype=torch.float64), torch.randn(KEYS, 3, dtype=torch.float64)
    heaviest, gradient = [], []
    for score in (rg.ScaledDotProduct(), rg.ScaledDotProduct(scale=1.0)):
        heaviest.append(rg.attention_weights(query, key, score).amax(dim=-1).mean().item())
        bias = torch.zeros(500, KEYS, dtype=torch.float64, requires_grad=True)  # has the gradient of the scores
        rg.attention_pool(query, key, value, score, bias=bias).sum().backward()
        gradient.append(bias.grad.norm(dim=-1).median().item())
    print(f"{d:>5}  {heaviest[0]:9.2f}{heaviest[1]:9.2f}  {gradient[0]:11.1e}{gradient[1]:11.1e}")

ours = rg.attention_pool(query, key, value, rg.ScaledDotProduct())
by_hand = torch.softmax(query @ key.T / d**0.5, dim=-1) @ value
theirs = scaled_dot_product_attention(query[None], key[None], value[None])[0]
for name, other in (("the formula", by_hand), ("torch", theirs)):
    print(f"off by {(ours - other).abs().max().item():.0e} from {name}")

# Among keys of the same length the Gaussian score is a dot product: what is left of |q - k|^2 does not depend on k.
unit = torch.nn.functional.normalize(key, dim=-1)
gaussian = rg.attention_weights(query, unit, rg.Gaussian(bandwidth=d**0.25))
dot_product = rg.attention_weights(query, unit, rg.ScaledDotProduct())
print(f"Gaussian and dot product, keys of one length: off by {(gaussian - dot_product).abs().max().item():.0e}")
