"""Rows that were gathered before: the exact test stays exact, and the error of others is told."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import chi2, kstest

import pymc_minibatch as pmb
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.steps import gathered_rows
from pymc_minibatch.tall.sources import open_sources
from pymc_minibatch.tall.weighted import size_rows

dask = pytest.importorskip("dask", reason="dask is an extra")
da = pytest.importorskip("dask.array", reason="dask is an extra")


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def test_the_exact_test_is_exact_with_few_rows_at_a_time(monkeypatch):
    """A model of 30 rows, of which 25 are gathered at a time, more than 100 times."""
    monkeypatch.setattr(gathered_rows, "LEAST_RESIDENTS", 25)
    monkeypatch.setattr(gathered_rows, "LASTING", 0)
    rng = np.random.default_rng(3)
    x = rng.normal(1, 1, 30)
    y = (rng.random(30) < 1 / (1 + np.exp(-x))).astype(np.int8)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2)
        pm.Bernoulli("y", logit_p=pm.Data("x", x[:20]) * beta, observed=np.arange(20) % 2)
    data = {"x": da.from_array(x, chunks=11), "y": da.from_array(y, chunks=11)}
    step = pmb.MinibatchMH(
        model=model, data=data, acceptance="exact", rows_in_memory=0, steps_per_draw=5
    )
    gathered, gather = [], step.gather
    monkeypatch.setattr(step, "gather", lambda: (gathered.append(1), gather()))
    with model:
        found = pm.sample(
            2000,
            tune=0,
            step=step,
            chains=2,
            cores=1,
            random_seed=4,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert len(gathered) > 100
    grid = np.linspace(-4, 8, 4001)
    eta = np.outer(grid, x)
    logp = (y * eta - np.logaddexp(0, eta)).sum(1) - grid**2 / 8
    cdf = np.cumsum(np.exp(logp - logp.max()))
    draws = found.posterior["beta"].values[:, ::4].ravel()
    assert kstest(draws, lambda t: np.interp(t, grid, cdf / cdf[-1])).pvalue > 1e-4


def test_the_fixed_error_is_as_reported():
    """The log ratio that gathered rows stand for varies from set to set as is told."""
    rng = np.random.default_rng(5)
    r, x = rng.normal(size=(2, 5000))
    r *= 0.1 + x**2
    data = {"r": da.from_array(r, chunks=900), "x": da.from_array(x, chunks=900)}
    partitions = open_sources(data, {}, 0)["r"].partitions
    sized = size_rows(partitions, lambda r, x: 0.5 + x**2, "Sizing")
    n_sets, n = 300, 400
    sums = []
    for seed in range(n_sets):
        residents = Residents.gather(sized, n, np.random.default_rng(seed), once=False)
        sums.append(n * np.mean(residents.table.weights * residents.data[0]))
    b = 20
    c = 0.5 + x**2
    s2 = (c.sum() * (r**2 / c).sum() - r.sum() ** 2) / b
    told = residents.fixed_error(s2, b, slope=1.0) ** 2
    ratio = n_sets * np.mean((np.array(sums) - r.sum()) ** 2) / told
    assert chi2.ppf(5e-5, n_sets) < ratio < chi2.isf(5e-5, n_sets)
