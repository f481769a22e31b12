"""Columns of a sparse matrix by few directional derivatives."""

import numpy as np
import pytest
from scipy import sparse

from pymc_minibatch.latent import sparse_jacobian
from pymc_minibatch.latent.sparse_jacobian import SparseJacobian

N, MEAN, COMMON = 40, 40, 41
"""Levels; then their mean, and a coefficient."""


class Precision:
    """Products with the precision of levels with a mean and a scale, and of a coefficient."""

    def __init__(self, joined: bool) -> None:
        self.joined, self.n_products = joined, 0

    def product(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        self.n_products += 1
        matrix = np.diag(np.append(np.linspace(1.0, 2.0, N), [30.0, 5.0]))
        matrix[:N, MEAN] = matrix[MEAN, :N] = -0.5
        matrix[MEAN, COMMON] = matrix[COMMON, MEAN] = 0.1
        if self.joined:
            matrix[np.arange(N - 1), np.arange(1, N)] = 0.2
            matrix[np.arange(1, N), np.arange(N - 1)] = 0.2
        return np.exp(-2.0 * point[0]) * (matrix @ seed)


@pytest.mark.parametrize("joined", [False, True])
def test_levels_are_found_together(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as one by one, also if neighbours have entries in common, as in a random walk."""
    rng = np.random.default_rng(1)
    points, positions = list(rng.normal(size=(3, N + 2))), np.arange(N + 2)
    found, products = [], []
    for least in (8, N):
        monkeypatch.setattr(sparse_jacobian, "LEAST_APART", least)
        precision = Precision(joined)
        found.append(
            SparseJacobian(
                precision,
                "product",
                points,
                positions,
                (positions, positions[:0]),
                (np.ones(N + 2), np.ones(N + 2)),
                symmetric=True,
                apart=[np.arange(N)],
            )
        )
        products.append(precision.n_products)
    together, singly = found
    np.testing.assert_array_equal(together.row, singly.row)
    np.testing.assert_array_equal(together.column, singly.column)
    np.testing.assert_allclose(together.base, singly.base, rtol=1e-12)
    np.testing.assert_allclose(together.entries(points[1]), singly.entries(points[1]), rtol=1e-12)
    assert products[1] == 3 * (N + 2)
    assert products[0] == (3 * (3 + 2) if not joined else 3 * (3 + N + 2))


class Rounded:
    """Products with the precision of levels with a mean and a coefficient of a covariate.

    That of one level adds up to nothing, of which rounding leaves something on one side alone.
    """

    def product(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        matrix = np.diag(np.append(np.linspace(1.0, 2.0, N), [30.0, 50.0]))
        matrix[:N, MEAN] = matrix[MEAN, :N] = -0.5
        matrix[:N, COMMON] = matrix[COMMON, :N] = np.linspace(0.1, 1.0, N)
        matrix[7, COMMON], matrix[COMMON, 7] = 0.0, 1e-9
        return np.exp(-2.0 * point[0]) * (matrix @ seed)


def test_what_rounding_leaves_on_one_side_of_the_diagonal() -> None:
    """The row of a full column is not read again, so that sums over others do not end up there."""
    points, positions = list(np.random.default_rng(4).normal(size=(4, N + 2))), np.arange(N + 2)
    found = SparseJacobian(
        Rounded(),
        "product",
        points[:3],
        positions,
        (positions, positions[:0]),
        (np.ones(N + 2), np.ones(N + 2)),
        symmetric=True,
    )
    found.unscale = None  # as of a large matrix
    matrix = found.of(found.entries(points[3]))[0]
    expected = np.array([Rounded().product(points[3], seed) for seed in np.eye(N + 2)]).T
    dense = matrix.toarray() if sparse.issparse(matrix) else matrix
    np.testing.assert_allclose(dense, expected, atol=1e-8 * np.abs(expected).max())


class TwoEffects:
    """Each row reads two effects, by shares of which one rises as the other falls (BYM2)."""

    def product(self, point: np.ndarray, seed: np.ndarray) -> np.ndarray:
        share = 1.0 / (1.0 + np.exp(-point[0]))
        return np.sqrt(share) * seed[:N] + np.sqrt(1.0 - share) * seed[N:]


def test_columns_that_are_alike_are_told_apart() -> None:
    """No sum of them says by how much each of the two is scaled."""
    points, positions = list(np.random.default_rng(2).normal(size=(3, 2 * N))), np.arange(2 * N)
    found = SparseJacobian(
        TwoEffects(),
        "product",
        points[:2],
        positions,
        (np.arange(N), positions[:0]),
        (np.ones(N), np.ones(2 * N)),
    )
    matrix = found.at(points[2])[0]
    share = 1.0 / (1.0 + np.exp(-points[2][0]))
    expected = np.hstack([np.sqrt(share) * np.eye(N), np.sqrt(1.0 - share) * np.eye(N)])
    np.testing.assert_allclose(matrix, expected, rtol=1e-12)
