"""`regard demo`: its numbers against computations of their own, and a report that needs nothing but itself."""

from __future__ import annotations

import base64
import html
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console
from sklearn.datasets import load_diabetes, load_digits

from regard.cli import main
from regard.datasets import motorcycle

AVERAGE, SILVERMAN, SHARED, EACH, ADDITIVE, DOT_PRODUCT = METHODS = (
    "average pooling",
    "Nadaraya-Watson, Silverman's h",
    "learned w",
    "learned w per feature",
    "additive attention",
    "dot-product attention",
)
PUBLISHED_H, PUBLISHED_ERROR = 0.9138289, 595.93634  # reference values: the least leave-one-out error of motorcycle


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the demo printed, and its report; run as a user runs it, over an older report, with a settings file."""
    folder = tmp_path_factory.mktemp("demo") / "new" / "folder"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text("an older report")
    (folder / "matplotlibrc").write_text("savefig.format: pdf\naxes.facecolor: red\n")  # must not matter
    code = "import sys; from regard.cli import main; status = main(sys.argv[1:]); "
    code += "assert not {'torch', 'matplotlib.pyplot'} & {*sys.modules}; sys.exit(status)"
    command = [sys.executable, "-c", code, "demo", "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    assert done.stdout.endswith(f"The report is {folder.resolve() / 'index.html'}\n")
    assert sorted(path.name for path in folder.iterdir()) == ["index.html", "matplotlibrc"]
    return done.stdout, (folder / "index.html").read_text(encoding="utf-8")


def errors(printed: str, data: str, method: str) -> list[str]:
    """The leave-one-out error and that on held-out rows, as printed."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    (found,) = (cells[2:] for cells in lines if cells[:2] == [data, method])
    return found


def numbers(printed: str, data: str, method: str) -> tuple[float, float]:
    alone, held = (float(re.match(r"[\d.]+", text)[0]) for text in errors(printed, data, method))
    return alone, held


def grids(page: str) -> list[list[list[str]]]:
    """The cells of the bodies of all tables."""
    return [
        [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in body.split("</tr>")[:-1]]
        for body in re.findall(r"<tbody>(.*?)</tbody>", page)
    ]


def kernel_regression(query, key, value, h, *, alone=False):
    """The definition of Nadaraya & Watson, with a Gaussian kernel: a ratio of two sums, both over the largest term."""
    score = -(((query[:, None] - key) / h) ** 2).sum(-1) / 2
    if alone:
        np.fill_diagonal(score, -np.inf)
    weight = np.exp(score - score.max(1, keepdims=True))
    return weight @ value / weight.sum(1, keepdims=True)


def silverman(X):
    n, d = X.shape
    s = X.std(axis=0, ddof=1)
    return np.where(s > 0, s * (n * (d + 2) / 4) ** (-1 / (d + 4)), 1.0)


def root_mean_square(predicted, y):
    return np.sqrt(np.mean((predicted.ravel() - y) ** 2))


def of_the_other_half(X, y, predict):
    half = np.random.RandomState(0).permutation(len(y)) % 2
    found = np.empty(len(y))
    for one in (0, 1):
        train, held = half != one, half == one
        found[held] = np.ravel(predict(X[train], y[train], X[held]))
    return found


def test_regression_errors_are_those_of_the_plain_formulas(told):
    printed, _ = told
    times, accel = motorcycle()
    patients = load_diabetes(scaled=False)
    for data, X, y, unit in (
        ("motorcycle", times[:, None], accel, "g"),
        ("diabetes", patients.data, patients.target, "points"),
    ):
        others = (y.sum() - y) / (len(y) - 1)
        held = of_the_other_half(X, y, lambda X, y, query: np.full(len(query), y.mean()))
        assert errors(printed, data, AVERAGE) == [f"{root_mean_square(of, y):.2f} {unit}" for of in (others, held)]
        others = kernel_regression(X, X, y[:, None], silverman(X), alone=True)
        held = of_the_other_half(X, y, lambda X, y, query: kernel_regression(query, X, y[:, None], silverman(X)))
        assert errors(printed, data, SILVERMAN) == [f"{root_mean_square(of, y):.2f} {unit}" for of in (others, held)]


def test_the_learned_width_of_the_motorcycle_data_is_the_published_one(told):
    printed, page = told
    for method in (SHARED, EACH):
        assert errors(printed, "motorcycle", method)[0] == f"{np.sqrt(PUBLISHED_ERROR):.2f} g"
    assert f"<em>h</em> = {PUBLISHED_H:.3f} ms" in page
    times, accel = motorcycle()
    weight = np.exp(-(((20 - times) / PUBLISHED_H) ** 2) / 2)
    weight /= weight.sum()
    rows = np.argsort(-weight, kind="stable")[:6]
    minus = lambda text: text.replace("-", "\N{MINUS SIGN}")  # noqa: E731
    assert grids(page)[0] == [[f"{times[i]:.1f} ms", minus(f"{accel[i]:.1f} g"), f"{weight[i]:.1%}"] for i in rows]
    assert f"That at 20 ms is {weight @ accel:.1f} g".replace("-", "&minus;") in page


