"""A dense layer over an image becomes a convolution in two steps, and the convolution is attention by offset.

The same sum three times, each time with fewer weights of its own: dense, local, and the same everywhere. Each step is
taken back without loss, so all three give the same picture. Then attention with a score that knows nothing but the
offset between two pixels gives it a fourth time.
"""

from __future__ import annotations

import math

import torch

import regard as rg
from regard.nn import Convolution2d

HEIGHT, WIDTH, DELTA = 23, 19, 1
torch.manual_seed(0)
image = torch.randn(1, HEIGHT, WIDTH, dtype=torch.float64)

convolution = Convolution2d(delta=DELTA, bias=False, dtype=torch.float64)  # v_ab
local = convolution.to_locally_connected(image_size=(HEIGHT, WIDTH))  # v_ijab, |a|, |b| <= 1
dense = local.to_dense()  # w_ijkl
blurred = convolution(image)

for name, layer in (("dense", dense), ("local", local), ("convolution", convolution)):
    apart = (layer(image) - blurred).abs().max().item()
    print(f"{name:<12} {layer.weight.numel():>7,} weights, off by {apart:.0e}")

moved = torch.roll(image, (2, 3), dims=(-2, -1))
inside = (slice(None), slice(4, -4), slice(5, -5))  # where neither the border nor what came round it is in sight
follows = (convolution(moved) - torch.roll(blurred, (2, 3), dims=(-2, -1)))[inside].abs().max().item()
print(f"a moved image gives the moved picture, off by {follows:.0e}")

# One head per tap of the window. Its score is 0 at its own offset and -inf at all others, so that it fetches one
# neighbour; its W_v is the weight v_ab. Beyond the border there is no neighbour, hence no key, hence 0.
taps = (2 * DELTA + 1) ** 2
tables = torch.full((taps, taps), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
score = rg.OffsetTable(tables.reshape(taps, 2 * DELTA + 1, 2 * DELTA + 1), axes=2)
rows, columns = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
position = torch.stack([rows, columns], dim=-1).reshape(-1, 2).double()
value = convolution.weight.flatten()[:, None, None] * image.flatten()[:, None]  # (taps, pixels, 1)
pooled = rg.attention_pool(position, position, value, score).sum(dim=0)
apart = (pooled.reshape(1, HEIGHT, WIDTH) - blurred).abs().max().item()
print(f"attention by offset, {taps} heads: off by {apart:.0e}")
assert apart < 1e-12
