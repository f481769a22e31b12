"""How often all hyperparameters move follows how correlated tuning has seen them."""

import numpy as np
import pymc as pm
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.latent.moves.tuners import HyperFrequency, StepSizes, shares_by_rate


def successive(rng: np.random.Generator, n: int, *correlations: float) -> np.ndarray:
    """Draw from autoregressive processes with unit variances, shape (n, H)."""
    rho, x = np.array(correlations), np.empty((n, len(correlations)))
    x[0] = rng.standard_normal(rho.size)
    for k in range(1, n):
        x[k] = rho * x[k - 1] + np.sqrt(1 - rho**2) * rng.standard_normal(rho.size)
    return x


def share_after(*parts: np.ndarray) -> float:
    """Return the share of planned moves after these scans."""
    frequency = HyperFrequency.of(parts[0].shape[1])
    for w in np.concatenate(parts):
        frequency.observe(w)
    return float(frequency.share[0])


def test_hyperparameters_that_hardly_depend_on_the_last_scan_move_seldom() -> None:
    """Each window halves their moves, down to an eighth."""
    draws = successive(np.random.default_rng(1), 800, 0.0, 0.05, 0.1)
    assert share_after(draws[:99]) == 1.0
    assert share_after(draws[:100]) == 0.5
    assert share_after(draws[:300]) == share_after(draws) == 0.125


@pytest.mark.parametrize("slow", [0.6, 0.9, 0.99])
def test_one_slow_hyperparameter_keeps_all_moves(slow: float) -> None:
    """The slowest decides."""
    assert share_after(successive(np.random.default_rng(2), 500, 0.0, 0.0, slow)) == 1.0


def test_moves_come_back() -> None:
    """They are made again if values turn out to be correlated."""
    rng = np.random.default_rng(3)
    quick, slow = successive(rng, 300, 0.1), successive(rng, 200, 0.95)
    assert share_after(quick) == 0.125
    assert share_after(quick, slow) > 0.125


def test_a_small_part_that_moves_slowly_keeps_all_moves() -> None:
    """A third of the variance hardly changes from scan to scan, and the rest is drawn anew.

    It is not seen in the first hundred scans.
    """
    rng = np.random.default_rng(4)
    mixed = np.sqrt(1 / 3) * successive(rng, 500, 0.97) + np.sqrt(2 / 3) * successive(rng, 500, 0.0)
    assert share_after(mixed) >= 0.5


@pytest.mark.parametrize("at", [2.0, 0.1, -1.7, 1 / 3])
def test_a_hyperparameter_that_stands_still_keeps_all_moves(at: float) -> None:
    """Whatever rounding makes of its mean; a model without any has no such moves."""
    draws = np.column_stack([successive(np.random.default_rng(5), 300, 0.0), np.full(300, at)])
    assert share_after(draws) == 1.0
    assert share_after(np.empty((300, 0))) <= 1.0


def test_times_are_the_share_on_average() -> None:
    """A fraction of a move is made with that probability."""
    rng, frequency = np.random.default_rng(6), HyperFrequency.of(1)
    assert {frequency.times(rng, 4) for _ in range(20)} == {4}
    frequency.share[:] = 0.125
    made = np.array([[frequency.times(rng, planned) for planned in (1, 2, 4)] for _ in range(8000)])
    assert np.all(np.isin(made, [0, 1]))
    assert made.mean(axis=0) == pytest.approx([0.125, 0.25, 0.5], abs=0.025)  # 4 and more sds


def test_tuning_of_a_model_makes_fewer_moves_and_the_posterior_stays() -> None:
    """Scales of groups of many rows: means and sds agree with quadrature over the scale."""
    rng = np.random.default_rng(7)
    n_groups, n_each = 8, 60
    group = np.repeat(np.arange(n_groups), n_each)
    y = 0.7 * rng.normal(size=n_groups)[group] + rng.standard_t(6, size=group.size)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1.0)
        z = pm.Normal("z", shape=n_groups)
        pm.StudentT("y", nu=6, mu=sd * z[group], sigma=1.0, observed=y)
        step = pmb.MinibatchMH(rng=8)
    point = model.initial_point()
    for _ in range(500):
        point, _ = step.step(point)
    step.stop_tuning()
    assert step.proposal_state.frequency.share[0] < 1.0
    draws = np.empty(1500)
    for k in range(draws.size):
        point, _ = step.step(point)
        draws[k] = point["sd_log__"]
    mean, spread = log_sd_by_quadrature(y.reshape(n_groups, n_each))
    error = draws.reshape(30, 50).mean(axis=1).std(ddof=1) / np.sqrt(30)
    assert draws.mean() == pytest.approx(mean, abs=5 * error)
    assert draws.std() == pytest.approx(spread, rel=0.15)


def log_sd_by_quadrature(y: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of log sd, effects integrated out on a grid."""
    effects = np.linspace(-4.0, 4.0, 1601)
    away = y[:, :, None] - effects
    of_rows = -3.5 * np.log1p(away**2 / 6).sum(axis=1)  # (groups, effects)
    log_sd = np.linspace(-3.0, 2.0, 401)
    density = np.empty(log_sd.size)
    for k, sd in enumerate(np.exp(log_sd)):
        log_prior = -0.5 * (effects / sd) ** 2 - np.log(sd)
        of_groups = np.logaddexp.reduce(of_rows + log_prior, axis=1)
        density[k] = of_groups.sum() - 0.5 * sd**2 + np.log(sd)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = float(weights @ log_sd)
    return mean, float(np.sqrt(weights @ (log_sd - mean) ** 2))


def test_a_kind_of_moves_that_gains_little_is_made_seldom() -> None:
    """By the squared jumps that tuning has credited to its best length, at their cost."""
    rng, one, other = np.random.default_rng(5), StepSizes.untuned(), StepSizes.untuned()
    rates = {"one": one.rate, "other": other.rate}
    assert shares_by_rate(rates) == {"one": 1.0, "other": 1.0}  # nothing is known yet
    for _ in range(50):
        one.record(rng, jump=1.0, cost=10.0)
        other.record(rng, jump=0.2, cost=10.0)
    assert shares_by_rate({"one": one.rate, "other": other.rate}) == {"one": 1.0, "other": 0.25}
    for _ in range(200):
        other.record(rng, jump=0.5, cost=10.0)
    assert shares_by_rate({"one": one.rate, "other": other.rate}) == {"one": 1.0, "other": 1.0}
    frequency = HyperFrequency.of(1)
    made = [frequency.times(rng, planned=2, share=0.25) for _ in range(2000)]
    assert np.mean(made) == pytest.approx(0.5, abs=0.08)


def test_moves_that_read_no_row_are_made_more_often() -> None:
    """If sums say everything of the rows: one to four times as often as planned."""
    rng, frequency = np.random.default_rng(7), HyperFrequency.of(1, by_sums=True)
    for w in successive(rng, 300, 0.95):
        frequency.observe(w)
    assert frequency.share[0] == 4.0
    assert frequency.times(rng, planned=2) == 8
    for w in successive(rng, 1000, 0.0):
        frequency.observe(w)
    assert frequency.share[0] == 1.0
