"""The engines: one a file, one a line here, in the order in which "auto" asks them."""

from __future__ import annotations

from regard.engines.base import Engine as Engine
from regard.engines.fused import Fused
from regard.engines.fused.matrix import Matrix
from regard.engines.lowdim import LowDim
from regard.engines.sdpa import Sdpa
from regard.engines.tiled import Tiled
from regard.reference import Reference

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Matrix(), Sdpa(), LowDim(), Fused(), Tiled(), Reference())
}
