"""Model files: safetensors with JSON metadata. Opening one runs no code, and nothing in it is believed unchecked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

import regard as rg
from regard.cli.files import input_file
from regard.cli.mistakes import UserError, listed, quoted, shortened
from regard.scores import kernels

FORMAT = "regard-model"
VERSION = 1  # grows when an older regard could no longer read what a newer one writes
ESTIMATORS = ("NadarayaWatsonRegressor",)

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Model:
    """What a model file holds: how to predict, and the training data that the predictions are means of.

    Parameters
    ----------
    kernel : the name of the kernel
    bandwidth : array (features,), in the units of the features
    features, target : names of columns
    X, y : training data, arrays (rows, features) and (rows,), in the order of the data file
    sample_weight : array (rows,), or None
    """

    kernel: str
    bandwidth: Floats
    features: tuple[str, ...]
    target: str
    X: Floats
    y: Floats
    sample_weight: Floats | None = None
    estimator: str = ESTIMATORS[0]

    def fitted(self) -> rg.NadarayaWatsonRegressor:
        """The estimator, fitted to the training data with the bandwidth that was found; nothing is searched again."""
        estimator = rg.NadarayaWatsonRegressor(self.kernel, self.bandwidth.tolist())
        return estimator.fit(as_frame(self.X, self.features), self.y, sample_weight=self.sample_weight)

    def to_bytes(self) -> bytes:
        """The whole model file."""
        tensors = {"X": self.X, "y": self.y, "bandwidth": self.bandwidth}
        if self.sample_weight is not None:
            tensors["sample_weight"] = self.sample_weight
        described = {  # in one text: the order of several would be another one in each file
            "version": VERSION,
            "regard": rg.__version__,
            "estimator": self.estimator,
            "kernel": self.kernel,
            "features": self.features,
            "target": self.target,
            "dtype": "float64",
        }
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}  # save() ignores strides
        return bytes(save(whole, metadata={FORMAT: json.dumps(described)}))


def as_frame(X: Floats, names: Sequence[str]) -> pl.DataFrame:
    """Rows of features with the names of their columns, such that the estimator knows the names too."""
    return pl.DataFrame(X, schema=list(names), orient="row")


def read_model(name: str) -> Model:
    """The model in this file; a mistake that says why if it is none, or not whole, or from a newer regard."""
    path = input_file(name)
    try:
        with safe_open(path, framework="numpy") as file:
            described = _described(name, file.metadata() or {})
            kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118  not a mapping
            tensors = {key: file.get_tensor(key) for key, kind in kinds.items() if kind == "F64"}
        return _checked(described, tensors)
    except SafetensorError:
        raise UserError(f'{quoted(name)} is no model, or only a part of one: make one with "regard fit".') from None
    except (_DamagedError, KeyError, ValueError, RecursionError) as error:
        why = error if isinstance(error, _DamagedError) else "its description is not complete"
        raise UserError(f"{quoted(name)} is a damaged model: {why}.") from None


class _DamagedError(Exception):
    """What is wrong with the contents of a model file."""


def _described(name: str, metadata: dict[str, str]) -> dict[str, Any]:
    """The description in the metadata, of a version that is known here."""
    if FORMAT not in metadata:
        raise UserError(f'{quoted(name)} is a safetensors file, but not a model of regard: make one with "regard fit".')
    described = json.loads(metadata[FORMAT])
    if not isinstance(described, dict):
        raise _DamagedError("its description is not complete")
    version = described["version"]
    if type(version) is not int or version < 1:
        raise _DamagedError("its format version is not a number from 1 up")
    if version > VERSION:
        writer = shortened(str(described.get("regard", "unknown")), 20)
        raise UserError(
            f"{quoted(name)} has format {FORMAT} version {version}, written by regard {writer}, "
            f"and regard {rg.__version__} reads up to version {VERSION}: upgrade regard."
        )
    return described


def _checked(described: dict[str, Any], tensors: dict[str, Floats]) -> Model:
    """The model, after every part of it was looked at."""

    def text(value: Any, what: str, known: list[str] | tuple[str, ...] | None = None) -> str:
        if not isinstance(value, str):
            raise _DamagedError(f"its {what} is not a text")
        if known is not None and value not in known:
            raise _DamagedError(f"its {what} is {quoted(shortened(value))}, and the known ones are {listed(known, 30)}")
        return value

    def tensor(key: str, shape: tuple[int, ...]) -> Floats:
        if key not in tensors or tensors[key].shape != shape:
            raise _DamagedError(f"it has no float64 tensor {quoted(key)} of shape {shape}")
        if np.isnan(tensors[key]).any() or (key != "bandwidth" and np.isinf(tensors[key]).any()):
            raise _DamagedError(f"its tensor {quoted(key)} has values that are not finite")
        return tensors[key]

    features = described["features"]
    if not isinstance(features, list) or not features:
        raise _DamagedError("its features are not a list of names")
    names = tuple(text(feature, "feature") for feature in features)
    if len(set(names)) < len(names):
        raise _DamagedError("two of its features have one name")
    text(described["dtype"], "dtype", ["float64"])
    rows = tensors["y"].size if "y" in tensors else 0
    if rows == 0:
        raise _DamagedError("it has no training data")
    model = Model(
        kernel=text(described["kernel"], "kernel", kernels()),
        bandwidth=tensor("bandwidth", (len(names),)),
        features=names,
        target=text(described["target"], "target"),
        X=tensor("X", (rows, len(names))),
        y=tensor("y", (rows,)),
        sample_weight=tensor("sample_weight", (rows,)) if "sample_weight" in tensors else None,
        estimator=text(described["estimator"], "estimator", ESTIMATORS),
    )
    if not (model.bandwidth > 0).all():
        raise _DamagedError("its bandwidth is not positive")
    if model.sample_weight is not None and not ((model.sample_weight >= 0).all() and model.sample_weight.any()):
        raise _DamagedError("its sample weights are not zero and more")
    return model
