"""Leave-one-out from some rows, compared with exact leave-one-out and with ArviZ on all rows."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy.stats import norm

import pymc_minibatch as pmb

N_ROWS = 10_000
PRIOR_SD = 10.0


def posterior(seed, y, n_draws=400):
    """Draws of the posterior of a mean, made to have exactly its mean and variance."""
    precision = len(y) + PRIOR_SD**-2
    z = np.random.default_rng(seed).standard_normal((4, n_draws // 4))
    mu = y.sum() / precision + (z - z.mean()) / z.std() / np.sqrt(precision)
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"mu": (("chain", "draw"), mu)})})


def exact_elpd(y):
    """Leave out each row of a normal model with known variance in turn, on paper."""
    precision = len(y) - 1 + PRIOR_SD**-2
    means = (y.sum() - y) / precision
    return norm.logpdf(y, means, np.sqrt(1 + 1 / precision)).sum()


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, PRIOR_SD)
        pm.Normal("y", mu, 1.0, observed=np.linspace(-1, 1, 50))
    return model


def heavy(seed, n_rows):
    """Rows with heavier tails than the model's, so that some matter more than others."""
    return np.random.default_rng(seed).standard_t(5, n_rows)


def test_ten_data_sets(model):
    z = []
    for seed in range(10):
        y = heavy(seed, N_ROWS)
        found = pmb.loo(posterior(seed, y), 300, model=model, data={"y": y}, random_seed=seed)
        assert found.subsampling_se < 0.05 * found.se
        z.append((found.elpd - exact_elpd(y)) / found.subsampling_se)
    assert np.abs(z).max() < 5.0
    assert 0.3 < np.sqrt(np.mean(np.square(z))) < 2.0


@pytest.fixture(scope="module")
def whole(model):
    """A data set with ArviZ's own result from all of its rows."""
    y = heavy(100, 3000)
    tall, idata = pmb.TallModel(model, data={"y": y}), posterior(100, y, 100)
    result = idata.copy()
    result["log_likelihood"] = xr.DataTree(pmb.log_likelihood(idata, data=tall))
    return tall, idata, az.loo(result, pointwise=True)


@pytest.mark.filterwarnings("ignore:.*Pareto k")
def test_intervals_cover(whole):
    tall, idata, expected = whole
    found = [pmb.loo(idata, 100, data=tall, random_seed=seed) for seed in range(200)]
    z = np.array([(f.elpd - expected.elpd) / f.subsampling_se for f in found])
    assert 0.85 < np.mean(np.abs(z) < 1.96) < 0.995  # 0.95 ± 0.015, less for skewed rows
    assert abs(z.mean()) < 0.35
    assert np.mean([f.se for f in found]) == pytest.approx(expected.se, rel=0.05)


@pytest.mark.filterwarnings("ignore:.*Pareto k")
def test_all_rows_are_arviz_loo(whole):
    tall, idata, expected = whole
    found = pmb.loo(idata, tall.n_rows, data=tall)
    assert found.subsampling_se == 0
    assert found.elpd == pytest.approx(expected.elpd, abs=1e-6)
    assert found.p == pytest.approx(expected.p, abs=1e-6)
    np.testing.assert_allclose(found.elpd_i, expected.elpd_i, rtol=1e-9)


def test_compare_ranks_models():
    rng = np.random.default_rng(5)
    x = rng.normal(size=N_ROWS)
    y = 0.3 * x + rng.normal(size=N_ROWS)
    results = {}
    for name, known in {"right": 0.3, "wrong": 0.2, "worse": 0.0}.items():
        with pm.Model():
            mu = pm.Normal("mu", 0, PRIOR_SD)
            pm.Normal("y", mu + known * x, 1.0, observed=y)
            results[name] = pmb.loo(posterior(5, y - known * x), 200)
    table = az.compare(results, round_to="none")
    assert table.index.tolist() == ["right", "wrong", "worse"]
    assert (table.subsampling_dse < table.dse)[1:].all()


def test_rows_that_move_the_posterior(model):
    y = np.concatenate([heavy(1, 500), [60.0]])
    with pytest.warns(UserWarning, match=r"\d+ of the 501 sampled rows have a Pareto k"):
        found = pmb.loo(posterior(1, y, 100), 501, model=model, data={"y": y})
    assert found.warning
    assert found.pareto_k[-1] > 0.5


@pytest.mark.filterwarnings("ignore:.*Pareto k")
def test_too_few_rows():
    """Every row matters for its own group, of three rows."""
    rng = np.random.default_rng(7)
    group, y = np.repeat(np.arange(200), 3), rng.normal(size=600)
    alpha = y.reshape(200, 3).mean(axis=1) + rng.normal(size=(4, 100, 200)) / np.sqrt(3)
    idata = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"alpha": (("chain", "draw", "group"), alpha)})}
    )
    with pm.Model():
        effects = pm.Normal("alpha", 0, PRIOR_SD, shape=200)
        pm.Normal("y", effects[group], 1.0, observed=y)
        with pytest.warns(UserWarning, match=r"Use more rows: pmb.loo"):
            pmb.loo(idata, 20)
