"""`regard demo`: the story on real data, as a table and a self-contained report."""

from __future__ import annotations

import base64
import html
import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning

import regard as rg
from regard.cli.mistakes import UserError, one_sentence, quoted
from regard.cli.progress import progress
from regard.datasets import motorcycle
from regard.plots import draw_curves, heatmap, partial_curves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = np.ndarray[Any, np.dtype[np.floating]]
WIDTHS = {
    "average pooling": "no query: every row answers alike",
    "Silverman's width": "kernel regression, a width by a rule of thumb",
    "learned w": "one width, by leave-one-out",
    "learned w per feature": "a width per feature, by leave-one-out",
}
RULES = dict(zip(list(WIDTHS)[1:], ("silverman", "loo_shared", "loo"), strict=True))
TRAINING, HELD_OUT = 500, 1000  # digits


@dataclass
class Story:
    """What the demo found: rows of the table, and pictures with their words."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)  # data, method, leave-one-out, held out
    sections: list[tuple[str, str, list[tuple[str, str]]]] = field(default_factory=list)  # title, text, (alt, png)


def demo(output: Path, console: Console) -> None:
    """Fits everything, prints the table, and writes ``index.html`` into the folder, which is made if need be."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = one_sentence(error.strerror or error)
        raise UserError(f"the folder {quoted(output)} cannot be made: {why}; name another one with -o.") from None
    story = Story()
    with progress("fitting"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the attention scores get a fixed number of steps
        _motorcycle(story)
        _diabetes(story)
        _digits(story)
    table = Table("data", "method", "leave-one-out error", "error on held-out rows", title="Errors by method")
    for row in story.rows:
        table.add_row(*row)
    console.print(table)
    report = output / "index.html"
    try:
        report.write_text(_page(story), encoding="utf-8")
    except OSError as error:
        why = one_sentence(error.strerror or error)
        raise UserError(f"{quoted(report)} cannot be written: {why}; name another folder with -o.") from None
    console.print(f"The report is {report.resolve()}", soft_wrap=True, highlight=False)


def leave_one_out_mean(value: Floats) -> Floats:
    """Average pooling of all rows but the own one: attention with a constant score."""
    pooled: Floats = rg.attention_pool(value[:, :0], value[:, :0], value, rg.Constant(), mask=rg.NotSelf())
    return pooled


def _regressions(story: Story, data: str, X: Any, y: Floats, unit: str) -> dict[str, Any]:
    """Fits every width, and adds the root mean squared leave-one-out errors to the table."""
    fitted = {
        name: rg.NadarayaWatsonRegressor(bandwidth=rule, random_state=0).fit(X, y) for name, rule in RULES.items()
    }
    others = {"average pooling": leave_one_out_mean(y[:, None])[:, 0]}
    others |= {name: model.leave_one_out() for name, model in fitted.items()}
    for name, predicted in others.items():
        story.rows.append((data, name, f"{np.sqrt(np.mean((predicted - y) ** 2)):.2f} {unit}", ""))
    return fitted


def _motorcycle(story: Story) -> None:
    from matplotlib.figure import Figure

    times, accel = motorcycle()
    X = times[:, None]
    fitted = _regressions(story, "motorcycle", X, accel, "g")
    best = fitted["learned w per feature"]

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(times, accel, "o", color="0.6", markersize=4, label="measurements")
    axes.axhline(accel.mean(), color="0.3", linestyle=":", label="average pooling")
    for name, style in (("Silverman's width", "--"), ("learned w", "-")):
        curve = partial_curves(fitted[name])[0]
        label = f"{name}, h = {fitted[name].bandwidth_[0]:.2f} ms"
        axes.plot(curve.x, curve.prediction, style, linewidth=2, label=label)
    axes.set(xlabel="time after the impact (ms)", ylabel="acceleration of the head (g)")
    axes.legend()

    order = np.argsort(times, kind="stable")
    grid = np.linspace(times.min(), times.max(), 60)
    weights = rg.attention_weights(grid[:, None], X[order], best.score_)
    seen = Figure(figsize=(8, 4), layout="constrained")
    picture = heatmap(weights, axes=seen.subplots(), title="Which measurement answers which query")
    picture.set(xlabel="measurement (key), in order of time", ylabel="query, from the first to the last millisecond")

    share, rows = best.attention([[20.0]], n=5)
    told = (f"{accel[i]:.1f} g at {times[i]:.1f} ms ({w:.0%})" for w, i in zip(share[0], rows[0], strict=True))
    text = (
        "A crash helmet was tested: 133 measurements of the acceleration of a head after an impact. A <em>query</em> "
        "is a time to ask about, the <em>keys</em> are the times of the measurements, the <em>values</em> their "
        "accelerations. Average pooling has no query and answers the same everywhere. Kernel regression weighs each "
        "measurement by its distance in time; the width of the kernel says how far a query looks. Silverman's rule "
        "looks too far, and smooths the impact away; leave-one-out, which asks each measurement to be predicted by all "
        f"others, finds {best.bandwidth_[0]:.2f} ms. The answer at 20 ms is {best.predict([[20.0]])[0]:.1f} g, and "
        f"these are the five heaviest reasons: {', '.join(told)}."
    )
    pictures = [
        ("The measurements, their mean, and kernel regressions with two widths", _png(figure)),
        ("Heatmap of the attention weights: a dark band along the diagonal", _png(seen)),
    ]
    story.sections.append(("A curve through scattered measurements", text, pictures))


def _diabetes(story: Story) -> None:
    data = load_diabetes()
    X = pl.DataFrame(data.data, schema=data.feature_names)
    best = _regressions(story, "diabetes", X, data.target, "points")["learned w per feature"]
    widths = best.bandwidth_ / data.data.std(axis=0)
    wide = [name for name, width in zip(X.columns, widths, strict=True) if width > 20]
    sharp = [X.columns[i] for i in np.argsort(widths)[:4]]
    text = (
        "Ten measurements of 442 patients, and how far their disease had gone a year later. With one width for all "
        "features, each counts as much as any other. With a learned width per feature, leave-one-out looks closest at "
        f"{', '.join(sharp)}"
        + (f", and gives {', '.join(wide)} a width so large that they no longer matter." if wide else ".")
        + " Age, sex and the others are in units of their standard deviation, over the root of the number of patients."
    )
    figure = draw_curves(partial_curves(best, features=sharp), target="progression")
    story.sections.append(("Which features matter", text, [("The prediction along these features", _png(figure))]))


def _digits(story: Story) -> None:
    images, labels = load_digits(return_X_y=True)
    X = images / 16.0
    order = np.random.RandomState(0).permutation(len(X))
    train, held = order[:TRAINING], order[TRAINING : TRAINING + HELD_OUT]
    shares = leave_one_out_mean(np.eye(10)[labels[train]])
    most = np.bincount(labels[train]).argmax()
    _errors(story, "average pooling", shares.argmax(1) != labels[train], np.full(len(held), most) != labels[held])
    models = {
        "Silverman's width": rg.NadarayaWatsonClassifier(bandwidth="silverman"),
        "learned w": rg.NadarayaWatsonClassifier(bandwidth="loo_shared", random_state=0),
        "additive attention": rg.AttentionClassifier("additive", max_iter=40, random_state=0),
        "dot-product attention": rg.AttentionClassifier("dot_product", max_iter=40, random_state=0),
    }
    for name, model in models.items():
        model.fit(X[train], labels[train])
        wrong = model.classes_[model.leave_one_out().argmax(1)] != labels[train]
        _errors(story, name, wrong, model.predict(X[held]) != labels[held])
    at = held[[int(np.flatnonzero(labels[held] == digit)[0]) for digit in (3, 8, 9)]]
    pictures = [
        (f"Held-out digits, and the training digits that {name} looks at", _png(_strips(models[name], X, at, train)))
        for name in ("additive attention", "dot-product attention")
    ]
    text = (
        f"{TRAINING} images of digits are the keys, their labels the values, and {HELD_OUT} other images ask. Kernel "
        "regression compares pixels. Additive and dot-product attention compare learned projections of them, "
        "v · tanh(W<sub>q</sub> q + W<sub>k</sub> k) and (W<sub>q</sub> q) · (W<sub>k</sub> k). These projections were "
        "learned from the same rows by their leave-one-out loss, and have enough numbers to fit it: that error is too "
        "small to be believed. The error on held-out rows is the honest one. The pictures show a digit that was not in "
        "the training data, the five training digits with the largest weights, and these weights."
    )
    story.sections.append(("Looking at digits", text, pictures))


def _errors(story: Story, name: str, wrong: Any, held_wrong: Any) -> None:
    story.rows.append(("digits", name, f"{np.mean(wrong):.1%} wrong", f"{np.mean(held_wrong):.1%} wrong"))


def _strips(model: Any, X: Floats, at: Any, train: Any) -> Figure:
    """A row per query: the image, and the five training images with the largest weights."""
    from matplotlib.figure import Figure

    weights, rows = model.attention(X[at], n=5)
    figure = Figure(figsize=(8, 1.5 * len(at)), layout="constrained")
    for line, query, w, found in zip(figure.subplots(len(at), 6), at, weights, rows, strict=True):
        for axes, index, title in zip(
            line, [query, *train[found]], ["query", *(f"{share:.0%}" for share in w)], strict=True
        ):
            axes.imshow(X[index].reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
    return figure


def _png(figure: Figure) -> str:
    """The picture as text that a page can hold."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return base64.b64encode(file.getvalue()).decode("ascii")


STYLE = """
body { font: 17px/1.6 Georgia, serif; color: #222; background: #fdfdfb }
body { max-width: 46rem; margin: 3rem auto; padding: 0 1rem }
h1, h2, th { font-family: system-ui, sans-serif; line-height: 1.25 }
h2 { margin-top: 2.5rem }
img { display: block; width: 100%; margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font: 15px/1.5 system-ui, sans-serif }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd }
td:nth-child(n+3), th:nth-child(n+3) { text-align: right; font-variant-numeric: tabular-nums }
footer { margin-top: 3rem; font-size: 14px; color: #555 }
"""
LEAD = (
    "Some things catch the eye by themselves: one white ball among black ones. Others are seen because they are looked "
    "for: a glass of water by someone who is thirsty. Average pooling knows the first kind of cue only. Attention adds "
    "the second: a <em>query</em> says what is looked for, <em>keys</em> say what is there, and the answer is the mean "
    "of the <em>values</em>, weighted by how well query and key agree. Here is that one idea on three sets of data."
)
SOURCES = (
    "Motorcycle data: Silverman (1985), Journal of the Royal Statistical Society B 47. Diabetes data: Efron, Hastie, "
    "Johnstone &amp; Tibshirani (2004), Annals of Statistics 32. Digits: Alpaydin &amp; Kaynak (1998), UCI Machine "
    "Learning Repository; the last two as shipped with scikit-learn."
)


def _page(story: Story) -> str:
    """The report, with all that it shows inside."""
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in story.rows)
    head = "<tr><th>data</th><th>method</th><th>leave-one-out error</th><th>error on held-out rows</th></tr>"
    methods = "; ".join(f"<em>{html.escape(name)}</em>: {html.escape(words)}" for name, words in WIDTHS.items())
    sections = "".join(
        f"<h2>{html.escape(title)}</h2><p>{text}</p>"
        + "".join(f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{png}">' for alt, png in pictures)
        for title, text, pictures in story.sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>What Regard does</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>What Regard does</h1><p>{LEAD}</p>{sections}<h2>The table</h2><p>{methods}. Errors of the first two data "
        "sets are root mean squares.</p>"
        f"<table><thead>{head}</thead><tbody>{cells}</tbody></table>"
        f"<footer><p>Made by Regard {rg.__version__}. {SOURCES}</p></footer></body></html>\n"
    )
