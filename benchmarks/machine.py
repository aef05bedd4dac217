"""What the numbers depend on: the machine, the versions, the commit and the environment."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("regard", "numpy", "numba", "torch", "pykeops", "keras", "statsmodels", "scikit-learn", "scipy")
VECTORS = ("avx", "amx", "fma", "sse4_2", "f16c", "sve", "asimd")
LIMITS = ("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "NUMBA_NUM", "NUMBA_CPU", "ATEN_CPU", "DNNL_", "ONEDNN_")
ROOT = Path(__file__).parents[1]


def record(removed: dict[str, str]) -> dict[str, object]:
    """All of it; ``removed`` is what was taken out of the environment."""
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain")),
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": [flag for flag in field("flags").split() if flag.startswith(VECTORS)],
        "caches": caches(),
        "memory": memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed(name))},
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(LIMITS)},
        "removed": removed,
    }


def git(*arguments: str) -> str:
    """What git says, or nothing where there is none."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def field(name: str) -> str:
    """The first line of this name in what Linux says about its CPUs."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def cpu() -> str:
    """Its name, with family and model where Linux tells them: some machines hide the rest."""
    name = field("model name") or platform.processor() or platform.machine()
    numbers = [f"{what} {field(key)}" for what, key in (("family", "cpu family"), ("model", "model")) if field(key)]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def caches() -> dict[str, str]:
    """The size of each cache of the first CPU."""
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    told = [[(folder / part).read_text().strip() for part in ("level", "type", "size")] for folder in folders]
    return {f"L{level} {kind.lower()}": size for level, kind, size in told}


def memory() -> int:
    """Bytes of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
