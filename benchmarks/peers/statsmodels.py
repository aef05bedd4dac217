"""statsmodels: kernel regression, query by query."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from benchmarks.cases import Case
from benchmarks.data import Inputs, Pool


class Statsmodels:
    name = "statsmodels"
    title = "statsmodels"
    how = (
        "`KernelReg(reg_type='lc')` with the bandwidth given, `.fit(query)`; with `bw='cv_ls'` where it is to be found."
    )
    compiles = False

    def cannot(self, case: Case) -> str | None:
        if case.score != "gaussian" or case.values != 1 or case.lead:
            return "it has the Gaussian kernel for continuous data, and one value per key"
        return "it has no gradients" if case.backward else None

    def pool(self, case: Case) -> Pool:
        from statsmodels.nonparametric.kernel_regression import KernelReg

        def selected(given: Inputs) -> torch.Tensor:
            key, value = (given[name].numpy() for name in ("key", "value"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of its search
                model = KernelReg(value[:, 0], key, var_type="c" * case.dim, reg_type="lc", bw="cv_ls")
            return torch.from_numpy(model.bw)

        def pooled(given: Inputs) -> torch.Tensor:
            query, key, value = (given[name].numpy() for name in ("query", "key", "value"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about a generator of random numbers
                model = KernelReg(value[:, 0], key, var_type="c" * case.dim, reg_type="lc", bw=np.ones(case.dim))
                return torch.from_numpy(model.fit(query)[0][:, None])

        return selected if case.select else pooled
