"""What is claimed of all rows is looked at in all rows: the family, and an affine predictor."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_minibatch as pmb
from pymc_minibatch.bounds.predictor import NoPredictorError
from pymc_minibatch.bounds.remainder import bound_remainders
from pymc_minibatch.reference.control_variate import ControlVariate

N = 4000
RNG = np.random.default_rng(7)
X = RNG.normal(size=N)
RARE = np.zeros(N)
RARE[RNG.choice(N, 3, replace=False)] = 1.0
Y = 0.5 + 0.3 * X + RARE + RNG.normal(size=N)
COUNTS = RNG.poisson(np.exp(0.2 + 0.3 * X + RARE))
BITS = RNG.integers(0, 2, N)


def eta():
    return pm.Normal("a") + pm.Normal("b") * X + pm.Normal("c") * RARE


def censored_normal():
    cap = float(Y[RARE == 1].min())
    value = np.where(RARE == 1, cap, np.minimum(Y, cap - 1e-6))
    pm.Censored("y", pm.Normal.dist(eta(), 1.0), lower=None, upper=cap, observed=value)


def rows_of(usual, rare):
    pm.Potential("y", pt.switch(pt.eq(pt.as_tensor(RARE), 1.0), rare, usual).sum())


def censored_counts():
    rate = pt.exp(eta())
    value = np.maximum(COUNTS, 1)
    rare = pt.log1p(-pt.exp(-rate))  # at least one
    rows_of(value * pt.log(rate) - rate, rare)


def absolute_errors():
    distance = Y - eta()
    rows_of(-0.5 * distance**2, -abs(distance))


def hinge():
    distance = Y - eta()
    rows_of(-0.5 * distance**2, -pt.maximum(0.0, 0.7 + distance))


def quantile_errors():
    distance = Y - eta()
    rows_of(-0.5 * distance**2, pt.where(pt.lt(distance, 0), distance / 10, -distance))


def student_errors():
    distance = Y - eta()
    rows_of(-0.5 * distance**2, -2.5 * pt.log1p(distance**2 / 4))


def probit_among_logit():
    sign, read = 2 * BITS - 1, eta()
    rows_of(-pt.log1p(pt.exp(-sign * read)), pm.logcdf(pm.Normal.dist(0, 1), sign * read))


def right_for_small_predictors_only():
    read = eta()
    rows_of(-0.5 * (Y - read) ** 2, -0.5 * (Y - pt.tanh(read / 50) * 50) ** 2)


def positive_coefficient_of_a_rare_dummy():
    read = pm.Normal("a") + pm.Normal("b") * X + pm.HalfNormal("c") * RARE
    pm.Normal("y", read, 1.0, observed=Y)


def bounds_of(build):
    with pm.Model():
        build()
        tall = pmb.TallModel()
        control = ControlVariate(pmb.find_reference(data=tall), 2, 1.0)
    return bound_remainders(tall, control)


@pytest.mark.parametrize(
    "build",
    [
        censored_normal,
        censored_counts,
        absolute_errors,
        hinge,
        quantile_errors,
        student_errors,
        probit_among_logit,
        right_for_small_predictors_only,
    ],
)
def test_three_rows_of_another_kind_are_found(build):
    with pytest.raises(NoPredictorError, match="is not of the family") as refusal:
        bounds_of(build)
    assert RARE[int(str(refusal.value).split("row ")[1].split()[0])] == 1


def test_three_rows_with_a_coefficient_of_their_own_are_found():
    with pytest.raises(NoPredictorError, match=r"row \d+ .*is not affine") as refusal:
        bounds_of(positive_coefficient_of_a_rare_dummy)
    assert RARE[int(str(refusal.value).split("row ")[1].split()[0])] == 1


SCALES = 10.0 ** RNG.uniform(-4, 4, N)
RAW = 1e6 * X


def scales_that_differ_by_orders_of_magnitude():
    pm.Normal("y", pm.Normal("a", 0, 1e3) + pm.Normal("b", 0, 1e3) * X, SCALES, observed=Y)


def offsets_of_the_rows():
    pm.Poisson("y", pt.exp(eta() + np.log(10.0 ** RNG.uniform(-6, 1, N))), observed=COUNTS)


def many_trials():
    n = RNG.integers(1, 10**6, N)
    pm.Binomial("y", n, logit_p=eta(), observed=RNG.binomial(n, 0.3))


def large_dispersion():
    pm.NegativeBinomial("y", mu=pt.exp(eta()), alpha=1e6, observed=COUNTS)


def raw_predictor():
    slope = pm.Normal("b", 0, 1e-5)
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1e3) + slope * RAW, observed=BITS)


def single_precision():
    read = pm.Normal("a") + pm.Normal("b") * X.astype("float32")
    pm.Normal("y", read, 1.0, observed=Y.astype("float32"))


@pytest.mark.parametrize(
    "build",
    [
        scales_that_differ_by_orders_of_magnitude,
        offsets_of_the_rows,
        many_trials,
        large_dispersion,
        raw_predictor,
        single_precision,
    ],
)
def test_rounding_refuses_no_family(build):
    assert np.isfinite(bounds_of(build).sizes).all()
