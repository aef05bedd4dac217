"""Pictures: the numbers in them, and what is drawn of them."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

import regard as rg
from regard.plots import draw_curves, heatmap, partial_curves

matplotlib.use("Agg")

ROWS, FEATURES = 17, 3
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, FEATURES))
Y = X[:, 0] - X[:, 1] ** 2


def fitted(columns: int = FEATURES, names: list[str] | None = None) -> rg.NadarayaWatsonRegressor:
    data = X[:, :columns]
    if names is not None:
        import polars as pl

        data = pl.DataFrame(data, schema=names, orient="row")
    return rg.NadarayaWatsonRegressor(bandwidth=0.7).fit(data, Y)


def test_a_curve_is_the_prediction_with_the_other_features_at_their_median():
    estimator = fitted()
    curves = partial_curves(estimator, points=7)
    assert [curve.feature for curve in curves] == ["x0", "x1", "x2"]
    middle = np.median(X, axis=0)
    for at, curve in enumerate(curves):
        assert curve.x[0] == X[:, at].min()
        assert curve.x[-1] == X[:, at].max()
        for x, prediction in zip(curve.x, curve.prediction, strict=True):
            row = middle.copy()
            row[at] = x
            # one row alone, or among others: the sum may be taken in another order
            assert prediction == pytest.approx(estimator.predict(row[None])[0], rel=1e-13)
        assert curve.held == {f"x{i}": middle[i] for i in range(FEATURES) if i != at}
        np.testing.assert_array_equal(curve.data_x, X[:, at])
        np.testing.assert_array_equal(curve.data_y, Y)


def test_curves_know_the_names_of_a_frame_and_draw_those_that_are_asked_for():
    curves = partial_curves(fitted(names=["a", "b", "c"]), features=["c", "a"], points=5)
    assert [curve.feature for curve in curves] == ["c", "a"]
    np.testing.assert_array_equal(curves[0].data_x, X[:, 2])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"features": ["x0", "z"]}, "`features` must be among x0, x1, x2; got z."),
        ({"points": 1}, "`points` must be at least 2; got 1."),
    ],
)
def test_curves_that_cannot_be_computed(options, sentence):
    with pytest.raises(ValueError, match="^" + sentence.replace(".", r"\.") + "$"):
        partial_curves(fitted(), **options)


def test_curves_of_several_outputs_are_refused():
    estimator = rg.NadarayaWatsonRegressor(bandwidth=0.7).fit(X, np.column_stack([Y, -Y]))
    with pytest.raises(ValueError, match=r"^`estimator` must have one output; got 2\. Fit one estimator per output\.$"):
        partial_curves(estimator)


def test_one_curve_is_one_panel_with_data_and_line():
    (curve,) = partial_curves(fitted(1), points=5)
    figure = draw_curves([curve], target="speed")
    (panel,) = figure.axes
    data, line = panel.get_lines()
    np.testing.assert_array_equal(data.get_xydata(), np.column_stack([X[:, 0], Y]))
    np.testing.assert_array_equal(line.get_xydata(), np.column_stack([curve.x, curve.prediction]))
    assert (panel.get_xlabel(), panel.get_ylabel(), figure.get_suptitle()) == ("x0", "speed", "")


def test_several_curves_are_a_panel_each_and_no_panel_is_left_empty():
    figure = draw_curves(partial_curves(fitted(), points=5))
    assert [panel.get_xlabel() for panel in figure.axes if panel.get_visible()] == ["x0", "x1", "x2"]
    assert figure.get_suptitle() == "each feature alone, the others at their median"


def test_curves_are_drawn_into_a_given_figure_and_no_window_opens():
    given = Figure()
    curves = partial_curves(fitted(1), points=5)
    assert draw_curves(curves, figure=given) is given
    assert given.axes
    draw_curves(curves)
    assert pyplot.get_fignums() == []


def test_no_curve_is_refused():
    with pytest.raises(ValueError, match=r"^`curves` must have at least one curve; got none\.$"):
        draw_curves([])


def test_a_name_with_dollars_is_no_formula():
    curves = partial_curves(fitted(1, names=["$\\frac$"]), points=5)
    draw_curves(curves, target="$_$").savefig(io.BytesIO())  # would raise


def test_a_heatmap_shows_the_weights():
    weights = RNG.dirichlet(np.ones(7), size=5)
    axes = heatmap(weights, axes=Figure().subplots(), title="$head$")
    (image,) = axes.get_images()
    np.testing.assert_array_equal(image.get_array(), weights)
    assert image.get_clim() == (0, weights.max())
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("key", "query", "$head$")
    axes.figure.savefig(io.BytesIO())


def test_a_heatmap_names_queries_and_keys():
    axes = heatmap(np.eye(2, 3), axes=Figure().subplots(), query_labels=["q", "$_$"], key_labels=["the", "cat", "sat"])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["q", "$_$"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["the", "cat", "sat"]
    axes.figure.savefig(io.BytesIO())


def test_a_heatmap_takes_a_tensor():
    torch = pytest.importorskip("torch", reason="the front end for tensors is an extra")
    weights = torch.softmax(torch.randn(5, 7), -1).requires_grad_()
    (image,) = heatmap(weights, axes=Figure().subplots()).get_images()
    np.testing.assert_allclose(image.get_array(), weights.detach().numpy())


def test_a_heatmap_opens_a_figure_of_its_own():
    axes = heatmap(np.eye(3))
    assert pyplot.get_fignums() == [axes.figure.number]
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("weights", "options", "sentence"),
    [
        (
            np.ones((2, 3, 5, 7)),
            {},
            "`weights` must be a matrix (Q, K) with entries; got shape (2, 3, 5, 7); take one head, weights[0, 0].",
        ),
        (np.ones(3), {}, "`weights` must be a matrix (Q, K) with entries; got shape (3,)."),
        (np.ones((0, 3)), {}, "`weights` must be a matrix (Q, K) with entries; got shape (0, 3)."),
        (np.ones((2, 3)), {"key_labels": ["a", "b"]}, "`key_labels` must have one entry per key, 3; got 2."),
        (np.ones((2, 3)), {"query_labels": "abc"}, "`query_labels` must have one entry per query, 2; got 3."),
    ],
)
def test_a_heatmap_that_cannot_be_drawn(weights, options, sentence):
    with pytest.raises(ValueError) as refused:  # noqa: PT011  its whole text is compared
        heatmap(weights, axes=Figure().subplots(), **options)
    assert str(refused.value) == sentence
