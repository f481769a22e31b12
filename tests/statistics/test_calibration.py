"""Simulation-based calibration (Talts et al., 2018) of logistic regression on a part of the rows.

Parameters are drawn from the prior and data given them; the rank of the truth among posterior draws
is uniform. One compiled kernel serves all replications.
"""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit
from scipy.stats import chisquare

import pymc_minibatch as pmb

N_ROWS = 200
N_REPLICATIONS = 1500
N_DRAWS = 15
THIN = 90
"""Transitions between two draws, a few autocorrelation times."""

BATCH_SIZE = 80
STEP_SD = 0.08


def build_step(X):
    with pm.Model():
        beta = pm.Normal("beta", shape=2)
        design = pm.Data("X", X)
        y = pm.Data("y_rows", np.zeros(N_ROWS, dtype=np.int64))
        pm.Bernoulli("y", logit_p=design @ beta, observed=y)
        return pmb.MinibatchMH(
            acceptance=pmb.CorrectedBarker(sigma=1.0, test_error=None),
            proposal=pmb.RandomWalk(cov=STEP_SD**2, adapt=False),
            batch_size=BATCH_SIZE,
            control_variate=0,
        )


def posterior_draws(step, X, y, rng):
    """Run the kernel of `step` on other data; return draws and the mean batch size."""
    inputs = step.tall.row_inputs.values()
    data = tuple({"X": X, "y_rows": y}[i.name].astype(i.values.dtype) for i in inputs)
    step.density = step.density._replace(data=data)
    step.rng, step.tune = rng, False
    beta = np.zeros(2)
    draws, batch_sizes = [], []
    for n_steps in [5 * THIN] + [THIN] * N_DRAWS:
        totals = step.make_transitions(beta, n_steps)
        draws.append(beta.copy())
        batch_sizes.append(totals.batch_rows / totals.n_decisions)
    return np.array(draws[1:]), np.mean(batch_sizes)


def quantities(beta, X, y):
    """Return what is ranked: both coefficients and the log-likelihood."""
    eta = beta @ X.T
    log_likelihood = (y * eta - np.logaddexp(0.0, eta)).sum(axis=-1)
    return np.column_stack([beta, log_likelihood])


@pytest.mark.slow
def test_ranks_are_uniform():
    rng = np.random.default_rng(9)
    X = rng.normal(size=(N_ROWS, 2))
    step = build_step(X)
    ranks, batch_sizes = [], []
    for _ in range(N_REPLICATIONS):
        beta = rng.normal(size=(1, 2))
        y = rng.binomial(1, expit(X @ beta[0]))
        draws, batch_size = posterior_draws(step, X, y, rng)
        ranks.append((quantities(draws, X, y) < quantities(beta, X, y)).sum(axis=0))
        batch_sizes.append(batch_size)
    assert np.mean(batch_sizes) < 0.8 * N_ROWS
    for ranks_of_one in np.transpose(ranks):
        assert chisquare(np.bincount(ranks_of_one, minlength=N_DRAWS + 1)).pvalue > 3e-5
