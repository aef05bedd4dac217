"""Pictures: compute first, then draw. Needs matplotlib, which `regard[cli]` brings."""

from regard.plots.curves import Curve as Curve
from regard.plots.curves import draw_curves as draw_curves
from regard.plots.curves import partial_curves as partial_curves
from regard.plots.heatmap import heatmap as heatmap

__all__ = ["Curve", "draw_curves", "heatmap", "partial_curves"]
