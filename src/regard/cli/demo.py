"""`regard demo`: the story on real data, as a table and a self-contained report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib import style
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning

import regard as rg
from regard.cli.mistakes import UserError, listed, one_sentence, quoted
from regard.cli.progress import progress
from regard.cli.report import Grid, Picture, Section, Words, page
from regard.datasets import motorcycle
from regard.plots import draw_curves, heatmap, partial_curves

Floats = np.ndarray[Any, np.dtype[np.floating]]

AVERAGE, SILVERMAN, SHARED, EACH = (
    "average pooling",
    "Nadaraya-Watson, Silverman's h",
    "learned w",
    "learned w per feature",
)
ADDITIVE, DOT_PRODUCT = "additive attention", "dot-product attention"
RULES = {SILVERMAN: "silverman", SHARED: "loo_shared", EACH: "loo"}
HEADER = ("data", "method", "leave-one-out", "held out")
TRAINING, HELD_OUT = 500, 1000  # images of digits; the other 297 chose the penalty and the number of steps of LEARNING
LEARNING: dict[str, Any] = {"hidden_dim": 16, "alpha": 10.0, "max_iter": 20, "random_state": 0}
ASKED = 20.0  # ms: the query whose answer is taken apart
SMOOTHED_OUT = 0.95  # a feature is, if no weight is multiplied by less than this on account of it

MEANINGS = {
    "age": "age, in years",
    "sex": "sex",
    "bmi": "body mass index",
    "bp": "mean blood pressure",
    "s1": "total serum cholesterol",
    "s2": "low-density lipoproteins",
    "s3": "high-density lipoproteins",
    "s4": "total cholesterol / HDL",
    "s5": "log of serum triglycerides",
    "s6": "blood sugar",
}
LEAD = (
    "Some things are seen because they catch the eye: a red cup among white papers. Others are seen because somebody "
    "looks for them: the book that one wants to read. The first kind of cue needs no will, and pooling without a query "
    "knows it alone. Attention adds the second.",
    "A <em>query</em> says what is looked for, a <em>key</em> says what there is to be found at some place, and a "
    "<em>value</em> is what is taken from there. A <em>score</em> compares the query with each key; the scores are "
    "made into positive <em>weights</em> that sum to one, and the answer is the mean of the values with these weights: "
    "<em>f</em>(<em>q</em>) = &Sigma; softmax<sub>i</sub>(<em>a</em>(<em>q</em>, <em>k<sub>i</sub></em>)) "
    "<em>v<sub>i</sub></em>. Kernel regression, a hundred years of averages and the heads of a Transformer differ in "
    "the score alone. Here they are on three sets of data.",
)
SOURCES = (
    "Data: Silverman (1985), Some aspects of the spline smoothing approach to non-parametric regression curve fitting, "
    "Journal of the Royal Statistical Society B 47 (motorcycle); Efron, Hastie, Johnstone &amp; Tibshirani (2004), "
    "Least angle regression, Annals of Statistics 32 (diabetes); Alpaydin &amp; Kaynak (1998), Optical recognition of "
    "handwritten digits, UCI Machine Learning Repository (digits); the last two as scikit-learn ships them."
)


@dataclass
class Story:
    """What the demo found: the rows of the table, the sections of the report; `step` hears of each row."""

    step: Callable[[int], None]
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)

    def add(self, data: str, method: str, leave_one_out: str, held_out: str) -> None:
        """A row of the table of errors."""
        self.rows.append((data, method, leave_one_out, held_out))
        self.step(1)


def demo(output: Path, console: Console) -> None:
    """Prints the table of errors, and writes ``index.html`` into the folder, which is made if need be.

    An ``index.html`` that is there already is replaced.

    Raises
    ------
    UserError : if the folder cannot be made, or the report not be written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = one_sentence(error.strerror or error)
        raise UserError(f"the folder {quoted(output)} cannot be made: {why}; name another one with -o.") from None
    # plain matplotlib, whatever the user's own settings are
    look = style.context(["default", {"axes.spines.top": False, "axes.spines.right": False}])
    with look, progress("fitting", total=13, delay=0.0) as step, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the attention scores get a fixed number of steps
        story = Story(step)
        _motorcycle(story)
        _diabetes(story)
        _digits(story)
        _errors(story)
        text = page(
            "From a cue to an attention head",
            [Words(words) for words in LEAD],
            story.sections,
            f"Made by Regard {rg.__version__}. {SOURCES}",
        )
    report = output / "index.html"
    try:
        report.write_text(text, encoding="utf-8")
    except OSError as error:
        why = one_sentence(error.strerror or error)
        raise UserError(f"{quoted(report)} cannot be written: {why}; name another folder with -o.") from None

    table = Table(*HEADER, title="Errors by method", box=SIMPLE_HEAD)
    for column in table.columns[2:]:
        column.justify = "right"
    for before, row in zip([None, *story.rows], story.rows, strict=False):
        if before is not None and before[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    console.print(table)
    console.print(f"The report is {report.resolve()}", soft_wrap=True, highlight=False)


def leave_one_out_mean(value: Floats) -> Floats:
    """Average pooling of all rows but the own one: attention with a constant score."""
    pooled: Floats = rg.attention_pool(value[:, :0], value[:, :0], value, rg.Constant(), mask=rg.NotSelf())
    return pooled


def halves(rows: int) -> Any:
    """(rows,) of 0 and 1: which half of the data each row is in."""
    return np.random.RandomState(0).permutation(rows) % 2


def _regressions(story: Story, data: str, X: Any, y: Floats, unit: str) -> dict[str, Any]:
    """Fits every width to all rows, and adds root mean squared errors of two kinds to the table."""
    half = halves(len(y))

    def error(predicted: Floats) -> str:
        return f"{np.sqrt(np.mean((predicted - y) ** 2)):.2f} {unit}"

    def from_the_other_half(fit_predict: Callable[[Any, Any], Floats]) -> Floats:
        predicted = np.empty(len(y))
        for one in (0, 1):
            predicted[half == one] = fit_predict(half != one, half == one)
        return predicted

    alone = leave_one_out_mean(y[:, None])[:, 0]
    means = from_the_other_half(lambda train, held: rg.average_pool(y[train, None]))
    story.add(data, AVERAGE, error(alone), error(means))
    fitted = {}
    for method, rule in RULES.items():
        model = rg.NadarayaWatsonRegressor(bandwidth=rule, random_state=0)
        held_out = from_the_other_half(
            lambda train, held, model=model: model.fit(X[train], y[train]).predict(X[held])  # type: ignore[misc]
        )
        fitted[method] = model.fit(X, y)
        story.add(data, method, error(model.leave_one_out()), error(held_out))
    return fitted


def _motorcycle(story: Story) -> None:
    times, accel = motorcycle()
    fitted = _regressions(story, "motorcycle", times[:, None], accel, "g")
    best = fitted[SHARED]
    h = best.bandwidth_[0]
    share, rows = best.attention([[ASKED]], n=6)
    reasons = [
        (f"{times[i]:.1f} ms", f"{accel[i]:.1f} g", f"{weight:.1%}")
        for weight, i in zip(share[0], rows[0], strict=True)
    ]
    parts = [
        Words(
            f"A crash helmet was tested: {len(times)} measurements of the acceleration of a head in the milliseconds "
            "after an impact. A query is a moment to ask about, the keys are the moments of the measurements, the "
            "values their accelerations. Average pooling has no query, and answers the same at any moment. "
            "Nadaraya-Watson regression scores a measurement by its distance, "
            "&minus;((<em>x</em> &minus; <em>x<sub>i</sub></em>) <em>w</em>)<sup>2</sup> / 2 with "
            "<em>w</em> = 1 / <em>h</em>: the larger <em>w</em>, the closer it looks. Silverman's rule of thumb takes "
            f"the data for one normal heap and says {fitted[SILVERMAN].bandwidth_[0]:.2f} ms, which smooths the impact "
            f"away. A <em>w</em> learned by leave-one-out, where all others have to predict each measurement, finds "
            f"<em>h</em> = {h:.3f} ms."
        ),
        Picture(
            _fits(times, accel, fitted),
            "Acceleration by time: near 0 g until 14 ms, down to less than -100 g at 21 ms, up to 45 g at 32 ms, then "
            "back to 0 g. The fit with the learned width follows the measurements, that with Silverman's width is much "
            "too flat, the average is a level line.",
            "Three poolings of the same measurements.",
        ),
        Picture(
            _attention_map(times, best),
            "Heatmap of the attention weights, a row per millisecond, a column per measurement: a band from the top "
            "left to the bottom right, pale and flat where measurements are many, dark where they are few.",
            "The weights behind the learned fit: each row is a query, each column a key, and the weights of a row sum "
            "to one. From 14 to 18 ms measurements are many, and each gets little; at the end a few get it all.",
        ),
        Words(
            f"So every answer can be taken apart. That at {ASKED:.0f} ms is {best.predict([[ASKED]])[0]:.1f} g, and "
            f"these measurements make up {share[0].sum():.0%} of it."
        ),
        Grid(
            f"The heaviest reasons for the answer at {ASKED:.0f} ms.",
            ("key: measured at", "value: acceleration", "weight"),
            reasons,
        ),
    ]
    story.sections.append(Section("A curve through scattered measurements", parts))


def _fits(times: Floats, accel: Floats, fitted: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(times, accel, "o", color="0.6", markersize=4.5, markeredgewidth=0, label="measurements")
    axes.axhline(accel.mean(), color="0.35", linestyle=":", label=AVERAGE)
    for method, line, color in ((SILVERMAN, "--", "C0"), (SHARED, "-", "C1")):
        curve = partial_curves(fitted[method])[0]
        label = f"{method}{' = ' if method == SILVERMAN else ', h = '}{fitted[method].bandwidth_[0]:.2f} ms"
        axes.plot(curve.x, curve.prediction, line, color=color, linewidth=2.2, label=label)
    axes.set(xlabel="time after the impact (ms)", ylabel="acceleration of the head (g)")
    axes.legend(frameon=False, loc="lower right")
    return figure


def _attention_map(times: Floats, model: Any) -> Figure:
    order = np.argsort(times, kind="stable")
    queries = np.arange(np.ceil(times.min()), times.max())
    weights = rg.attention_weights(queries[:, None], times[order, None], model.score_)
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = heatmap(weights, axes=figure.subplots())
    axes.images[0].set_norm(PowerNorm(0.5, vmin=0, vmax=float(weights.max())))  # light weights are to be seen as well
    marks = np.arange(10, times.max(), 10)
    axes.set_yticks(np.searchsorted(queries, marks), [f"{mark:.0f} ms" for mark in marks])
    axes.set_xticks(np.searchsorted(times[order], marks), [f"{mark:.0f} ms" for mark in marks])
    axes.set(xlabel="key: the 133 measurements, in order of time", ylabel="query: moment asked about")
    return figure


def _diabetes(story: Story) -> None:
    data = load_diabetes(scaled=False)
    X, y = pl.DataFrame(data.data, schema=data.feature_names), data.target
    best = _regressions(story, "diabetes", _Rows(X), y, "points")[EACH]
    h, spread, reach = best.bandwidth_, data.data.std(axis=0, ddof=1), np.ptp(data.data, axis=0)
    least = np.exp(-((reach / h) ** 2) / 2)  # what the feature multiplies a weight by, across all of its range
    order = np.argsort(h / spread)
    out = [data.feature_names[j] for j in range(len(h)) if least[j] > SMOOTHED_OUT]
    measured = [data.feature_names[j] for j in order if data.feature_names[j] != "sex"]
    parts = [
        Words(
            f"{len(y)} patients, ten measurements of each, and a number for how far the disease had gone a year later. "
            "A key has ten features now, and with one <em>w</em> each feature, in units of its standard deviation, "
            "counts as much as any other. With a <em>w</em> of its own a feature can be looked at closely, or not at "
            "all: where <em>w</em> goes to 0, the width to infinity, it no longer tells patients apart. Leave-one-out "
            + (
                f"smoothed out {listed(out, 10)}: across the whole range of the data "
                f"{'they change' if len(out) > 1 else 'it changes'} no weight by more than {1 - SMOOTHED_OUT:.0%}."
                if out
                else "smoothed out none."
            )
        ),
        Grid(
            "The learned widths, the closest look first.",
            ("feature", "what it is", "width h", "h / standard deviation", "effect"),
            [
                (
                    data.feature_names[j],
                    MEANINGS[data.feature_names[j]],
                    f"{h[j]:.4g}",
                    f"{h[j] / spread[j]:.2f}",
                    "smoothed out" if least[j] > SMOOTHED_OUT else "used",
                )
                for j in order
            ],
            names=2,
        ),
        Picture(
            draw_curves(partial_curves(best, features=measured[:4]), target="progression"),
            f"Four panels, the prediction along {listed(measured[:4])}, with the data as points.",
            "The prediction along the four measurements that are looked at most closely.",
        ),
    ]
    story.sections.append(Section("Which features matter", parts))


@dataclass(frozen=True, eq=False)
class _Rows:
    """A frame whose rows are taken by a mask, as those of an array are."""

    frame: pl.DataFrame


def _digits(story: Story) -> None:
    images, labels = load_digits(return_X_y=True)
