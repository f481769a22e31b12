"""Rows drawn in proportion to their size: the sizes, the draws, and what they estimate."""

import pickle

import numpy as np
import pymc as pm
import pytest
from numba import njit
from row_pairs import at_both
from scipy.stats import chisquare

import pymc_minibatch as pmb
from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.acceptance.growing import LEAST_BATCH
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.by_size import (
    BINS_PER_OCTAVE,
    MOST_BINS,
    NO_SIZES,
    RowSizes,
    draw_by_size,
)
from pymc_minibatch.kernels.rows import CHUNK_ROWS, make_readers
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.density import Density
from pymc_minibatch.reference.sizes import FLOOR, row_sizes

LEVEL = 1e-4


def probabilities(sizes):
    """Probability of each row, from the table itself."""
    table = sizes.table
    per_bin = np.zeros(table.cut.size)
    np.add.at(per_bin, np.arange(table.cut.size), table.cut / table.cut.size)
    np.add.at(per_bin, table.alias, (1 - table.cut) / table.cut.size)
    counts = np.diff(table.starts)
    p = np.zeros(int(table.order.max()) + 1)
    p[table.order] = np.repeat(per_bin / counts, counts)
    return p, np.repeat(1 / (p.size * table.weights), counts)[np.argsort(table.order)]


SIZES = {
    "uneven": np.exp(np.random.default_rng(1).normal(0, 2, 5000)),
    "one large": np.append(np.full(999, 1e-3), 1e3),
    "all the same": np.full(17, 0.3),
    "beyond the last bin": 2.0 ** -np.arange(100.0),
}


@pytest.mark.parametrize("kind", SIZES)
def test_probabilities_are_the_sizes_rounded_up(kind):
    sizes = SIZES[kind].astype(np.float32)
    p, stated = probabilities(found := RowSizes.of(sizes))
    np.testing.assert_allclose(p, stated, rtol=1e-10)
    ratio = p * found.total / sizes
    assert ratio.min() >= 1 - 1e-12
    in_range = sizes > sizes.max() * 2.0 ** (-(MOST_BINS - 1) / BINS_PER_OCTAVE)
    assert ratio[in_range].max() < 2 ** (1.1 / BINS_PER_OCTAVE)
    assert p.sum() == pytest.approx(1)


def test_rows_of_size_zero_are_never_drawn():
    sizes = np.array([0, 1, 0, 2, 0], np.float32)
    assert set(RowSizes.of(sizes).table.order) == {1, 3}


def test_draws_have_these_probabilities():
    sizes = RowSizes.of(np.array([5.0, 1.0, 0.01, 1.01, 3.0, 2.0, 0.5] * 30, np.float32))
    p, _ = probabilities(sizes)
    drawn, weights = np.empty(400_000, np.int64), np.empty(400_000)
    draw_by_size(np.random.default_rng(2), sizes.table, drawn, weights)
    assert chisquare(np.bincount(drawn, minlength=p.size), p * drawn.size).pvalue > LEVEL
    np.testing.assert_allclose(weights, 1 / (p.size * p[drawn]), rtol=1e-10)


def test_tables_survive_pickling():
    """A large one by reference to a file."""
    for n_rows in (50, 100_000):
        sizes = RowSizes.of(np.random.default_rng(3).random(n_rows).astype(np.float32))
        message = pickle.dumps(sizes)
        assert len(message) < 30_000
        restored = pickle.loads(message)
        assert restored.total == sizes.total
        for one, other in zip(restored.table, sizes.table, strict=True):
            np.testing.assert_array_equal(one, other)


@njit
def row(point, constants, batch):
    return point[0] * batch[0]


ROWS = at_both(row)


