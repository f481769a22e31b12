"""Bambi's own fit takes a step, made before or after Bambi has built its model."""

import bambi
import numpy as np
import pandas as pd
import pytest

import pymc_minibatch as pmb

N_ROWS = 4000


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    x = rng.normal(5.0, 1.0, N_ROWS)  # far from centred, so that Bambi's intercept is shifted
    yes = rng.binomial(1, 1 / (1 + np.exp(-(3.2 - 0.8 * x))))
    return pd.DataFrame({"x": x, "yes": yes})


def new_model(frame):
    return bambi.Model("yes ~ x", frame, family="bernoulli")


OPTIONS = {"draws": 200, "tune": 200, "chains": 2, "cores": 1, "random_seed": 1}


def predicted_share(model, idata):
    model.predict(idata)
    return float(idata.posterior["p"].mean())


def test_a_step_made_before_the_model(frame):
    model = new_model(frame)
    idata = model.fit(step=pmb.MinibatchMH(steps_per_draw=5), progressbar=False, **OPTIONS)
    assert "batch_size" in idata.sample_stats
    assert abs(predicted_share(model, idata) - frame.yes.mean()) < 0.01


def test_the_recipe(frame):
    model = new_model(frame)
    model.build()
    step = pmb.MinibatchMH(model=model.backend.model, steps_per_draw=5)
    idata = model.fit(step=step, progressbar=False, **OPTIONS)
    assert abs(predicted_share(model, idata) - frame.yes.mean()) < 0.01


def test_a_step_that_waits_says_so():
    step = pmb.FlyMC()
    with pytest.raises(AttributeError, match=r"FlyMC was made without a model, so it has no vars"):
        _ = step.vars
    with pytest.raises(TypeError, match="There is no model"):
        list(step)


def test_log_likelihoods_are_bambis(frame):
    model = new_model(frame)
    idata = model.fit(step=pmb.MinibatchMH(steps_per_draw=5), progressbar=False, **OPTIONS)
    with pytest.raises(ValueError, match=r"Pass the Bambi model itself"):
        pmb.log_likelihood(idata, model=model.backend.model)
    found = pmb.log_likelihood(idata, range(50), model=model, max_draws=20)
    expected = model.compute_log_likelihood(idata, inplace=False).log_likelihood["yes"]
    np.testing.assert_allclose(found["yes"], expected[:, ::20, :50], rtol=1e-6)
