"""Which engine runs a problem, and why not the others."""

from __future__ import annotations

from dataclasses import dataclass

from regard.arrays import Array
from regard.engines import ENGINES, Engine
from regard.engines.base import Direct
from regard.problem import Problem
from regard.straight import Straight


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
    reasons = {name: _against(engine, problem) for name, engine in ENGINES.items()}
    chosen = _chosen(problem)
    told = {name: why or f"it could, but {chosen} comes first" for name, why in reasons.items() if name != chosen}
    return Choice(chosen, told)


def _against(engine: Engine, problem: Problem) -> str | None:
    """Why "auto" does not take this engine, or None; what is declined need not be loaded to be asked."""
    return engine.declines(problem) or engine.cannot(problem)


def _chosen(problem: Problem) -> str:
    """The name alone: engines that come after it are not asked, which may cost more than the work."""
    for why in (_against, lambda engine, problem: engine.cannot(problem)):
        for name, engine in ENGINES.items():
            if why(engine, problem) is None:
                return name
    told = "; ".join(f"{name}: {_against(engine, problem)}" for name, engine in ENGINES.items())
    raise ValueError(f"no engine can run this: {told}.")


def directly(inputs: Straight, name: str) -> Array | None:
    """The pooled values by the first engine, or the named one, that takes the inputs as they were given."""
    for engine in ENGINES.values():
        if name in ("auto", engine.name) and isinstance(engine, Direct):
            out = engine.direct(inputs)
            if out is not None:
                return out
    return None


def allowed(rtol: float | None, name: str) -> float:
    """The error that a call allows: what was asked for, else that of a named engine, 0 for an exact answer."""
    return float(getattr(ENGINES.get(name), "rtol", 0.0) if rtol is None else rtol)


def engine_for(problem: Problem, name: str) -> Engine:
    """The engine of this name, or the chosen one for "auto"; a named engine runs or raises."""
    if name == "auto":
        return ENGINES[_chosen(problem)]
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; the known ones are auto, {', '.join(ENGINES)}.")
    why = ENGINES[name].cannot(problem)
    if why is not None:
        raise ValueError(
            f'engine "{name}" cannot run this: {why}. Leave engine unset, or use engine="{_chosen(problem)}".'
        )
    return ENGINES[name]
