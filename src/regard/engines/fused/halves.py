"""Dot products of bfloat16 tensors as they were given, on the matrix unit of the processor: nothing is cast."""

from __future__ import annotations

import math
import sys
import threading
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding

from regard.arrays import Array
from regard.compiled import products, threads
from regard.compiled.threads import Steps
from regard.engines.fused.blocks import GROUPS
from regard.engines.fused.engine import Matrix
from regard.engines.fused.multiplying import JOBS, driver, room
from regard.straight import Straight

TILE = 32  # rows and columns that a product of tiles has, and keys of a panel of values
LANES = products.LANES["float32"]


@cache
def unit() -> bool:
    """Whether this processor has a unit for products of bfloat16 that torch may switch on."""
    cpu: Any = sys.modules["torch"].cpu
    named = binding.get_host_cpu_features().get("amx-bf16", False)
    return bool(named and getattr(cpu, "_init_amx", lambda: False)())


def pool(inputs: Straight) -> Array:
    """The pooled values in bfloat16 of finite tensors of an even number of features."""
    xp = sys.modules["torch"]
    query, key, value = (_bits(x) for x in (inputs.query, inputs.key, inputs.value))
    entries, (count, features), (keys, columns) = query.shape[0], query.shape[1:], value.shape[1:]
    down, wide = (-(-n // TILE) * TILE for n in (keys, columns))
    query, key = query.view(np.int32), _filled(key, down, -(-features // TILE) * TILE)
    panels = np.zeros((entries, down // TILE, wide, TILE), np.int16)
    out = np.empty((entries, count, columns), np.int16)
    size = max(-(-count * entries // JOBS), GROUPS * LANES)
    size = -(-size // LANES) * LANES
    places = [(n, slice(i, min(i + size, count))) for n in range(entries) for i in range(0, count, size)]
    portion = -(-len(places) // JOBS)
    none = np.empty((0, 0), bool), np.empty((0, 0), np.float32)
    positions, gaps = np.arange(1, count + 1), np.full(count, -1)
    start, stop = np.zeros(count, np.int64), positions if inputs.causal else np.full(count, keys)
    pack, loop = driver("pack_value", np.dtype("float32")), driver("halves", np.dtype("float32"))
    base = np.float32(inputs.scale * math.log2(math.e))
    mine = threading.local()

    def packed(some: range) -> Steps:
        for n in some:
            pack(value[n], panels[n])
        yield

    def work(some: list[tuple[int, slice]]) -> Steps:
        if not hasattr(mine, "room"):
            scores, weights, sight, words, sums, state = room(np.dtype("float32"), key.shape[2] // 2, wide)
            flat = np.empty((LANES, columns), np.float32)
            mine.room = scores, weights.view(np.int32), sight, words.view(np.int32), sums, state, flat
        for n, at in some:
            seen = start[at], stop[at], gaps[at], *none
            loop(query[n, at], key[n], panels[n], *seen, base, out[n, at], *mine.room)
            yield

    several = -(-entries // JOBS)
    threads.run(packed, [range(n, min(n + several, entries)) for n in range(0, entries, several)], inputs.threads)
    threads.run(work, [places[n : n + portion] for n in range(0, len(places), portion)], inputs.threads)
    return xp.from_numpy(out).view(xp.bfloat16).reshape(*inputs.query.shape[:-1], columns)


def _bits(x: Array) -> Matrix:
    """(entries, N, C), contiguous; a copy only where it is not."""
    xp = sys.modules["torch"]
    bits: Matrix = x.detach().reshape(-1, *x.shape[-2:]).contiguous().view(xp.int16).numpy()
    return bits


def _filled(x: Matrix, rows: int, columns: int) -> Matrix:
    """With zeros up to so many rows and columns; the matrix itself if it has them."""
    if x.shape[1:] == (rows, columns):
        return x
    out = np.zeros((len(x), rows, columns), x.dtype)
    out[:, : x.shape[1], : x.shape[2]] = x
    return out
