"""`regard demo`: the story on real data, as a table and a self-contained report."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning

import regard as rg
from regard.cli.files import Output
from regard.cli.mistakes import UserError, listed, one_sentence, quoted
from regard.cli.progress import progress
from regard.cli.report import Grid, Part, Picture, Section, Words, page
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
DIGITS = f"fitted to {TRAINING} images of 1797; {HELD_OUT} others are held out"
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
    "Some things catch the eye by themselves: one white ball among black ones. Others are seen because somebody looks "
    "for them: a glass of water by someone who is thirsty. Pooling without a query knows the first kind of cue alone; "
    "attention adds the second.",
    "A <em>query</em> says what is looked for, a <em>key</em> says what can be found at some place, and a "
    "<em>value</em> is what is taken from there. A <em>score</em> <em>a</em> compares the query with each key; the "
    "scores are made into positive <em>weights</em> that sum to one, and the answer is the mean of the values with "
    "these weights: <em>f</em>(<em>q</em>) = &Sigma;<sub><em>i</em></sub> softmax<sub><em>i</em></sub>"
    "(<em>a</em>(<em>q</em>, <em>k<sub>i</sub></em>)) <em>v<sub>i</sub></em>. Averages, kernel regression and the "
    "heads of a Transformer differ in the score alone. Here they are on three sets of data.",
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
    UserError : if the folder cannot be made, or has a folder where the report would be.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = one_sentence(error.strerror or error)
        raise UserError(f"the folder {quoted(output)} cannot be made: {why}; name another one with -o.") from None
    report = output / "index.html"
    if report.is_dir():
        raise UserError(f"{quoted(report)} is a folder, where the report would be: name another place with -o.")
    # plain matplotlib, whatever the user's own settings are
    look = style.context(["default", {"axes.spines.top": False, "axes.spines.right": False}])
    with look, progress("fitting", total=13) as step, warnings.catch_warnings():
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
    Output(str(report)).write(lambda file: file.write(text.encode()))

    table = Table(*HEADER, title="Errors by method", caption=f"digits: {DIGITS}", box=SIMPLE_HEAD)
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


def halves(rows: int) -> list[Any]:
    """Positions of the rows in either half of the data, dealt at random, always alike."""
    half = np.random.RandomState(0).permutation(rows) % 2
    return [np.flatnonzero(half == one) for one in (0, 1)]


def _regressions(story: Story, data: str, X: pl.DataFrame, y: Floats, unit: str) -> dict[str, Any]:
    """Fits every width to all rows, and adds root mean squared errors of both kinds to the table."""
    first, second = halves(len(y))

    def add(method: str, alone: Floats, fit_predict: Callable[[Any, Any], Floats]) -> None:
        held = np.empty(len(y))
        held[first], held[second] = fit_predict(second, first), fit_predict(first, second)
        found = (f"{np.sqrt(np.mean((predicted - y) ** 2)):.2f} {unit}" for predicted in (alone, held))
        story.add(data, method, *found)

    add(AVERAGE, leave_one_out_mean(y[:, None])[:, 0], lambda train, held: rg.average_pool(y[train, None])[0])
    fitted = {}
    for method, rule in RULES.items():
        fitted[method] = rg.NadarayaWatsonRegressor(bandwidth=rule, random_state=0).fit(X, y)
        add(method, fitted[method].leave_one_out(), partial(_refit, fitted[method], X, y))
    return fitted


def _refit(model: Any, X: pl.DataFrame, y: Floats, train: Any, held: Any) -> Floats:
    """What a new fit to some rows answers to others."""
    answers: Floats = clone(model).fit(X[train], y[train]).predict(X[held])
    return answers


def _motorcycle(story: Story) -> None:
    times, accel = motorcycle()
    fitted = _regressions(story, "motorcycle", pl.DataFrame({"time": times}), accel, "g")
    best = fitted[SHARED]
    h = best.bandwidth_[0]
    query = pl.DataFrame({"time": [ASKED]})
    answer = f"{best.predict(query)[0]:.1f}".replace("-", "&minus;")
    share, rows = best.attention(query, n=6)
    reasons = [
        (f"{times[i]:.1f} ms", f"{accel[i]:.1f} g", f"{weight:.1%}")
        for weight, i in zip(share[0], rows[0], strict=True)
    ]
    parts: list[Part] = [
        Words(
            f"A crash helmet was tested: {len(times)} measurements of the acceleration of a head in the milliseconds "
            "after an impact. A query is a moment to ask about, the keys are the moments of the measurements, the "
            "values their accelerations. Average pooling has no query, and answers the same at any moment. "
            "Nadaraya-Watson regression scores a measurement by its distance, "
            "&minus;((<em>x</em> &minus; <em>x<sub>i</sub></em>) <em>w</em>)<sup>2</sup> / 2 with "
            "<em>w</em> = 1 / <em>h</em>: the larger <em>w</em>, the closer it looks. Silverman's rule of thumb, "
            f"made for normal distributions, says {fitted[SILVERMAN].bandwidth_[0]:.2f} ms, which smooths the impact "
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
            f"So every answer can be taken apart. That at {ASKED:.0f} ms is {answer} g, and "
            f"these measurements have {share[0].sum():.0%} of the weight."
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
    best = _regressions(story, "diabetes", X, y, "points")[EACH]
    h, spread, reach = best.bandwidth_, data.data.std(axis=0, ddof=1), np.ptp(data.data, axis=0)
    least = np.exp(-((reach / h) ** 2) / 2)  # what the feature multiplies a weight by, across all of its range
    order = np.argsort(h / spread)
    out = [data.feature_names[j] for j in range(len(h)) if least[j] > SMOOTHED_OUT]
    measured = [data.feature_names[j] for j in order if data.feature_names[j] != "sex"]
    parts: list[Part] = [
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
                    np.format_float_positional(h[j], 3, fractional=False, trim="-"),
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
            "The prediction along the four measurements, sex aside, that are looked at most closely.",
        ),
    ]
    story.sections.append(Section("Which features matter", parts))


def _digits(story: Story) -> None:
    images, labels = load_digits(return_X_y=True)
    X = images / 16.0
    order = np.random.RandomState(0).permutation(len(X))
    train, held = order[:TRAINING], order[TRAINING : TRAINING + HELD_OUT]

    def add(method: str, alone: Any, answered: Any) -> None:
        wrong = (f"{np.mean(said != labels[rows]):.1%} wrong" for said, rows in ((alone, train), (answered, held)))
        story.add("digits", method, *wrong)

    add(AVERAGE, leave_one_out_mean(np.eye(10)[labels[train]]).argmax(axis=1), np.bincount(labels[train]).argmax())
    models = {
        SILVERMAN: rg.NadarayaWatsonClassifier(bandwidth="silverman"),
        SHARED: rg.NadarayaWatsonClassifier(bandwidth="loo_shared", random_state=0),
        ADDITIVE: rg.AttentionClassifier("additive", **LEARNING),
        DOT_PRODUCT: rg.AttentionClassifier("dot_product", **LEARNING),
    }
    for method, model in models.items():
        model.fit(X[train], labels[train])
        add(method, model.classes_[model.leave_one_out().argmax(axis=1)], model.predict(X[held]))

    asked = [held[np.flatnonzero(labels[held] == digit)[0]] for digit in (3, 8, 9)]
    numbers = 2 * LEARNING["hidden_dim"] * (X.shape[1] + 1)
    parts: list[Part] = [
        Words(
            f"{TRAINING} images of handwritten digits are the keys, their labels the values, and {HELD_OUT} other "
            "images ask. The answer is the label with the largest share of the weights. Kernel regression compares "
            "the 64 pixels, each in units of its standard deviation. (One width per pixel is left out: to find 64 "
            "widths takes longer than all the rest of this report.) The other two scores first map query and key by "
            "learned matrices, and so learn themselves what to compare: additive attention, "
            "<em>v</em> &middot; tanh(<em>W<sub>q</sub></em> <em>q</em> + <em>W<sub>k</sub></em> <em>k</em>), and "
            "scaled dot-product attention, (<em>W<sub>q</sub></em> <em>q</em>) &middot; "
            "(<em>W<sub>k</sub></em> <em>k</em>) / &radic;<em>d</em>, which is a head of a Transformer."
        ),
        *(
            Picture(
                _strips(models[method], X, labels, asked, train),
                f"Three digits that were held out, and the five training digits {method} gives most weight for each, "
                "with weights and labels.",
                f"What {method} looks at: a held-out digit, and the five training digits with the largest weights.",
            )
            for method in (ADDITIVE, DOT_PRODUCT)
        ),
        Words(
            f"These two scores have {numbers:,} learned numbers each, or a few more, and learned them from {TRAINING} "
            "images by their leave-one-out loss. No image is asked about itself, yet the matrices have seen its label: "
            "the leave-one-out errors of these two methods are too small to be believed. Only those on held-out images "
            "count, and by them comparing plain pixels is no worse here. (The penalty and the number of steps were "
            f"chosen by the {len(X) - TRAINING - HELD_OUT} images that are in neither set.)"
        ),
    ]
    story.sections.append(Section("Looking at digits", parts))


def _strips(model: Any, X: Floats, labels: Any, asked: Any, train: Any) -> Figure:
    """A row per query: the image, and the five training images with the largest weights."""
    weights, rows = model.attention(X[asked], n=5)
    said = model.predict(X[asked])
    figure = Figure(figsize=(8, 1.75 * len(asked)), layout="constrained")
    panels = figure.subplots(len(asked), 7, width_ratios=[1, 0.15, 1, 1, 1, 1, 1], squeeze=False)
    for line, query, answer, share, found in zip(panels, asked, said, weights, train[rows], strict=True):
        line[1].set_axis_off()
        images = [query, *found]
        above = ["query", *(f"{w:.0%}" if w >= 0.005 else "< 1%" for w in share)]
        below = [f"is {labels[query]}, answer {answer}", *(f"label {labels[i]}" for i in found)]
        for axes, image, title, label in zip([line[0], *line[2:]], images, above, below, strict=True):
            axes.imshow(X[image].reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
            axes.set_title(title, fontsize=11, fontweight="bold" if title == "query" else "normal")
            axes.set_xlabel(label, fontsize=10)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color="0.8")
    return figure


def _errors(story: Story) -> None:
    parts: list[Part] = [
        Words(
            "<em>Leave-one-out</em>: each row is answered by all others; of the regressions the root of the mean "
            "squared error, of the digits the share of wrong labels. The learned widths are those that make this very "
            "error least (for digits, that of the probabilities), so it flatters them: little where there is one "
            "width, more where there are ten. <em>Held out</em>: rows that no part of the fit has seen. The rows of "
            "the motorcycle and diabetes data were dealt into halves, and each half answered by a new fit to the "
            f"other; the digits are answered by {TRAINING} images, and {HELD_OUT} others ask. The motorcycle data have "
            "one feature, so that one width and a width per feature are the same there."
        ),
        Grid(f"Errors by method. Digits: {DIGITS}.", HEADER, story.rows, names=2),
    ]
    story.sections.append(Section("All errors", parts))
