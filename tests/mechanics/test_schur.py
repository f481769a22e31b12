"""What the elimination of a factor leaves is sparse if factors are nested, however many levels."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest
from scipy import sparse

from pymc_minibatch.latent import schur
from pymc_minibatch.latent.arrowhead import ArrowheadFactor, ArrowheadMatrix
from pymc_minibatch.latent.banded import BandedCholesky
from pymc_minibatch.latent.cholesky import DenseCholesky, SparseCholesky
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.tall import TallModel
from pymc_minibatch.witness.determinants import log_determinant

N_SHARED = 3


def nested(n_outer: int, *, inner: int = 3, width: int = 1, seed: int = 1) -> ArrowheadMatrix:
    """Return the precision of levels in others, each of which has two effects."""
    rng = np.random.default_rng(seed)
    n_inner = n_outer * inner
    own = rng.normal(size=(n_inner, 5, width))
    blocks = np.einsum("gkq,gkr->gqr", own, own) + np.eye(width)
    place = np.repeat(np.arange(n_outer), inner * width)
    columns = np.column_stack([2 * place, 2 * place + 1])
    shared = np.broadcast_to(2 * n_outer + np.arange(N_SHARED), (place.size, N_SHARED))
    columns = np.column_stack([columns, shared])
    rows = np.repeat(np.arange(place.size), columns.shape[1])
    cross = sparse.csr_array(
        (rng.normal(size=rows.size), (rows, columns.ravel())),
        (place.size, 2 * n_outer + N_SHARED),
    )
    solved = np.linalg.solve(blocks, cross.toarray().reshape(n_inner, width, -1))
    gram = cross.T @ solved.reshape(cross.shape)
    kept = np.where((cross.T @ cross).toarray() != 0.0, gram, 0.0)
    dense = sparse.csr_array(kept + 2.0 * np.eye(cross.shape[1]))
    return ArrowheadMatrix(dense, cross, blocks)


def whole(matrix: ArrowheadMatrix) -> np.ndarray:
    """Return the matrix, dense part first."""
    n_groups, width, _ = matrix.blocks.shape
    blocks = np.zeros((n_groups * width,) * 2)
    for g, block in enumerate(matrix.blocks):
        own = slice(g * width, (g + 1) * width)
        blocks[own, own] = block
    cross = matrix.cross.toarray()
    return np.block([[matrix.dense.toarray(), cross.T], [cross, blocks]])


@pytest.fixture
def sparse_from_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schur, "SMALLEST", 100)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("by_products", [False, True])
@pytest.mark.usefixtures("sparse_from_100")
def test_a_nested_factor_leaves_a_sparse_matrix(width: int, by_products: bool) -> None:
    matrix = nested(150, width=width)
    factor, full = matrix.factor(by_products), whole(matrix)
    assert isinstance(factor.schur, SparseCholesky | BandedCholesky)
    right = np.linalg.slogdet(full)[1]
    assert factor.log_determinant() == pytest.approx(right / 2, rel=1e-10)
    check_solves(factor, full)
    found, allowed = log_determinant(matrix)
    assert found == pytest.approx(right, abs=max(allowed, 1e-9))
    assert allowed < 1e-6


@pytest.mark.usefixtures("sparse_from_100")
def test_a_few_levels_leave_a_sparse_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have in common with the rest is an array, since it is small."""
    monkeypatch.setattr(schur, "MOST_SHARE", 0.2)
    matrix = nested(60)
    array = replace(matrix, cross=matrix.cross.toarray())
    factor = array.factor()
    assert isinstance(factor.reduced, np.ndarray)
    assert isinstance(factor.schur, SparseCholesky)
    check_solves(factor, whole(matrix))


def check_solves(factor: ArrowheadFactor, full: np.ndarray) -> None:
    n_dense = factor.reduced.shape[1]
    x = np.random.default_rng(2).normal(size=len(full))
    dense, groups = x[:n_dense], x[n_dense:].reshape(factor.cholesky.shape[:2])
    solved = np.concatenate([part.ravel() for part in factor.solve(dense, groups)])
    np.testing.assert_allclose(full @ solved, x, atol=1e-8)


