"""Each figure draws the numbers that it should: the data of the artists are read back."""

import arviz as az
import matplotlib
import numpy as np
import pytest

from pymc_minibatch import panels, plots
from pymc_minibatch.panels import columns_of

matplotlib.use("Agg")

N_CHAINS, N_DRAWS = 2, 300


def run(seed, **stats):
    rng = np.random.default_rng(seed)
    posterior = {
        "alpha": rng.normal(size=(N_CHAINS, N_DRAWS)),
        "beta": rng.normal(1.0, 2.0, (N_CHAINS, N_DRAWS, 2)),
    }
    return az.from_dict({"posterior": posterior, "sample_stats": stats})


def stat(seed, median, spread=0.5):
    rng = np.random.default_rng(seed)
    return median * np.exp(spread * rng.standard_normal((N_CHAINS, N_DRAWS)))


RUNS = {
    "few": run(
        1,
        n_likelihood=stat(2, 400.0).astype(int),
        batch_size=stat(3, 200.0),
        log_ratio_var=stat(4, 0.1),
        test_error=stat(5, 1e-4),
        n_bright=stat(6, 50.0).astype(int),
    ),
    "many": run(
        7,
        n_likelihood=stat(8, 40_000.0).astype(int),
        batch_size=stat(9, 20_000.0),
        log_ratio_var=np.zeros((N_CHAINS, N_DRAWS)),
        test_error=stat(10, 1e-2),
        n_bright=stat(11, 500.0).astype(int),
    ),
}
NUTS = run(12, n_steps=np.full((N_CHAINS, N_DRAWS), 7))


@pytest.fixture(autouse=True)
def close_figures():
    yield
    matplotlib.pyplot.close("all")


def axes(collection):
    figure = collection.get_viz("figure")
    figure.canvas.draw()
    return [axis for axis in figure.axes if axis.axison]


def words(collection):
    [legend] = collection.get_viz("figure").legends
    return [text.get_text() for text in legend.get_texts()]


def test_marginals():
    collection = plots.marginals(RUNS | {"NUTS": NUTS}, var_names=["alpha"])
    [axis] = axes(collection)
    assert len(axis.lines) == 3
    assert words(collection) == ["few", "many", "NUTS"]
    for line, result in zip(axis.lines, [*RUNS.values(), NUTS], strict=True):
        x, density = line.get_data()
        draws = result.posterior.alpha.values
        assert np.trapezoid(density, x) == pytest.approx(1.0, abs=0.03)
        assert np.trapezoid(x * density, x) == pytest.approx(draws.mean(), abs=0.05)
    assert len({line.get_color() for line in axis.lines}) == 3


def test_batch_sizes():
    [axis] = axes(plots.batch_sizes(RUNS, n_bins=30))
    assert (axis.get_xscale(), axis.get_yscale()) == ("log", "log")
    for line, result in zip(axis.lines, RUNS.values(), strict=True):
        x, height = line.get_data()
        sizes = result.sample_stats.batch_size.values.ravel()
        assert np.nanmin(x) <= sizes.min() < sizes.max() <= np.nanmax(x)
        tops = x[1:] > x[:-1]
        assert height[1:][tops].sum() == pytest.approx(1.0)


def test_outline_leaves_gaps():
    x, y = panels.outline(np.arange(6.0), np.array([0.5, 0.0, 0.4, 0.0, 0.1]), 0.05)
    np.testing.assert_array_equal(x, [0, 0, 1, 1, np.nan, 2, 2, 3, 3, np.nan, 4, 4, 5, 5])
    blocks = [[0.05, top, top, 0.05] for top in (0.5, 0.4, 0.1)]
    np.testing.assert_array_equal(y, [*blocks[0], np.nan, *blocks[1], np.nan, *blocks[2]])


def test_error_by_rows():
    collection = plots.error_by_rows(RUNS | {"NUTS": NUTS}, "NUTS", var_names=["alpha"])
    [axis] = axes(collection)
    assert words(collection) == ["few", "many"]
    truth = NUTS.posterior.alpha.values
    for line, result in zip(axis.lines, RUNS.values(), strict=True):
        x, error = line.get_data()
        rows = result.sample_stats.n_likelihood.values
        assert x[-1] == pytest.approx(rows.sum() / N_CHAINS)
        last = (result.posterior.alpha.values.mean(axis=1) - truth.mean()) / truth.std()
        assert error[-1] == pytest.approx(np.sqrt((last**2).mean()))


