"""The inputs and attributes of the ONNX operator ``Attention`` as calls of Regard, a line or two for each."""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import numpy as np

import regard as rg


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    *,
    scale: float | None = None,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    softcap: float = 0.0,
    qk_matmul_output_mode: int = 0,
    left_window_size: int = -1,
    right_window_size: int = -1,
    softmax_precision: int = 0,  # ours is float32 or more
    engine: str = "auto",
) -> tuple[np.ndarray, ...]:
    """Y, present_key, present_value and qk_matmul_output."""
    given, packed = query.dtype, query.ndim == 3
    if given == "bfloat16":  # which is torch's alone here, and float32 inside as well
        query, key, value, past_key, past_value = (
            None if x is None else x.astype(np.float32) for x in (query, key, value, past_key, past_value)
        )
    if packed:
        query = split(query, q_num_heads)
        key, value = (split(x, kv_num_heads) for x in (key, value))
    if past_key is not None:
        key, value = np.concatenate([past_key, key], axis=2), np.concatenate([past_value, value], axis=2)
    present = key, value

    heads, queries, keys = key.shape[1], query.shape[2], key.shape[2]
    q, k, v = (rg.grouped(x, heads) for x in (query, key, value))
    raw = rg.ScaledDotProduct(scale)
    score = rg.SoftCap(raw, softcap) if softcap else raw

    offset = 0 if past_key is None else past_key.shape[2]  # the key that query 0 stands at
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - queries
    masks: list[Any] = []
    if nonpad_kv_seqlen is not None:
        masks.append(rg.ValidLength(nonpad_kv_seqlen))
    if is_causal:
        masks.append(rg.Causal(offset=offset))
    if left_window_size >= 0 or right_window_size >= 0:
        sides = left_window_size, right_window_size
        before, after = (n if n >= 0 else keys + queries + int(np.max(np.abs(offset))) for n in sides)  # -1: no end
        masks.append(rg.Window(before, after, offset=offset))
    bias = None
    if attn_mask is not None:
        missing = keys - attn_mask.shape[-1]
        boolean = attn_mask.dtype == bool
        fill = False if boolean else -np.inf
        attn_mask = attn_mask if boolean else attn_mask.astype(query.dtype)
        attn_mask = np.pad(attn_mask, [(0, 0)] * (attn_mask.ndim - 1) + [(0, missing)], constant_values=fill)
        attn_mask = rg.grouped(attn_mask, heads) if attn_mask.ndim > 2 else attn_mask
        if boolean:
            masks.append(attn_mask)
        else:
            bias = attn_mask
    mask = reduce(and_, masks) if masks else None

    out = rg.ungrouped(rg.attention_pool(q, k, v, score, mask=mask, bias=bias, engine=engine))
    if packed:
        out = np.swapaxes(out, 1, 2).reshape(*out.shape[:1], queries, -1)
    shown = (
        lambda: rg.attention_scores(q, k, raw),
        lambda: rg.attention_scores(q, k, score),
        lambda: rg.attention_scores(q, k, score, mask=mask, bias=bias),
        lambda: rg.attention_weights(q, k, score, mask=mask, bias=bias, engine=engine),
    )[qk_matmul_output_mode]()
    return tuple(x.astype(given) for x in (out, *present, rg.ungrouped(shown)))


def split(x: np.ndarray, heads: int) -> np.ndarray:
    """(B, N, H C) as (B, H, N, C)."""
    return np.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)
