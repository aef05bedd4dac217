"""Writes the page of every public name with its docstring.

    python tools/make_api.py docs/build/api.md

It walks the lists that the package itself walks, so a new score, mask, engine or estimator is on the page by being in
its list. The page is built, never edited and never committed.
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import regard as rg
from regard.engines import ENGINES


def sections() -> dict[str, dict[str, Any]]:
    """The public objects by title of their section and name, each once."""
    shown = {name: getattr(rg, name) for name in rg.__all__}
    scores = {n: it for n, it in shown.items() if inspect.isclass(it) and issubclass(it, rg.Score) and it != rg.Score}
    masks = {found.__name__: found for found in rg.MASKS.values()}
    estimators = {name: getattr(rg, name) for name in rg.ESTIMATORS}
    other = {name: it for name, it in shown.items() if name not in {*scores, *masks, *estimators}}
    return {
        "Pooling": {name: found for name, found in other.items() if inspect.isfunction(found)},
        "Scores": scores,
        "Masks": masks,
        "Interfaces and results": {name: found for name, found in other.items() if inspect.isclass(found)},
        "Engines": {name: type(engine) for name, engine in ENGINES.items()},
        "Estimators": estimators,
        **{f"`regard.{name}`": public(f"regard.{name}") for name in ("nn", "plots", "datasets")},
    }


def public(module: str) -> dict[str, Any]:
    """The functions and classes that a module shows and that are its own."""
    shown = inspect.getmembers(import_module(module), lambda it: inspect.isfunction(it) or inspect.isclass(it))
    return {name: it for name, it in shown if not name.startswith("_") and it.__module__.startswith(module)}


def page() -> str:
    """The whole page, in Markdown."""
    parts = ["# API", "Built from the docstrings by `make docs`."]
    for title, found in sections().items():
        rows = [
            f"| [`{name}`](#{name.lower()}) | {first_line(it).replace('|', chr(92) + '|')} |"
            for name, it in found.items()
        ]
        parts += [f"## {title}", "\n".join(["| name | what it is |", "|---|---|", *rows])]
        parts += [entry(name, it) for name, it in found.items()]
    return "\n\n".join(parts) + "\n"


def first_line(found: Any) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(found) or "").partition("\n")[0]


def entry(name: str, found: Any) -> str:
    """One object: signature, docstring, and the methods of a class that are our own."""
    lines = [
        f"### {name}",
        "",
        "```text",
        f"{found.__name__}{signature(found)}",
        "",
        inspect.getdoc(found) or "",
        "```",
    ]
    inherits = inspect.isclass(found) and issubclass(found, rg.Score | rg.Mask) and found not in (rg.Score, rg.Mask)
    if inspect.isclass(found) and not inherits:  # what all scores and masks can do stands there once
        lines += [
            f"- `.{method}{signature(it)}`: {first_line(it)}"
            for method, it in inspect.getmembers(found, inspect.isfunction)
            if not method.startswith("_") and it.__module__.startswith("regard.") and it.__doc__
        ]
    return "\n".join(lines)


def signature(found: Any) -> str:
    """Names and defaults of the arguments; the docstring has the types, with their shapes."""
    whole = inspect.signature(found)
    kept = [p.replace(annotation=p.empty) for p in whole.parameters.values() if p.name != "self"]
    return str(whole.replace(parameters=kept, return_annotation=whole.empty))


def main(path: Path) -> None:
    """Writes the page to this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
