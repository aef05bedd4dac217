"""Masks against loops over positions: tiles, bounds, the keys that somebody sees, combinations, and error texts."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard.masks import Layout, Mask
from regard.masks.base import Given

B, H, Q, K = 2, 3, 7, 13
LEAD = (B, H)

OFFSETS = [-2, 9]
KEEP = np.random.default_rng(0).random((B, K)) < 0.6
QUERY_LENGTHS = [[0, 1, 2, 13, 5, 7, 11], [3, 3, 0, 1, 13, 2, 6]]
SORTED_QUERY, SORTED_KEY = [0, 0, 1, 3, 3, 3, 7], [0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 7, 7, 9]
QUERY_IDS = np.array([[3, -1, 0, 3, 2, 0, 9], [-1, -1, 5, 1, 1, -2, 0]])
KEY_IDS = np.array([[0, 3, -1, 2, 2, 3, 0, -1, 3, 4, 0, 5, -2], [5, 5, 0, -1, 1, 0, 2, 2, 1, -1, 5, 0, 7]])
ARRAY = np.random.default_rng(1).random((B, 1, Q, K)) < 0.5


@dataclass(frozen=True)
class Truth:
    """A mask, the same thing said about one batch entry, head, query and key, and whether its bounds are exact."""

    make: Callable[[Callable[[Any], Any]], Any]  # from what converts the arrays
    allowed: Callable[[int, int, int, int], bool]
    exact: bool = False

    def dense(self) -> np.ndarray:
        out = np.zeros((B, H, Q, K), dtype=bool)
        for b, h, i, j in itertools.product(range(B), range(H), range(Q), range(K)):
            out[b, h, i, j] = self.allowed(b, h, i, j)
        return out


TRUTHS = {
    "length": Truth(lambda c: rg.ValidLength(5), lambda b, h, i, j: j < 5, True),
    "length_zero": Truth(lambda c: rg.ValidLength(0), lambda b, h, i, j: False, True),
    "length_batch": Truth(lambda c: rg.ValidLength(c([11, 3])), lambda b, h, i, j: j < [11, 3][b], True),
    "length_head": Truth(
        lambda c: rg.ValidLength(c([[1, 2, 3], [4, 5, 13]])), lambda b, h, i, j: j < [[1, 2, 3], [4, 5, 13]][b][h], True
    ),
    "length_one_for_all_batches": Truth(
        lambda c: rg.ValidLength(c([[1, 2, 3]])), lambda b, h, i, j: j < [1, 2, 3][h], True
    ),
    "length_query": Truth(
        lambda c: rg.ValidLength(c(QUERY_LENGTHS[0]), per_query=True),
        lambda b, h, i, j: j < QUERY_LENGTHS[0][i],
        True,
    ),
    "length_batch_query": Truth(
        lambda c: rg.ValidLength(c(QUERY_LENGTHS), per_query=True), lambda b, h, i, j: j < QUERY_LENGTHS[b][i], True
    ),
    "padding": Truth(lambda c: rg.KeyPadding(c(KEEP[0])), lambda b, h, i, j: KEEP[0, j]),
    "padding_batch": Truth(lambda c: rg.KeyPadding(c(KEEP)), lambda b, h, i, j: KEEP[b, j]),
    "padding_head": Truth(
        lambda c: rg.KeyPadding(c(np.stack([KEEP[:, ::-1], KEEP, ~KEEP], axis=1))),
        lambda b, h, i, j: [KEEP[b, K - 1 - j], KEEP[b, j], not KEEP[b, j]][h],
    ),
    "causal_start": Truth(lambda c: rg.Causal(alignment="start"), lambda b, h, i, j: j <= i, True),
    "causal_end": Truth(lambda c: rg.Causal(alignment="end"), lambda b, h, i, j: j <= i + K - Q, True),
    "causal_offset": Truth(lambda c: rg.Causal(offset=-3), lambda b, h, i, j: j <= i - 3, True),
    "causal_batch": Truth(lambda c: rg.Causal(offset=c(OFFSETS)), lambda b, h, i, j: j <= i + OFFSETS[b], True),
    "window_start": Truth(lambda c: rg.Window(2, 1, alignment="start"), lambda b, h, i, j: -2 <= j - i <= 1, True),
    "window_end": Truth(lambda c: rg.Window(0, 3, alignment="end"), lambda b, h, i, j: 0 <= j - i - K + Q <= 3, True),
    "window_own": Truth(lambda c: rg.Window(0, 0, offset=3), lambda b, h, i, j: j == i + 3, True),
    "window_outside": Truth(lambda c: rg.Window(1, 1, offset=40), lambda b, h, i, j: False, True),
    "window_batch": Truth(
        lambda c: rg.Window(1, 2, offset=c(OFFSETS)), lambda b, h, i, j: -1 <= j - i - OFFSETS[b] <= 2, True
    ),
    "not_self_start": Truth(lambda c: rg.NotSelf(alignment="start"), lambda b, h, i, j: j != i),
    "not_self_end": Truth(lambda c: rg.NotSelf(alignment="end"), lambda b, h, i, j: j != i + K - Q),
    "not_self_batch": Truth(lambda c: rg.NotSelf(offset=c(OFFSETS)), lambda b, h, i, j: j != i + OFFSETS[b]),
    "segments_sorted": Truth(
        lambda c: rg.Segments(c(SORTED_QUERY), c(SORTED_KEY)), lambda b, h, i, j: SORTED_QUERY[i] == SORTED_KEY[j], True
    ),
    "segments": Truth(
        lambda c: rg.Segments(c(QUERY_IDS), c(KEY_IDS)), lambda b, h, i, j: QUERY_IDS[b, i] == KEY_IDS[b, j] >= 0
    ),
    "segments_shared_keys": Truth(
        lambda c: rg.Segments(c(QUERY_IDS), c(SORTED_KEY)), lambda b, h, i, j: QUERY_IDS[b, i] == SORTED_KEY[j], True
    ),
    "array": Truth(lambda c: Given(c(ARRAY)), lambda b, h, i, j: ARRAY[b, 0, i, j]),
    "array_query_key": Truth(lambda c: Given(c(ARRAY[1, 0])), lambda b, h, i, j: ARRAY[1, 0, i, j]),
    "array_query": Truth(lambda c: Given(c(ARRAY[1, 0, :, :1])), lambda b, h, i, j: ARRAY[1, 0, i, 0]),
    "array_key": Truth(lambda c: Given(c(ARRAY[0, 0, 0])), lambda b, h, i, j: ARRAY[0, 0, 0, j]),
    "array_batch": Truth(lambda c: Given(c(ARRAY[:, :, :1, :1])), lambda b, h, i, j: ARRAY[b, 0, 0, 0]),
    "array_scalar": Truth(lambda c: Given(c(np.array(False))), lambda b, h, i, j: False),
    "and": Truth(
        lambda c: rg.Causal(alignment="start") & rg.KeyPadding(c(KEEP)), lambda b, h, i, j: j <= i and KEEP[b, j]
    ),
    "or": Truth(
        lambda c: rg.Window(0, 0, alignment="end") | rg.ValidLength(c([2, 0])),
        lambda b, h, i, j: j == i + K - Q or j < [2, 0][b],
    ),
    "not": Truth(lambda c: ~rg.Causal(offset=c(OFFSETS)), lambda b, h, i, j: j > i + OFFSETS[b]),
    "not_padding": Truth(lambda c: ~rg.KeyPadding(c(KEEP)), lambda b, h, i, j: not KEEP[b, j]),
    "array_and_mask": Truth(
        lambda c: c(ARRAY) & rg.NotSelf(alignment="start"), lambda b, h, i, j: ARRAY[b, 0, i, j] and i != j
    ),
    "mask_or_array": Truth(lambda c: rg.Causal(offset=-1) | c(ARRAY), lambda b, h, i, j: ARRAY[b, 0, i, j] or j < i),
    "array_or_mask": Truth(
        lambda c: c(ARRAY[1, 0]) | (rg.ValidLength(4) & c(ARRAY)),
        lambda b, h, i, j: ARRAY[1, 0, i, j] or (j < 4 and ARRAY[b, 0, i, j]),
    ),
}
LIBRARIES: dict[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": lambda x: torch.as_tensor(np.array(x))}
MASK_CLASSES = {type(t.make(np.asarray)) for t in TRUTHS.values()}


def layout(library: str, lead: tuple[int, ...] = LEAD, queries: int = Q, keys: int = K, **starts: Any) -> Layout:
    array = LIBRARIES[library](np.zeros(1))
    return Layout(np if library == "numpy" else torch, lead, queries, keys, array, **starts)


def tiles(n: int, width: int) -> Iterator[slice]:
    return (slice(i, min(i + width, n)) for i in range(0, n, width))


def same(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.broadcast_to(np.asarray(found), expected.shape), expected)


@pytest.fixture(params=sorted(TRUTHS))
def truth(request: pytest.FixtureRequest) -> Truth:
    return TRUTHS[request.param]


@pytest.fixture(params=sorted(LIBRARIES))
def library(request: pytest.FixtureRequest) -> str:
    return request.param


def test_every_mask_of_the_list_is_here():
    assert set(rg.MASKS.values()) <= MASK_CLASSES


@pytest.mark.parametrize("widths", [(1, 1), (2, 5), (3, 4), (5, 13), (7, 2), (7, 13)])
def test_a_tile_is_the_definition(truth, library, widths):
    place, mask, dense = layout(library), truth.make(LIBRARIES[library]), truth.dense()
    mask.check(place)
    for queries, keys in itertools.product(tiles(Q, widths[0]), tiles(K, widths[1])):
        found = mask.tile(place, queries, keys)
        assert isinstance(found, torch.Tensor if library == "torch" else np.ndarray)
        assert found.dtype in (torch.bool, np.bool)
        same(found, dense[..., queries, keys])


@pytest.mark.parametrize("arrays", ["numpy", "torch", "list", "read_only", "backwards"])
def test_the_arrays_of_a_mask_may_come_from_elsewhere(truth, library, arrays):
    def read_only(x: Any) -> np.ndarray:
        x = np.array(x)
        x.flags.writeable = False
        return x

    convert = {
        **LIBRARIES,
        "list": lambda x: np.asarray(x).tolist(),
        "read_only": read_only,
        "backwards": lambda x: np.flip(np.flip(np.array(x)).copy()),
    }[arrays]
    if arrays == "list" and isinstance(truth.make(np.asarray), Given):
        convert = np.asarray  # a list becomes an array before it is a mask
    mask = truth.make(convert)
    mask.check(layout(library))
    same(mask.tile(layout(library), slice(1, 6), slice(2, 11)), truth.dense()[..., 1:6, 2:11])
    alive = mask.alive(layout(library))
    same(True if alive is None else alive, truth.dense().any(axis=-2))


def hull(seen: np.ndarray) -> tuple[int, int]:
    """The smallest range of keys that holds all that is seen; (0, 0) for nothing."""
    at = np.flatnonzero(seen.reshape(-1, seen.shape[-1]).any(axis=0))
    return (int(at[0]), int(at[-1]) + 1) if at.size else (0, 0)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_bounds_never_leave_out_a_key_and_are_exact_where_keys_form_a_range(truth, library, width):
    place, mask, dense = layout(library), truth.make(LIBRARIES[library]), truth.dense()
    for queries in tiles(Q, width):
        start, stop = mask.bounds(place, queries)
        assert type(start) is type(stop) is int
        assert 0 <= start <= stop <= K
        first, last = hull(dense[..., queries, :])
        assert last == first or start <= first <= last <= stop
        if truth.exact:
            assert stop == start if first == last else (start, stop) == (first, last)


def ranges(found: Any, count: int) -> np.ndarray:
    """What (start, stop, gap) let each of the queries see, (B, H, q, K)."""
    start, stop, gap = (np.broadcast_to(np.asarray(x), (B, H, count))[..., None] for x in found)
    keys = np.arange(K)
    return (keys >= start) & (keys < stop) & (keys != gap)


@pytest.mark.parametrize("width", [1, 3, 7])
def test_ranges_say_all_that_the_tile_says_or_nothing(truth, library, width):
    place, mask, dense = layout(library), truth.make(LIBRARIES[library]), truth.dense()
    for queries in tiles(Q, width):
        found = mask.ranges(place, queries)
        assert (found is not None) == isinstance(mask, rg.ValidLength | rg.Causal | rg.Window | rg.NotSelf)
        if found is not None:
            same(ranges(found, queries.stop - queries.start), dense[..., queries, :])


def test_ranges_of_both_masks_are_those_of_their_intersection(library):
    place, convert = layout(library), LIBRARIES[library]
    both = rg.Window(4, 2, alignment="end") & rg.ValidLength(convert([11, 6])) & rg.NotSelf(offset=5)
    same(both.tile(place, slice(1, 6), slice(0, K)), ranges(both.ranges(place, slice(1, 6)), 5))
    assert (rg.NotSelf(offset=0) & rg.NotSelf(offset=1)).ranges(place, slice(0, Q)) is None  # two gaps are no range
    assert (rg.Causal(offset=0) & rg.KeyPadding(convert(KEEP))).ranges(place, slice(0, Q)) is None


@pytest.mark.parametrize("width", [2, 1024])
def test_alive_is_any_over_the_queries(truth, library, width, monkeypatch):
    monkeypatch.setattr("regard.masks.base.TILE", width)
    alive = truth.make(LIBRARIES[library]).alive(layout(library))
    same(True if alive is None else alive, truth.dense().any(axis=-2))


# masks that count positions, without an array over the queries or keys and without the whole length
BY_POSITION = [
    *("length", "length_batch", "causal_start", "causal_offset", "causal_batch", "window_start", "window_batch"),
    *("not_self_start", "not_self_batch", "not"),
]


@pytest.mark.parametrize("name", BY_POSITION)
@pytest.mark.parametrize("queries", [0, 1, 2])
def test_alive_with_hardly_any_query(name, queries, library):
    alive = TRUTHS[name].make(LIBRARIES[library]).alive(layout(library, queries=queries))
    same(True if alive is None else alive, TRUTHS[name].dense()[..., :queries, :].any(axis=-2))


@pytest.mark.parametrize("name", BY_POSITION)
def test_a_part_sees_the_same_as_the_whole(name, library):
    mask = TRUTHS[name].make(LIBRARIES[library])
    part = TRUTHS[name].dense()[..., 2:6, 5:12]
    place = layout(library, queries=4, keys=7, query_start=2, key_start=5, part=True)
    if name == "length_batch":
        assert max(mask.lengths) > place.keys  # longer than the part is no mistake
    mask.check(place)
    same(mask.tile(place, slice(0, 4), slice(0, 7)), part)
    same(mask.tile(place, slice(1, 3), slice(2, 7)), part[..., 1:3, 2:7])
    start, stop = mask.bounds(place, slice(0, 4))
    first, last = hull(part)
    assert (start, stop) == (first, last) if TRUTHS[name].exact else start <= first <= last <= stop
    alive = mask.alive(place)
    same(True if alive is None else alive, part.any(axis=-2))


@pytest.mark.parametrize("batch", [1, 0])
@pytest.mark.parametrize("queries", [Q, 0])
@pytest.mark.parametrize("keys", [K, 0])
def test_empty_axes(batch, queries, keys, engine):
    zeros = [np.zeros((batch, n), dtype=int) for n in (queries, keys)]
    value = np.ones((batch, keys, 2))
    for mask in (
        rg.Causal(offset=np.zeros(batch, int)),
        rg.Window(1, 1, offset=0),
        rg.NotSelf(offset=99),
        rg.ValidLength(np.zeros(batch, int)),
        rg.ValidLength(zeros[0], per_query=True),
        rg.KeyPadding(zeros[1] == 0),
        rg.Segments(*zeros),
        ~rg.Segments(*zeros) | rg.Segments(*zeros),
        np.ones((batch, queries, keys), dtype=bool),
        np.ones((1, keys), dtype=bool),
    ):
        place = layout("numpy", (batch,), queries, keys)
        start, stop = rg.masks.as_mask(mask).bounds(place, slice(0, queries))
        assert 0 <= start <= stop <= keys
        alive = rg.masks.as_mask(mask).alive(place)
        assert alive is None or np.broadcast_shapes(alive.shape, (batch, keys)) == (batch, keys)
        assert queries or not keys or not alive.any()  # nobody sees a key where nobody looks
        arrays = np.zeros((batch, queries, 1)), np.zeros((batch, keys, 1)), value
        out = rg.attention_pool(*arrays, rg.Constant(), mask=mask, engine=engine)
        assert out.shape == (batch, queries, 2)
        assert np.isin(out, [0, 1]).all()


def test_the_front_door_sees_what_the_mask_says(truth, library, engine, small_tiles):
    c = LIBRARIES[library]
    query, key = c(np.zeros((B, H, Q, 1))), c(np.zeros((K, 1)))
    w = np.asarray(rg.attention_weights(query, key, rg.Constant(), mask=truth.make(c), engine=engine))
    dense = truth.dense()
    np.testing.assert_allclose(w, dense / np.maximum(dense.sum(-1, keepdims=True), 1), atol=1e-15)


LEAVES = [name for name in sorted(TRUTHS) if not name.startswith(("and", "or", "not_padding", "mask_or", "array_and"))]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_combination_combines_tiles_bounds_and_alive(data):
    def draw(depth: int) -> tuple[Any, np.ndarray]:
        kind = data.draw(st.sampled_from(["leaf", "and", "or", "not"] if depth else ["leaf"]))
        if kind == "leaf":
            truth = TRUTHS[data.draw(st.sampled_from(LEAVES))]
            return truth.make(np.asarray), truth.dense()
        left = draw(depth - 1)
        if kind == "not":
            return ~left[0], ~left[1]
        combine, right = {"and": operator.and_, "or": operator.or_}[kind], draw(depth - 1)
        return combine(left[0], right[0]), combine(left[1], right[1])

    mask, dense = draw(3)
    place = layout("numpy")
    mask.check(place)
    same(mask.tile(place, slice(0, Q), slice(0, K)), dense)
    for queries in tiles(Q, 3):
        start, stop = mask.bounds(place, queries)
        first, last = hull(dense[..., queries, :])
        assert 0 <= start <= stop <= K
        assert last == first or start <= first <= last <= stop
    alive = mask.alive(place)
    same(True if alive is None else alive, dense.any(axis=-2))
    if mask.key_only:
        same(dense[..., :1, :], dense)


def test_bounds_of_a_combination_skip_what_its_parts_skip():
    place, queries = layout("numpy"), slice(2, 4)
    early, late = rg.Window(1, 0, offset=0), rg.Window(0, 1, offset=5)  # keys 1 to 3 and 7 to 9
    nothing = rg.Window(0, 0, offset=40)
    assert early.bounds(place, queries) == (1, 4)
    assert late.bounds(place, queries) == (7, 10)
    assert (rg.Causal(offset=0) & ~rg.KeyPadding(KEEP)).bounds(place, queries) == (0, 4)
    assert (early & rg.Window(0, 9, offset=0)).bounds(place, queries) == (2, 4)
    assert (early | late).bounds(place, queries) == (1, 10)
    for mask in (nothing | early, early | nothing):
        assert mask.bounds(place, queries) == (1, 4)
    for mask in (early & late, late & early, nothing & early, nothing | nothing):
        start, stop = mask.bounds(place, queries)
        assert 0 <= start == stop <= K


def test_axes_of_size_one_are_never_expanded():
    place = layout("numpy")
    for shape in [(), (1,), (K,), (1, K), (Q, 1), (B, 1, 1, 1), (1, H, Q, 1)]:
        found = Given(np.ones(shape, dtype=bool)).tile(place, slice(0, 3), slice(0, 5))
        assert found.shape == tuple(
            n if n == 1 else {Q: 3, K: 5}.get(n, n) for n in ((*(1,) * (2 - len(shape)), *shape))
        )
    assert rg.KeyPadding(KEEP).tile(place, slice(0, 3), slice(0, 5)).shape == (B, 1, 1, 5)
    assert rg.ValidLength([3, 4]).tile(place, slice(0, 3), slice(0, 5)).shape == (B, 1, 1, 5)
    assert rg.Causal(offset=1).tile(place, slice(0, 3), slice(0, 5)).shape[-2:] == (3, 5)
    assert rg.Causal(offset=1).tile(place, slice(0, 3), slice(0, 5)).size == 15


def test_positions_align_by_themselves_only_where_q_equals_k():
    x = np.zeros((5, 1))
    for mask in (rg.Causal(), rg.Window(1, 1), rg.NotSelf()):
        w = rg.attention_weights(x, x, rg.Constant(), mask=mask)
        name = type(mask).__name__
        with pytest.raises(ValueError, match=name) as caught:
            rg.attention_weights(x[:3], x, rg.Constant(), mask=mask)
        assert str(caught.value) == (
            f"{name} needs to know where 3 queries stand beside 5 keys: give "
            '`alignment="start"` (query 0 at key 0), `alignment="end"` (last query at the last key) or `offset=`.'
        )
        moved = type(mask)(*(1, 1) if name == "Window" else (), alignment="end")
        same(w, rg.attention_weights(x, x, rg.Constant(), mask=moved))


x = np.zeros((B, Q, 1)), np.zeros((B, K, 1))
MISTAKES: dict[str, tuple[Callable[[], Mask], type[Exception], str]] = {
    "lengths_shape": (
        lambda: rg.ValidLength([1, 2, 3]),
        ValueError,
        "`lengths` of ValidLength has shape (3,); it must match the leading axes (2,) of (..., Q, K) from the left.",
    ),
    "lengths_query": (
        lambda: rg.ValidLength([1, 2], per_query=True),
        ValueError,
        "`lengths` of ValidLength(per_query=True) must end in 7, one per query; got (2,).",
    ),
    "lengths_fraction": (
        lambda: rg.ValidLength([1.0, 2.5]),
        ValueError,
        "`lengths` of ValidLength must be whole numbers; got 2.5.",
    ),
    "lengths_boolean": (
        lambda: rg.ValidLength([True, False]),
        ValueError,
        "`lengths` of ValidLength must be whole numbers; got True.",
    ),
    "lengths_negative": (
        lambda: rg.ValidLength([1, -2]),
        ValueError,
        "`lengths` of ValidLength must lie between 0 and 13 keys; got -2.",
    ),
    "lengths_long": (
        lambda: rg.ValidLength(torch.tensor([1, 14])),
        ValueError,
        "`lengths` of ValidLength must lie between 0 and 13 keys; got 14.",
    ),
    "keep_kind": (
        lambda: rg.KeyPadding(np.ones(K)),
        TypeError,
        "`keep` must be Boolean, True where a query may attend, or a mask of regard.masks; got float64. "
        "Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `keep != 0`.",
    ),
    "keep_keys": (
        lambda: rg.KeyPadding(KEEP[:, :-1]),
        ValueError,
        "`keep` of KeyPadding must end in 13, one per key; got shape (2, 12).",
    ),
    "keep_leading": (
        lambda: rg.KeyPadding(np.ones((5, K), bool)),
        ValueError,
        "`keep` of KeyPadding has shape (5,); it must match the leading axes (2,) of (..., Q, K) from the left.",
    ),
    "segments_query": (
        lambda: rg.Segments(np.zeros(K, int)),
        ValueError,
        "`query_ids` of Segments must end in 7; got shape (13,).",
    ),
    "segments_key": (
        lambda: rg.Segments(np.zeros(Q, int)),
        ValueError,
        "`key_ids` of Segments must end in 13; got shape (7,).",
    ),
    "segments_leading": (
        lambda: rg.Segments(np.zeros((3, Q), int), np.zeros(K, int)),
        ValueError,
        "`query_ids` of Segments has shape (3,); it must match the leading axes (2,) of (..., Q, K) from the left.",
    ),
    "segments_fraction": (
        lambda: rg.Segments(np.zeros(Q), np.full(K, 0.5)),
        ValueError,
        "`key_ids` of Segments must be whole numbers; got 0.5.",
    ),
    "alignment": (
        lambda: rg.Causal(alignment="middle"),
        ValueError,
        '`alignment` of Causal must be "start" or "end"; got \'middle\'.',
    ),
    "alignment_and_offset": (
        lambda: rg.NotSelf(alignment="end", offset=2),
        ValueError,
        "NotSelf takes `alignment` or `offset`, not both; got 'end' and 2.",
    ),
    "offset_shape": (
        lambda: rg.Causal(offset=[1, 2, 3]),
        ValueError,
        "`offset` of Causal has shape (3,); it must match the leading axes (2,) of (..., Q, K) from the left.",
    ),
    "offset_fraction": (
        lambda: rg.Window(1, 1, offset=0.5),
        ValueError,
        "`offset` of Window must be whole numbers; got 0.5.",
    ),
    "window_negative": (
        lambda: rg.Window(-1, 2, offset=0),
        ValueError,
        "`before` of Window must be a whole number of at least 0; got -1.",
    ),
    "window_fraction": (
        lambda: rg.Window(1, 1.5, offset=0),
        ValueError,
        "`after` of Window must be a whole number of at least 0; got 1.5.",
    ),
    "float_mask": (
        lambda: np.ones((Q, K)),
        TypeError,
        "`mask` must be Boolean, True where a query may attend, or a mask of regard.masks; got float64. "
        "Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `mask != 0`.",
    ),
    "integer_mask": (
        lambda: [[0, 1]],
        TypeError,
        "`mask` must be Boolean, True where a query may attend, or a mask of regard.masks; got int64. "
        "Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `mask != 0`.",
    ),
    "string_mask": (
        lambda: "causal",
        TypeError,
        "`mask` must be Boolean, True where a query may attend, or a mask of regard.masks; got str. "
        "Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `mask != 0`.",
    ),
    "padding_as_array": (
        lambda: KEEP,
        ValueError,
        "`mask` of shape (2, 13) does not broadcast to (..., Q, K) = (2, 7, 13). "
        "For one row of keys per batch entry, (B, K), use regard.KeyPadding(keep).",
    ),
    "too_many_axes": (
        lambda: np.ones((3, B, Q, K), bool),
        ValueError,
        "`mask` of shape (3, 2, 7, 13) does not broadcast to (..., Q, K) = (2, 7, 13). "
        "For one row of keys per batch entry, (B, K), use regard.KeyPadding(keep).",
    ),
    "inside_a_combination": (
        lambda: ~(rg.Causal(offset=0) & rg.KeyPadding(KEEP)) | rg.ValidLength(99),
        ValueError,
        "`lengths` of ValidLength must lie between 0 and 13 keys; got 99.",
    ),
}


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_mistakes_are_told(name):
    make, kind, text = MISTAKES[name]
    with pytest.raises(kind) as caught:
        rg.attention_weights(*x, rg.Constant(), mask=make())
    assert str(caught.value) == text


def test_combining_with_what_is_no_mask_is_a_mistake():
    with pytest.raises(TypeError, match="`mask` must be Boolean"):
        rg.Causal() & np.ones((3, 3))
    with pytest.raises(TypeError, match="`mask` must be Boolean"):
        np.ones((3, 3)) | rg.Causal()


def test_a_part_does_not_know_the_whole_length():
    q, k = np.zeros((3, 1)), np.zeros((5, 1))
    for start in (0, 4):
        with pytest.raises(ValueError, match="whole length") as caught:
            rg.partial_pool(q, k, k, rg.Constant(), key_start=start, mask=rg.Causal(alignment="end"))
        assert str(caught.value) == (
            'Causal(alignment="end") does not know the whole length of a part; give `offset=` instead.'
        )
