"""Log-likelihoods with kinks: they are noticed, and their curvature is that of the posterior."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from models import logistic_model
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import pymc_minibatch as pmb
from pymc_minibatch.latent import search
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.tall import TallModel

N_ROWS = 20_000
SLOPE = 0.3


def even_normals(n, rng):
    """Quantiles of the normal distribution in random order, which vary less than draws."""
    return rng.permutation(norm.ppf((np.arange(n) + 0.5) / n))


def median_regression(scale=1.0):
    rng = np.random.default_rng(1)
    x = rng.choice([-1.0, 1.0], N_ROWS)
    y = SLOPE * x + even_normals(N_ROWS, rng)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 10)
        b = pm.HalfNormal("b") if scale is None else scale
        pm.Laplace("y", slope * x, b, observed=y)
    return model, x, y


@pytest.fixture(scope="module")
def median():
    model, x, y = median_regression()
    return model, x, y, pmb.find_reference(model)


def test_curvature_is_that_of_the_expected_log_likelihood(median):
    """The slope of a row jumps by 2 at its kink, and residuals have density φ(0) there."""
    *_, reference = median
    assert reference.has_kinks
    assert reference.hessian.item() == 0
    expected = -2 * norm.pdf(0) * N_ROWS
    assert reference.curvature.item() == pytest.approx(expected, rel=0.08)
    assert reference.precision_at(2.0).item() == pytest.approx(
        1 / 100 - reference.curvature.item() / 2
    )


def test_the_mode_is_found(median):
    _, x, y, reference = median
    exact = minimize_scalar(
        lambda s: np.abs(y - s * x).sum() + s**2 / 200, (0, 1), options={"xtol": 1e-10}
    )
    assert abs(reference.flat[0] - exact.x) < 0.2 * np.sqrt(reference.covariance[0, 0])


def test_the_curvature_is_kept_on_file(median, tmp_path):
    *_, reference = median
    reference.save(tmp_path / "reference")
    loaded = pmb.Reference.load(tmp_path / "reference")
    assert loaded.has_kinks
    np.testing.assert_array_equal(loaded.curvature, reference.curvature)


def test_kinks_in_one_of_two_variables():
    """By the scale b the rows are smooth; E|residual| is its mode, and N its information."""
    model, x, y = median_regression(scale=None)
    reference = pmb.find_reference(model)
    slope, log_scale = reference.flat
    assert log_scale == pytest.approx(np.log(np.abs(y - slope * x).mean()), abs=2e-3)
    own = np.sqrt(np.diag(reference.covariance))
    scale = np.exp(log_scale)
    assert own[0] == pytest.approx(np.sqrt(scale / (2 * norm.pdf(0) * N_ROWS)), rel=0.05)
    assert own[1] == pytest.approx(1 / np.sqrt(N_ROWS), rel=0.03)


def test_smooth_rows_have_no_kinks():
    reference = pmb.find_reference(logistic_model())
    assert not reference.has_kinks
    assert reference.curvature is reference.hessian


def test_few_rows_are_read(median):
    model, *_, reference = median
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = pmb.MinibatchMH(model=model, reference=reference, rng=1)
    assert (step.control_variate, step.rows) == (1, "size")
    assert isinstance(step.proposal, pmb.Laplace)
    point, rows, accepted = step.tall.layout.unflatten(reference.flat), [], []
    for _ in range(200):
        point, [stats] = step.step(point)
        rows.append(stats["batch_size"])
        accepted.append(stats["acceptance_rate"])
    assert np.mean(rows) < 0.1 * N_ROWS
    assert np.mean(accepted) > 0.3


@pytest.mark.parametrize("rate", [0.0, 5.0])
def test_kinks_that_tie_effects_curve_on_average(rate: float) -> None:
    """The Gaussian is as narrow as the posterior: kinks between neighbours tie them."""
    n_levels = 60
    group, rng = np.repeat(np.arange(n_levels), 4), np.random.default_rng(1)
    with pm.Model() as model:
        u = pm.Normal("u", 0, 2, shape=n_levels)
        pm.Potential("fused", -rate * pt.sum(pt.abs(u[1:] - u[:-1])))
        pm.Normal("y", u[group], 1.0, observed=rng.normal(size=group.size))
    surrogate = locate(TallModel(model), 1.0, sums="may").reference.surrogate
    if not rate:
        assert surrogate.kinks is None
        return
    _, curvature = surrogate.kinks
    given = surrogate.conditional(surrogate.center[surrogate.field.hyper])
    whole = np.asarray(given.precision.dense)
    np.testing.assert_allclose(curvature, curvature.T, atol=1e-8 * np.abs(curvature).max())
    # A tie |d| of N(m, s²) has the average curvature 2 φ(m/s)/s.
    cov = np.linalg.inv(whole)
    mean, away = given.point[surrogate.field.latent.dense], np.zeros((n_levels, n_levels))
    for k in range(n_levels - 1):
        pair = [k, k + 1]
        s = np.sqrt(np.array([1, -1]) @ cov[np.ix_(pair, pair)] @ np.array([1, -1]))
        tie = rate * 2 * np.exp(-0.5 * ((mean[k] - mean[k + 1]) / s) ** 2) / s / np.sqrt(2 * np.pi)
        away[np.ix_(pair, pair)] += tie * np.array([[1, -1], [-1, 1]])
    assert np.linalg.norm(curvature - away) < 0.15 * np.linalg.norm(away)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_few_rows_that_tell_do_not_lead_beyond_a_wall(seed: int) -> None:
    """A coefficient of three rows: Newton steps in its kinks went to 10³² and more."""
    rng = np.random.default_rng(seed)
    x = (np.arange(200) < 3).astype(float)
    y = rng.normal(size=200) + 2.0 * x
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Uniform("b", -3, 4, default_transform=None)
        pm.Laplace("y", a + b * x, 0.3, observed=y)
    reference = pmb.find_reference(model, progressbar=False)
    assert -3 < reference.mode["b"] < 4


def test_skew_rows_are_not_averaged_widely_on_a_subsample(monkeypatch):
    """Crossed effects on an upper quantile: with few rows for each the search ran away."""
    monkeypatch.setattr(search, "SUBSAMPLE", 4000)
    rng = np.random.default_rng(16)
    n, levels = 20_000, (150, 40)
    one, other = (rng.integers(0, size, n) for size in levels)
    effects = 3 * rng.normal(size=levels[0])[one] + 4 * rng.normal(size=levels[1])[other]
    kappa, rate, km = 3.0, 0.4, rng.gamma(2.0, 1.2, n)
    noise = (rng.exponential(size=n) / kappa - rng.exponential(size=n) * kappa) / rate
    with pm.Model() as model:
        b0, slope = pm.Normal("b0", 30, 20), pm.Normal("slope", 0, 5)
        sds = [pm.HalfNormal("sd_one", 5), pm.HalfNormal("sd_other", 5)]
        a = [pm.Normal(f"a_{i}", 0, sds[i], shape=size) for i, size in enumerate(levels)]
        mu = b0 + slope * km + a[0][one] + a[1][other]
        y = np.round(18 + 4 * km + effects + noise, 1)
        pm.AsymmetricLaplace("y", kappa=kappa, mu=mu, b=pm.HalfNormal("b", 1), observed=y)
    reference = locate(TallModel(model), 1.0, sums="may").reference
    np.testing.assert_allclose(np.exp(reference.hyper), [3, 4], rtol=0.3)
