"""Which engine runs a problem, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

from regard.engines import ENGINES, Engine
from regard.problem import Problem


@dataclass(frozen=True)
class Choice:
    """The engine that "auto" takes, and for each other one the reason why it does not.

    ``choice.name`` is the engine, ``choice.reasons`` maps the others to sentences; printing it shows both.
    """

    name: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: chosen", *(f"{name}: {why}" for name, why in self.reasons.items())])


def choose(problem: Problem) -> Choice:
    """The first engine of the list that can run the problem and does not decline it."""
    chosen, reasons = None, {}
    for name, engine in ENGINES.items():
        why = engine.declines(problem) or engine.cannot(problem)  # what is declined need not be loaded to be asked
        if why is None and chosen is None:
            chosen = name
        else:
            reasons[name] = why or f"it could, but {chosen} comes first"
    if chosen is None:
        chosen = next((name for name in reasons if ENGINES[name].cannot(problem) is None), None)
    if chosen is None:
        raise ValueError("no engine can run this: " + "; ".join(f"{n}: {why}" for n, why in reasons.items()) + ".")
    return Choice(chosen, {name: why for name, why in reasons.items() if name != chosen})


def engine_for(problem: Problem, name: str) -> Engine:
    """The engine of this name, or the chosen one for "auto"; a named engine runs or raises."""
    if name == "auto":
        return ENGINES[choose(problem).name]
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; the known ones are auto, {', '.join(ENGINES)}.")
    why = ENGINES[name].cannot(problem)
    if why is not None:
        raise ValueError(
            f'engine "{name}" cannot run this: {why}. Leave engine unset, or use engine="{choose(problem).name}".'
        )
    return ENGINES[name]
