"""Engines as torch operations: the one place where torch meets them."""

from __future__ import annotations

from regard.bridge.pool import pool as pool
from regard.bridge.pool import recorded as recorded
from regard.bridge.pool import weights as weights
