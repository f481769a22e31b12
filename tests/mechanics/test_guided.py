"""Moves about the mode and their tuning, driven without a model."""

import math

import numpy as np
import pytest
from numba import njit
from scipy.stats import f as f_distribution
from scipy.stats import kstest

from pymc_minibatch import Laplace, RandomWalk, SurrogateHamiltonian, SurrogateLangevin
from pymc_minibatch.acceptance.growing import LEAST_BATCH, new_first_batch, tune_first_batch
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.proposals.bandit import (
    MOST_SHORTER,
    best,
    chosen,
    keep_best,
    make_bandit,
    record,
)
from pymc_minibatch.proposals.proposal import Approximation, ProposalContext

MODE = np.array([1.0, -2.0, 0.5])
HESSIAN = -np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 2.0]])
SLOPE = np.array([0.3, -0.1, 0.2])
QUARTIC = 0.3


@njit
def prior_gradient(point):
    """Of a prior that is not Gaussian, -QUARTIC / 4 sum of (x - 1)^4."""
    return -QUARTIC * (point - 1.0) ** 3


def log_density(theta):
    delta = theta - MODE
    return -QUARTIC / 4 * ((theta - 1.0) ** 4).sum() + SLOPE @ delta + 0.5 * delta @ HESSIAN @ delta


def place(proposal):
    approximation = Approximation(MODE, -HESSIAN + 0.2 * np.eye(3), MODE, SLOPE, HESSIAN)
    gradient = address_of(prior_gradient, MODE)
    guide = proposal.guide(approximation, gradient)
    return ProposalContext(guide, MODE.copy(), np.arange(3)), proposal.initial_state(
        3, 1.0, approximation
    )


@pytest.mark.parametrize("proposal", [Laplace, SurrogateLangevin, SurrogateHamiltonian])
@pytest.mark.parametrize("setting", [0, 1, -1])
def test_moves_are_reversible(proposal, setting):
    """Chains with exact acceptance have the moments of the density, here by quadrature.

    Five hundred chains start from it and make twenty moves each, so that a wrong ratio of the
    proposal densities would show in their means, which have standard errors of a twentieth of a
    standard deviation and less.
    """
    proposal = proposal(random_walk=0.05)
    where, state = place(proposal)
    state.current[0] = setting % len(state.settings)
    propose, _ = proposal.build()
    rng = np.random.default_rng(3)
    grid = np.linspace(-5, 5, 41)
    points = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), axis=-1).reshape(-1, 3) + MODE
    logs = np.array([log_density(point) for point in points])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    mean = weights @ points
    second = np.sqrt(weights @ (points - mean) ** 2)
    chains = points[rng.choice(len(points), 500, p=weights)] + rng.uniform(-0.125, 0.125, (500, 3))
    draws = []
    for theta in chains:
        candidate = np.empty(3)
        for _ in range(20):
            log_q = propose(rng, theta, candidate, state, where)
            if np.log(rng.random()) < log_density(candidate) - log_density(theta) + log_q:
                theta = candidate.copy()
        draws.append(theta)
    z = (np.mean(draws, axis=0) - mean) / (second / math.sqrt(500))
    assert abs(z).max() < 4.5
    spread = np.mean((np.array(draws) - mean) ** 2, axis=0) / second**2
    assert abs(spread - 1).max() < 4.5 * math.sqrt(2 / 500)


DEGREES = 3.0


@njit
def log_student(z):
    """Of a Student-t distribution in whitened coordinates, whose tails are heavier."""
    return -(DEGREES + z.size) / 2 * math.log1p((z**2).sum() / DEGREES)


@pytest.mark.parametrize("proposal", [Laplace, SurrogateLangevin, SurrogateHamiltonian])
def test_the_share_of_the_random_walk_leaves_heavy_tails_as_they_are(proposal):
    """Chains with exact acceptance that start from a distribution keep that of the distance."""
    proposal = proposal(random_walk=0.2)
    where, state = place(proposal)
    propose, _ = proposal.build()

    @njit
    def moved(rng, chains, n_moves, state, where):
        candidate, guide, n_walks = np.empty(3), where.guide, 0
        for theta in chains:
            for _ in range(n_moves):
                log_q = propose(rng, theta, candidate, state, where)
                n_walks += state.jump[0] < 0
                change = log_student(guide.whiten @ (candidate - guide.mode))
                change -= log_student(guide.whiten @ (theta - guide.mode))
                if math.log(rng.random()) < change + log_q:
                    theta[:] = candidate
        return n_walks / (len(chains) * n_moves)

    rng, n_chains, n_moves = np.random.default_rng(4), 40_000, 10
    z = rng.normal(size=(n_chains, 3)) / np.sqrt(rng.chisquare(DEGREES, (n_chains, 1)) / DEGREES)
    chains = MODE + z @ where.guide.cholesky.T
    assert moved(rng, chains, n_moves, state, where) > 0.25
    z = (chains - MODE) @ where.guide.whiten.T
    assert kstest((z**2).mean(1), f_distribution(3, DEGREES).cdf).pvalue > 1e-4