@pytest.mark.usefixtures("sparse_from_100")
def test_entries_that_vanish_leave_the_pattern_as_it_is() -> None:
    """Else an order of elimination would be looked for at each value of the hyperparameters."""
    matrix = nested(150)
    matrix.factor()
    known = schur.pattern_left.cache_info().misses
    matrix.cross.data[::7] = 0.0
    factor = matrix.factor()
    assert schur.pattern_left.cache_info().misses == known
    assert factor.log_determinant() == pytest.approx(np.linalg.slogdet(whole(matrix))[1] / 2)


@pytest.mark.usefixtures("sparse_from_100")
def test_crossed_factors_leave_a_full_matrix() -> None:
    rng = np.random.default_rng(3)
    cross = sparse.random_array((2000, 400), density=0.05, rng=rng, format="csr")
    dense = sparse.csr_array(5000.0 * sparse.eye_array(400))
    matrix = ArrowheadMatrix(dense, cross, np.full((2000, 1, 1), 2.0))
    factor = matrix.factor(by_products=False)
    assert isinstance(factor.schur, DenseCholesky)
    assert factor.log_determinant() == pytest.approx(np.linalg.slogdet(whole(matrix))[1] / 2)


def test_pupils_in_classes_in_thousands_of_schools() -> None:
    """As a full matrix, more than 6,000 effects beside the classes would be refused."""
    rng = np.random.default_rng(4)
    n_schools, n = 3500, 30_000
    classes = np.concatenate([np.arange(3 * n_schools), rng.integers(0, 3 * n_schools, n)])
    school, x = classes // 3, rng.normal(size=classes.size)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1, shape=3)
        eta = pm.Normal("a") + sd[0] * pm.Normal("u", shape=n_schools)[school]
        eta += sd[1] * pm.Normal("v", shape=n_schools)[school] * x
        eta += sd[2] * pm.Normal("w", shape=3 * n_schools)[classes]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, classes.size))
    reference = locate(TallModel(model), 1.0).reference
    factor = reference.surrogate.conditional(reference.hyper).factor
    assert factor.reduced.shape[1] == 2 * n_schools + 1
    assert isinstance(factor.schur, SparseCholesky | BandedCholesky)


def test_determinants_of_badly_scaled_matrices_keep_their_digits() -> None:
    """Columns of a basis that are nearly dependent, in units that differ by up to 10⁸."""
    rng = np.random.default_rng(4)
    n_groups, size, n_dense = 3, 4, 5
    total = n_groups * size + n_dense
    columns = rng.normal(size=(200, total))
    of_group = np.repeat(np.arange(n_groups), size)
    own = rng.integers(0, n_groups, 200)
    columns[:, n_dense:] *= own[:, None] == of_group  # the rows of a group read its effects alone
    columns[:, 1] = columns[:, 0] + 1e-4 * columns[:, 1]
    first, second = columns[:, n_dense], columns[:, n_dense + 1]
    first[:] = second + 1e-5 * first
    columns[own == 0, 2] = second[own == 0] + 1e-5 * columns[own == 0, 2]
    columns[own > 0, 2] *= 1e-5
    columns *= 10.0 ** rng.uniform(-4, 4, total)
    whole = columns.T @ columns
    pairs = of_group[:, None] == of_group
    blocks = whole[n_dense:, n_dense:][pairs].reshape(n_groups, size, size)
    matrix = ArrowheadMatrix(whole[:n_dense, :n_dense], whole[n_dense:, :n_dense], blocks)
    root, expected = whole.astype(np.longdouble), np.longdouble(0.0)
    for k in range(total):  # eliminates one after the other, with more digits
        expected += np.log(root[k, k])
        rest = root[k, k + 1 :] / root[k, k]
        root[k + 1 :, k + 1 :] -= np.outer(root[k, k + 1 :], rest)
    assert log_determinant(matrix)[0] == pytest.approx(float(expected), abs=1e-4)
