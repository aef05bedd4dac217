"""The scores: one a file, one a line here. All that walks over scores walks over this list."""

from __future__ import annotations

from typing import Any

from regard.scores.additive import Additive as Additive
from regard.scores.aitchison_aitken import AitchisonAitken as AitchisonAitken
from regard.scores.base import Kernel, Leaf, Score, snake_case
from regard.scores.beta import Beta as Beta
from regard.scores.bilinear import Bilinear as Bilinear
from regard.scores.biweight import Biweight as Biweight
from regard.scores.cauchy import Cauchy as Cauchy
from regard.scores.constant import Constant as Constant
from regard.scores.cosine_kernel import CosineKernel as CosineKernel
from regard.scores.cosine_similarity import CosineSimilarity as CosineSimilarity
from regard.scores.epanechnikov import Epanechnikov as Epanechnikov
from regard.scores.gamma import Gamma as Gamma
from regard.scores.gaussian import Gaussian as Gaussian
from regard.scores.laplacian import Laplacian as Laplacian
from regard.scores.li_racine import LiRacine as LiRacine
from regard.scores.logistic import Logistic as Logistic
from regard.scores.matern32 import Matern32 as Matern32
from regard.scores.matern52 import Matern52 as Matern52
from regard.scores.offset_table import OffsetTable as OffsetTable
from regard.scores.ordered_li_racine import OrderedLiRacine as OrderedLiRacine
from regard.scores.parzen import Parzen as Parzen
from regard.scores.raised_cosine import RaisedCosine as RaisedCosine
from regard.scores.rational_quadratic import RationalQuadratic as RationalQuadratic
from regard.scores.scaled_dot_product import ScaledDotProduct as ScaledDotProduct
from regard.scores.soft_cap import SoftCap as SoftCap
from regard.scores.triangular import Triangular as Triangular
from regard.scores.tricube import Tricube as Tricube
from regard.scores.triweight import Triweight as Triweight
from regard.scores.uniform import Uniform as Uniform
from regard.scores.wang_van_ryzin import WangVanRyzin as WangVanRyzin

SCORES: dict[str, type[Leaf]] = {
    snake_case(name): found
    for name, found in sorted(globals().items())
    if isinstance(found, type) and issubclass(found, Leaf) and found not in (Leaf, Kernel)
}


def names() -> list[str]:
    """The names of all scores, sorted."""
    return list(SCORES)


def kernels() -> list[str]:
    """The names of the scores that are radial kernels with a bandwidth."""
    return [name for name, score in SCORES.items() if issubclass(score, Kernel)]


def named(name: str, *, of: list[str] | None = None, **parameters: Any) -> Score:
    """The score of this name with these parameters; an unknown name is a ValueError that lists the known ones."""
    known = names() if of is None else of
    if name not in known:
        raise ValueError(f"unknown score {name!r}; the known ones are {', '.join(known)}.")
    return SCORES[name](**parameters)
