"""What is particular to the engines of the dot product: matrix (blocks in registers, bfloat16) and sdpa."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard as rg
from regard.engines import ENGINES
from regard.engines.fused import halves, matrix
from regard.engines.fused.blocks import BLOCK

Q, K, D, V = 71, 2 * BLOCK + 37, 40, 19  # queries and keys beyond whole blocks, vectors and tiles


def tensors(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


MASKS = {
    "none": None,
    "start": rg.Causal(alignment="start"),
    "end": rg.Causal(alignment="end"),
    "length": rg.ValidLength(BLOCK + 5),
    "window": rg.Window(30, 3, alignment="end"),
    "after": rg.Window(5, 2 * K, alignment="start"),
    "not_self": rg.NotSelf(offset=BLOCK - 20),
    "padding": rg.KeyPadding(np.arange(K) % 3 != 1),
    "given": np.random.default_rng(0).random((Q, K)) > 0.6,
    "nothing": rg.ValidLength(0),
}


@pytest.mark.parametrize("engine", ["matrix", "sdpa"])
@pytest.mark.parametrize("bias", [None, (K,), (Q, 1), (2, 3, Q, K)])
@pytest.mark.parametrize("mask", sorted(MASKS))
def test_many_blocks_agree_with_the_definition(engine, mask, bias):
    query, key, value = tensors((2, 3, Q, D), (3, K, D), (2, 1, K, V), dtype=torch.float64)
    mask = torch.as_tensor(MASKS[mask]) if mask == "given" else MASKS[mask]
    bias = None if bias is None else tensors(bias, dtype=torch.float64)[0]
    expected, found = (
        rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, bias=bias, engine=name)
        for name in ("reference", engine)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bias", [None, (K,), (Q, 1), (2, 3, Q, K)])
@pytest.mark.parametrize("mask", sorted(MASKS))
def test_gradients_of_many_blocks_agree_with_the_definition(mask, bias):
    arrays = tensors((2, 3, Q, D), (3, K, D), (2, 1, K, V), *([] if bias is None else [bias]), dtype=torch.float64)
    mask = torch.as_tensor(MASKS[mask]) if mask == "given" else MASKS[mask]
    cotangent = tensors((2, 3, Q, V), dtype=torch.float64, seed=1)[0]
    for a in arrays:
        a.requires_grad_()
    found = []
    for engine in ("reference", "matrix"):
        query, key, value, *rest = arrays
        bias = rest[0] if rest else None
        out = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, bias=bias, engine=engine)
        found.append(torch.autograd.grad(out, arrays, cotangent))
    for mine, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-13)


def test_results_are_bit_identical_for_any_number_of_threads(monkeypatch):
    query, key, value = (x.numpy() for x in tensors((3, Q, D), (3, K, D), (3, K, V)))
    found = []
    for count in ("1", "2", "3", "7"):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        cotangent = np.ones((3, Q, V), np.float32)
        score = rg.ScaledDotProduct()
        out, grads = rg.attention_pool_gradients(cotangent, query, key, value, score, engine="matrix")
        found.append([out, *grads[:3]])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_are_not_written_to_and_the_output_is_no_input(dtype):
    arrays = tensors((Q, V), (K, V), (K, V), dtype=dtype)
    before = [a.clone() for a in arrays]
    for score in (rg.ScaledDotProduct(), rg.ScaledDotProduct(1.0), rg.Bilinear(torch.eye(V, dtype=dtype))):
        out = rg.attention_pool(*arrays, score, engine="matrix")
        again = rg.attention_pool(*arrays, score, engine="matrix")
        torch.testing.assert_close(again, out, rtol=0, atol=0)
        assert all(torch.equal(a, b) for a, b in zip(arrays, before, strict=True))
        assert out.untyped_storage().data_ptr() not in {a.untyped_storage().data_ptr() for a in arrays}


# --- which engine -----------------------------------------------------------------------------------------------------
def choice(dtype=torch.float32, n=1200, features=64, grad=False, **options):
    x = torch.zeros(n, features, dtype=dtype, requires_grad=grad)
    return rg.choose_engine(x, x, x, rg.ScaledDotProduct(), **options)


def test_auto_takes_the_matrix_engine_where_its_vectors_are_full():
    assert choice(torch.bfloat16).name == "matrix"
    assert choice(grad=True).name == "matrix"
    assert choice(torch.float64, features=128, grad=True).name == "matrix"
    x = np.zeros((1200, 64), np.float32)
    assert rg.choose_engine(x, x, x, rg.ScaledDotProduct()).name == "matrix"


def test_auto_takes_pytorchs_kernel_where_it_is_faster_and_records_nothing():
    few, many, wide, narrow = choice(n=50), choice(), choice(torch.float64, features=128), choice(features=8)
    assert {few.name, many.name, wide.name, narrow.name} == {"sdpa"}
    assert few.reasons["matrix"] == "for 2,500 pairs its loops are not worth loading"
    for found in (many, wide):
        assert found.reasons["matrix"] == "PyTorch's own kernel is as fast where nothing is recorded"
    assert narrow.reasons["matrix"] == "products of 8 features and 8 value columns do not fill its vectors"
    assert choice(n=50, grad=True).name == "tiled"
    assert choice(n=50, grad=True).reasons["sdpa"] == "the gradients of PyTorch's kernel round more than ours"
    with torch.no_grad():
        assert choice(n=50, grad=True).name == "sdpa"
    assert choice(n=50, dropout=0.5).reasons["sdpa"] == "PyTorch's dropout is not the one that a seed fixes"
    assert choice(n=50, dropout=0.5).reasons["matrix"].startswith("for 2,500 pairs")


@pytest.mark.parametrize("engine", ["matrix", "sdpa"])
def test_an_engine_of_the_dot_product_refuses_other_scores(engine):
    x = torch.zeros(5, 3)
    for score in (rg.Gaussian(1.0), 2 * rg.ScaledDotProduct(), rg.ScaledDotProduct() + rg.Bilinear(torch.ones(3, 3))):
        with pytest.raises(ValueError, match=f'engine "{engine}" cannot run this: .* knows the dot product alone'):
            rg.attention_pool(x, x, x, score, engine=engine)


# --- sdpa -------------------------------------------------------------------------------------------------------------
def test_sdpa_is_pytorchs_kernel():
    query, key, value = tensors((2, 3, Q, 64), (2, 3, K, 64), (2, 3, K, 64))  # a scale that rounds nothing
    for mask, causal in ((None, False), (rg.Causal(alignment="start"), True)):
        expected = scaled_dot_product_attention(query, key, value, is_causal=causal)
        found = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine="sdpa")
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_log_sum_exp_that_rounds_is_not_trusted():
    """Scores of 2^20, whose log-sum-exp in float32 says nothing about how many of them are equal."""
    query, key = torch.full((1, 1), 2.0**10), torch.full((4, 1), 2.0**10)
    value = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    score = rg.ScaledDotProduct(1.0)
    parts = [rg.partial_pool(query, key[i:j], value[i:j], score, engine="sdpa") for i, j in ((0, 1), (1, 4))]
    assert [float(p.weight_sum) for p in parts] == [1, 3]
    assert float(parts[0].merge(parts[1]).finish()) == 0.25


@pytest.mark.parametrize("engine", ["matrix", "sdpa"])
def test_rows_without_a_key_are_zero_beside_others(engine):
    query, key, value = tensors((2, Q, D), (2, K, D), (2, K, V))
    lengths = torch.arange(2 * Q).reshape(2, Q) % 5 * 100
    mask = rg.ValidLength(lengths, per_query=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine=engine)
        partial = rg.partial_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine=engine)
    assert torch.equal(partial.log_weight_sum == -torch.inf, lengths == 0)
    assert torch.equal(partial.weight_sum == 0, lengths == 0)
    assert not out[lengths == 0].any()
    assert (out[lengths > 0] != 0).all()


# --- bfloat16 ---------------------------------------------------------------------------------------------------------
needs_unit = pytest.mark.skipif(
    not halves.unit(), reason="this processor has no unit for products of bfloat16, so nothing uses it"
)


def error(found, query, key, value, scale, allowed=None):
    """The mean absolute error against float64."""
    s = query.double() @ key.double().mT * scale
    s = s if allowed is None else s.masked_fill(~allowed, -torch.inf)
    return float((found.double() - torch.softmax(s, -1) @ value.double()).abs().mean())


@needs_unit
@pytest.mark.parametrize("features", [40, 64, 80])  # a scale that bfloat16 holds, and two that it does not
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_rounds_no_more_than_pytorchs_kernel(features, causal):
    ours, theirs = [], []
    for seed in range(5):
        shapes = (4, 200, features), (4, K, features), (4, K, features)
        query, key, value = tensors(*shapes, dtype=torch.bfloat16, seed=seed)
        mask = rg.Causal(alignment="start") if causal else None
        allowed = torch.ones(200, K, dtype=torch.bool).tril() if causal else None
        found = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine="matrix")
        peer = scaled_dot_product_attention(query[None], key[None], value[None], is_causal=causal)[0]
        assert found.dtype == torch.bfloat16
        for errors, out in ((ours, found), (theirs, peer)):
            errors.append(error(out, query, key, value, features**-0.5, allowed))
    assert np.median(ours) <= np.median(theirs)


@needs_unit
@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("bias", [False, True])
def test_bfloat16_blocks_agree_with_float32(mask, bias):
    query, key, value = tensors((2, 3, Q, D), (3, K, D), (2, 1, K, V), dtype=torch.bfloat16)
    mask = torch.as_tensor(MASKS[mask]) if mask == "given" else MASKS[mask]
    added = tensors((Q, K), dtype=torch.bfloat16, seed=2)[0] if bias else None
    expected, found = (
        rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, bias=added, engine=name).float()
        for name in ("reference", "matrix")
    )
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=2**-7)


@needs_unit
def test_the_unit_serves_pooled_values_of_bfloat16_alone(monkeypatch):
    used = []
    pool = halves.pool
    monkeypatch.setattr(halves, "pool", lambda inputs: used.append(inputs) or pool(inputs))
    monkeypatch.setattr(matrix, "SMALL", 1)
    query, key, value = tensors((Q, D), (K, D), (K, V), dtype=torch.bfloat16)
    rg.attention_pool(query, key, value, rg.ScaledDotProduct(), engine="matrix")
    assert len(used) == 1
    partial = rg.partial_pool(query, key, value, rg.ScaledDotProduct(), engine="matrix")
    rg.top_attention(query, key, rg.ScaledDotProduct(), engine="matrix")
    rg.attention_pool(query.half(), key.half(), value.half(), rg.ScaledDotProduct(), engine="matrix")
    rg.attention_pool(query.float(), key.float(), value.float(), rg.ScaledDotProduct(), engine="matrix")
    assert len(used) == 1
    exact = torch.logsumexp(query.double() @ key.double().mT * D**-0.5, -1)
    torch.testing.assert_close(partial.log_weight_sum.double(), exact, rtol=0, atol=2e-6)


@needs_unit
def test_keys_that_bfloat16_does_not_hold_are_not_rounded():
    """A cosine prepares keys of any length to length 1: they stay float32."""
    query, key, value = tensors((Q, D), (K, D), (K, V), dtype=torch.bfloat16)
    expected, found = (
        rg.attention_pool(query, key, value, rg.CosineSimilarity(20.0), engine=name) for name in ("reference", "matrix")
    )
    torch.testing.assert_close(found, expected, rtol=2**-8, atol=1e-6)


@needs_unit
def test_bfloat16_calls_from_many_threads_do_not_disturb_each_other(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    given = [tensors((5, Q, D), (5, K, D), (5, K, V), dtype=torch.bfloat16, seed=seed) for seed in range(4)]

    def pooled(arrays):
        return rg.attention_pool(*arrays, rg.ScaledDotProduct(), engine="matrix")

    expected = [pooled(arrays) for arrays in given]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(5):
            for mine, theirs in zip(callers.map(pooled, given), expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@needs_unit
def test_bfloat16_gradients_are_those_of_float32():
    query, key, value = (x.requires_grad_() for x in tensors((Q, D), (K, D), (K, V), dtype=torch.bfloat16))
    cotangent = tensors((Q, V), dtype=torch.bfloat16, seed=1)[0]
    found = []
    for engine in ("reference", "matrix"):
        out = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), engine=engine)
        found.append(torch.autograd.grad(out, (query, key, value), cotangent))
    for mine, theirs in zip(found[1], found[0], strict=True):
        scale = float(theirs.float().abs().max())
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=0, atol=2**-7 * scale)


# --- inputs as they were given ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("place", ["query", "key", "value"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_what_it_may(monkeypatch, dtype, place, bad):
    monkeypatch.setattr(matrix, "SMALL", 1)
    given = dict(zip(("query", "key", "value"), tensors((2, Q, 16), (2, K, 16), (2, K, 16), dtype=dtype), strict=True))
    given["query"] = given["query"].abs()  # an infinite key then hides: its score is -inf for every query
    given[place][1, 5, 3] = bad
    found, expected = (
        rg.attention_pool(**given, score=rg.ScaledDotProduct(), engine=name).isfinite()
        for name in ("auto", "reference")
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_plain_inputs_give_what_prepared_ones_do(monkeypatch, dtype, causal, lead):
    monkeypatch.setattr(matrix, "SMALL", 1)
    taken = []
    for engine in (matrix.Matrix, type(ENGINES["sdpa"])):
        own = engine.direct
        monkeypatch.setattr(engine, "direct", lambda self, x, own=own: taken.append(own(self, x)) or taken[-1])
    shapes = (*lead, 70, 32), (*lead, 70, 32), (*lead, 70, 32)
    query, key, value = tensors(*shapes, dtype=dtype)
    key = key.mT.contiguous().mT  # not contiguous
    mask = rg.Causal() if causal else None
    found, expected = (
        rg.attention_pool(query, key, value, rg.ScaledDotProduct(0.3), mask=mask, engine=name)
        for name in ("auto", "reference")
    )
    assert found.shape == expected.shape
    assert any(out is found for out in taken)
    bound = 2**-7 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


def test_both_engines_are_in_the_list_before_the_others():
    assert list(ENGINES)[:2] == ["matrix", "sdpa"]


@pytest.mark.parametrize("engine", ["matrix", "sdpa"])
@pytest.mark.parametrize("biased", [False, True])
def test_rows_that_are_not_contiguous_change_nothing(engine, biased):
    query, key, value, bias = tensors((2, Q, 16), (2, K, 16), (2, K, 16), (Q, K))
    query, key, value, other = (x.mT.contiguous().mT for x in (query, key, value, bias))
    assert key.stride(-1) != 1
    expected, found = (
        rg.attention_pool(query, key, value, rg.ScaledDotProduct(), bias=other if biased else None, engine=name)
        for name in ("reference", engine)
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_the_ranges_of_a_mask_are_made_once_for_all_that_share_them(monkeypatch):
    query, key, value = tensors((5, 7, Q, D), (5, 7, Q, D), (5, 7, Q, V))
    lengths = torch.tensor([71, 64, 3, 0, 17])
    mask = rg.Causal() & rg.ValidLength(lengths)
    made = []
    ranges = rg.ValidLength.ranges
    monkeypatch.setattr(rg.ValidLength, "ranges", lambda self, *given: made.append(1) or ranges(self, *given))
    found = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine="matrix")
    assert len(made) < 2 * len(lengths)  # of 35 matrices, seven by seven of the same length
    expected = rg.attention_pool(query, key, value, rg.ScaledDotProduct(), mask=mask, engine="reference")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