def test_the_widths_of_the_diabetes_data_give_the_error_they_are_said_to(told):
    printed, page = told
    data = load_diabetes(scaled=False)
    rows = {row[0]: row[1:] for row in grids(page)[1]}
    assert sorted(rows) == sorted(data.feature_names)
    h = np.array([float(rows[name][1]) for name in data.feature_names])
    others = kernel_regression(data.data, data.data, data.target[:, None], h, alone=True)
    # h is rounded to three digits; at a minimum that changes the error by the square of it
    assert root_mean_square(others, data.target) == pytest.approx(numbers(printed, "diabetes", EACH)[0], abs=0.006)
    for name, width, reach in zip(data.feature_names, h, np.ptp(data.data, axis=0), strict=True):
        assert rows[name][3] == ("smoothed out" if np.exp(-((reach / width) ** 2) / 2) > 0.95 else "used")
    out = [name for name in data.feature_names if rows[name][3] == "smoothed out"]
    assert out
    assert f"Leave-one-out smoothed out {', '.join(out[:-1])} and {out[-1]}: " in page


def test_digit_errors_are_those_of_the_plain_formulas(told):
    printed, _ = told
    images, labels = load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(labels))
    train, held = order[:500], order[500:1500]
    X, one_hot = images[train] / 16, np.eye(10)[labels[train]]

    def wrong(alone, answered):
        return [f"{np.mean(of.argmax(1) != labels[at]):.1%} wrong" for of, at in ((alone, train), (answered, held))]

    most = np.tile(one_hot.sum(0), (1000, 1))
    assert errors(printed, "digits", AVERAGE) == wrong(one_hot.sum(0) - one_hot, most)
    alone = kernel_regression(X, X, one_hot, silverman(X), alone=True)
    answered = kernel_regression(images[held] / 16, X, one_hot, silverman(X))
    assert errors(printed, "digits", SILVERMAN) == wrong(alone, answered)


def test_what_the_words_say_of_the_errors_is_so(told):
    printed, _ = told
    for data in ("motorcycle", "diabetes"):
        for found in zip(*(numbers(printed, data, method) for method in METHODS[:4]), strict=True):
            assert list(found) == sorted(found, reverse=True)  # each method helps, on rows it has not seen too
    flattery = [held - alone for alone, held in (numbers(printed, "diabetes", method) for method in (SHARED, EACH))]
    assert 0 < flattery[0] < flattery[1]  # ten widths more than one
    for method in (ADDITIVE, DOT_PRODUCT):
        alone, held = numbers(printed, "digits", method)
        assert alone < held / 2  # too small to be believed
        assert numbers(printed, "digits", SHARED)[1] <= held < 10  # plain pixels are no worse; guessing errs at 90


def test_the_report_holds_all_that_it_shows(told):
    printed, page = told
    bare = re.sub(r'base64,[^"]*', "", page)
    assert not re.search(r"https?:|//|url\(|@import|<(script|link|iframe|object)", bare)
    assert re.findall(r'\b(?:src|href|srcset)="([^"]*)"', bare) == ["data:image/png;"] * 5
    pictures = re.findall(r'<figure><img alt="([^"]{40,})" src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == page.count("<img") == 5
    for _, png in pictures:
        pixels = imread(io.BytesIO(base64.b64decode(png, validate=True)), format="png")
        assert min(pixels.shape[:2]) > 400
        assert pixels[..., :3].std() > 0.05  # something is drawn
        assert tuple(pixels[0, 0]) == (1, 1, 1, 1)
    table = grids(page)[-1]
    assert {row[1] for row in table} == {*METHODS}
    assert len(table) == 4 + 4 + 5
    for data, method, *found in table:
        assert errors(printed, data, method) == found
    for tag in ("main", "section", "figure", "table", "p", "em", "sub", "footer"):
        assert len(re.findall(rf"<{tag}[ >]", bare)) == bare.count(f"</{tag}>")


def test_the_report_names_its_data_and_its_maker(told):
    import regard

    bare = re.sub(r'base64,[^"]*', "", told[1])  # a picture may spell any three letters
    for name in (f"Regard {regard.__version__}", "Silverman (1985)", "Tibshirani (2004)", "UCI", "scikit-learn"):
        assert name in bare


@pytest.mark.parametrize("blocked", ["folder", "page"])
def test_a_place_that_cannot_be_written_is_one_sentence_before_any_work(tmp_path: Path, capsys, monkeypatch, blocked):
    def work(story):
        raise AssertionError("the place is looked at first")

    monkeypatch.setattr("regard.cli.demo._motorcycle", work)
    monkeypatch.setattr("regard.cli.app._console", lambda: Console(quiet=True))
    if blocked == "folder":
        (tmp_path / "file").write_text("")
        output, message = tmp_path / "file" / "report", "cannot be made: not a directory; name another one with -o."
    else:
        (tmp_path / "index.html").mkdir()
        output, message = tmp_path, "is a folder, where the report would be: name another place with -o."
    assert main(["demo", "-o", str(output)]) == 2
    said = capsys.readouterr().err
    assert message.casefold() in said.casefold()
    assert said.count("\n") == 1


def test_a_demo_that_is_broken_off_leaves_the_older_report(tmp_path: Path, monkeypatch):
    def interrupted(story):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.cli.demo._motorcycle", interrupted)
    (tmp_path / "index.html").write_text("an older report")
    assert main(["demo", "-o", str(tmp_path)]) == 130
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an older report"]
