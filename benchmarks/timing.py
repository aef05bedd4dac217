"""Interleaved timing: every runner takes its turn in the same rounds of the same process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

PAUSE = 0.003  # s: the threads of one library spin on for about a millisecond, and are not to cost the next its time


def clocked(call: Callable[[], object]) -> float:
    """The seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def turns(expected: dict[str, float], seconds: float, least: int, most: int) -> dict[str, int]:
    """In how many rounds each takes part: each has the same share of the seconds, the slow ones fewer turns."""
    share = seconds / len(expected)
    return {name: min(max(int(share / max(t, 1e-6)), least), most) for name, t in expected.items()}


def rounds(calls: dict[str, Callable[[], object]], counts: dict[str, int]) -> dict[str, list[float]]:
    """The times of all calls: ours, peer, peer, ours, ...; who takes part in fewer rounds does so spread over all."""
    total = max(counts.values())
    taken: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for n in range(total):
            for name in list(calls) if n % 2 == 0 else reversed(calls):
                if n * counts[name] // total != (n - 1) * counts[name] // total:
                    time.sleep(PAUSE)
                    taken[name].append(clocked(calls[name]))
    finally:
        gc.enable()
    return taken


def summary(taken: list[float]) -> dict[str, float | int]:
    """Minimum, median and maximum, in seconds."""
    return {"minimum": min(taken), "median": median(taken), "maximum": max(taken), "rounds": len(taken)}
