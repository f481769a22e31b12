"""A potential that is a sum of rows and of other things counts each of them once, as in PyMC."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_minibatch import NotTallError, TallModel

N = 300
RNG = np.random.default_rng(1)
X, WEIGHTS, OTHERS = RNG.normal(size=N), RNG.uniform(1, 2, N), RNG.normal(size=40)
Y = 0.5 * X + RNG.normal(size=N)


def rows(slope):
    return pm.logp(pm.Normal.dist(X * slope, 1.0), Y)


def prior_of_shape_one(beta):
    return rows(beta[0]).sum() - 2 * pt.sum(beta[:1] ** 2)


def prior_of_a_scalar(beta):
    return rows(beta[0]).sum() - 2 * beta[1] ** 2


def prior_of_a_vector(beta):
    return rows(beta.sum()).sum() - pt.sum(beta**2) - pt.sum(abs(beta))


def negated_and_scaled(beta):
    return -((beta**2).sum() / 2 - rows(beta[0]).sum() / 3) + 4.0


def mean_of_rows(beta):
    return N * pt.mean(rows(beta[0])) - pt.sum(beta**2)


def product_with_a_sum(beta):
    return pt.exp(beta).sum() * rows(beta[0]).sum()


def weighted(beta):
    return pt.dot(WEIGHTS, rows(beta[0])) + pm.logp(pm.Normal.dist(0, 2), beta).sum()


def totals_in_a_vector(beta):
    return pt.sum(pt.stack([rows(beta[0]).sum(), -0.5 * pt.sum(beta**2)]))


def joined(beta):
    return pt.sum(pt.concatenate([rows(beta[0]), -0.5 * beta[:1] ** 2]))


def columns_and_rows(beta):
    each = rows(beta[0])
    return pt.stack([each, each / 2], axis=1).sum() + each.sum() - pt.sum(beta**2)


def rows_of_two_lengths(beta):
    return rows(beta[0]).sum() + pm.logp(pm.Normal.dist(beta[0], 1.0), OTHERS).sum()


def array_of_one_number(beta):
    return rows(beta[0]).sum(keepdims=True) - 0.5 * beta[:1] ** 2


def single_precision(beta):
    return pt.cast(pt.cast(rows(beta[0]), "float32").sum(), "float64") - pt.sum(beta**2)


POTENTIALS = [
    prior_of_shape_one,
    prior_of_a_scalar,
    prior_of_a_vector,
    negated_and_scaled,
    mean_of_rows,
    product_with_a_sum,
    weighted,
    totals_in_a_vector,
    joined,
    columns_and_rows,
    rows_of_two_lengths,
    array_of_one_number,
    single_precision,
]


def differences(model, tall):
    logp, point = model.compile_logp(mode="FAST_COMPILE"), model.initial_point()
    for value in (0.0, 0.3, 0.9):
        point["beta"] = np.full(2, value)
        yield (float(logp(point)) - tall.logp(point)) / tall.logp(point)


@pytest.mark.parametrize("potential", POTENTIALS)
def test_the_split_has_the_density_of_the_model(potential):
    with pm.Model() as model:
        pm.Potential("posterior", potential(pm.Normal("beta", shape=2)))
        tall = TallModel()
    assert tall.n_rows == N
    rtol = 1e-6 if potential is single_precision else 1e-11
    assert np.abs(list(differences(model, tall))).max() < rtol


def test_a_potential_beside_observed_rows_counts_once():
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Normal("y", X * beta[0], 1.0, observed=Y)
        pm.Potential("more", rows(beta[1]).sum() - 50 * pt.sum(beta[:1] ** 2))
        tall = TallModel()
    assert tall.row_potentials == ["more"]
    assert np.abs(list(differences(model, tall))).max() < 1e-11


def logarithm(beta):
    return rows(beta[0]).sum() - pt.log(pt.sum(pt.exp(beta[0] * WEIGHTS)))


def one_sum_or_another(beta):
    return pt.switch(pt.gt(beta[0], 0), rows(beta[0]).sum(), 2 * rows(beta[1]).sum())


def product_of_sums(beta):
    return rows(beta[0]).sum() * pt.sum(WEIGHTS * beta[1])


@pytest.mark.parametrize("potential", [logarithm, one_sum_or_another, product_of_sums])
def test_what_is_no_sum_over_rows_is_refused(potential):
    with pm.Model():
        pm.Potential("posterior", potential(pm.Normal("beta", shape=2)))
        with pytest.raises(NotTallError, match="sum"):
            TallModel()
