"""Peak memory of one call, in a process of its own: the peak of a process does not come down again.

The processes are forks of a server that has only imported the libraries, so that each starts in no time.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.cases import Case

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def peak(case: Case, name: str) -> dict[str, int]:
    """Bytes of the inputs, of the outputs, and by how much the peak rose over both, measured in this process.

    Before it, the same was run with a few queries and keys, or as a whole where it is compiled for its sizes, so that
    what is loaded or compiled once is not counted.
    """
    from benchmarks.data import cotangent_of, inputs_of, run
    from benchmarks.peers import OURS, RUNNERS
    from benchmarks.peers.ours import chosen

    peer, inputs, cotangent = RUNNERS[name], inputs_of(case), cotangent_of(case)
    pool = peer.pool(case)
    if peer.compiles:
        run(pool, inputs, cotangent)
    else:
        tiny = replace(case.tiny(), engine=chosen(case, inputs)) if peer is OURS else case.tiny()
        run(peer.pool(tiny), inputs_of(tiny), cotangent_of(tiny))
    gc.collect()
    before = lowered_peak()
    outputs = run(pool, inputs, cotangent)
    over = highest() - before
    held = [inputs.values(), outputs]
    given, made = (sum(x.numel() * x.element_size() for x in tensors) for tensors in held)
    return {"inputs": given, "outputs": made, "over": max(over - made, 0)}


def lowered_peak() -> int:
    """The peak so far, brought down to what the process holds now where the system allows that."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        CLEAR.write_text("5")
    return highest()


def highest() -> int:
    """The most bytes of memory that this process held at once."""
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_short(error: Exception) -> str:
    """What went wrong, in a line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


class Processes:
    """Fresh processes, one for each measurement."""

    def __enter__(self) -> Processes:
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "numba", "regard", "benchmarks.peers"])
        self.executor = ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1)
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown(cancel_futures=True)

    def peak(self, case: Case, name: str) -> dict[str, Any]:
        """The peak, or why there is none: a process may be killed for its memory."""
        try:
            return self.executor.submit(peak, case, name).result()
        except Exception as error:
            if isinstance(error, BrokenProcessPool):
                self.__exit__()
                self.__enter__()
            return {"why": in_short(error)}
