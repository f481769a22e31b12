"""Roots of large matrices of which only products are made."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import sparse
from scipy.linalg import LinAlgError

from pymc_minibatch.latent import arrowhead
from pymc_minibatch.latent.arrowhead import ArrowheadMatrix
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.expansion import expand
from pymc_minibatch.latent.factors import find_factors
from pymc_minibatch.latent.krylov import KrylovRoot
from pymc_minibatch.latent.locate import structure_with_effects
from pymc_minibatch.latent.recognition import find_field
from pymc_minibatch.reference.rows import RowFunctions
from pymc_minibatch.tall import TallModel
from tests.mechanics.test_linear import crossed_model


def ratings(n_rows: int, n_users: int, n_films: int) -> ArrowheadMatrix:
    """Precision of an intercept and the effects of films (dense part) and of users (groups)."""
    rng = np.random.default_rng(1)
    user, film = (
        np.append(np.arange(k), rng.zipf(1.5, n_rows - k) % k) for k in (n_users, n_films)
    )
    design = sparse.csr_array(
        (
            np.ones(3 * n_rows),
            np.stack([0 * film, 1 + film, 1 + n_films + user], 1).ravel(),
            np.arange(0, 3 * n_rows + 1, 3),
        )
    )
    whole = sparse.csr_array(design.T @ design) + 4.0 * sparse.eye_array(design.shape[1])
    p = 1 + n_films
    return ArrowheadMatrix(
        sparse.csr_array(whole[:p, :p]),
        sparse.csr_array(whole[p:, :p]),
        whole.diagonal()[p:, None, None],
    )


@pytest.fixture
def matrix() -> ArrowheadMatrix:
    return ratings(3000, 200, 120)


def test_a_root_by_products_alone(matrix: ArrowheadMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = matrix.factor()
    monkeypatch.setattr(arrowhead, "MOST_FACTORED", 100)
    factor = matrix.factor()
    root = factor.schur
    assert isinstance(root, KrylovRoot)
    schur = exact.schur.lower @ exact.schur.lower.T
    p = len(schur)
    transposed = np.array([root.solve_transposed(row) for row in np.eye(p)]).T
    forward = np.array([root.solve(row) for row in np.eye(p)]).T
    np.testing.assert_allclose(forward, transposed.T, atol=1e-10)
    np.testing.assert_allclose(transposed @ transposed.T @ schur, np.eye(p), atol=1e-9)
    x, y = np.random.default_rng(2).standard_normal((2, p))
    np.testing.assert_allclose(root.multiply_transposed(root.solve_transposed(x)), x, rtol=1e-9)
    groups = np.random.default_rng(3).standard_normal((len(matrix.blocks), 1))
    for found, expected in zip(factor.solve(y, groups), exact.solve(y, groups), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)


def test_its_determinant_follows_that_of_the_matrix(matrix: ArrowheadMatrix) -> None:
    """By scales, what the search needs; the level is off by less than the effects of one film."""

    def both(by: float) -> tuple[float, float]:
        raised = matrix.dense + by * sparse.eye_array(matrix.dense.shape[0])
        other = ArrowheadMatrix(sparse.csr_array(raised), matrix.cross, matrix.blocks)
        exact = other.factor()
        return exact.log_determinant(), (
            KrylovRoot(other.dense, exact.reduced).log_determinant()
            + exact.log_determinant()
            - exact.schur.log_determinant()
        )

    (low, low_estimate), (high, high_estimate) = both(0.0), both(2.0)
    assert abs(low - low_estimate) < 2.0
    assert abs((high - low) - (high_estimate - low_estimate)) < 0.02 * (high - low)


def test_a_matrix_that_is_not_positive_definite_is_seen(matrix: ArrowheadMatrix) -> None:
    reduced = matrix.factor().reduced
    lowered = matrix.dense - 30.0 * sparse.eye_array(matrix.dense.shape[0])
    with pytest.raises(LinAlgError):
        KrylovRoot(sparse.csr_array(lowered), reduced).log_determinant()
    singular = sparse.csr_array(matrix.dense - 4.0 * sparse.eye_array(matrix.dense.shape[0]))
    with pytest.raises(LinAlgError):
        KrylovRoot(singular, 1.3 * reduced).solve(np.ones(reduced.shape[1]))


def test_sums_of_a_large_dense_part_are_those_of_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows read two levels of it, two columns, and a level of the largest factor twice."""
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(0, n, 300) for n in (20, 7, 6))
    x = rng.normal(size=300)
    with pm.Model() as model:
        mu, slope, sd = pm.Normal("mu"), pm.Normal("slope"), pm.HalfNormal("sd")
        first = pm.Normal("a", 0, sd, shape=20)[a] + x * pm.Normal("s", 0, sd, shape=20)[a]
        others = pm.Normal("b", 0, sd, shape=7)[b] * x + pm.Normal("c", 0, sd, shape=6)[c]
        eta = mu + slope * x + first + others
        pm.Bernoulli("y", logit_p=eta, observed=rng.random(300) < 0.4)
    tall = TallModel(model)
    structure = structure_with_effects(tall)
    rows = RowFunctions(structure)
    factors = [factor.entries for factor in find_factors(rows, tall.data)]
    field = find_field(tall, structure, factors)
    phi = 0.3 * rng.standard_normal(field.rows.dense.size + field.rows.groups.size)
    dense = expand(rows, tall.data, phi, field.rows, 1.0)
    monkeypatch.setattr(arrowhead, "MOST_FACTORED", 5)
    parts = expand(rows, tall.data, phi, field.rows, 1.0)
    assert field.rows.dense.size == 15
    np.testing.assert_allclose(parts.slope, dense.slope, rtol=1e-12)
    for name in ("dense", "cross", "blocks"):
        found, expected = (getattr(each.curvature, name) for each in (parts, dense))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_chains_without_a_factor_have_the_posterior_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = []
    for most in (arrowhead.MOST_FACTORED, 5):
        monkeypatch.setattr(arrowhead, "MOST_FACTORED", most)
        sampler = make_latent_sampler(TallModel(crossed_model()), None, 1.0)
        assert sampler.has_determinant == (most > 5)
        assert ("noncentered" in {planned.move.name for planned in sampler.plan}) == (most > 5)
        chains = []
        for seed in (6, 7):
            rng, state = np.random.default_rng(seed), sampler.initial_state()
            point = sampler.near_mode(rng, sampler.tall.start).copy()
            sampler.draw(rng, point, 500, True, state)
            sampler.end_tuning(state)
            chain = []
            for _ in range(2500):
                sampler.draw(rng, point, 1, False, state)
                chain.append(point.copy())
            chains.append(chain)
        draws.append(np.array(chains))
    for j in range(draws[0].shape[2]):
        first, second = (np.ascontiguousarray(d[:, :, j]) for d in draws)
        for method, of in (("mean", np.mean), ("sd", np.std)):
            errors = [float(az.mcse(d, method=method)) for d in (first, second)]
            assert max(errors) < 0.3 * second.std(), (j, method)
            assert abs(of(first) - of(second)) < 4.5 * np.hypot(*errors), (j, method)
