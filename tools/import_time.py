"""Prints how long `import regard` takes in a fresh process, and how much of that is NumPy: the minimum of ten each."""

from __future__ import annotations

import subprocess
import sys

RUNS = 10
CLOCK = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(module: str) -> float:
    """The time of one import in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CLOCK.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    for module in ("numpy", "regard"):
        print(f"import {module}: {min(seconds(module) for _ in range(RUNS)):.3f} s")
