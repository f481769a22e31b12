"""Absolute values of symmetric matrices: closed forms and shortcuts against eigenvalues."""

import numpy as np
import pytest

from pymc_minibatch.latent.batched import absolute


def of_eigenvalues(matrices: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrices)
    return np.einsum("nij,nj,nkj->nik", vectors, np.abs(values), vectors)


def symmetric(k: int, scale: float) -> np.ndarray:
    rng = np.random.default_rng(k)
    vectors, _ = np.linalg.qr(rng.normal(size=(500, k, k)))
    values = scale * rng.normal(size=(500, k))
    values[:100] = -np.abs(values[:100])
    values[100:200] = np.abs(values[100:200])
    values[200:220, 0] = 0.0
    values[220:230] = 0.0
    return np.einsum("nij,nj,nkj->nik", vectors, values, vectors)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_absolute_values_are_those_of_the_eigenvalues(k: int, scale: float):
    matrices = symmetric(k, scale)
    np.testing.assert_allclose(
        absolute(matrices), of_eigenvalues(matrices), rtol=0, atol=1e-12 * np.abs(matrices).max()
    )


def test_concave_rows_stay_bit_by_bit():
    matrices = symmetric(2, 1.0)[:100]
    assert (absolute(matrices) == -matrices).all()


def test_a_row_without_some_predictor_has_zeros():
    matrices = np.array([[[-2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 3.0]], np.zeros((3, 3))])
    np.testing.assert_allclose(absolute(matrices), np.abs(matrices), atol=1e-15)


def test_matrices_that_are_not_finite_stay_so() -> None:
    matrices = np.array([-np.eye(3), np.full((3, 3), np.inf), np.diag([1.0, -2.0, 0.5])])
    found = absolute(matrices)
    np.testing.assert_allclose(found[[0, 2]], [np.eye(3), np.diag([1.0, 2.0, 0.5])], atol=1e-12)
    assert not np.isfinite(found[1]).any()
