"""Coordinates in which walks are sparse: found block by block, and only if they pay."""

import numpy as np
import pytest

from pymc_minibatch.latent.coordinates import find_coordinates

POINTS = [np.array([0.7]), np.array([1.3])]


def padded(n):
    return [np.concatenate([point, np.zeros(n)]) for point in POINTS]


def walks(n_walks, length):
    """Return what rows read of walks whose steps have a common scale, in mixed order."""
    order = np.random.default_rng(1).permutation(n_walks * length)

    def push(point, vector):
        steps = vector[1:].reshape(n_walks, length)
        return point[0] * np.cumsum(steps, axis=1).ravel()[order]

    return push, n_walks * length


@pytest.mark.parametrize(("n_walks", "length"), [(1, 60), (25, 20), (200, 20)])
def test_walks_are_found_and_there_and_back_is_the_same(n_walks, length):
    push, n = walks(n_walks, length)
    coordinates = find_coordinates(push, padded(n), [np.arange(1, n + 1)])
    assert coordinates.inverse.nnz == n_walks * (2 * length - 1)  # differences of neighbours
    point = np.random.default_rng(2).normal(size=n + 1)
    np.testing.assert_allclose(
        coordinates.to_model(coordinates.from_model(point)), point, rtol=1e-9, atol=1e-12
    )
    read = push(np.array([1.0]), point)
    inside = coordinates.from_model(point)[1:]
    np.testing.assert_allclose(np.abs(read / np.abs(inside)).std(), 0.0, atol=1e-9)


def full(n):
    matrix = np.random.default_rng(3).normal(size=(n, n))
    return lambda point, vector: matrix @ vector[1:]


def singular(n):
    """Two entries read the same sum."""

    def push(point, vector):
        sums = np.cumsum(vector[1:])
        sums[-1] = sums[-2]
        return sums

    return push


def independent(n):
    return lambda point, vector: 2.0 * vector[1:]


@pytest.mark.parametrize("make", [full, singular, independent])
def test_other_variables_keep_their_coordinates(make):
    coordinates = find_coordinates(make(40), padded(40), [np.arange(1, 41)])
    assert not coordinates.positions.size
