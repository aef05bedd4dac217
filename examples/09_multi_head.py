"""Several heads look at several places at once, each with projections of its own.

Each row is a sequence of tokens with two marks and something written on them. Asked for what is written on the token
with the largest first mark, and on the one with the largest second mark, one head has to look at both with the same
weights; two heads look at one each. Any score will do.
"""

from __future__ import annotations

import torch

import regard as rg

TOKENS, FEATURES = 6, 8
torch.manual_seed(0)
query = torch.ones(1, 1, FEATURES)  # always the same question


def draw(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens (rows, 6, 8), the answers (rows, 2), and where they stand (rows, 2)."""
    token = torch.zeros(rows, TOKENS, FEATURES)
    token[..., :4] = torch.randn(rows, TOKENS, 4)  # two marks, and what is written: one number for each
    at = token[..., :2].argmax(dim=1)
    answer = torch.stack([token[torch.arange(rows), at[:, m], 2 + m] for m in (0, 1)], dim=-1)
    return token, answer, at


def learned(heads: int, score: str) -> tuple[rg.nn.MultiHeadAttention, float]:
    """A trained attention and its mean squared error on new rows; always answering 0 has error 1."""
    attention = rg.nn.MultiHeadAttention(FEATURES, heads, score=score)
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.02)
    for _ in range(300):
        token, answer, _ = draw(64)
        optimizer.zero_grad()
        (attention(query, token, token)[:, 0, :2] - answer).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        token, answer, _ = draw(1000)
        return attention, (attention(query, token, token)[:, 0, :2] - answer).square().mean().item()


for heads, score in ((1, "dot_product"), (2, "dot_product"), (2, "additive"), (2, "gaussian")):
    attention, error = learned(heads, score)
    print(f"heads: {heads}, score: {score:<11}  error {error:.2f}")
    if (heads, score) == (2, "dot_product"):
        token, _, at = draw(1000)
        _, index = attention.top(query, token, n=1)  # (rows, heads, 1, 1)
        looks = (index[..., 0, 0, None] == at[:, None]).float().mean(dim=0)  # (heads, marks)
for head, share in enumerate(looks):
    print(f"head {head} looks at the largest mark {int(share.argmax()) + 1} in {share.max():.0%} of the rows")
