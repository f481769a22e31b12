"""The stationary distribution of stochastic gradient Fisher scoring where it is known exactly.

The gradients of the rows have the Fisher information for covariance, so that the stationary
covariance of the algorithm is the posterior's at any alpha.
"""

import numpy as np
import pymc as pm
import pytest
from models import grouped_model
from normal_rows import BATCH, FULL, N_ROWS, assert_moments, draw, normal_rows
from pymc.exceptions import SamplingError

from pymc_minibatch import SGFS, SGLD, find_reference

DIAGONAL = np.diag([1.0, 3.0, 0.3])
USERS_B = N_ROWS * np.array([[9.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 30.0]])


@pytest.fixture(scope="module")
def correlated():
    return normal_rows(FULL)


@pytest.mark.parametrize(
    ("alpha", "B", "thin", "n_draws"),
    [
        (0.0, None, 9, 10_000),
        (1.0, None, 18, 12_000),
        (6.0, None, 300, 1500),
        (1.5, USERS_B, 50, 3000),
    ],
)
def test_full(correlated, alpha, B, thin, n_draws):
    model, mean, precision = correlated
    step = SGFS(
        alpha=alpha,
        noise_covariance=B,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=1,
    )
    draws, stats = draw(step, 15_000 // thin, n_draws)
    assert_moments(draws, mean, np.linalg.inv(precision))
    if B is None:
        ratio = alpha**2 * (1 + BATCH / N_ROWS)  # of the added noise to that of the batch
        assert stats["gradient_noise"] == pytest.approx(1 / (1 + ratio), rel=0.5)


@pytest.mark.parametrize(
    ("alpha", "thin", "n_draws"), [(0.0, 20, 6000), (1.0, 40, 4000), (6.0, 300, 1000)]
)
def test_low_rank(alpha, thin, n_draws):
    """With as many directions as parameters, and a prior as strong as a fifth of the rows."""
    model, mean, precision = normal_rows(FULL, prior_sd=0.1)
    step = SGFS(
        variant="low rank",
        rank=3,
        alpha=alpha,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=1,
    )
    draws, _ = draw(step, 15_000 // thin, n_draws)
    assert_moments(draws, mean, np.linalg.inv(precision))


@pytest.mark.parametrize(
    ("alpha", "thin", "n_draws"), [(0.0, 9, 6000), (1.0, 18, 6000), (6.0, 300, 1200)]
)
def test_diagonal(alpha, thin, n_draws):
    model, mean, precision = normal_rows(DIAGONAL)
    step = SGFS(
        variant="diagonal",
        alpha=alpha,
        control_variate=0,
        batch_size=BATCH,
        steps_per_draw=thin,
        model=model,
        rng=2,
    )
    draws, _ = draw(step, 15_000 // thin, n_draws)
    assert_moments(draws, mean, np.linalg.inv(precision))


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_directions_without_rows_have_their_prior(alpha):
    """The difference of two coefficients of the same predictor."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=N_ROWS)
    with pm.Model() as model:
        beta = pm.Normal("mu", 0, 0.1, shape=2)
        pm.Normal("y", beta.sum() * x, 3.0, observed=x + 3 * rng.normal(size=N_ROWS))
    step = SGFS(
        alpha=alpha, control_variate=0, batch_size=BATCH, steps_per_draw=20, model=model, rng=8
    )
    draws, _ = draw(step, 50, 4000, 2)
    assert np.var(draws[:, 0] - draws[:, 1]) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("order", [1, 2])
def test_control_variate(order):
    """The prior counts as much as the rows, and the batch adds no noise: the rows are Gaussian."""
    model, mean, precision = normal_rows(FULL, prior_sd=0.05)
    step = SGFS(
        alpha=1.2, control_variate=order, batch_size=20, steps_per_draw=6, model=model, rng=3
    )
    draws, stats = draw(step, 50, 8000)
    assert_moments(draws, mean, np.linalg.inv(precision))
    assert stats["gradient_noise"] < 1e-6
    assert stats["step_size"] == pytest.approx(2 / (1 + 1.2**2))


def test_noise_that_the_control_variate_leaves():
    """Slopes differ between rows: the noise is linear in the distance from the mode.

    Were it left out, the variance of the draws would be 1 / (1 - 0.2) of the posterior's.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=N_ROWS)
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 10)
        pm.Normal("y", slope * x, 1.0, observed=x + rng.normal(size=N_ROWS))
    precision, batch = (x**2).sum() + 0.01, 10
    noise = N_ROWS**2 / batch * np.var(x**2) / precision**2
    assert noise == pytest.approx(0.2, abs=0.05)
    step = SGFS(alpha=1, control_variate=1, batch_size=batch, steps_per_draw=4, model=model, rng=6)
    point, draws = model.initial_point(), []
    for i in range(12_500):
        if i == 2500:
            step.stop_tuning()
        point, [stats] = step.step(point)
        draws.append(point["slope"])
    assert stats["step_size"] == pytest.approx(1 / (1 + noise), rel=0.05)
    assert np.var(draws[2500:]) * precision == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("B", [None, USERS_B])
def test_steps_are_as_long_as_alpha_says(correlated, B):
    """The mean of the next point lies `step_size` of the way to the mode."""
    model, mean, precision = correlated
    step = SGFS(
        alpha=1.0,
        noise_covariance=B,
        control_variate=0,
        batch_size=BATCH,
        model=model,
        rng=4,
        steps_per_draw=1,
    )
    draws, stats = draw(step, 5000, 30_000)
    z = (draws - mean) @ np.linalg.cholesky(precision)
    kept = np.linalg.lstsq(z[:-1], z[1:])[0]
    assert stats["step_size"] == pytest.approx(1 - np.trace(kept) / 3, abs=0.012)
    if B is None:
        assert stats["step_size"] == pytest.approx(2 / (2 * (BATCH + N_ROWS) / BATCH))
        np.testing.assert_allclose(kept, np.eye(3) * (1 - 1 / 6), atol=0.018)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_low_rank_steps_are_as_long_as_alpha_says(correlated, alpha):
    """They are 2 / (1 + α²) of K⁻¹ times the gradient, with the K that was learned."""
    model, mean, precision = correlated
    common = {"control_variate": 0, "batch_size": BATCH, "model": model, "rng": 4}
    step = SGFS(variant="low rank", rank=3, alpha=alpha, steps_per_draw=1, **common)
    draws, _ = draw(step, 1000, 30_000)
    K = np.diag(step.tuned.diagonal) + step.tuned.columns @ step.tuned.columns.T
    whole = np.linalg.solve(K, precision @ (mean - draws[:-1]).T)
    moved = np.diff(draws, axis=0).T
    length = np.sum(whole * (precision @ moved)) / np.sum(whole * (precision @ whole))
    assert length == pytest.approx(2 / (1 + alpha**2), rel=0.035)


# --- The default alpha --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grouped():
    model = grouped_model()
    return model, find_reference(model)


def walk(step, n_draws):
    """Return the logarithm of the spread of the groups, in each draw."""
    point = step.tall.model.initial_point()
    spread = np.empty(n_draws)
    for i in range(n_draws):
        if i == 50:
            step.stop_tuning()
        point, _ = step.step(point)
        spread[i] = point["tau_log__"]
    return spread


@pytest.mark.parametrize("kind", [SGFS, SGLD])
def test_defaults_do_not_diverge_on_groups(grouped, kind):
    """The density is far more curved where the spread of the groups is small."""
    model, reference = grouped
    step = kind(model=model, reference=reference, steps_per_draw=50, rng=1)
    assert step.control_variate == 2
    spread = walk(step, 600)[50:]
    assert abs(spread.mean() - reference.mode["tau_log__"]) < 0.4
    assert 0.2 < spread.std() < 0.6


def test_steps_that_fit_the_mode_alone_diverge_on_groups(grouped):
    model, reference = grouped
    options = {"control_variate": 2, "steps_per_draw": 50, "rng": 1}
    with pytest.raises(SamplingError, match="diverges"):
        walk(SGFS(model=model, reference=reference, alpha=1.0, **options), 600)


def test_default_alpha_of_a_normal_posterior(correlated):
    """The whole way to the mode in each step, but in parameters that the diagonal mixes up."""
    model, _, precision = correlated
    step = SGFS(model=model, control_variate=1)
    assert step.alpha == pytest.approx(1, abs=1e-3)
    scale = np.sqrt(np.diag(precision))
    rho = np.linalg.eigvalsh(precision / np.outer(scale, scale))[-1]
    step = SGFS(model=model, control_variate=1, variant="diagonal", reference=step.reference)
    assert step.alpha == pytest.approx(np.sqrt(2 * rho - 1), rel=0.02)
    assert SGFS(model=model, control_variate=0).alpha == 1
