"""The front door: shapes, dtypes, arrays as mask and bias, dropout, engines by name, pooling without a query."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard as rg
from regard.engines import ENGINES

Q, K, D, V = 5, 7, 3, 2
LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": lambda x: torch.as_tensor(np.array(x)),
    "strict": strict.asarray,
}
GAUSSIAN = rg.Gaussian(1.3)


def data(seed: int = 0, lead: tuple[int, ...] = (), dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=(*lead, *shape)).astype(dtype) for shape in ((Q, D), (K, D), (K, V)))


def softmax(s: np.ndarray) -> np.ndarray:
    top = s.max(axis=-1, keepdims=True)
    w = np.exp(s - np.where(np.isfinite(top), top, 0))
    return w / np.where(w.sum(axis=-1, keepdims=True) > 0, w.sum(axis=-1, keepdims=True), 1)


def gaussian_scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    return -((query[..., :, None, :] - key[..., None, :, :]) ** 2).sum(-1) / (2 * 1.3**2)


def frozen(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.fixture(params=["numpy", "torch"])
def library(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return LIBRARIES[request.param]


# ---------------------------------------------------------------- shapes


def test_one_dimensional_arrays_are_scalars(library, engine):
    query, key, value = np.linspace(-1, 1, Q), np.linspace(-2, 2, K), np.arange(K, dtype=float)
    c, columns = library, [library(x[:, None]) for x in (query, key, value)]
    options: dict[str, Any] = {"mask": rg.NotSelf(offset=1), "engine": engine}
    out = rg.attention_pool(c(query), c(key), c(value), GAUSSIAN, **options)
    assert out.shape == (Q,)
    np.testing.assert_array_equal(out, rg.attention_pool(*columns, GAUSSIAN, **options)[:, 0])
    w = rg.attention_weights(c(query), c(key), GAUSSIAN, **options)
    np.testing.assert_array_equal(w, rg.attention_weights(*columns[:2], GAUSSIAN, **options))
    top, index = rg.top_attention(c(query), c(key), GAUSSIAN, n=2, **options)
    assert top.shape == index.shape == (Q, 2)


def test_gradients_of_scalars_are_like_their_inputs():
    arrays = np.linspace(-1, 1, Q), np.linspace(-2, 2, K), np.arange(K, dtype=float)
    out, grads = rg.attention_pool_gradients(np.arange(Q), *arrays, GAUSSIAN)
    assert (out.shape, grads.query.shape, grads.key.shape, grads.value.shape) == ((Q,), (Q,), (K,), (K,))
    given = [torch.tensor(x, requires_grad=True) for x in arrays]
    (rg.attention_pool(*given, GAUSSIAN) * torch.arange(Q)).sum().backward()
    for found, x in zip(grads, given, strict=False):
        np.testing.assert_allclose(found, x.grad, atol=1e-14)


@pytest.mark.parametrize("lone", [0, 1, 2])
def test_a_lone_one_dimensional_array_is_refused(lone, library):
    arrays = [library(np.zeros((4, 1))), library(np.zeros((6, 1))), library(np.zeros((6, 1)))]
    arrays[lone] = arrays[lone][:, 0]
    shapes = [tuple(x.shape) for x in arrays]
    name = ("query", "key", "value")[lone]
    with pytest.raises(ValueError, match="two axes") as caught:
        rg.attention_pool(*arrays, GAUSSIAN)
    assert str(caught.value) == (
        f"`{name}` must have at least two axes, (..., N, D), unless all arrays have one; "
        f"got query {shapes[0]}, key {shapes[1]}, value {shapes[2]}. Write {name}[:, None] for one feature."
    )


def test_lengths_and_leading_axes_must_fit():
    with pytest.raises(ValueError, match="same length") as caught:
        rg.attention_pool(np.zeros((5, 8)), np.zeros((120, 8)), np.zeros((100, 3)), GAUSSIAN)
    assert str(caught.value) == ("`key` and `value` must have the same length; got key (120, 8) and value (100, 3).")
    with pytest.raises(ValueError, match="leading") as caught:
        rg.attention_pool(np.zeros((2, 5, 1)), np.zeros((3, 7, 1)), np.zeros((7, 1)), GAUSSIAN)
    assert str(caught.value) == (
        "the leading axes of `query`, `key` and `value` must broadcast; "
        "got query (2, 5, 1), key (3, 7, 1) and value (7, 1)."
    )
    with pytest.raises(ValueError, match="Additive or Bilinear for sizes that differ"):
        rg.attention_pool(np.zeros((5, 2)), np.zeros((7, 3)), np.zeros((7, 1)), GAUSSIAN)


@pytest.mark.parametrize(
    ("leads", "expected"),
    [
        (((), (3,), ()), (3,)),
        (((2, 1), (3,), (1, 1)), (2, 3)),
        (((3,), (), (2, 3)), (2, 3)),
        (((1,), (2, 1, 1), (3,)), (2, 1, 3)),
    ],
)
def test_leading_axes_broadcast(leads, expected, library, engine, small_tiles):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(*lead, n, d)) for lead, n, d in zip(leads, (Q, K, K), (D, D, V), strict=True)]
    full = [np.broadcast_to(x, (*expected, *x.shape[-2:])) for x in arrays]
    out = rg.attention_pool(*map(library, arrays), GAUSSIAN, engine=engine)
    assert out.shape == (*expected, Q, V)
    for at in np.ndindex(*expected):
        want = softmax(gaussian_scores(full[0][at], full[1][at])) @ full[2][at]
        np.testing.assert_allclose(out[at], want, atol=1e-13)
    _, grads = rg.attention_pool_gradients(1.0, *arrays, GAUSSIAN, engine=engine)
    _, separate = rg.attention_pool_gradients(1.0, *(np.array(x) for x in full), GAUSSIAN, engine=engine)
    for found, x, all_of_it in zip(grads, arrays, separate, strict=False):
        assert found.shape == x.shape
        lead = len(expected) - (x.ndim - 2)
        summed = all_of_it.sum(axis=tuple(range(lead)))
        kept = tuple(n for n, size in enumerate(x.shape) if size == 1 and summed.shape[n] != 1)
        np.testing.assert_allclose(found, summed.sum(axis=kept, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("score", [GAUSSIAN, rg.ScaledDotProduct(), rg.Constant()], ids=["distance", "dot", "constant"])
@pytest.mark.parametrize("empty", ["queries", "keys", "values", "features", "batch"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_empty_axes(empty, score, dropout, library, engine):
    query, key, value = data(lead=(4,))
    if empty == "queries":
        query = query[:, :0]
    elif empty == "keys":
        key, value = key[:, :0], value[:, :0]
    elif empty == "values":
        value = value[..., :0]
    elif empty == "features":
        query, key = query[..., :0], key[..., :0]
    else:
        query = query[:0]
        key, value = key[0], value[0]
    lead, queries, keys, columns = (*query.shape[:-2],), query.shape[-2], key.shape[-2], value.shape[-1]
    if empty == "features" and isinstance(score, rg.ScaledDotProduct):
        score = rg.ScaledDotProduct(1.0)  # 1 / sqrt(0) is nobody's scale
    args, c = {"engine": engine}, library
    out = rg.attention_pool(c(query), c(key), c(value), score, dropout=dropout, seed=1, **args)
    assert out.shape == (*lead, queries, columns)
    w = rg.attention_weights(c(query), c(key), score, **args)
    assert w.shape == (*lead, queries, keys)
    top, index = rg.top_attention(c(query), c(key), score, n=3, **args)
    assert top.shape == index.shape == (*lead, queries, min(3, keys))
    partial = rg.partial_pool(c(query), c(key), c(value), score, **args)
    assert partial.log_weight_sum.shape == (*lead, queries)
    if empty == "keys":
        np.testing.assert_array_equal(out, np.zeros((4, Q, V)))
        np.testing.assert_array_equal(partial.log_weight_sum, np.full((4, Q), -np.inf))
    if empty == "features":
        np.testing.assert_allclose(w, np.full((4, Q, K), 1 / K), atol=1e-16)
    _, grads = rg.attention_pool_gradients(1.0, query, key, value, score, dropout=dropout, seed=1, **args)
    assert [g.shape for g in grads[:3]] == [query.shape, key.shape, value.shape]
    given = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    rg.attention_pool(*given, score, dropout=dropout, seed=1, **args).sum().backward()
    for x, g in zip(given, grads, strict=False):
        np.testing.assert_allclose(0 if x.grad is None else x.grad, g, atol=1e-14)


def test_strides_change_nothing(library, engine, small_tiles):
    query, key, value = data(2, (3,))
    plain = rg.attention_pool(*map(library, (query, key, value)), GAUSSIAN, engine=engine)
    wide = np.full((3, 2 * K, 2 * D), np.nan)
    wide[:, ::2, ::2] = key
    twisted = [np.asfortranarray(query), wide[:, ::2, ::2], np.ascontiguousarray(value.swapaxes(0, 2)).swapaxes(0, 2)]
    if library is np.asarray:
        twisted[0] = np.ascontiguousarray(query[:, ::-1])[:, ::-1]  # negative strides are NumPy's alone
    else:
        twisted = [torch.as_tensor(twisted[0]), torch.as_tensor(wide)[:, ::2, ::2], torch.as_tensor(twisted[2])]
    # a matrix product may sum in another order where the strides are others
    np.testing.assert_allclose(rg.attention_pool(*twisted, GAUSSIAN, engine=engine), plain, atol=1e-15)
    shared = query[:1]  # one query for all batch entries, as an expanded axis
    expanded = library(shared).expand(3, Q, D) if library is not np.asarray else np.broadcast_to(shared, (3, Q, D))
    np.testing.assert_allclose(
        rg.attention_pool(expanded, *map(library, (key, value)), GAUSSIAN, engine=engine),
        rg.attention_pool(*map(library, (np.repeat(shared, 3, axis=0), key, value)), GAUSSIAN, engine=engine),
        atol=1e-15,
    )


def test_inputs_are_never_written_to(case, engine, small_tiles):
    query, key, value = case.arrays(6, Q, K, V)
    value[3, 1] = np.nan
    bias, mask = np.zeros((Q, K)), np.ones((Q, K), dtype=bool)
    bias[2, 1], mask[:, 4] = -np.inf, False
    given = [frozen(x) for x in (query, key, value, bias, mask)]
    before = [x.copy() for x in given]
    kept: list[np.ndarray] = []
    score = case.make(lambda x: kept.append(frozen(np.array(x))) or kept[-1])
    copies = [x.copy() for x in kept]
    options = {"mask": mask, "bias": bias, "engine": engine}
    rg.attention_pool(query, key, value, score, dropout=0.3, seed=2, **options)
    rg.attention_weights(query, key, score, **options)
    rg.top_attention(query, key, score, **options)
    rg.attention_pool_gradients(frozen(np.ones((Q, V))), query, key, value, score, **options)
    rg.average_pool(value, mask), rg.max_pool(value, mask)
    for x, y in zip([*given, *kept], [*before, *copies], strict=True):
        np.testing.assert_array_equal(x, y)
    tensors = [torch.tensor(x, requires_grad=x.dtype != bool) for x in before]
    parameters: list[torch.Tensor] = []
    score = case.make(lambda x: parameters.append(torch.tensor(np.array(x), requires_grad=True)) or parameters[-1])
    copies = [x.detach().clone() for x in parameters]
    options = {"mask": tensors[4], "bias": tensors[3], "engine": engine}
    rg.attention_pool(*tensors[:3], score, dropout=0.3, seed=2, **options).nansum().backward()
    rg.attention_weights(*tensors[:2], score, **options).sum().backward()
    for x, y in zip(tensors, before, strict=True):
        assert x._version == 0
        np.testing.assert_array_equal(x.detach(), y)
    for x, y in zip(parameters, copies, strict=True):
        assert x._version == 0
        np.testing.assert_array_equal(x.detach(), y)


# ---------------------------------------------------------------- dtypes


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float32", "float32", "float32"), "float32"),
        (("float32", "float64", "float32"), "float64"),
        (("float16", "float16", "float16"), "float16"),
        (("float16", "float32", "float16"), "float32"),
        (("int64", "int64", "int64"), "float64"),
        (("int8", "bool", "uint16"), "float64"),
        (("float32", "int8", "float32"), "float32"),
        (("float32", "int64", "float32"), "float64"),
        (("float16", "bool", "float16"), "float16"),
        (("float32", "float32", "int32"), "float64"),
        (("longdouble", "float32", "float32"), "longdouble"),
    ],
)
def test_numpy_dtypes_follow_result_type(dtypes, expected, engine):
    query, key, value = ((3 * x).astype(d) for x, d in zip(data(3), dtypes, strict=True))
    if expected == "longdouble" and engine == "fused":
        with pytest.raises(ValueError, match="it computes in float32 and float64, not in "):
            rg.attention_pool(query, key, value, GAUSSIAN, engine=engine)
        return
    out = rg.attention_pool(query, key, value, GAUSSIAN, engine=engine)
    assert out.dtype == expected
    exact = softmax(gaussian_scores(query.astype(float), key.astype(float))) @ value.astype(float)
    np.testing.assert_allclose(out.astype(float), exact, atol=max(np.finfo(expected).eps, 2**-52) * 20)
    both = np.result_type(query, key)
    both = both if both.kind == "f" else np.dtype(float)
    assert rg.attention_weights(query, key, GAUSSIAN, engine=engine).dtype == both
    assert rg.top_attention(query, key, GAUSSIAN, engine=engine)[0].dtype == both
    assert rg.top_attention(query, key, GAUSSIAN, engine=engine)[1].dtype == np.int64
    _, grads = rg.attention_pool_gradients(1.0, query, key, value, GAUSSIAN, engine=engine)
    assert {g.dtype for g in grads[:3]} == {np.dtype(expected)}


@pytest.mark.parametrize("engine", ["reference", "tiled", "auto"])
def test_longdouble_keeps_its_digits(engine):
    if np.finfo(np.longdouble).eps == np.finfo(float).eps:
        pytest.skip("long double is double on this platform")
    query, key, value = data(4, dtype=np.longdouble)
    exact = softmax(-((query[:, None] - key) ** 2).sum(-1) / (2 * np.longdouble(1.3) ** 2)) @ value
    out = rg.attention_pool(query, key, value, GAUSSIAN, engine=engine)
    np.testing.assert_allclose(out, exact, rtol=0, atol=30 * np.finfo(np.longdouble).eps)


def test_numbers_inside_a_score_never_promote(case, engine, library):
    query, key, value = (library(x.astype(np.float32)) for x in case.arrays(7, Q, K, V))
    bias = library(np.full((Q, 1), 0.5, dtype=np.float32))
    score = case.make(lambda x: library(np.asarray(x, dtype=float)))
    assert rg.attention_pool(query, key, value, score, bias=bias, engine=engine).dtype == value.dtype
    assert rg.attention_weights(query, key, score, bias=bias, engine=engine).dtype == value.dtype
    partial = rg.partial_pool(query, key, value, score, dropout=0.5, seed=0, engine=engine)
    merged = partial.merge(partial)
    for x in (partial.max, partial.weight_sum, partial.value_sum, merged.value_sum, merged.log_weight_sum):
        assert x.dtype == value.dtype
    assert rg.Partial(partial.max, partial.weight_sum, partial.value_sum).finish().dtype == value.dtype


def test_a_parameter_keeps_its_own_dtype_in_torch(engine):
    h = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    query, key, value = (torch.as_tensor(x).float() for x in data(5))
    rg.attention_pool(query, key, value, rg.Gaussian(h), engine=engine).sum().backward()
    assert h.grad.dtype == torch.float64


def test_a_bias_never_promotes(engine):
    query, key, value = data(5, dtype=np.float32)
    for bias in (np.ones((Q, K)), np.ones(K, dtype=int), [1.0] * K, 2):
        assert rg.attention_pool(query, key, value, GAUSSIAN, bias=bias, engine=engine).dtype == np.float32


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_float32_inside(name, engine):
    dtype = getattr(torch, name)
    halves = [torch.as_tensor(x).to(dtype) for x in data(8, (3,))]
    floats = [x.float() for x in halves]
    torch.testing.assert_close(
        rg.attention_pool(*halves, GAUSSIAN, engine=engine),
        rg.attention_pool(*floats, GAUSSIAN, engine=engine).to(dtype),
        rtol=0,
        atol=0,
    )
    partial = rg.partial_pool(*halves, GAUSSIAN, engine=engine)
    assert {partial.max.dtype, partial.weight_sum.dtype, partial.value_sum.dtype} == {torch.float32}
    assert partial.log_weight_sum.dtype == torch.float32
    assert partial.finish().dtype == dtype
    assert rg.attention_weights(*halves[:2], GAUSSIAN, engine=engine).dtype == dtype
    assert rg.top_attention(*halves[:2], GAUSSIAN, engine=engine)[0].dtype == dtype
    for x in halves:
        x.requires_grad_()
    for x in floats:
        x.requires_grad_()
    rg.attention_pool(*halves, GAUSSIAN, engine=engine).sum().backward()
    rg.attention_pool(*floats, GAUSSIAN, engine=engine).sum().backward()
    for x, y in zip(halves, floats, strict=True):
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad, y.grad.to(dtype), rtol=0, atol=0)
    if name == "float16":
        arrays = [x.detach().numpy() for x in halves]
        out = rg.attention_pool(*arrays, GAUSSIAN, engine=engine)
        want = rg.attention_pool(*(x.astype(np.float32) for x in arrays), GAUSSIAN, engine=engine)
        np.testing.assert_array_equal(out, want.astype(np.float16))


def test_half_precision_survives_what_it_cannot_hold_inside(engine):
    value = torch.full((4096, 1), 60000.0, dtype=torch.float16)  # the sum of the values is far beyond float16
    key = torch.zeros((4096, 1), dtype=torch.float16)
    out = rg.attention_pool(key[:1], key, value, rg.Constant(), engine=engine)
    assert out.item() == 60000
    assert rg.partial_pool(key[:1], key, value, rg.Constant(), engine=engine).log_weight_sum.item() == pytest.approx(
        np.log(4096), abs=1e-6
    )


def test_dtypes_and_devices_that_do_not_meet_are_told():
    query, key, value = (torch.zeros(s) for s in ((5, 1), (7, 1), (7, 2)))

    def told(*args: Any, **options: Any) -> str:
        with pytest.raises(TypeError) as caught:
            rg.attention_pool(*args, GAUSSIAN, **options)
        return str(caught.value)

    assert told(query, key.double(), value) == (
        "torch tensors must share one dtype and one device; "
        "got query float32 on cpu, key float64 on cpu, value float32 on cpu."
    )
    assert told(query, key, value.to("meta")) == (
        "torch tensors must share one dtype and one device; "
        "got query float32 on cpu, key float32 on cpu, value float32 on meta."
    )
    assert told(query, key, value, bias=torch.zeros(7, dtype=torch.float64)) == (
        "torch tensors must share one dtype and one device; "
        "got query float32 on cpu, key float32 on cpu, value float32 on cpu, bias float64 on cpu."
    )
    assert told(query, key, np.zeros((7, 2))) == (
        "`value` must be a torch tensor like the others; got ndarray. Convert it with torch.as_tensor."
    )
    assert told(query, key, value, bias=0.5) == (
        "`bias` must be a torch tensor like the others; got float. Convert it with torch.as_tensor."
    )
    assert told(query.long(), key.long(), value.long()) == "torch tensors must be floating; got int64. Use .float()."
    arrays = np.zeros((5, 1)), np.zeros((7, 1)), np.zeros((7, 2))
    assert told(arrays[0], arrays[1] + 1j, arrays[2]) == "`key` must hold real numbers; got dtype complex128."
    assert told([["a"]], arrays[1], arrays[2]) == "`query` must hold real numbers; got dtype <U1."
    assert told(*arrays, bias=np.ones(7, dtype=bool)) == (
        "`bias` is added to the scores; got Booleans. Pass what a query may attend to as `mask`."
    )
    whole = strict.zeros((5, 1), dtype=strict.int32)
    assert told(whole, whole, whole) == "`query` must be floating; got array_api_strict.int32."


def test_lists_are_arrays(engine):
    out = rg.attention_pool([[0.0]], [[0], [1]], [[1], [3]], rg.Constant(), bias=[0, 0], mask=[[True, True]])
    np.testing.assert_array_equal(out, [[2.0]])
    out = rg.attention_pool([0.0], [0, 1], [1, 3], rg.Constant(), mask=[[False, True]], engine=engine)
    np.testing.assert_array_equal(out, [3.0])


# ---------------------------------------------------------------- mask and bias as arrays

SHAPES = [
    (),
    (K,),
    (1,),
    (Q, K),
    (Q, 1),
    (1, K),
    (3, Q, K),
    (3, 1, K),
    (1, Q, 1),
    (2, 3, Q, K),
    (2, 1, 1, K),
    (2, 3, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_broadcast_from_the_right(shape, library, engine, small_tiles):
    query, key, value = data(9, (2, 3))
    rng = np.random.default_rng(10)
    bias, mask = rng.normal(size=shape), np.asarray(rng.random(shape) < 0.7)
    bias = np.where(rng.random(shape) < 0.2, -np.inf, bias)
    full = np.broadcast_to(bias, (2, 3, Q, K)), np.broadcast_to(mask, (2, 3, Q, K))
    s = np.where(full[1], gaussian_scores(query, key) + full[0], -np.inf)
    arrays, c = [library(x) for x in (query, key, value)], library
    options = {"bias": c(bias), "mask": c(mask), "engine": engine}
    np.testing.assert_allclose(rg.attention_weights(*arrays[:2], GAUSSIAN, **options), softmax(s), atol=1e-14)
    np.testing.assert_allclose(rg.attention_pool(*arrays, GAUSSIAN, **options), softmax(s) @ value, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_a_bias_is_summed_over_what_it_was_spread_over(shape, engine, small_tiles):
    query, key, value = data(11, (2, 3))
    bias, grad = np.random.default_rng(12).normal(size=shape), np.random.default_rng(13).normal(size=(2, 3, Q, V))
    spread = np.broadcast_to(bias, (2, 3, Q, K)).copy()
    out, full = rg.attention_pool_gradients(grad, query, key, value, GAUSSIAN, bias=spread, engine=engine)
    w = rg.attention_weights(query, key, GAUSSIAN, bias=spread)
    to_weight = grad @ value.swapaxes(-1, -2)
    np.testing.assert_allclose(full.bias, w * (to_weight - (grad * out).sum(-1, keepdims=True)), atol=1e-14)
    _, grads = rg.attention_pool_gradients(grad, query, key, value, GAUSSIAN, bias=bias, engine=engine)
    extra = 4 - len(shape)
    axes = (*range(extra), *(extra + n for n, size in enumerate(shape) if size == 1))
    expected = full.bias.sum(axis=axes, keepdims=True).reshape(shape)
    assert grads.bias.shape == shape
    np.testing.assert_allclose(grads.bias, expected, atol=1e-13)
    tensor = torch.tensor(bias, requires_grad=True)
    pooled = rg.attention_pool(*map(torch.as_tensor, (query, key, value)), GAUSSIAN, bias=tensor, engine=engine)
    pooled.backward(torch.as_tensor(grad))
    np.testing.assert_allclose(tensor.grad, expected, atol=1e-13)


def test_a_bias_of_minus_infinity_is_a_mask_and_has_no_gradient(library, engine, small_tiles):
    query, key, value = data(14)
    mask = np.random.default_rng(15).random((Q, K)) < 0.6
    mask[2] = False
    bias = np.where(mask, 0.0, -np.inf)
    c, arrays = library, [library(x) for x in (query, key, value)]
    for f in (rg.attention_pool, rg.partial_pool):
        by_bias = f(*arrays, GAUSSIAN, bias=c(bias), engine=engine)
        by_mask = f(*arrays, GAUSSIAN, mask=c(mask), engine=engine)
        if f is rg.partial_pool:
            by_bias, by_mask = by_bias.log_weight_sum, by_mask.log_weight_sum
        # an engine may sum kernels without their logarithms where there is no bias: roundings apart, the same
        np.testing.assert_allclose(by_bias, by_mask, rtol=0, atol=8 * np.finfo(np.float64).eps)
    tensor = torch.tensor(bias, requires_grad=True)
    rg.attention_pool(*map(torch.as_tensor, (query, key, value)), GAUSSIAN, bias=tensor, engine=engine).sum().backward()
    _, grads = rg.attention_pool_gradients(1.0, query, key, value, GAUSSIAN, bias=bias, engine=engine)
    for found in (tensor.grad.numpy(), grads.bias):
        assert np.isfinite(found).all()
        assert not found[~mask].any()
        assert found[mask].any()


@pytest.mark.parametrize("shape", [(K, Q), (Q, K + 1), (2, Q, K), (2,)])
def test_a_bias_that_does_not_broadcast_is_told(shape):
    query, key, value = data()
    with pytest.raises(ValueError, match="does not broadcast") as caught:
        rg.attention_pool(query, key, value, GAUSSIAN, bias=np.zeros(shape))
    assert str(caught.value) == f"`bias` of shape {shape} does not broadcast to (..., Q, K) = (5, 7)."


# ---------------------------------------------------------------- options and engines


def test_unknown_options_are_told():
    query, key, value = data()

    def told(kind: type[Exception], f: Callable[..., Any] = rg.attention_pool, **options: Any) -> str:
        score = options.pop("score", GAUSSIAN)
        with pytest.raises(kind) as caught:
            f(query, key, *(() if f is rg.top_attention else (value,)), score, **options)
        return str(caught.value)

    assert told(ValueError, engine="fast") == f"unknown engine 'fast'; the known ones are auto, {', '.join(ENGINES)}."
    assert told(ValueError, normalizer="max") == "unknown normalizer 'max'; the known ones are softmax."
    assert told(TypeError, score="gaussian") == "`score` must be a score, such as regard.Gaussian(1.0); got str."
    assert told(TypeError, score=rg.Gaussian) == "`score` must be a score, such as regard.Gaussian(1.0); got type."
    for wrong in (-0.1, 1.5, float("nan"), "much"):
        assert told(ValueError, dropout=wrong, seed=1) == f"`dropout` must be a number between 0 and 1; got {wrong!r}."
    assert told(ValueError, dropout=0.25) == (
        "dropout=0.25 needs a `seed`, a whole number: the same seed drops the same pairs."
    )
    assert told(ValueError, dropout=0.25, seed=1.5) == "`seed` must be a whole number; got 1.5."
    for wrong in (0, -1, 2.0, True, "all"):
        assert (
            told(ValueError, rg.top_attention, n=wrong) == f"`n` must be a whole number of at least 1; got {wrong!r}."
        )
    assert told(ValueError, rg.partial_pool, key_start=1.5) == "`key_start` must be a whole number; got 1.5."
    assert told(ValueError, rg.partial_pool, query_start="a") == "`query_start` must be a whole number; got 'a'."
    with pytest.raises(TypeError, match="keyword"):
        rg.attention_pool(query, key, value, GAUSSIAN, temperature=2.0)
    with pytest.raises(TypeError, match="works on NumPy arrays; call backward\\(\\) on a torch result"):
        rg.attention_pool_gradients(1.0, *map(torch.as_tensor, (query, key, value)), GAUSSIAN)


def test_a_named_engine_runs_or_raises():
    arrays = [strict.asarray(x) for x in data()]
    with pytest.raises(ValueError, match="tiled") as caught:
        rg.attention_pool(*arrays, GAUSSIAN, engine="tiled")
    assert str(caught.value) == (
        'engine "tiled" cannot run this: it runs on NumPy arrays and torch tensors only. '
        'Leave engine unset, or use engine="reference".'
    )
    assert rg.choose_engine(*arrays, GAUSSIAN).name == "reference"
    out = rg.attention_pool(*arrays, GAUSSIAN)
    np.testing.assert_array_equal(out, rg.attention_pool(*data(), GAUSSIAN, engine="reference"))


def test_the_choice_explains_itself():
    query, key, value = data()
    choice = rg.choose_engine(query, key, value, GAUSSIAN, rg.NotSelf(offset=0), bias=np.zeros(K), dropout=0.1)
    assert {choice.name, *choice.reasons} == set(ENGINES)
    assert choice.name not in ("auto", "reference", *choice.reasons)
    assert choice.reasons["reference"] == "it would hold all 35 scores at once"
    told = [f"{choice.name}: chosen", *(f"{name}: {choice.reasons[name]}" for name in ENGINES if name != choice.name)]
    assert str(choice) == "\n".join(told)
    choice = rg.choose_engine(*map(strict.asarray, (query, key, value)), GAUSSIAN)
    assert choice.name == "reference"
    assert choice.reasons["tiled"] == "it runs on NumPy arrays and torch tensors only"
    choice = rg.choose_engine(np.zeros((4, 5, 1000, 1)), np.zeros((2000, 1)), np.zeros((2000, 1)), GAUSSIAN)
    assert choice.reasons["reference"] == "it would hold all 40,000,000 scores at once"
    with pytest.raises(ValueError, match="same length"):
        rg.choose_engine(query, key, value[1:], GAUSSIAN)


STRICT_MASKS = {
    "none": None,
    "array": strict.asarray(np.arange(K) % 3 > 0),
    "numpy": np.arange(K) % 3 > 0,
    "lengths": rg.ValidLength([3, K]),
    "padding": rg.KeyPadding(strict.asarray(np.arange(2 * K).reshape(2, K) % 3 > 0)),
    "segments": rg.Segments(np.arange(Q) // 2, np.arange(K) // 2),
    "positions": rg.Causal(alignment="end") & ~rg.NotSelf(offset=[0, 1]) | rg.Window(0, 1, offset=0),
}


@pytest.mark.parametrize("mask", sorted(STRICT_MASKS))
def test_the_reference_runs_on_any_array_library(case, mask):
    """array-api-strict forgives nothing: what runs on it needs nothing but the array API standard."""
    arrays = case.arrays(16, Q, K, V, (2,))
    given = [strict.asarray(x) for x in arrays]
    theirs, ours = STRICT_MASKS[mask], STRICT_MASKS[mask]
    if mask == "array":
        ours = np.asarray(theirs)
    elif mask == "padding":
        ours = rg.KeyPadding(np.asarray(theirs.keep))
    bias = np.where(np.arange(Q)[:, None] == 3, -np.inf, 0.25)
    # this library's arrays raise when they are multiplied with a score, instead of leaving it to the score
    multiplied = case.name in ("scaled", "capped_support")
    score, expected = case.make(np.asarray if multiplied else strict.asarray), case.make(np.asarray)
    a = {"mask": theirs, "bias": strict.asarray(bias)}
    b = {"mask": ours, "bias": bias, "engine": "reference"}
    pairs = [
        (
            rg.attention_pool(*given, score, dropout=0.4, seed=3, **a),
            rg.attention_pool(*arrays, expected, dropout=0.4, seed=3, **b),
        ),
        (rg.attention_weights(*given[:2], score, **a), rg.attention_weights(*arrays[:2], expected, **b)),
        *zip(
            rg.top_attention(*given[:2], score, n=3, **a),
            rg.top_attention(*arrays[:2], expected, n=3, **b),
            strict=True,
        ),
    ]
    if mask != "positions":  # a part does not know where the whole ends
        mine, other = rg.partial_pool(*given, score, **a), rg.partial_pool(*arrays, expected, **b)
        pairs += [(mine.merge(mine).finish(), other.finish()), (mine.log_weight_sum, other.log_weight_sum)]
    for found, want in pairs:
        assert found.__array_namespace__().__name__ == "array_api_strict"
        np.testing.assert_allclose(np.asarray(found), want, atol=1e-14)


def test_the_reference_promotes_and_refuses_like_the_standard():
    query, key, value = (strict.asarray(x) for x in data())
    single = strict.astype(key, strict.float32)
    assert rg.attention_pool(strict.astype(query, strict.float32), single, value, GAUSSIAN).dtype == strict.float64
    value = strict.asarray(np.where(np.arange(K)[:, None] == 2, np.nan, np.asarray(value)))
    out = np.asarray(rg.attention_pool(query, key, value, GAUSSIAN, mask=rg.Causal(alignment="start")))
    np.testing.assert_array_equal(np.isnan(out), np.broadcast_to(np.arange(Q)[:, None] >= 2, (Q, V)))


# ---------------------------------------------------------------- dropout


def dropped(
    lead: tuple[int, ...], queries: int, keys: int, rate: float, seed: int, c: Any = np.asarray, **o: Any
) -> Any:
    """Which pairs survive, (..., Q, K), and what they are multiplied by, read off a pooling of one-hot values."""
    query, key = c(np.zeros((*lead, queries, 1))), c(np.zeros((*lead, keys, 1)))
    out = rg.attention_pool(query, key, c(np.eye(keys)), rg.Constant(), dropout=rate, seed=seed, **o)
    return np.asarray(out) * keys


@pytest.mark.parametrize("budget", [40, 350, 10**6])
def test_every_engine_and_tile_drops_the_same_pairs(budget, engine, library, monkeypatch):
    monkeypatch.setattr("regard.problem.BUDGET", 10**6)
    expected = dropped((2, 3), 11, 13, 0.4, 5, engine="reference")
    assert np.isin(expected.round(12), [0, round(1 / 0.6, 12)]).all()
    monkeypatch.setattr("regard.problem.BUDGET", budget)
    np.testing.assert_array_equal(dropped((2, 3), 11, 13, 0.4, 5, library, engine=engine) > 0, expected > 0)


def test_each_seed_batch_entry_query_and_key_is_drawn_by_itself():
    keep = {seed: dropped((2, 3), 31, 37, 0.5, seed) > 0 for seed in (0, 1, 2**32, 2**40 + 1, -1)}
    rows = [row for k in keep.values() for row in k.reshape(-1, 37)]
    assert len({row.tobytes() for row in rows}) == len(rows)
    columns = [row for k in keep.values() for row in k.swapaxes(-1, -2).reshape(-1, 31)]
    assert len({row.tobytes() for row in columns}) == len(columns)
    pairs = np.stack([k.ravel() for k in keep.values()]).astype(float)
    n = pairs.shape[1]
    correlation = np.corrcoef(pairs)[~np.eye(len(pairs), dtype=bool)]
    assert abs(correlation).max() < 4.5 / np.sqrt(n)  # of 10 pairs of seeds none is beyond 4.5 standard deviations


def test_no_row_continues_another():
    """A row that repeats another one, shifted by some keys, would share 64 neighbours with it."""
    keep = dropped((), 50_000, 128, 0.5, 9, lambda x: np.asarray(x, dtype=np.float32)) > 0
    bits, words = np.packbits(np.lib.stride_tricks.sliding_window_view(keep, 64, axis=1), axis=-1), 50_000 * 65
    assert len(np.unique(bits.reshape(words, 8).view(np.uint64))) == words


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_the_rate_is_the_rate(rate):
    keep = dropped((5,), 211, 199, rate, 12) > 0
    n = keep.size
    for axis, m in ((None, n), (2, 199), (1, 211)):
        share, sigma = 1 - keep.mean(axis=axis), np.sqrt(rate * (1 - rate) / m)
        assert abs(share - rate).max() < (4 if axis is None else 6) * sigma  # 1,055 rows: 6 sigma, one in 5e5
    shifted = keep[:, 1:] ^ keep[:, :-1]  # neighbours are independent
    assert abs(shifted.mean() - 2 * rate * (1 - rate)) < 5 * np.sqrt(0.5 / n)


@pytest.mark.parametrize(("rate", "keeps"), [(0.0, True), (1.0, False)])
def test_nothing_or_everything_is_dropped(rate, keeps, library, engine):
    out = dropped((2,), Q, K, rate, 3, library, engine=engine)
    np.testing.assert_allclose(out, np.full((2, Q, K), float(keeps)), atol=1e-15)


def test_dropout_leaves_the_weight_sum_and_the_weights(library, engine, small_tiles):
    arrays = [library(x) for x in data(17, (2,))]
    plain = rg.partial_pool(*arrays, GAUSSIAN, engine=engine)
    partial = rg.partial_pool(*arrays, GAUSSIAN, dropout=0.5, seed=4, engine=engine)
    np.testing.assert_array_equal(partial.log_weight_sum, plain.log_weight_sum)
    np.testing.assert_array_equal(partial.max, plain.max)
    keep = dropped((2,), Q, K, 0.5, 4)
    w = np.asarray(rg.attention_weights(*arrays[:2], GAUSSIAN, engine=engine))  # it has no dropout to leave out
    expected = (w * keep) @ np.asarray(arrays[2])
    np.testing.assert_allclose(partial.finish(), expected, atol=1e-14)
    np.testing.assert_allclose(
        rg.attention_pool(*arrays, GAUSSIAN, dropout=0.5, seed=4, engine=engine), expected, atol=1e-14
    )


def test_parts_drop_what_the_whole_drops(engine, small_tiles):
    query, key, value = data(18, (2,))
    whole = rg.attention_pool(query, key, value, GAUSSIAN, dropout=0.5, seed=6, engine=engine)
    for i, j in ((0, 2), (2, Q)):
        parts = [
            rg.partial_pool(
                query[:, i:j],
                key[:, a:b],
                value[:, a:b],
                GAUSSIAN,
                query_start=i,
                key_start=a,
                dropout=0.5,
                seed=6,
                engine=engine,
            )
            for a, b in ((0, 3), (3, 4), (4, K))
        ]
        np.testing.assert_allclose(parts[1].merge(parts[2]).merge(parts[0]).finish(), whole[:, i:j], atol=1e-14)


def test_the_backward_drops_the_same_pairs(engine, small_tiles):
    query, key, value = data(19, (2,))
    grad = np.random.default_rng(20).normal(size=(2, Q, V))
    keep = dropped((2,), Q, K, 0.5, 7)
    w = softmax(gaussian_scores(query, key))
    to_weight = (grad @ value.swapaxes(-1, -2)) * keep
    to_score = w * (to_weight - (w * to_weight).sum(-1, keepdims=True))
    difference = (query[:, :, None] - key[:, None]) / 1.3**2
    expected = (
        -(to_score[..., None] * difference).sum(2),
        (to_score[..., None] * difference).sum(1),
        (w * keep).swapaxes(-1, -2) @ grad,
    )
    _, grads = rg.attention_pool_gradients(grad, query, key, value, GAUSSIAN, dropout=0.5, seed=7, engine=engine)
    tensors = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    out = rg.attention_pool(*tensors, GAUSSIAN, dropout=0.5, seed=7, engine=engine)
    out.backward(torch.as_tensor(grad))
    for found, tensor, want in zip(grads, tensors, expected, strict=False):
        np.testing.assert_allclose(found, want, atol=1e-13)
        np.testing.assert_allclose(tensor.grad, want, atol=1e-13)


# ---------------------------------------------------------------- the largest weights


@pytest.mark.parametrize("n", [1, 3, K, 20])
@pytest.mark.parametrize("masked", [False, True])
def test_top_attention_is_the_sorted_weights(case, n, masked, engine, library, small_tiles, to_numpy):
    query, key = (library(x) for x in case.arrays(21, Q, K, V, (2,))[:2])
    score, mask = case.make(library), rg.Causal(offset=-1) if masked else None
    w = to_numpy(rg.attention_weights(query, key, score, mask=mask, engine=engine))
    weights, index = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x) for x in rg.top_attention(
        query, key, score, n=n, mask=mask, engine=engine
    ))  # fmt: skip
    assert weights.shape == index.shape == (2, Q, min(n, K))
    # the scores decide, since weights of different scores can be equal after rounding
    s = to_numpy(score(query, key)) if case.name != "constant" else np.zeros((2, Q, K))
    s = np.where(np.arange(K) <= np.arange(Q)[:, None] - 1, s, -np.inf) if masked else s
    for at in np.ndindex(2, Q):
        live = [j for j in range(K) if s[at][j] > -np.inf]
        order = sorted(live, key=lambda j: (-w[at][j], j))[:n]
        found = [j for j in index[at] if j >= 0]
        np.testing.assert_allclose(w[at][found], w[at][order], rtol=1e-12)
        assert found == sorted(found, key=lambda j: (-s[at][j].round(12), j))
        np.testing.assert_allclose(weights[at], [*w[at][found], *[0.0] * (min(n, K) - len(found))], rtol=1e-12)
        assert list(index[at]) == [*found, *[-1] * (min(n, K) - len(found))]
        assert len(found) == min(n, len(live))


@pytest.mark.parametrize("budget", [40, 10**6])
def test_ties_go_to_the_lower_index(budget, engine, library, monkeypatch):
    monkeypatch.setattr("regard.problem.BUDGET", budget)
    x = library(np.array([3.0, 1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 2.0, 3.0, 1.0, 1.0])[:, None])
    _, index = rg.top_attention(library(np.ones((4, 1))), x, GAUSSIAN, n=9, engine=engine)
    np.testing.assert_array_equal(index, [[1, 3, 5, 9, 10, 2, 6, 7, 0]] * 4)


def test_top_attention_has_no_gradient_and_numbers_the_keys_of_the_call():
    query, key, h = (torch.tensor(x, requires_grad=True) for x in (*data(22)[:2], 1.3))
    weights, index = rg.top_attention(
        query, key, rg.Gaussian(h), mask=rg.Window(0, 0, offset=2), bias=torch.zeros(K).double()
    )
    assert not weights.requires_grad
    assert index.dtype == torch.int64
    np.testing.assert_array_equal(index[:, 0], np.arange(2, 2 + Q))
    np.testing.assert_array_equal(index[:, 1:], -1)


def test_top_attention_never_holds_all_pairs():
    rng = np.random.default_rng(23)
    query, key = (rng.normal(size=(6007, 2)).astype(np.float32) for _ in range(2))
    tracemalloc.start()
    try:
        weights, _ = rg.top_attention(query, key, GAUSSIAN, n=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert weights.shape == (6007, 4)
    assert peak < 6007 * 6007 * 4 / 4


# ---------------------------------------------------------------- pooling without a query


@st.composite
def values_and_masks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray | None]:
    lead = draw(st.sampled_from([(), (2,), (2, 3)]))
    keys, rng = draw(st.integers(0, 5)), np.random.default_rng(draw(st.integers(0, 999)))
    value = rng.integers(-3, 3, size=(*lead, keys, V)).astype(draw(st.sampled_from([float, np.float32, int])))
    kind = draw(st.sampled_from(["none", "keys", "queries", "one_lead"]))
    if kind == "none":
        return value, None
    rows = (*lead, draw(st.integers(0, 3)), keys) if kind != "keys" else (*lead, keys)
    if kind == "one_lead":
        rows = (*(1 for _ in lead), *rows[len(lead) :])
    return value, rng.random(rows) < 0.6


@pytest.mark.parametrize("name", ["average", "max"])
@settings(max_examples=80, deadline=None)
@given(values_and_masks())
def test_pooling_without_a_query(name, drawn):
    value, mask = drawn
    pool, plain = {"average": (rg.average_pool, np.mean), "max": (rg.max_pool, np.max)}[name]
    lead, keys = value.shape[:-2], value.shape[-2]
    squeeze = mask is None or mask.ndim < value.ndim
    keep = np.ones((*lead, 1, keys), dtype=bool) if mask is None else mask[..., None, :] if squeeze else mask
    keep = np.broadcast_to(keep, (*lead, *keep.shape[-2:]))
    want = np.zeros((*lead, keep.shape[-2], V))
    for at in np.ndindex(want.shape[:-1]):
        left = value[at[:-1]][keep[at]]
        want[at] = plain(left, axis=0) if len(left) else 0
    want = want[..., 0, :] if squeeze else want
    for c in (np.asarray, torch.as_tensor):
        out = pool(c(value), None if mask is None else c(mask))
        assert tuple(out.shape) == want.shape
        np.testing.assert_allclose(out, want, atol=1e-6 if value.dtype == np.float32 or c is not np.asarray else 1e-15)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "bool", "float16", "float32", "float64"])
def test_dtypes_without_a_query(dtype):
    value, mask = np.array([[1, 0], [1, 1], [0, 0]]).astype(dtype), np.array([True, False, True])
    for c in (np.asarray, torch.as_tensor):
        if dtype == "uint16" and c is torch.as_tensor:
            continue  # torch has no maximum of it
        largest, mean = rg.max_pool(c(value), c(mask)), rg.average_pool(c(value), c(mask))
        assert largest.dtype == c(value).dtype
        np.testing.assert_array_equal(largest, [1, 0])
        wanted = np.dtype(dtype) if dtype.startswith("float") else np.float64
        assert mean.dtype == (
            c(np.zeros(0, wanted)).dtype if c is np.asarray or dtype.startswith("float") else torch.float32
        )
        np.testing.assert_array_equal(mean, [0.5, 0.0])
        assert rg.max_pool(c(value), c(mask & False)).dtype == c(value).dtype
    assert rg.average_pool(np.full((4096, 1), 60000, np.float16)) == 60000
    assert rg.max_pool(np.full((3, V), -5, np.int8)).tolist() == [-5, -5]
    np.testing.assert_array_equal(rg.max_pool(np.array([[-np.inf], [np.inf]])), [np.inf])
    np.testing.assert_array_equal(rg.max_pool(np.array([[-np.inf, np.inf], [-np.inf, -np.inf]])), [-np.inf, np.inf])


@pytest.mark.parametrize("pool", [rg.average_pool, rg.max_pool])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_only_what_is_masked_may_be_rubbish(pool, bad, library):
    value = np.array([[1.0, 2.0], [bad, 5.0], [3.0, bad]])
    out = pool(library(value), library(np.array([[True, False, False], [False, True, False], [True, False, True]])))
    plain = {rg.average_pool: np.mean, rg.max_pool: np.max}[pool]
    np.testing.assert_array_equal(out, [value[0], value[1], plain(value[[0, 2]], axis=0)])


def test_gradients_without_a_query():
    mask = torch.tensor([[True, True, False, True], [False, False, False, False], [True, True, True, True]])
    value = torch.tensor([[1.0, 7.0], [5.0, 7.0], [9.0, torch.nan], [5.0, 7.0]], dtype=torch.float64)

    def gradient(pool: Callable[..., torch.Tensor], rows: list[int]) -> np.ndarray:
        x = value.clone().requires_grad_()
        pool(x, mask[rows]).nansum(0)[:].sum().backward()
        return x.grad.numpy()

    third = [1 / 3] * 2
    np.testing.assert_allclose(gradient(rg.average_pool, [0]), [third, third, [0, 0], third], atol=1e-16)
    np.testing.assert_allclose(gradient(rg.max_pool, [0]), [[0, 1 / 3], [0.5, 1 / 3], [0, 0], [0.5, 1 / 3]], atol=1e-16)
    for pool in (rg.average_pool, rg.max_pool):
        np.testing.assert_array_equal(gradient(pool, [1]), np.zeros((4, 2)))
    np.testing.assert_array_equal(gradient(rg.max_pool, [2])[:, 0], [0, 0, 1, 0])


def test_a_mask_from_elsewhere():
    value, mask = np.arange(6.0).reshape(3, 2), np.array([True, False, True])
    for convert in (np.asarray, torch.as_tensor, np.ndarray.tolist, lambda m: frozen(m.copy())):
        for c in (np.asarray, torch.as_tensor):
            np.testing.assert_array_equal(rg.max_pool(c(value), convert(mask)), [4, 5])
            np.testing.assert_array_equal(rg.average_pool(c(value), convert(mask)), [2, 3])
    np.testing.assert_array_equal(rg.max_pool(strict.asarray(value), strict.asarray(mask)), [4, 5])
    np.testing.assert_array_equal(rg.average_pool(strict.asarray(value), strict.asarray(mask)), [2, 3])
    np.testing.assert_array_equal(rg.average_pool(strict.asarray([[1], [2]])), [1.5])


def test_mistakes_without_a_query_are_told():
    for pool in (rg.average_pool, rg.max_pool):

        def told(kind: type[Exception], *args: Any, pool: Callable[..., Any] = pool) -> str:
            with pytest.raises(kind) as caught:
                pool(*args)
            return str(caught.value)

        value = np.zeros((2, 3, 4))
        assert told(ValueError, np.zeros(3)) == (
            "`value` must be (..., K, V); got (3,). Write value[:, None] for one feature."
        )
        for shape in ((3,), (4, 3), (2, 4), (5, 2, 3, 3), (), (3, 5, 3)):
            assert told(ValueError, value, np.ones(shape, dtype=bool)) == (
                f"`mask` must be (..., K) or (..., Q, K) beside value (2, 3, 4); got {shape}."
            )
        assert told(TypeError, value, np.ones((2, 3))) == (
            "`mask` must be Boolean, True where a query may attend, or a mask of regard.masks; got float64. "
            "Pass numbers that are added to the scores as `bias`; turn 0 and 1 into Booleans with `mask != 0`."
        )
        assert told(TypeError, value, rg.Causal()) == (
            "`mask` must be a Boolean array where there is no query; got Causal. "
            "Use attention_pool with regard.Constant() for a mask of regard.masks."
        )


def test_pooling_without_a_query_is_pooling_with_a_constant_score(library):
    value, mask = np.random.default_rng(24).normal(size=(2, K, V)), np.random.default_rng(25).random((2, Q, K)) < 0.5
    out = rg.average_pool(library(value), library(mask))
    query, key = library(np.zeros((Q, 1))), library(np.zeros((K, 1)))
    for score, m in itertools.product((rg.Constant(), rg.Uniform(1.0)), (mask,)):
        np.testing.assert_allclose(
            out, rg.attention_pool(query, key, library(value), score, mask=library(m)), atol=1e-15
        )
