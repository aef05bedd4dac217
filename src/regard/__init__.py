"""Regard: attention pooling, from kernel regression to Transformers.

A score compares a query with a key, its exponential is an unnormalised weight, a mask takes keys away, the weights
are made to sum to one, and the pooled value is the weighted mean of the values.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard import masks as masks
from regard import scores as scores
from regard.engines.choose import Choice as Choice
from regard.heads import grouped as grouped
from regard.heads import ungrouped as ungrouped
from regard.masks import MASKS
from regard.masks import Mask as Mask
from regard.partial import Partial as Partial
from regard.pooling import Gradients as Gradients
from regard.pooling import attention_pool as attention_pool
from regard.pooling import attention_pool_gradients as attention_pool_gradients
from regard.pooling import attention_scores as attention_scores
from regard.pooling import attention_weights as attention_weights
from regard.pooling import average_pool as average_pool
from regard.pooling import choose_engine as choose_engine
from regard.pooling import max_pool as max_pool
from regard.pooling import partial_pool as partial_pool
from regard.pooling import top_attention as top_attention
from regard.scores import SCORES
from regard.scores import SoftCap as SoftCap
from regard.scores.base import Score as Score

if TYPE_CHECKING:
    from regard.estimators import *  # noqa: F403
    from regard.masks import *  # noqa: F403
    from regard.scores import *  # noqa: F403

__version__ = "0.1.0"

# loaded when first asked for: scikit-learn takes a second to import
ESTIMATORS = (
    "AttentionClassifier",
    "AttentionRegressor",
    "LocalPolynomialRegressor",
    "LocalQuantileRegressor",
    "NadarayaWatsonClassifier",
    "NadarayaWatsonRegressor",
)

globals().update({found.__name__: found for found in (*SCORES.values(), *MASKS.values())})

__all__ = sorted(
    [
        *(found.__name__ for found in (*SCORES.values(), *MASKS.values())),
        *ESTIMATORS,
        *("Choice", "Gradients", "Mask", "Partial", "Score", "SoftCap"),
        *("attention_pool", "attention_pool_gradients", "attention_scores", "attention_weights", "average_pool"),
        *("choose_engine", "grouped", "masks", "max_pool", "partial_pool", "scores", "top_attention", "ungrouped"),
    ]
)


def __getattr__(name: str) -> Any:
    if name in ESTIMATORS:
        return getattr(import_module("regard.estimators"), name)
    if name in ("nn", "estimators", "plots"):
        return import_module(f"regard.{name}")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "nn", "plots"]
