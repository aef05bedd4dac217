"""A sign of life on standard error, for what takes over a second, where somebody is there to see it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int | None = None, *, delay: float = 1.0) -> Iterator[Callable[[int], None]]:
    """A function that is told how many steps more are done; a bar shows them after `delay` seconds, on a terminal only.

    Parameters
    ----------
    what : what is going on, "reading data.csv"
    total : how many steps there are; None if nobody knows
    """
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(delay, bar.start)  # a thread, since the work to wait for may be one long call
    timer.daemon = True
    timer.start()
    try:
        yield lambda steps: bar.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()
        if bar.live.is_started:
            bar.stop()
