"""What rounding does to a log-density whose terms cancel, and to the checks that compare it."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.tall.verify import rounding_of_rows


@pytest.mark.parametrize("count", [1e6, 1e7, 1e9])
def test_large_counts_are_sampled(count: float):
    """Rows y η − eᵞ are small differences of numbers of 10¹⁰, which the witness compares."""
    y = np.random.default_rng(1).poisson(count, 12_000)
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, 20)), observed=y)
    idata = pmb.sample(model, 500, 300, 2, progressbar=False, random_seed=1)
    draws, sd = idata.posterior["b"].values, 1 / np.sqrt(y.sum())
    assert abs(draws.mean() - np.log(y.mean())) < 0.3 * sd
    assert 0.8 < draws.std() / sd < 1.25


def test_rounding_of_rows_is_that_of_their_largest_terms():
    y = np.random.default_rng(2).poisson([1e2, 1e9], (1000, 2))
    found = []
    for counts in y.T:
        with pm.Model() as model:
            pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, 20)), observed=counts)
        tall = pmb.TallModel(model)
        points = [np.array([np.log(counts.mean())])]
        found.append(np.median(rounding_of_rows(tall.batch_graph, points, [counts])))
    assert found[0] < 1e-11
    assert 1e-6 < found[1] < 1e-3
