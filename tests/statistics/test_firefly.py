"""Firefly draws are exact: a joint test, calibration, and NUTS on the same models.

The joint test (after Geweke, 2004) draws parameters from the prior, data given these, and updates
the parameters given the data, which must leave the joint distribution of both as it was. What is
drawn of z has to be Bernoulli(1 − B/L) besides. Both see any error in a bound, in its sums, or in an
acceptance probability.
"""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit
from scipy.stats import chisquare

import pymc_minibatch as pmb

N_ROWS = 40
KERNELS = ("hamiltonian", "langevin", "metropolis", "slice")
TOUCH = np.array([0.6, -0.4])
"""Where the bounds touch: bounds are valid wherever they do."""


X = np.random.default_rng(8).normal(size=(N_ROWS, 2))


def logistic_step(kernel, **options):
    """Make a step whose data are replaced later."""
    with pm.Model():
        beta = pm.Normal("beta", shape=2)
        y = pm.Data("y_rows", np.arange(N_ROWS) % 2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
        return pmb.FlyMC(kernel=kernel, rng=1, **options)


def replace_data(step, y):
    """Put other data into a step, and collapse its bounds."""
    inputs = step.tall.row_inputs
    inputs["y_rows"] = replace(inputs["y_rows"], values=read_only(y))
    constants = step.target.constants(TOUCH)
    step._settled = replace(step._settled, constants=constants)


def read_only(values):
    """Compiled code tells such arrays from others; rows always are."""
    values.flags.writeable = False
    return values


def fix_tuning(step, q=0.15, scale=0.7):
    step.tune = False
    step.tuning.q[0], step.tuning.log_step[0] = q, np.log(scale)


def draw_data(beta, rng):
    return rng.binomial(1, expit(X @ beta))


def bright_probability(step, beta):
    gaps = step.target.gaps(beta, TOUCH, np.arange(N_ROWS))
    return -np.expm1(-gaps)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_joint_distribution(kernel):
    step = logistic_step(kernel)
    for z_update in ("implicit", "explicit"):
        step.z_update, step.fraction = z_update, 0.3
        before, after, z_excess = simulate_jointly(step, n_pairs=4000)
        for change in (after - before).T:
            assert abs(change.mean()) < 5 * standard_error(change)
        assert abs(z_excess.mean()) < 5 * standard_error(z_excess)
        assert standard_error(z_excess) < 0.05


def simulate_jointly(step, n_pairs):
    """Draw parameters, then data, then update the parameters; their joint law stays the same."""
    rng = np.random.default_rng(5)
    before, after, excess = [], [], []
    fix_tuning(step)
    for _ in range(n_pairs):
        beta = rng.normal(size=2)
        y = draw_data(beta, rng)
        replace_data(step, y)
        before.append(joint_quantities(beta, y))
        step._run(beta, 20, relight=True)
        after.append(joint_quantities(beta, y))
        excess.append(step._flies.n_bright[0] - bright_probability(step, beta).sum())
    return np.array(before), np.array(after), np.array(excess)


def joint_quantities(beta, y):
    return [*beta, *beta**2, *(beta * ((y - 0.5) @ X)), quantities(beta[None], y)[0, 2]]


def standard_error(x):
    return x.std() / np.sqrt(x.size)


N_REPLICATIONS, N_DRAWS = 1500, 15


@pytest.mark.slow
def test_ranks_are_uniform():
    """Simulation-based calibration (Talts et al., 2018)."""
    step = logistic_step("hamiltonian")
    rng = np.random.default_rng(9)
    ranks = []
    for _ in range(N_REPLICATIONS):
        truth = rng.normal(size=2)
        y = draw_data(truth, rng)
        replace_data(step, y)
        fix_tuning(step)
        beta = np.zeros(2)
        step._run(beta, 20, relight=True)
        draws = []
        for _ in range(N_DRAWS):
            step._run(beta, 12, relight=False)
            draws.append(beta.copy())
        ranks.append((quantities(np.array(draws), y) < quantities(truth[None], y)).sum(axis=0))
    for ranks_of_one in np.transpose(ranks):
        assert chisquare(np.bincount(ranks_of_one, minlength=N_DRAWS + 1)).pvalue > 3e-5


def quantities(beta, y):
    """Return what is ranked: both coefficients and the log-likelihood."""
    eta = beta @ X.T
    return np.column_stack([beta, (y * eta - np.logaddexp(0.0, eta)).sum(axis=-1)])
