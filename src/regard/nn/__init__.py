"""Attention pooling as torch modules: each owns its parameters and builds its score anew in every forward."""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as missing:
    raise ImportError("regard.nn needs PyTorch; install it with `pip install 'regard[torch]'`.") from missing

from regard.nn import spatial
from regard.nn.additive import AdditiveAttention
from regard.nn.attention import Attention
from regard.nn.bilinear import BilinearAttention
from regard.nn.cosine import CosineAttention
from regard.nn.dot_product import DotProductAttention
from regard.nn.kernel import KernelAttention
from regard.nn.multi_head import MultiHeadAttention
from regard.nn.queryless import AveragePooling, DensePooling, MaxPooling
from regard.nn.spatial import Convolution2d, DenseImage2d, LocallyConnected2d

__all__ = [
    "AdditiveAttention",
    "Attention",
    "AveragePooling",
    "BilinearAttention",
    "Convolution2d",
    "CosineAttention",
    "DenseImage2d",
    "DensePooling",
    "DotProductAttention",
    "KernelAttention",
    "LocallyConnected2d",
    "MaxPooling",
    "MultiHeadAttention",
    "spatial",
]
