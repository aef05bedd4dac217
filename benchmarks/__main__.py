"""`python -m benchmarks [NAME ...]`: see `--help`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile

# they slow down NumPy's BLAS, which reads them when it is loaded
SLOWING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# compiled code of an earlier run would hide what compiling takes
CACHES = ("NUMBA_CACHE_DIR", "KEOPS_CACHE_FOLDER", "TORCHINDUCTOR_CACHE_DIR")

if __name__ == "__main__":
    child = "--child" in sys.argv
    removed = {} if child else {name: os.environ.pop(name) for name in SLOWING if name in os.environ}
    if not child:
        folder = tempfile.mkdtemp(prefix="regard-bench-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # registered first, so it comes last
        os.environ.update({name: os.path.join(folder, name.lower()) for name in CACHES})
    os.environ.update(KERAS_BACKEND="torch", KEOPS_VERBOSE="0", PYKEOPS_VERBOSE="0")

    from benchmarks.bench import main  # NumPy is loaded here

    sys.exit(main(sys.argv[1:], removed))
