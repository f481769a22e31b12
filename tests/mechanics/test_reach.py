"""Rows are looked at out to six standard deviations of what they read."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.latent.row_sizes import sizes_of_rows
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.reach import row_reach
from pymc_minibatch.reference.sizes import row_sizes
from pymc_minibatch.steps.deciding import settle

N = 5000
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 3))
WALL = 17


def about(model, order=2):
    tall = pmb.TallModel(model)
    return tall, ControlVariate(pmb.find_reference(data=tall), order, 1.0)


def test_covariance_of_what_rows_read():
    """Against draws of the Gaussian approximation, for gathered and dense terms and a scale."""
    rng = np.random.default_rng(6)
    group, y = rng.integers(0, 4, N), rng.normal(size=N)
    with pm.Model() as model:
        slope, level = pm.Normal("slope", shape=3), pm.Normal("level", shape=4)
        eta = X @ slope + level[group] * X[:, 1]
        pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=y)
    tall, control = about(model)
    reach = row_reach(tall, control)
    axes = reach.axes_at(tall.data)
    structure = tall.structure
    draws = rng.multivariate_normal(control.reference.center, control.reference.covariance, 4000)
    phi = np.array([structure.phi.eval({structure.flat: draw}) for draw in draws[:400]])
    rows = [0, 5, 77]
    read = np.array([reach.predictors_at(p, *(d[rows] for d in tall.data)) for p in phi])
    for i in range(len(axes)):
        for n, row in enumerate(rows):
            variance = np.cov(read[:, :, n], rowvar=False)
            expected = variance[:, i] / np.sqrt(variance[i, i])
            largest = np.sqrt(np.diag(variance)).max()
            np.testing.assert_allclose(axes[i][:, row], expected, atol=0.15 * largest)


def test_the_mean_square_is_that_over_the_posterior():
    rng = np.random.default_rng(6)
    with pm.Model() as model:
        rate = pt.exp(pm.Normal("a", shape=3) @ X[:60].T)
        pm.Poisson("y", rate, observed=rng.poisson(2.0, 60))
    tall, control = about(model)
    square, inner, _ = row_reach(tall, control)(tall.data)
    lengths = np.sqrt(np.einsum("ni,ij,nj->n", X[:60], control.reference.covariance, X[:60]))
    eta = X[:60] @ control.reference.flat
    z, weights = np.polynomial.hermite_e.hermegauss(40)
    t = z[:, None] * lengths
    terms = -np.exp(eta) * (np.expm1(t) - t - t**2 / 2)
    expected = weights @ terms**2 / weights.sum()
    assert (square > expected / 2).all()
    assert (square < 3 * expected).all()
    t = 4 * lengths
    np.testing.assert_allclose(inner, np.exp(eta) * (np.expm1(t) - t - t**2 / 2), rtol=1e-6)


def wall_of_counts(sds):
    """A row whose rate explodes so many standard deviations above the mode."""
    rng = np.random.default_rng(6)
    x = X[:, 0].copy()
    y = rng.poisson(np.exp(0.3 * x))
    sd = 1 / np.sqrt((np.exp(0.3 * x) * x**2).sum())
    x[WALL], y[WALL] = 1e5, 0
    offset = np.where(np.arange(N) == WALL, -1e5 * (0.3 + sds * sd), 0.0)
    pm.Poisson("y", pt.exp(pm.Normal("b") * x + offset), observed=y)


def wall_of_signs(sds):
    """A row whose sign is other so many standard deviations below the mode."""
    rng = np.random.default_rng(6)
    x = X[:, 0].copy()
    y = (rng.random(N) < 1 / (1 + np.exp(-0.5 * x))).astype(int)
    sd = 2.1 / np.sqrt(N)
    x[WALL], y[WALL] = 1e6, 1
    offset = np.where(np.arange(N) == WALL, -1e6 * (0.5 - sds * sd), 0.0)
    pm.Bernoulli("y", logit_p=pm.Normal("b") * x + offset, observed=y)


def wall_beside_an_unknown_scale(sds):
    rng = np.random.default_rng(6)
    y = 0.5 * X[:, 0] + rng.normal(size=N)
    b = pm.Normal("b")
    pm.Normal("y", b * X[:, 0], pm.HalfNormal("sigma"), observed=y)
    steep = np.zeros(N)
    steep[WALL] = 1e6
    pm.Potential("p", -pt.softplus(-steep * (b - 0.5 + sds / np.sqrt(N))))


@pytest.mark.parametrize("sds", [3.0, 4.7])
@pytest.mark.parametrize("build", [wall_of_counts, wall_of_signs, wall_beside_an_unknown_scale])
def test_a_row_with_a_wall_behind_is_read_at_every_decision(build, sds):
    with pm.Model() as model:
        build(sds)
    tall, control = about(model)
    sizes, _ = row_sizes(tall, control)
    assert sizes[WALL] > 100
    assert np.delete(sizes, WALL).max() < 0.1
    settled = settle(tall, control, pmb.CorrectedBarker(), "size")
    assert settled.control.always_read.tolist() == [WALL]


def test_wide_models_estimate_variances_from_directions():
    rng = np.random.default_rng(6)
    wide = rng.normal(size=(N, 80))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=80)
        pm.Bernoulli("y", logit_p=wide @ beta, observed=rng.integers(0, 2, N))
    tall, control = about(model)
    reach = row_reach(tall, control)
    assert reach.root.shape == (80, 64)
    [[sd]] = reach.axes_at(tall.data)
    expected = np.sqrt(np.einsum("ni,ij,nj->n", wide, control.reference.covariance, wide))
    assert np.abs(sd / expected - 1).mean() < 0.15


def look_beside_effects(sds):
    """Return what decides and the sizes, with a wall so many standard deviations from the mode."""
    rng = np.random.default_rng(1)
    n_rows, n_groups = 20_000, 50
    group, x = rng.integers(0, n_groups, n_rows), rng.normal(size=n_rows)
    level = rng.normal(0, 0.5, n_groups)
    y = (rng.random(n_rows) < 1 / (1 + np.exp(-level[group] - 0.3 * x))).astype(int)
    offset = np.zeros(n_rows)
    x[WALL], y[WALL], offset[WALL] = 1e5, 1, -1e5 * (0.3 - sds * 2.1 / np.sqrt(n_rows))
    with pm.Model() as model:
        effects = pm.Normal("effects", 0, pm.HalfNormal("spread"), shape=n_groups)
        eta = effects[group] + pm.Normal("b") * x + offset
        pm.Bernoulli("y", logit_p=eta, observed=y)
    latent = pmb.MinibatchMH(model=model).latent
    cubics = latent.reference.surrogate.cubics
    [found] = sizes_of_rows(latent.reference, latent.rows, [cubics[0] if cubics else None])
    return latent, found


def test_a_wall_beside_effects_is_drawn_in_every_batch():
    sizes = look_beside_effects(3.0)[1].rows
    assert sizes[WALL] > sizes.sum() / 10
    assert np.delete(sizes, WALL).max() < 0.1


def test_a_wall_that_no_posterior_point_meets_leaves_decisions_to_batches():
    latent, found = look_beside_effects(5.5)
    assert found.ranges[WALL] < 1.0
    assert found.rows[WALL] > found.rows.sum() / 10
    assert latent.by_batches
