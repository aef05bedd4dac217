"""Queries, keys and values are vectors of three different sizes, for a batch of sequences and several heads at once.

Each key has six features and a value of four. A query has two, and each head reads them in its own way: a bilinear
score q^T W k compares two numbers with six. Batch and heads are leading axes, so that one call does what the loops at
the end do one by one.
"""

from __future__ import annotations

import numpy as np

import regard as rg

BATCH, HEADS, QUERIES, KEYS = 3, 2, 5, 11
rng = np.random.default_rng(0)
query = rng.normal(size=(BATCH, HEADS, QUERIES, 2))
key = rng.normal(size=(BATCH, 1, KEYS, 6))  # an axis of size 1 serves all heads, and is never copied
value = rng.normal(size=(BATCH, 1, KEYS, 4))
weight = rng.normal(size=(HEADS, 2, 6))
lengths = np.array([11, 7, 0])  # the second sequence is shorter, the third is empty

score = rg.Bilinear(weight)
mask = rg.ValidLength(lengths)
pooled = rg.attention_pool(query, key, value, score, mask=mask)
weights = rg.attention_weights(query, key, score, mask=mask)
print(f"query {query.shape}, key {key.shape}, value {value.shape}")
print(f"weights {weights.shape}, pooled {pooled.shape}")
print(f"weight on the padding: {weights[1, ..., 7:].sum():.0f}; an empty sequence gives {np.abs(pooled[2]).max():.0f}")

apart = 0.0
for b in range(BATCH):
    for h in range(HEADS):
        for i in range(QUERIES):
            k, v = key[b, 0, : lengths[b]], value[b, 0, : lengths[b]]
            if not len(k):
                continue
            a = np.exp([query[b, h, i] @ weight[h] @ one for one in k])
            apart = max(apart, np.abs(a / a.sum() @ v - pooled[b, h, i]).max())
print(f"the loops give the same, up to {apart:.0e}")
assert apart < 1e-13