def test_rows_of_nuts():
    [axis] = axes(plots.error_by_rows({"NUTS": NUTS, **RUNS}, "few", n_rows=1000))
    assert axis.lines[0].get_xdata()[-1] == 7 * 1000 * N_DRAWS
    with pytest.raises(ValueError, match="how many rows it read"):
        plots.error_by_rows({"NUTS": NUTS, **RUNS}, "few")


def test_accuracy_by_rows():
    accuracy = {name: stat(20, 0.5) for name in RUNS}
    [axis] = axes(plots.accuracy_by_rows(RUNS, accuracy, label="share correct"))
    assert axis.get_ylabel() == "share correct"
    np.testing.assert_allclose(axis.lines[1].get_ydata(), accuracy["many"].mean(axis=0))


def test_bright_rows():
    [axis] = axes(plots.bright_rows(RUNS))
    assert len(axis.lines) == 2 * N_CHAINS
    np.testing.assert_array_equal(
        axis.lines[3].get_ydata(), RUNS["many"].sample_stats.n_bright.values[1]
    )


def test_noise_leaves_out_draws_without():
    first, second = axes(plots.noise(RUNS))
    drawn = [dots.get_offsets().shape[0] for dots in first.collections]
    assert drawn == [N_DRAWS, N_DRAWS, 0, 0]
    errors = second.collections[2].get_offsets()[:, 1]
    np.testing.assert_allclose(errors, RUNS["many"].sample_stats.test_error.values[0])
    assert "nats²" in first.get_ylabel()


def test_running_mean():
    collection = plots.running_mean(RUNS | {"NUTS": NUTS}, "NUTS")
    panels = axes(collection)
    assert [axis.get_title() for axis in panels] == ["alpha", "beta[0]", "beta[1]"]
    lines = panels[2].lines
    assert len(lines) == 2 * N_CHAINS + 1
    draws = RUNS["few"].posterior.beta.values[0, :, 1]
    np.testing.assert_allclose(lines[0].get_ydata(), np.cumsum(draws) / np.arange(1, N_DRAWS + 1))
    np.testing.assert_allclose(lines[-1].get_ydata(), NUTS.posterior.beta.values[..., 1].mean())


def test_many_draws_are_thinned_to_the_last():
    long = az.from_dict(
        {
            "posterior": {"alpha": np.zeros((1, 9_999))},
            "sample_stats": {"n_bright": np.arange(9_999)[None]},
        }
    )
    [axis] = axes(plots.bright_rows(long))
    x, y = axis.lines[0].get_data()
    assert x.size <= panels.MOST_POINTS
    assert (x[-1], y[-1]) == (9_999, 9_998)


def test_a_missing_stat_or_reference():
    with pytest.raises(ValueError, match="'run' has no sample stat n_bright"):
        plots.bright_rows(NUTS)
    with pytest.raises(ValueError, match="not among the runs"):
        plots.running_mean(RUNS, "NUTS")


def test_noise_of_exact_runs_is_refused():
    zero = np.zeros((N_CHAINS, N_DRAWS))
    exact = run(13, log_ratio_var=zero, test_error=zero)
    with pytest.raises(ValueError, match=r"every decision of 'exact' was exact.*batch_sizes"):
        plots.noise({"exact": exact})
    first, second = axes(plots.noise({"exact": exact, "few": RUNS["few"]}))
    assert first.get_yscale() == second.get_yscale() == "log"


@pytest.mark.parametrize("draw", [plots.batch_sizes, plots.noise, plots.bright_rows])
def test_without_a_backend(draw):
    draw(RUNS, backend="none")


@pytest.mark.parametrize(("n_panels", "columns"), [(1, 1), (2, 2), (5, 2), (6, 2), (7, 3), (20, 3)])
def test_few_panels_stand_in_two_columns(n_panels: int, columns: int) -> None:
    assert columns_of(n_panels) == columns
