"""Large matrices that are banded but for a few rows are factored as what they are."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import sparse

import pymc_minibatch as pmb
from pymc_minibatch.latent import arrowhead, banded, cholesky
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix
from pymc_minibatch.latent.banded import BandedCholesky, find_band
from pymc_minibatch.latent.cholesky import factor_sparse
from pymc_minibatch.latent.no_field import NoFieldError

N_TEAMS, N_TIMES = 12, 60


def precision(n_shared: int, rng: np.random.Generator) -> sparse.csr_array:
    """Return that of random walks of teams that meet each other, beside shared coefficients."""
    n, size = 2000, N_TEAMS * N_TIMES
    home, away, time = (rng.integers(0, most, n) for most in (N_TEAMS, N_TEAMS, N_TIMES))
    rows = np.arange(n)
    at = np.concatenate([home * N_TIMES + time, away * N_TIMES + time])
    signs = np.repeat([1.0, -1.0], n)
    design = sparse.csr_array((signs, (np.tile(rows, 2), at)), (n, size))
    design = sparse.hstack([design, sparse.csr_array(rng.normal(size=(n, n_shared)))])
    steps = sparse.diags_array([np.ones(N_TIMES), -np.ones(N_TIMES - 1)], offsets=[0, -1])
    walks = sparse.kron(sparse.eye_array(N_TEAMS), steps.T @ steps)
    prior = sparse.block_diag([walks, sparse.eye_array(n_shared)])
    return sparse.csr_array(design.T @ design + 10.0 * prior)


@pytest.fixture
def large_from_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cholesky, "LARGE", 100)


@pytest.mark.parametrize("narrow", [1, 64])
@pytest.mark.parametrize("n_shared", [0, 1, 3])
@pytest.mark.usefixtures("large_from_100")
def test_the_factor_is_that_of_the_matrix(
    n_shared: int, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(banded, "NARROW", narrow)
    matrix = precision(n_shared, np.random.default_rng(1))
    factor, full = factor_sparse(matrix), matrix.toarray()
    assert isinstance(factor, BandedCholesky)
    assert factor.root.shape[0] < 4 * N_TEAMS
    assert factor.last.shape[0] == n_shared
    upper = np.column_stack([factor.multiply_transposed(unit) for unit in np.eye(len(full))])
    np.testing.assert_allclose(upper.T @ upper, full, atol=1e-9)
    x = np.random.default_rng(2).normal(size=len(full))
    np.testing.assert_allclose(upper @ factor.solve_transposed(x), x, atol=1e-9)
    np.testing.assert_allclose(upper.T @ factor.solve(x), x, atol=1e-9)
    assert factor.log_determinant() == pytest.approx(np.linalg.slogdet(full)[1] / 2)
    assert factor.work < 0.02 * len(full) ** 3 / 6


@pytest.mark.parametrize("where", [5, -1])
@pytest.mark.usefixtures("large_from_100")
def test_what_is_not_positive_definite_is_refused(where: int) -> None:
    matrix = precision(2, np.random.default_rng(1)).tolil()
    matrix[where, where] = -1.0
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        factor_sparse(sparse.csr_array(matrix))


def test_there_is_no_band_where_all_meet_all(monkeypatch: pytest.MonkeyPatch) -> None:
    full = sparse.csr_array(np.ones((200, 200)) + 300.0 * np.eye(200))
    assert (
        find_band(*(part.astype(np.int64).tobytes() for part in (full.indptr, full.indices)))
        is None
    )
    monkeypatch.setattr(cholesky, "LARGE", 100)
    with pytest.raises(NoFieldError, match="200 coefficients and effects are read together"):
        factor_sparse(full, limit=150)


@pytest.mark.usefixtures("large_from_100")
def test_walks_of_teams_are_sampled_about_a_banded_precision() -> None:
    rng = np.random.default_rng(3)
    n = 6000
    home, time = rng.integers(0, N_TEAMS, n), rng.integers(0, N_TIMES, n)
    away = (home + rng.integers(1, N_TEAMS, n)) % N_TEAMS
    strength = np.cumsum(0.2 * rng.normal(size=(N_TEAMS, N_TIMES)), axis=1)
    won = rng.random(n) < 1 / (1 + np.exp(-(0.3 + strength[home, time] - strength[away, time])))
    with pm.Model():
        at_home, sd = pm.Normal("at_home"), pm.HalfNormal("sd", 0.5)
        walks = pt.cumsum(sd * pm.Normal("z", shape=(N_TEAMS, N_TIMES)), axis=1)
        eta = at_home + walks[home, time] - walks[away, time]
        pm.Bernoulli("won", logit_p=eta, observed=won.astype(int))
        step = pmb.MinibatchMH(rng=1)
        idata = pm.sample(
            step=step,
            tune=150,
            draws=150,
            chains=1,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert "joint updates of hyperparameters" in step.choice
    surrogate = step.latent.reference.surrogate
    assert isinstance(
        surrogate.conditional(step.latent.reference.hyper).factor.schur, BandedCholesky
    )
    away_from_truth = (idata.posterior["at_home"] - 0.3) / idata.posterior["at_home"].std()
    assert abs(float(away_from_truth.mean())) < 4.0
    assert 0.1 < float(idata.posterior["sd"].mean()) < 0.35


@pytest.mark.usefixtures("large_from_100")
def test_what_is_no_number_is_refused() -> None:
    matrix = sparse.csr_array(sparse.diags_array([np.full(300, 2.0), np.ones(299)], offsets=[0, 1]))
    matrix = sparse.csr_array(matrix + matrix.T)
    matrix.data[150] = np.nan
    with pytest.raises(np.linalg.LinAlgError):
        factor_sparse(matrix)


def test_full_matrices_are_limited_if_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrowhead, "MOST_FULL", 150)
    full = np.ones((200, 200)) + 300.0 * np.eye(200)
    matrix = ArrowheadMatrix(full, np.empty((0, 200)), np.empty((0, 1, 1)))
    with pytest.raises(NoFieldError, match="limit 150"):
        matrix.factor(by_products=False)
    assert matrix.factor(by_products=True).log_determinant() > 0
