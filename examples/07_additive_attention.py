"""Additive attention learns to compare a query with keys of another size and another kind.

A query is an hour, one number. A key is the tip of a hand on a dial, two numbers. Nobody says how they belong together:
a perceptron with one hidden layer, v . tanh(W_q q + W_k k), learns it from what is written on the hands, and then finds
the hand of each hour among hands that it has not seen.
"""

from __future__ import annotations

import math

import torch

from regard.nn import AdditiveAttention

HANDS = 8
torch.manual_seed(0)


def draw(dials: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hours (dials, 8, 1), the tips of their hands (dials, 8, 2), and what is written on these (dials, 8, 1)."""
    hour = torch.rand(dials, HANDS, 1) * 10 + 1
    angle = hour * (2 * math.pi / 12)
    return hour - 6, torch.cat([angle.sin(), angle.cos()], dim=-1), torch.randn(dials, HANDS, 1)


def found() -> float:
    """How often the heaviest weight of an hour is that of its own hand."""
    _, index = attention.top(test_hour, test_hand, n=1)
    return (index[..., 0] == torch.arange(HANDS)).float().mean().item()


attention = AdditiveAttention(query_dim=1, key_dim=2, hidden_dim=32)
optimizer = torch.optim.Adam(attention.parameters(), lr=0.02)
test_hour, test_hand, _ = draw(200)
print(f"before: {found():.0%} of the hands are found; by chance it would be {1 / HANDS:.0%}")
for _ in range(400):
    hour, hand, written = draw(64)
    optimizer.zero_grad()
    (attention(hour, hand, written) - written).square().mean().backward()
    optimizer.step()
print(f"after: {found():.0%} of the hands are found")

# The same score from a perceptron without bias, with one hidden layer, which reads key and query side by side.
perceptron = torch.nn.Sequential(
    torch.nn.Linear(3, 32, bias=False), torch.nn.Tanh(), torch.nn.Linear(32, 1, bias=False)
)
perceptron[0].weight.data = torch.cat([attention.key_weight, attention.query_weight], dim=1).detach()
perceptron[2].weight.data = attention.value_weight[None].detach()
hour, hand = test_hour.double(), test_hand.double()
pairs = torch.cat([hand[:, None].expand(-1, HANDS, -1, -1), hour[:, :, None].expand(-1, -1, HANDS, -1)], dim=-1)
apart = (perceptron.double()(pairs)[..., 0] - attention.double().score()(hour, hand)).abs().max().item()
print(f"a perceptron gives the same scores, up to {apart:.0e}")
