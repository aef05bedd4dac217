"""PyTorch through its compiler."""

from __future__ import annotations

import torch

from benchmarks.cases import Case
from benchmarks.data import Pool
from benchmarks.formulas import KERNELS, plainly
from benchmarks.peers.eager import by_blocks, too_large


class Compiled:
    name = "compile"
    title = "`torch.compile`"
    how = (
        "The same formulas with distances from differences, which it can fuse; compiled for these sizes, by blocks "
        "of queries as eager is."
    )
    compiles = True

    def cannot(self, case: Case) -> str | None:
        return too_large(case)

    def pool(self, case: Case) -> Pool:
        torch.compiler.reset()
        compiled = torch.compile(lambda given: plainly(case, given), dynamic=False)
        width = case.dim if case.score in KERNELS else 1
        return lambda given: by_blocks(case, given, lambda _, some: compiled(some), width)