def test_the_random_walk_takes_over_far_from_the_mode():
    proposal = Laplace(random_walk=0.1)
    where, state = place(proposal)
    propose, _ = proposal.build()
    rng, candidate = np.random.default_rng(6), np.empty(3)

    def share(distance):
        theta, n_walks = MODE + distance * where.guide.cholesky[:, 0], 0
        for _ in range(1000):
            propose(rng, theta, candidate, state, where)
            n_walks += state.jump[0] < 0
        return n_walks / 1000

    assert share(1.0) == pytest.approx(0.1, abs=4.5 * math.sqrt(0.09 / 1000))
    assert share(12.0) > 0.95


@pytest.mark.parametrize("proposal", [SurrogateLangevin, SurrogateHamiltonian])
def test_trajectories_keep_the_energy_when_steps_are_short(proposal):
    proposal = proposal(random_walk=1e-9)
    where, state = place(proposal)
    state.settings[0] = (2, 0.02)
    propose, _ = proposal.build()
    theta, candidate = MODE + np.array([0.4, -0.3, 0.5]), np.empty(3)
    rng = np.random.default_rng(5)
    changes = []
    for _ in range(50):
        log_q = propose(rng, theta, candidate, state, where)
        changes.append(log_density(candidate) - log_density(theta) + log_q)
    assert np.abs(changes).max() < 1e-3  # half a kick too many would change it by 0.05


def test_the_best_arm_is_found():
    """The third setting jumps as far as the second at half the cost."""
    bandit = make_bandit([(0, 1.0), (0, 0.5), (0, 0.2)])
    rng = np.random.default_rng(1)
    gain, cost = [1.0, 4.0, 4.0], [100.0, 100.0, 50.0]
    for _ in range(300):
        bandit.jump[0] = gain[bandit.current[0]]
        record(rng, True, cost[bandit.current[0]], bandit)
    assert best(bandit) == 2
    keep_best(bandit)
    assert bandit.current[0] == 2


@pytest.mark.parametrize(("accepted", "share"), [(0.5, 0.0), (0.3, MOST_SHORTER)])
def test_moves_are_mixed_with_shorter_ones_if_these_are_accepted_more_often(accepted, share):
    """The longest jump farthest even if three of ten are accepted; the shortest are too short."""
    bandit = make_bandit([(0, 1.5), (0, 0.75), (0, 0.3), (0, 0.01)])
    rng = np.random.default_rng(1)
    for _ in range(4000):
        k = bandit.current[0]
        bandit.jump[0] = bandit.settings[k, 1] ** 2
        record(rng, rng.random() < (accepted if k == 0 else 0.5), 1.0, bandit)
    assert bandit.shorter[0] == 0.0  # not before the end of tuning
    keep_best(bandit)
    assert bandit.current[0] == 0
    assert bandit.shorter[0] == pytest.approx(share, abs=0.2)
    assert bandit.shorter[0] <= MOST_SHORTER
    bandit.shorter[0] = share
    made = np.bincount([chosen(rng, bandit) for _ in range(4000)], minlength=4) / 4000
    np.testing.assert_allclose(made, [1 - share, share / 2, share / 2, 0.0], atol=0.05)


def test_other_moves_are_not_credited():
    bandit = make_bandit([(0, 1.0), (0, 0.5)])
    bandit.jump[0] = -1.0
    record(np.random.default_rng(1), True, 10.0, bandit)
    assert not bandit.costs.any()
    keep_best(bandit)
    assert bandit.current[0] == 0


def test_the_first_batch_goes_to_the_least_that_does():
    """Nine of ten decisions need no more than 60 rows."""
    rng, state = np.random.default_rng(2), new_first_batch(100)
    for _ in range(4000):
        needed = rng.uniform(6, 66, 10)
        tune_first_batch(state, int((needed > state.size[0]).sum()), 10, 100_000)
    assert 55 < state.size[0] < 65


@pytest.mark.parametrize(("n_grown", "n_rows", "size"), [(0, 10**6, LEAST_BATCH), (10, 150, 150)])
def test_the_first_batch_stays_in_its_range(n_grown, n_rows, size):
    state = new_first_batch(100)
    for _ in range(2000):
        tune_first_batch(state, n_grown, 10, n_rows)
    assert state.size[0] == size


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, np.nan])
@pytest.mark.parametrize("proposal", [Laplace, SurrogateLangevin, SurrogateHamiltonian])
def test_refuses_share_of_random_walk(proposal, share):
    with pytest.raises(ValueError, match=r"random_walk must lie in \(0, 1\)"):
        proposal(random_walk=share)


def test_a_random_walk_needs_no_guide():
    assert RandomWalk().guide(None) == ()
