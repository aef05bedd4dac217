"""The bench: its table, its answers, its turns, and that the page is what the JSON file says."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import bench, page
from benchmarks.cases import CASES, picked
from benchmarks.data import Answer, Least, answer_of, cotangent_of, inputs_of, run
from benchmarks.formulas import BANDWIDTHS, KERNELS
from benchmarks.peers import OURS, RUNNERS
from benchmarks.timing import timed

BY_NAME = {case.name: case for case in CASES}


def test_the_table_is_well_formed():
    assert len(BY_NAME) == len(CASES)
    assert KERNELS.keys() == BANDWIDTHS.keys()
    for case in CASES:
        assert case.score in {*KERNELS, "additive", "dot_product"}
        assert (case.hidden > 0) == (case.score == "additive")
        assert {*case.peers} <= RUNNERS.keys() - {OURS.name}
        assert len({*case.peers}) == len(case.peers)
        assert case.at_least.keys() <= {*case.peers}, "a figure over a peer that does not run"
        assert all(RUNNERS[peer].cannot(case) is None for peer in case.at_least), "a figure over a peer that cannot run"


@pytest.mark.parametrize("name", BY_NAME)
def test_ours_has_the_answer_of_the_case(name):
    case = BY_NAME[name].tiny()
    inputs = inputs_of(case)
    answer = answer_of(case, inputs)
    errors = answer.errors(run(OURS.pool(case), inputs, answer.cotangent))
    assert answer.right(errors), (errors, answer.limits)
    assert len(errors) == (1 + len(inputs) if case.backward else 1)


@pytest.mark.parametrize("peer", ["eager", "sdpa", "sklearn"])
def test_a_peer_that_the_tests_have_has_the_answer(peer):
    for case in (case.tiny() for case in CASES if peer in case.peers):
        if RUNNERS[peer].cannot(case) is None:
            inputs = inputs_of(case)
            answer = Answer(case, inputs)
            assert answer.right(answer.errors(run(RUNNERS[peer].pool(case), inputs, answer.cotangent))), case


def test_a_bandwidth_beside_the_least_is_wrong():
    case = replace(BY_NAME["select-500"], queries=61, keys=61)
    inputs = inputs_of(case)
    least = Least(inputs)
    (found,) = run(OURS.pool(case), inputs, None)
    assert least.right(least.errors([found]))
    assert not least.right(least.errors([1.1 * found]))
    assert not least.right(least.errors([found * float("nan")]))


def test_an_answer_with_one_wrong_row_is_wrong():
    case = BY_NAME["gaussian-gradients"].tiny()
    inputs = inputs_of(case)
    answer = Answer(case, inputs)
    found = run(OURS.pool(case), inputs, answer.cotangent)
    for k, row in ((0, -1), (1, 5), (2, 0), (3, 3)):  # the pooled values, and each gradient
        spoiled = [x.clone() for x in found]
        spoiled[k][row] *= 1 + 1e-3
        assert not answer.right(answer.errors(spoiled))
        spoiled[k][row] = np.nan
        assert not answer.right(answer.errors(spoiled))
    with pytest.raises(ValueError, match=r"answered with an array \(12, 16\); \(13, 16\) was asked for"):
        answer.errors([found[0][1:], *found[1:]])


class Other:
    """A peer for these tests."""

    name, title, how, compiles = "eager", "Other", "It does what it is told.", False

    def __init__(self, answer):
        self.answer = answer

    def cannot(self, case):
        return None

    def pool(self, case):
        return self.answer


def broken(given):
    raise RuntimeError("no such kernel.\nmore about it")


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        (lambda given: OURS.pool(BY_NAME["additive-30"].tiny())(given) * 1.001, "wrong", r"its error is \S+ times"),
        (broken, "cannot", "RuntimeError: no such kernel$"),
    ],
)
def test_a_peer_with_a_wrong_answer_or_none_has_no_time_but_a_reason(monkeypatch, answer, status, why):
    monkeypatch.setitem(RUNNERS, "eager", Other(answer))
    monkeypatch.setitem(RUNNERS, "compile", Other(OURS.pool(BY_NAME["additive-30"].tiny())))
    result = bench.measure(BY_NAME["additive-30"].tiny(), seconds=0.0, most=2, processes=None)
    told = result["runners"]["eager"]
    assert told["status"] == status
    assert "median" not in told
    assert re.search(why, told["why"])
    assert [f["ratio"] is None for f in result["figures"]] == [True, False]
    assert f"{told['why']}." in page.plain(result)


def test_all_take_turns_and_the_slow_fewer(monkeypatch):
    said = []
    cost = {"ours": 0.001, "quick": 0.001, "slow": 0.3}
    monkeypatch.setattr("benchmarks.timing.clocked", lambda call: call())
    monkeypatch.setattr("benchmarks.timing.PAUSE", 0)
    calls = {name: lambda name=name: said.append(name) or cost[name] for name in cost}
    taken = timed(calls, seconds=0.03, least=3, most=40)
    assert {name: len(times) for name, times in taken.items()} == {"ours": 10, "quick": 10, "slow": 3}
    assert said[:5] == ["ours", "quick", "slow", "quick", "ours"]
    assert "slow" not in said[3:10], "its turns are spread"
    assert "slow" in said[-3:]


def test_an_unknown_case_is_an_error_that_lists_the_known(capsys):
    with pytest.raises(
        ValueError, match=r"no case has 'gausian' in its name; the known ones are additive, .*bfloat16\."
    ):
        picked(["additive", "gausian"])
    assert bench.main(["gausian"], {}) == 2
    assert "the known ones are" in capsys.readouterr().err
    assert [case.name for case in picked(["memory", "1d"])] == [
        "additive-memory",
        "gaussian-1d-float32",
        "gaussian-1d-float64",
    ]
    assert picked([]) == list(CASES)


def test_what_was_found_is_kept_and_told(tmp_path, capsys):
    out = tmp_path / "found.json"
    assert bench.main(["dot-64x512", "--tiny", "--rounds=1", "--no-memory", f"--out={out}"], {"A": "1"}) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [r["case"] for r in found["results"]] == ["dot-64x512", "dot-64x512-gradients", "dot-64x512-bfloat16"]
    assert found["machine"]["removed"] == {"A": "1"}
    assert {"cpu", "cores", "vectors", "caches", "versions", "commit", "environment"} <= found["machine"].keys()
    ours, sdpa = (found["results"][0]["runners"][name] for name in ("ours", "sdpa"))
    assert ours["minimum"] <= ours["median"] <= ours["maximum"]
    ratio = sdpa["median"] / ours["median"]
    assert found["results"][0]["figures"][0] == {
        "over": "sdpa",
        "ratio": ratio,
        "of_minima": sdpa["minimum"] / ours["minimum"],
        "at_least": 1.0,
        "reached": ratio >= 1,
    }
    assert f"{ratio:.3g} x PyTorch SDPA, at least 1 x" in capsys.readouterr().out
    assert f"| dot-64x512 | {ratio:.3g} x PyTorch SDPA, at least 1 x" in page.markdown(found)


def test_memory_is_reached_under_its_limit_and_when_it_is_linear():
    case = BY_NAME["additive-memory"]
    ours = {"status": "timed", "minimum": 1.0, "median": 1.0, "memory": {"over": 200_000_000}}
    told = bench.figures(case, {"ours": ours}, {"over": 390_000_000})
    assert [f["reached"] for f in told] == [True, True]
    told = bench.figures(case, {"ours": {**ours, "memory": {"over": 257_000_000}}}, {"over": 4 * 257_000_000})
    assert [f["reached"] for f in told] == [False, False]


def test_half_precision_is_reached_at_no_larger_error_only():
    case = BY_NAME["dot-8x2048-bfloat16"]
    ours, sdpa = ({"status": "timed", "minimum": t, "median": t, "error": 1e-3} for t in (1.0, 2.0))
    assert bench.figures(case, {"ours": ours, "sdpa": sdpa}, None)[0]["reached"]
    assert not bench.figures(case, {"ours": {**ours, "error": 2e-3}, "sdpa": sdpa}, None)[0]["reached"]


def test_the_page_is_what_the_json_file_says():
    assert page.PAGE.exists() == page.HEADLINE.exists()
    if page.HEADLINE.exists():
        found = json.loads(page.HEADLINE.read_text(encoding="utf-8"))
        assert page.PAGE.read_text(encoding="utf-8") == page.markdown(found)


def test_the_cotangent_of_the_check_is_that_of_the_rows():
    case = BY_NAME["gaussian-gradients"].tiny()
    whole, some = cotangent_of(case), cotangent_of(case, torch.tensor([2, 7]))
    assert torch.equal(whole[[2, 7]], some[[2, 7]])
    assert int((some != 0).any(-1).sum()) == 2
