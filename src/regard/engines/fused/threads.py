"""Threads of our own for kernels that hold no lock: how many, and a pool that survives a fork."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _pools.clear()  # the child has none of the threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count() -> int:
    """OMP_NUM_THREADS, else torch's own setting where torch is loaded, else the CPUs that the process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(work: Callable[[Any], None], jobs: Iterable[Any]) -> None:
    """All jobs done, on several threads; the results may not depend on which ran where. An interrupt drops the rest."""
    todo, count = list(jobs), thread_count()
    if count == 1 or len(todo) == 1:
        for job in todo:
            work(job)
        return
    with _lock:
        if count not in _pools:
            _pools[count] = ThreadPoolExecutor(count, thread_name_prefix="regard")
        pool = _pools[count]
    futures = [pool.submit(work, job) for job in todo]
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:
            future.cancel()
