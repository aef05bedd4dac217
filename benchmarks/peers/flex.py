"""PyTorch's attention with a score of one's own."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.data import Pool
from benchmarks.peers.sdpa import attend


class Flex:
    name = "flex"
    title = "FlexAttention"
    how = "`torch.compile(flex_attention)`, of the same vectors as SDPA."
    compiles = True

    def cannot(self, case: Case) -> str | None:
        if case.score not in ("dot_product", "gaussian"):
            return "its score can only be changed after the dot product"
        return "it has no backward on the CPU" if case.backward else None

    def pool(self, case: Case) -> Pool:
        from torch.nn.attention.flex_attention import flex_attention

        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda given: attend(case, given, compiled)
