"""Each example runs in a process of its own, as a reader would run it, and prints the result that it is there for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
Told = Callable[[str], float]  # the first number after a text in what the example printed


def pooling_without_a_query(told: Told) -> bool:
    return (
        told("seen at") == 7
        and told("of 7 places by the maximum, at") == 1
        and told("white ball:") == 3
        and told("cross:") == 5
    )


def dense_layer_to_convolution(told: Told) -> bool:
    same = (
        told("local .* off by"),
        told("convolution .* off by"),
        told("moved picture, off by"),
        told("heads: off by"),
    )
    return (told("dense"), told("local"), told("\nconvolution")) == ((23 * 19) ** 2, 23 * 19 * 9, 9) and max(
        same
    ) < 1e-12


def any_kernel(told: Told) -> bool:
    # the Gaussian's minimum is published: h 0.9138289, mean squared error 595.93634
    gaussian = told("gaussian") == 0.914 and told("gaussian +0.914") == round(595.93634**0.5, 2)
    return gaussian and told("x and kind: .* error") < 0.15 < 1 < told("x alone .* error")


def gaussian_is_softmax(told: Told) -> bool:
    return told("agree to") < 1e-14 and told("1000.0 +nan") == told("nearest key is")


def learned_width(told: Told) -> bool:
    by_matrix = max(told("torch, matrix"), told("estimator, matrix"))
    by_number = min(told("torch, scalar"), told("torch, feature"), told("one per feature"))
    return 2 * by_matrix < by_number < told("average pooling") / 5


def queries_keys_values_of_any_size(told: Told) -> bool:
    return told("padding:") == 0 and told("sequence gives") == 0 and told("same, up to") < 1e-13


def additive_attention(told: Told) -> bool:
    return told("before:") < 40 and told("after:") > 70 and told("scores, up to") < 1e-12


def scaled_dot_product(told: Told) -> bool:
    with_root, without = told("\n 1024"), told("\n 1024 +[^ ]+")
    return with_root < 0.2 < 0.9 < without and told("keys of one length: off by") < 1e-13


def multi_head(told: Told) -> bool:
    two = [told(f"heads: 2, score: {score} +error") for score in ("dot_product", "additive", "gaussian")]
    looks = {told("head 0 looks at the largest mark"), told("head 1 looks at the largest mark")}
    return 2 * max(two) < told("heads: 1, score: dot_product +error") and looks == {1, 2}


def dates_additive(told: Told) -> bool:
    losses = told("step +1: loss"), told("step +120: loss")
    return (
        losses[0] > 4 and losses[1] < 0.2 and told("without a mistake:") > 60 and told("give the year at least") > 0.5
    )


def digits(told: Told) -> bool:
    pixels, pooled = "dense +76,810 +", "convolution, attention +15,466 +"
    there = told(pixels), told(pooled)
    aside = told(pixels + "[^ ]+ +"), told(pooled + "[^ ]+ +")
    return min(there) > 90 and aside[0] + 20 < aside[1]


def decoder(told: Told) -> bool:
    counted, falls = told("each occurs: .* never seen"), [told(f"step +{n}: .* never seen") for n in (1, 15, 30, 60)]
    same = told("scores agree up to")
    return falls[0] > 90 and falls == sorted(falls, reverse=True) and falls[-1] < 0.65 * counted and same < 1e-11


def learned_width_on_data(told: Told) -> bool:
    same = told("one width: .* up to"), told("a width each: .* up to")
    found = told("one width: .* agrees to"), told("a width each: .* agrees to")
    widths = told("one width, torch"), told("a width each, torch +wide")
    return max(same) < 1e-11 and max(found) < 1e-4 and widths == (0.715, 0.511)


SMALL = {"10", "11", "12"}  # trainings of a minute or so, which have a shorter form

RESULTS = {
    "01": pooling_without_a_query,
    "02": dense_layer_to_convolution,
    "03": any_kernel,
    "04": gaussian_is_softmax,
    "05": learned_width,
    "06": queries_keys_values_of_any_size,
    "07": additive_attention,
    "08": scaled_dot_product,
    "09": multi_head,
    "10": dates_additive,
    "11": digits,
    "12": decoder,
    "13": learned_width_on_data,
}


def test_every_example_has_a_result_by_its_own_name() -> None:
    names = {f"{number}_{result.__name__}.py" for number, result in RESULTS.items()}
    assert names == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("number", RESULTS)
def test_the_example_shows_what_it_says(number: str, tmp_path: Path) -> None:
    result = RESULTS[number]
    script = EXAMPLES / f"{number}_{result.__name__}.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), *(["--small"] if number in SMALL else [])],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # the cores are pytest-xdist's
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    def told(after: str) -> float:
        match = re.search(rf"{after} *([-+]?\d[\d,]*\.?\d*(?:e[-+]\d+)?)", done.stdout)
        assert match, f"no number after {after!r} in:\n{done.stdout}"
        return float(match[1].replace(",", ""))

    assert result(told), done.stdout
