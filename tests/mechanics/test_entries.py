"""Matrices of a row, written as operations on their entries."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from scipy import stats

import pymc_minibatch as pmb
from pymc_minibatch.jit.compiled import compile_all
from pymc_minibatch.tall.entries import without_matrices


def operations(output):
    return [v.owner.op for v in ancestors([output]) if v.owner]


def vectors(n):
    return [pt.dvector(f"v{i}") for i in range(n)]


def lower_triangle(entries, k):
    """Put entries into a matrix for each row, as PyMC does for all rows."""
    matrix = pt.zeros((entries[0].shape[0], k, k))
    for (i, j), entry in zip(zip(*np.tril_indices(k), strict=True), entries, strict=True):
        matrix = matrix[:, i, j].set(entry)
    return matrix


def both(row, predictors, seed=1):
    """Evaluate a row as it is and taken apart, at random numbers."""
    apart = without_matrices(row, predictors)
    values = np.random.default_rng(seed).normal(size=(len(predictors), 7))
    return apart, compile_all(predictors, [row, apart])(*values)


def test_a_known_factor_is_used_as_it_is_but_for_its_signs():
    """Entries on the diagonal are positive and negative."""
    entries = vectors(6)
    factor = lower_triangle(entries, 3)
    found = pt.linalg.cholesky(factor @ factor.mT)
    row = (found * np.arange(1.0, 10.0).reshape(3, 3)).sum(axis=(1, 2))
    apart, [expected, values] = both(row, entries)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert not any(isinstance(op, Blockwise) for op in operations(apart))
    assert not any("sqrt" in str(op).lower() for op in operations(apart))


def test_a_product_with_its_own_transpose_that_is_no_factor():
    entries = vectors(3)
    column = pt.stack(entries, axis=1)[:, :, None]
    found = pt.linalg.cholesky(column @ column.mT + np.eye(3))
    apart, [expected, values] = both(found.sum(axis=(1, 2)), entries)
    np.testing.assert_allclose(values, expected, rtol=1e-10)
    assert not any(isinstance(op, Blockwise) for op in operations(apart))


@pytest.mark.parametrize("lower", [True, False])
def test_factor_of_a_matrix(lower):
    entries = vectors(6)
    factor = lower_triangle(entries, 3)
    matrix = factor @ factor.mT + 0.5 * np.eye(3)
    found = pt.linalg.cholesky(matrix, lower=lower)
    row = (found * np.arange(1.0, 10.0).reshape(3, 3)).sum(axis=(1, 2))
    _, [expected, values] = both(row, entries)
    np.testing.assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("b_ndim", [1, 2])
def test_triangular_solve(lower, unit_diagonal, b_ndim):
    entries = vectors(12)
    matrix = lower_triangle(entries[:6], 3)
    right = pt.stack(entries[6:9] if b_ndim == 1 else entries[6:], axis=1)
    right = right if b_ndim == 1 else right.reshape((-1, 3, 2))
    solved = pt.linalg.solve_triangular(
        matrix if lower else matrix.mT,
        right,
        lower=lower,
        unit_diagonal=unit_diagonal,
        b_ndim=b_ndim,
    )
    row = (solved * np.arange(1.0, 4.0).reshape(3, *[1] * (b_ndim - 1))).sum(axis=(1, 2)[:b_ndim])
    used = entries[:9] if b_ndim == 1 else entries
    apart, [expected, values] = both(row, used)
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    assert not any(isinstance(op, Blockwise) for op in operations(apart))


def test_what_no_row_solves_for_is_left_alone():
    [v] = vectors(1)
    row = pt.exp(v) + 1.0
    assert without_matrices(row, [v]) is row


def test_operations_that_are_not_known_are_left_alone():
    entries = vectors(3)
    factor = lower_triangle(entries, 2)
    row = pt.linalg.cholesky(factor @ factor.mT)[:, 0, 0] + pt.cumsum(entries[0])
    assert without_matrices(row, entries) is row


def test_places_that_differ_by_row_are_left_alone():
    entries, which = vectors(3), pt.lvector("which")
    factor = pt.linalg.cholesky(lower_triangle(entries, 2) @ lower_triangle(entries, 2).mT)
    row = factor[pt.arange(which.shape[0]), which, 0]
    assert without_matrices(row, entries) is row


def by_factor(k, mu, Y):
    sds = pm.Exponential.dist(1.0, shape=k)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=k, eta=2, sd_dist=sds)
    pm.MvNormal("y", mu=mu, chol=chol, observed=Y)


def by_correlations(k, mu, Y):
    sd, correlations = pm.HalfNormal("sd", shape=k), pm.LKJCorr("correlations", eta=2, n=k)
    pm.MvNormal("y", mu=mu, cov=pt.diag(sd) @ correlations @ pt.diag(sd), observed=Y)


def by_scale(k, mu, Y):
    cov = pm.HalfNormal("s") ** 2 * (np.eye(k) + 0.3)
    pm.MvNormal("y", mu=mu, cov=cov, observed=Y)


def with_tails(k, mu, Y):
    sds = pm.Exponential.dist(1.0, shape=k)
    chol, _, _ = pm.LKJCholeskyCov("chol", n=k, eta=2, sd_dist=sds)
    pm.MvStudentT("y", nu=pm.Gamma("nu", 2, 0.1), mu=mu, chol=chol, observed=Y)


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize("write", [by_factor, by_correlations, by_scale, with_tails])
def test_rows_of_several_variables(write, k):
    """Each way of writing a covariance has a structure with numbers only, which is verified."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(300, 2))
    Y = X @ rng.normal(size=(2, k)) + rng.normal(size=(300, k))
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=(2, k))
        write(k, pm.Normal("mean", shape=k) + pm.Data("X", X) @ slopes, Y)
    structure = pmb.TallModel(model).structure
    assert structure is not None
    allowed = Elemwise, DimShuffle
    left = {type(op).__name__ for op in operations(structure.row) if not isinstance(op, allowed)}
    assert not any("Blockwise" in name for name in left), left


def test_sampled_by_few_rows():
    """The posterior of means with a known covariance is known."""
    rng = np.random.default_rng(4)
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    Y = rng.multivariate_normal([0.3, -0.5], cov, size=20_000)
    with pm.Model():
        pm.MvNormal("y", mu=pm.Normal("mean", 0, 10, shape=2), cov=cov, observed=Y)
        step = pmb.MinibatchMH(rng=1)
        idata = pm.sample(
            1000, tune=200, step=step, chains=2, cores=1, random_seed=1, progressbar=False
        )
    precision = len(Y) * np.linalg.inv(cov) + np.eye(2) / 100
    mean = np.linalg.solve(precision, np.linalg.solve(cov, Y.sum(axis=0)))
    draws = idata.posterior["mean"].values.reshape(-1, 2)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert (np.abs(draws.mean(axis=0) - mean) < 5 * sd / np.sqrt(1000)).all()
    n = stats.chi2(800).ppf([1e-5, 1 - 1e-5]) / 800
    ratio = draws.var(axis=0) / sd**2
    assert ((n[0] < ratio) & (ratio < n[1])).all()
