"""Threads of our own for kernels that hold no lock: how many, and a pool that survives a fork and an interrupt."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any

Steps = Generator[None, None, Any]  # a job: where it yields it may be stopped; what it returns is its result

_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}
_forked = False


def _after_fork() -> None:
    global _lock, _forked
    _lock, _forked = threading.Lock(), True  # a child must not wait for OpenMP's threads either: it has none
    _pools.clear()  # the child has none of the threads


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def thread_count(asked: int | None = None) -> int:
    """What was asked for, else OMP_NUM_THREADS, else torch's own setting where torch is loaded, else the CPUs that the
    process may use."""
    if asked is not None:
        return asked
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdigit() and int(given) > 0:
        return int(given)
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _still() -> Callable[[], Any]:
    """What ends torch's OpenMP threads of the calling thread, until it asks for them again.

    After each operation they spin for some ten milliseconds, on the cores that our own threads are about to use:
    omp_pause_resource_all(omp_pause_soft), OpenMP 5.0, section 3.2.44. It costs 0.1 ms.
    """
    with suppress(Exception):
        library = next((Path(sys.modules["torch"].__file__ or "").parent / "lib").glob("libgomp*"))
        pause = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all
        return lambda: pause(1)
    return lambda: None


def run(
    work: Callable[[Any], Steps],
    jobs: Iterable[Any],
    asked: int | None = None,
    then: Callable[[Any], None] = lambda result: None,
) -> None:
    """All jobs done, on several threads; ``then`` gets their results one by one, in the order of the jobs.

    The calling thread works, too, so that an interrupt (Ctrl-C) reaches it between two steps of its job. An error or an
    interrupt stops the other threads after their step, and is raised when they have stopped.
    """
    todo, count = list(jobs), thread_count(asked)
    if min(count, len(todo)) > 1 and "torch" in sys.modules and not _forked:
        _still()()
    shared = _Shared(work, todo, then)
    helpers: list[Future[None]] = []
    try:
        for _ in range(min(count, len(todo)) - 1):
            try:
                helpers.append(_pool(count - 1).submit(copy_context().run, shared.take))
            except RuntimeError:  # there is no thread to be had, at a limit or at the end of the interpreter
                break
        shared.take()
        for helper in helpers:
            if not helper.cancel():  # it has begun, or is done
                helper.result()
    finally:
        shared.stopped = True
        wait([h for h in helpers if not h.cancel()])


def _pool(size: int) -> ThreadPoolExecutor:
    with _lock:
        if size not in _pools:
            _pools[size] = ThreadPoolExecutor(size, thread_name_prefix="regard")
        return _pools[size]


class _Shared:
    """Jobs that several threads take from, and their results in order."""

    def __init__(self, work: Callable[[Any], Steps], todo: list[Any], then: Callable[[Any], None]) -> None:
        self.work, self.then = work, then
        self.todo, self.done = list(enumerate(todo))[::-1], dict[int, Any]()
        self.merged = 0
        self.lock = threading.Lock()
        self.stopped = False

    def take(self) -> None:
        """Do jobs until there are none."""
        try:
            while not self.stopped:
                try:
                    n, job = self.todo.pop()
                except IndexError:
                    return
                steps = self.work(job)
                while not self.stopped:
                    try:
                        next(steps)
                    except StopIteration as end:
                        self._hand_on(n, end.value)
                        break
        except BaseException:
            self.stopped = True
            raise

    def _hand_on(self, n: int, result: Any) -> None:
        with self.lock:
            self.done[n] = result
            while self.merged in self.done:
                self.then(self.done.pop(self.merged))
                self.merged += 1