@pytest.mark.parametrize("n", [30, CHUNK_ROWS + 100])
def test_estimates_are_unbiased(n):
    """The mean of what a batch is filled with is that of all rows, whatever the sizes are."""
    rng = np.random.default_rng(4)
    values = rng.standard_t(3, size=10_000)
    draw, _, _ = make_readers([1], by_size=True)
    sizes = RowSizes.of(np.abs(values + rng.normal(size=values.size)).astype(np.float32) + 0.1)
    current, proposed = np.zeros(1), np.ones(1)
    density = Density((values,), (), row=address_of(ROWS, current, current, (), (values,)))
    rows = row_workspace(values.size, sizes.table)
    means = np.empty(2000)
    for i in range(means.size):
        assert draw(rng, current, proposed, density, rows, 0, n // 2) == -1
        assert draw(rng, current, proposed, density, rows, n // 2, n) == -1
        means[i] = rows.log_ratios[:n].mean()
    p, _ = probabilities(sizes)
    variance = ((values**2 / p).sum() / values.size**2 - values.mean() ** 2) / n
    assert means.var() == pytest.approx(variance, rel=0.2)
    assert abs(means.mean() - values.mean()) < 4 * (variance / means.size) ** 0.5
    expected = (values / p / values.size)[rows.drawn[:n]]
    np.testing.assert_allclose(rows.log_ratios[:n], expected, rtol=1e-9)


def test_without_sizes_rows_are_drawn_uniformly():
    """One kernel serves both: it draws what one for uniform batches alone draws."""
    values = np.random.default_rng(5).standard_t(3, size=10_000)
    current, proposed = np.zeros(1), np.ones(1)
    density = Density((values,), (), row=address_of(ROWS, current, current, (), (values,)))
    found = []
    for by_size, table in ((False, ()), (True, NO_SIZES)):
        draw, _, _ = make_readers([1], by_size)
        rows, rng = row_workspace(values.size, table), np.random.default_rng(6)
        assert draw(rng, current, proposed, density, rows, 0, 100) == -1
        assert draw(rng, current, proposed, density, rows, 100, CHUNK_ROWS + 100) == -1
        assert rows.population == values.size
        found.append((rows.drawn[: rows.n_drawn[0]], rows.log_ratios[: rows.n_drawn[0]]))
    (drawn, log_ratios), (drawn_then, log_ratios_then) = found
    assert len(np.unique(drawn)) == CHUNK_ROWS + 100
    np.testing.assert_array_equal(drawn, drawn_then)
    np.testing.assert_array_equal(log_ratios, log_ratios_then)
    np.testing.assert_allclose(log_ratios, values[drawn], rtol=1e-12)


# --- Sizes ------------------------------------------------------------------------------------


def rare_category(n_rare=15, n_rows=20_000):
    """A dummy for a category of few rows: batches without one know nothing of its coefficient."""
    x = np.arange(n_rows) < n_rare
    y = np.arange(n_rows) % 50 == 0
    y[:2] = True
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 5)
        pm.Bernoulli("y", logit_p=a + b * x, observed=y.astype(int))
    return model


@pytest.fixture(scope="module")
def rare():
    tall = pmb.TallModel(rare_category())
    return tall, pmb.find_reference(data=tall)


@pytest.mark.parametrize("order", [1, 2])
def test_rare_rows_are_large(rare, order):
    tall, reference = rare
    sizes, unevenness = row_sizes(tall, ControlVariate(reference, order, 1.0))
    assert sizes.dtype == np.float32
    assert sizes[:15].min() > 20 * sizes[15:].max()
    assert sizes.min() >= 0.99 * FLOOR * sizes.mean()
    assert unevenness.by_size < unevenness.uniform / 10
    assert unevenness.kurtosis > 500


def test_an_extreme_row_is_large():
    """One predictor of 10^5 among standard normals: its row is flat on one side of the mode."""
    for seed in (1, 4, 7, 8, 12):  # with which the slope is about one standard deviation from zero
        rng = np.random.default_rng(seed)
        x = rng.normal(size=5000)
        x[7] = 1e5
        with pm.Model() as model:
            eta = pm.Normal("a", 0, 2.5) + pm.Normal("b", 0, 2.5) * x
            y = rng.random(x.size) < 1 / (1 + np.exp(-np.clip(0.04 * x, -30, 30)))
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
        tall = pmb.TallModel(model)
        sizes, _ = row_sizes(tall, ControlVariate(pmb.find_reference(data=tall), 2, 1.0))
        assert sizes[7] > 3 * np.delete(sizes, 7).max()


def test_variances_are_those_of_the_draws(rare):
    """Rows at s² = 1 as predicted, for a pair of posterior points like the one they come from."""
    tall, reference = rare
    sizes, unevenness = row_sizes(tall, ControlVariate(reference, 0, 2.0))
    p, _ = probabilities(RowSizes.of(sizes))
    rng = np.random.default_rng(5)
    pairs = rng.multivariate_normal(reference.flat, 2 * reference.covariance, (200, 2))
    terms = np.array([[tall.compiled_row_logp(x, *tall.data) for x in pair] for pair in pairs])
    r = (terms[:, 1] - terms[:, 0]) / 2.0
    by_size = (r**2 / p).sum(axis=1) - r.sum(axis=1) ** 2
    assert np.quantile(by_size, 0.01) < unevenness.by_size < np.quantile(by_size, 0.99)


@pytest.mark.filterwarnings("ignore:At the scale of the posterior:UserWarning")
def test_rows_that_may_be_impossible_are_not_rare_ones():
    """At some of the points the log ratio of a row is infinite."""
    with pm.Model() as model:
        pm.Uniform("y", pm.Normal("lower", -20, 1), 0, observed=np.linspace(-18.5, 0, 20))
    tall = pmb.TallModel(model)
    sizes, unevenness = row_sizes(tall, ControlVariate(pmb.find_reference(data=tall), 0, 1.0))
    assert np.isfinite(sizes).all()
    assert not np.isfinite(unevenness.uniform)
    step = pmb.MinibatchMH(model=model)
    assert step.least_batch == LEAST_BATCH
    assert step.rows == "uniform"


def test_equal_rows_are_drawn_uniformly():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.zeros(1000))
    assert pmb.MinibatchMH(model=model).rows == "uniform"
    assert pmb.MinibatchMH(model=model, row_sampling="size").row_sizes is not None


# --- The step ---------------------------------------------------------------------------------


def test_rare_rows_need_no_large_batches(rare, recwarn):
    step = pmb.MinibatchMH(model=rare[0].model, reference=rare[1], rng=1, steps_per_draw=10)
    assert step.rows == "size"
    assert not [w for w in recwarn if "rows dominate" in str(w.message)]
    point = rare[0].model.initial_point()
    for _ in range(100):
        point, _ = step.step(point)
    step.stop_tuning()
    assert np.mean([step.step(point)[1][0]["batch_size"] for _ in range(50)]) < 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"row_sampling": "weighted"},
            "row_sampling must be 'auto', 'size' or 'uniform'; got 'weighted'",
        ),
        ({"rows": "size", "acceptance": pmb.Austere()}, "Austere draws rows uniformly"),
        ({"rows": "size", "control_variate": 0}, "needs a reference point"),
    ],
)
def test_refuses_arguments(rare, arguments, message):
    with pytest.raises(ValueError, match=message):
        pmb.MinibatchMH(model=rare[0].model, **arguments)
