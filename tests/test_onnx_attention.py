"""The field's operator by its own cases: every node case of ONNX ``Attention`` through calls of Regard."""

from __future__ import annotations

import warnings
from typing import Any

import onnx
import pytest
from onnx.backend.test.runner import Runner

from tests.onnx_attention import attention

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # collecting makes the numbers, by operations that warn
    from onnx.backend.test.case.node import collect_testcases

    # the others of its 186 cases are the same ones again, written out in smaller operators
    CASES = [c for c in collect_testcases("Attention") if [n.op_type for n in c.model.graph.node] == ["Attention"]]
COUNTS = {"1.23": 93}  # cases by version


def test_no_case_is_lost() -> None:
    version = ".".join(onnx.__version__.split(".")[:2])
    assert version in COUNTS, f"onnx {version} has {len(CASES)} cases of Attention: add the version once these are all"
    assert len(CASES) == COUNTS[version]


@pytest.mark.parametrize("engine", ["auto", "reference", "tiled", "fused"])
@pytest.mark.parametrize("node_case", CASES, ids=[c.name.removeprefix("test_attention_") for c in CASES])
def test_a_case_of_the_operator(node_case: Any, engine: str) -> None:
    (node,) = node_case.model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for inputs, outputs in node_case.data_sets:
        given = iter(inputs)
        got = attention(*(next(given) if name else None for name in node.input), **attributes, engine=engine)
        named = [x for n, x in enumerate(got) if n < len(node.output) and node.output[n]]
        # ONNX' own measure: relative 0.001, two units in the last place for bfloat16
        Runner.assert_similar_outputs(outputs, named, rtol=node_case.rtol, atol=node_case.atol)
