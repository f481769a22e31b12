"""Chains that leave the neighbourhood of the mode are noticed by the rows that decisions read."""

import numpy as np
import pymc as pm
import pytest
from models import logistic_model

from pymc_minibatch import MinibatchMH, find_reference

N_GROUPS, N_EACH = 100, 200


def sample(model, caplog, jointly=False):
    """Return the messages about what decisions read; jointly: about the mode of all variables."""
    with model:
        reference = find_reference() if jointly else None
        step = MinibatchMH(steps_per_draw=5, reference=reference)
        pm.sample(
            30,
            tune=100,
            step=step,
            chains=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return [record.message for record in caplog.records if "Decisions read" in record.message]


@pytest.mark.slow
def test_groups_written_as_mean_plus_scale_times_offset(caplog):
    """Their joint mode, which is used where it is passed, has a scale that is far too large."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(N_GROUPS), N_EACH), rng.normal(size=N_GROUPS * N_EACH)
    logit = rng.normal(0.3, 0.45, N_GROUPS)[group] + 0.5 * x
    y = rng.binomial(1, 1 / (1 + np.exp(-logit)))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        z, slope = pm.Normal("z", shape=N_GROUPS), pm.Normal("slope")
        pm.Bernoulli("y", logit_p=mu + tau * z[group] + slope * x, observed=y)
    [message] = sample(model, caplog, jointly=True)
    assert "20,000 of 20,000 rows" in message
    assert "(expected 4," in message


@pytest.mark.parametrize("n_rows", [600, 5000])
def test_a_plain_regression_is_as_cheap_as_expected(n_rows, caplog):
    assert not sample(logistic_model(n_rows), caplog)


def test_a_rare_outcome_is_no_false_alarm(caplog):
    rng = np.random.default_rng(2)
    x = rng.normal(size=3000)
    y = rng.binomial(1, 1 / (1 + np.exp(4.5 - x)))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b")
        pm.Bernoulli("y", logit_p=a + b * x, observed=y)
    assert not sample(model, caplog)
