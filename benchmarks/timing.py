"""Interleaved timing: every runner takes its turn in the same rounds of the same process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median

Call = Callable[[], object]
PAUSE = 0.015  # s: threads of one library spin on for up to 10 ms, and are not to cost the next its time


def clocked(call: Call) -> float:
    """The seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def timed(calls: dict[str, Call], seconds: float, least: int, most: int) -> dict[str, list[float]]:
    """The times of all calls, in rounds: ours, peer, peer, ours, ...

    Each has the same share of the seconds, so the slow ones take part in fewer rounds, spread over all of them.
    """
    gc.collect()
    gc.disable()
    try:
        taken = {name: [clocked(call)] for name, call in calls.items()}
        share = seconds / len(calls)
        counts = {name: min(max(int(share / max(t, 1e-6)), least), most) - 1 for name, (t,) in taken.items()}
        total = max(counts.values())
        for n in range(total):
            for name in calls if n % 2 else reversed(calls):
                if (n + 1) * counts[name] // total > n * counts[name] // total:
                    time.sleep(PAUSE)
                    taken[name].append(clocked(calls[name]))
    finally:
        gc.enable()
    return taken


def summary(taken: list[float]) -> dict[str, float | int]:
    """Minimum, median and maximum, in seconds."""
    return {"minimum": min(taken), "median": median(taken), "maximum": max(taken), "rounds": len(taken)}
