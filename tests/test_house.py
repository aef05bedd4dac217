"""The house rules: what the package shows, what it loads, and that all of it is documented."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import regard as rg

ROOT = Path(__file__).parents[1]
LAZY = (
    "array_api_compat",
    "joblib",
    "matplotlib",
    "numba",
    "pandas",
    "polars",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "typer",
)


def run(code: str) -> str:
    """What this code prints in a fresh process."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


API = tool("make_api")
PUBLIC = [(title, name, found) for title, names in API.sections().items() for name, found in names.items()]


def test_the_public_names_are_sorted_and_resolve() -> None:
    assert rg.__all__ == sorted(set(rg.__all__))
    assert [name for name in rg.__all__ if not hasattr(rg, name)] == []
    assert set(rg.__all__) <= set(dir(rg))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'regard' has no attribute 'gaussian'"):
        rg.gaussian  # noqa: B018


def test_import_loads_nothing_that_is_not_needed_yet() -> None:
    assert run(f"import sys, regard; print([name for name in {LAZY} if name in sys.modules])") == "[]"


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("no torch", name="torch")

sys.meta_path.insert(0, NoTorch())

import numpy as np
import regard as rg

x = np.linspace(0.0, 1.0, 11)
y = np.sin(6 * x)
pooled = rg.attention_pool(x, x, y, rg.Gaussian(0.1), mask=rg.NotSelf())
again, _ = rg.attention_pool_gradients(np.ones(11), x, x, y, rg.Gaussian(0.1), mask=rg.NotSelf())
fitted = rg.NadarayaWatsonRegressor(bandwidth=0.1).fit(x[:, None], y)
learned = rg.AttentionRegressor(random_state=0).fit(x[:, None], y)
print(np.array_equal(pooled, again), fitted.predict(x[:, None]).shape, learned.predict(x[:, None]).shape)
print("torch" in sys.modules)
"""


def test_the_numpy_half_never_needs_torch() -> None:
    assert run(WITHOUT_TORCH) == "True (11,) (11,)\nFalse"


@pytest.mark.parametrize(("title", "name", "found"), PUBLIC, ids=[f"{title}-{name}" for title, name, _ in PUBLIC])
def test_every_public_name_is_documented(title: str, name: str, found: object) -> None:
    doc = found.__doc__ or ""
    first = inspect.cleandoc(doc).partition("\n")[0]
    assert first, "no docstring"
    assert not first.startswith(f"{name}("), "only the docstring that a dataclass makes itself"
    assert first.endswith((".", ":")) or ". " in first, f"the first line is no sentence: {first!r}"
    if title not in ("Interfaces and results", "Engines", "`regard.plots`"):
        assert "\n    >>> " in doc or "\n>>> " in inspect.cleandoc(doc), "no example"
    if title == "Scores":
        assert "\n        s(q, k) = " in doc, "no formula"


def test_the_api_page_has_every_entry_of_every_list() -> None:
    page = API.page()
    listed = [*rg.SCORES.values(), *rg.MASKS.values(), *(getattr(rg, name) for name in rg.ESTIMATORS)]
    assert len(rg.SCORES) > 20
    for found in listed:
        assert f"\n### {found.__name__}\n" in page
        assert inspect.cleandoc(found.__doc__) in page


def test_every_public_name_is_on_the_api_page_once() -> None:
    names = [name for _, name, _ in PUBLIC]
    assert sorted({*rg.__all__} - {*names}) == ["masks", "scores"]  # the folders whose contents are on it
    assert len(names) == len(set(names))


def test_the_version_is_that_of_the_project_file() -> None:
    assert f'\nversion = "{rg.__version__}"\n' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
