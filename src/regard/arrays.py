"""Arrays of any library: which namespace computes, which shapes and dtypes may meet, and sums back to a shape."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # a NumPy array, a torch tensor, or an array of the array API standard
Namespace = Any  # the module that computes on it


def is_torch(x: object) -> bool:
    """Whether ``x`` is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def namespace(*arrays: object) -> Namespace:
    """The module that computes on these arrays: torch, NumPy, or what array-api-compat names."""
    if any(is_torch(x) for x in arrays):
        return sys.modules["torch"]
    if all(x is None or isinstance(x, np.ndarray | np.generic | int | float | list | tuple) for x in arrays):
        return np
    import array_api_compat

    found: ModuleType = array_api_compat.array_namespace(*(x for x in arrays if hasattr(x, "shape")))
    return np if found.__name__.endswith(".numpy") else found


def device(x: Array) -> Any:
    """Where the array lives, as its own library's ``device=`` argument wants it."""
    return getattr(x, "device", None) if not isinstance(x, np.ndarray) else None


def like(xp: Namespace, x: Any, other: Array) -> Array:
    """``x`` as an array in the dtype and on the device of ``other``: a number inside a score never promotes data."""
    if xp is np:
        return np.asarray(x.detach().cpu().numpy() if is_torch(x) else x, dtype=other.dtype)
    if is_torch(x):
        return x.to(dtype=other.dtype, device=other.device)
    if isinstance(x, np.ndarray) and is_torch(other):
        x = np.array(x, order="C")  # torch takes neither read-only memory nor negative strides
    return xp.asarray(x, dtype=other.dtype, device=device(other))


def traced(x: Any) -> bool:
    """Whether this is a tensor that is being traced, transformed or has no data: its numbers cannot be asked for."""
    if not is_torch(x):
        return False
    torch = sys.modules["torch"]
    return bool(
        torch.compiler.is_compiling() or torch._C._functorch.maybe_get_level(x) != -1 or x.device.type == "meta"
    )


def concrete(x: Any) -> np.ndarray | None:
    """``x`` as a NumPy array for a check, or None where looking would be wrong (a tensor that is being traced)."""
    if x is None:
        return None
    if traced(x):
        return None
    if is_torch(x):
        torch = sys.modules["torch"]
        return np.asarray(x.detach().to(dtype=torch.float64, device="cpu").numpy())
    return np.asarray(x)


def leading(x: Array) -> Array:
    """A parameter over leading axes, ``(...)``, as ``(..., 1, 1)``: it meets a tile of queries and keys."""
    return x[..., None, None]


def sum_to(xp: Namespace, x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` summed over the axes that broadcasting from ``shape`` had added: the gradient of a broadcast."""
    extra = x.ndim - len(shape)
    axes = [*range(extra), *(extra + n for n, size in enumerate(shape) if size == 1 and x.shape[extra + n] != 1)]
    if axes:
        x = xp.sum(x, axis=tuple(axes), keepdims=True)
    return xp.reshape(x, shape) if extra else x


def largest(xp: Namespace, x: Array, axis: int, keepdims: bool = False) -> Array:
    """The maximum along an axis, by whichever name the library has for it."""
    return (xp.amax if hasattr(xp, "amax") else xp.max)(x, axis=axis, keepdims=keepdims)


def take_along(xp: Namespace, x: Array, index: Array, axis: int = -1) -> Array:
    """The entries at these places along an axis, by whichever name the library has for it."""
    return xp.take_along_dim(x, index, axis) if is_torch(x) else xp.take_along_axis(x, index, axis=axis)


def floating(xp: Namespace, x: Array) -> bool:
    """Whether the array holds real floating-point numbers."""
    if is_torch(x):
        return bool(x.is_floating_point())
    return np.issubdtype(x.dtype, np.floating) if xp is np else bool(xp.isdtype(x.dtype, "real floating"))


def surely_finite(xp: Namespace, x: Array) -> bool:
    """True if the sum is finite, so that all entries are: one pass, no copy. False where that is not known."""
    return not traced(x) and math.isfinite(xp.sum(x.detach() if is_torch(x) else x))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of these broadcast to (NumPy's rule)."""
    return np.broadcast_shapes(*(tuple(int(n) for n in s) for s in shapes))


def size(shape: tuple[int, ...]) -> int:
    """How many entries an array of this shape has."""
    return math.prod(shape)
