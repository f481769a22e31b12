"""Bounds on third derivatives and Taylor remainders."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

import pymc_minibatch as pmb
from pymc_minibatch.bounds.families import logistic, probit, student_t
from pymc_minibatch.bounds.families.family import Trial
from pymc_minibatch.bounds.predictor import NoPredictorError, find_predictor
from pymc_minibatch.bounds.remainder import bound_remainders, predictor_and_third
from pymc_minibatch.bounds.third import find_third
from pymc_minibatch.reference.control_variate import ControlVariate

N = 60
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N, 2))
COUNTS, POSITIVE = RNG.poisson(1.5, N), RNG.exponential(1.0, N) + 1e-3
BITS, GROUP = RNG.integers(0, 2, N), RNG.integers(0, 3, N)
OFFSETS = RNG.normal(0.0, 1.5, N)


def predictor():
    return pm.Normal("a") + X @ pm.Normal("b", 0, 1, shape=2)


PREDICTORS = {
    "coefficients": predictor,
    "intercept alone": lambda: pm.Normal("a"),
    "slope alone": lambda: pm.Normal("b") * X[:, 0],
    "twice an intercept": lambda: 2.0 * pm.Normal("a"),
    "less twice an intercept": lambda: X[:, 0] - 2.0 * pm.Normal("a"),
    "intercept over a covariate": lambda: pm.Normal("a") / (1.0 + X[:, 0] ** 2),
}
FAMILIES = {
    "logit": lambda eta: pm.Bernoulli("y", logit_p=eta, observed=BITS),
    "probit": lambda eta: pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=BITS),
    "binomial": lambda eta: pm.Binomial("y", n=COUNTS + 3, logit_p=eta, observed=COUNTS),
    "poisson": lambda eta: pm.Poisson("y", pm.math.exp(eta), observed=COUNTS),
    "negative binomial": lambda eta: pm.NegativeBinomial(
        "y", mu=pm.math.exp(eta), alpha=2.5, observed=COUNTS
    ),
    "exponential": lambda eta: pm.Exponential("y", pm.math.exp(-eta), observed=POSITIVE),
    "gamma": lambda eta: pm.Gamma("y", alpha=3.0, beta=3 / pm.math.exp(eta), observed=POSITIVE),
    "weibull": lambda eta: pm.Weibull("y", 1.7, pm.math.exp(eta), observed=POSITIVE),
    "student": lambda eta: pm.StudentT("y", 4, mu=eta, sigma=0.8, observed=X[:, 0]),
    "normal": lambda eta: pm.Normal("y", eta, 0.8, observed=X[:, 0]),
    "probit, offsets": lambda eta: pm.Bernoulli(
        "y", p=pm.math.invprobit(eta + OFFSETS), observed=BITS
    ),
    "logit, large offsets": lambda eta: pm.Bernoulli(
        "y", logit_p=20 * OFFSETS + eta, observed=OFFSETS > 0
    ),
    "poisson, offsets": lambda eta: pm.Poisson("y", pm.math.exp(eta - OFFSETS), observed=COUNTS),
    "student, offsets": lambda eta: pm.StudentT(
        "y", 4, mu=eta + 5 * OFFSETS, sigma=0.8, observed=X[:, 0] + 5 * OFFSETS
    ),
}


@pytest.mark.parametrize("read", PREDICTORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_on_third_derivatives_are_tight(family, read):
    """Against a grid on intervals about several centres, however wide they are."""
    with pm.Model() as model:
        FAMILIES[family](PREDICTORS[read]())
    tall = pmb.TallModel(model)
    point = np.array([0.1, -0.2, 0.3])[: tall.start.size]
    found, third = predictor_and_third(tall, point)
    eta = found.vector_eta(point, *tall.data)
    np.testing.assert_allclose(
        found.vector_values(eta, *tall.data), tall.vector_row_logp(point, *tall.data), rtol=1e-12
    )
    for centre, width in ((0.0, 0.1), (1.2, 1.0), (-2.0, 3.0)):
        lowest, highest = np.full(N, centre - width), np.full(N, centre + width)
        bound = third(lowest, highest, tall.data)
        grid = np.linspace(centre - width, centre + width, 301)
        sup = np.max(
            [np.abs(found.vector_derivatives.outputs(np.full(N, e), *tall.data)[1]) for e in grid],
            axis=0,
        )
        assert (bound >= sup * (1 - 1e-9)).all()
        if "probit" not in family:
            assert (bound <= sup * 1.01 + 1e-12).all()
        assert family == "normal" or bound.max() > 0


def test_largest_logistic():
    u = np.linspace(-9, 9, 4001)
    h = np.abs(expit(u) * expit(-u) * (1 - 2 * expit(u)))
    assert h.max() == pytest.approx(np.sqrt(3) / 18, rel=1e-5)  # on the grid
    assert abs(u[h.argmax()]) == pytest.approx(logistic.PEAK, abs=0.005)
    assert logistic.largest(np.array([2.0]), np.array([3.0])) == pytest.approx(
        h[(u >= 2) & (u <= 3)].max(), rel=1e-2
    )


def test_largest_student():
    v = np.linspace(-6, 6, 6001)
    g = np.abs(4 * v * (v**2 - 3) / (1 + v**2) ** 3)
    for lowest, highest in ((-6, 6), (0.5, 1.6), (1.8, 5.0), (-0.1, 0.1), (-2.6, -2.2)):
        bound = student_t.largest(np.array([lowest]), np.array([highest]))
        assert bound == pytest.approx(g[(v >= lowest) & (v <= highest)].max(), rel=2e-2)


def test_probit_constant():
    from scipy.special import log_ndtr

    u = np.arange(-12, 12, 1e-3)
    ratio = np.exp(-(u**2) / 2 - log_ndtr(u)) / np.sqrt(2 * np.pi)
    third = ratio * ((u + ratio) * (u + 2 * ratio) - 1)
    assert np.abs(third).max() < 0.2958
    assert np.abs(third).max() + 6e-3 / 2 < probit.LARGEST


def test_group_effects_have_a_predictor():
    with pm.Model() as model:
        alpha, slope = pm.Normal("alpha", 0, 1, shape=3), pm.Normal("slope", 0, 1, shape=3)
        pm.Bernoulli("y", logit_p=alpha[GROUP] + slope[GROUP] * X[:, 0], observed=BITS)
    tall = pmb.TallModel(model)
    found = find_predictor(tall)
    _, jacobian = found.linearised(np.zeros(6), tall.data)
    expected = np.eye(3)[GROUP]
    np.testing.assert_allclose(jacobian, np.hstack([expected, expected * X[:, :1]]), atol=1e-12)


def unknown_scale():
    pm.Normal("y", predictor(), pm.HalfNormal("sigma"), observed=X[:, 0])


def non_centred():
    z = pm.Normal("z", shape=3)
    pm.Bernoulli("y", logit_p=pm.Normal("mu") + pm.HalfNormal("sd") * z[GROUP], observed=BITS)


def absolute_errors():
    pm.Laplace("y", predictor(), 1.0, observed=X[:, 0])


def huber_errors():
    """Their third derivative is zero but where a parabola goes over into lines."""

    def logp(value, mu):
        distance = abs(value - mu)
        return pm.math.switch(distance < 1, -0.5 * distance**2, 0.5 - distance)

    pm.CustomDist("y", predictor(), logp=logp, observed=X[:, 0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (unknown_scale, r"sigma_log__ in more than one place.*an unknown scale"),
        (non_centred, "is not affine in the parameters"),
        (absolute_errors, "no bound on the third derivative of y"),
        (huber_errors, "no bound on the third derivative of y"),
    ],
)
def test_refusals_say_why(build, message):
    with pm.Model() as model:
        build()
    tall = pmb.TallModel(model)
    with pytest.raises(NoPredictorError, match=message):
        find_third(tall, find_predictor(tall), np.zeros(tall.layout.size))


def test_a_row_of_another_family_is_named():
    """One of many is no reason to say that no family is known."""

    def logp(value, eta):
        lower = pm.logp(pm.Poisson.dist(pm.math.exp(eta)), value)
        return pm.math.switch(pm.math.eq(value, 7), 2 * pm.math.log1p(pm.math.exp(-eta)), lower)

    counts = COUNTS.copy()
    counts[counts == 7] = 6
    counts[17] = 7
    with pm.Model() as model:
        pm.CustomDist("y", predictor(), logp=logp, observed=counts)
    tall = pmb.TallModel(model)
    with pytest.raises(NoPredictorError, match=r"row 17 of y is not of the family .*\(Poisson"):
        find_third(tall, find_predictor(tall), np.zeros(tall.layout.size))


@pytest.mark.parametrize("at", [0.0, 3.0])
def test_derivatives_agree_up_to_their_rounding(at):
    """log(1 − p) has a few digits where p is next to 1, which is no reason against a family."""
    eta = np.linspace(-3.0, 3.0, N) + at

    def derivatives(eta):
        exact = -np.exp(-eta)
        return exact + 1e-7 * np.sin(1e9 * eta) * (eta > 2), exact

    trial = Trial(derivatives, eta, (), lambda: None, np.empty(0))
    assert trial.fits(2, lambda eta: -np.exp(-eta)).all()
    assert not trial.fits(2, lambda eta: -1.5 * np.exp(-eta)).any()


def test_a_bound_that_is_brought_is_verified():
    with pm.Model() as model:
        FAMILIES["logit"](predictor())
    tall = pmb.TallModel(model)
    control = ControlVariate(pmb.find_reference(data=tall), 2, 1.0)
    bounds = bound_remainders(tall, control, third=np.sqrt(3) / 18)
    known = bound_remainders(tall, control)
    assert (bounds.sizes >= known.sizes).all()
    assert bounds.radius == np.inf
    with pytest.raises(ValueError, match=r"does not hold for row \d+ of y"):
        bound_remainders(tall, control, third=0.01)
    with pytest.raises(ValueError, match="one for each of 60 rows"):
        bound_remainders(tall, control, third=np.ones(3))


def test_rows_are_not_bounded_in_vain():
    """Some rows tell how many a decision takes, whatever the order of the rows."""
    rng = np.random.default_rng(2)
    n_rows, dim = 8000, 12
    design = rng.normal(size=(n_rows, dim))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=dim)
        pm.Bernoulli("y", logit_p=design @ beta, observed=rng.integers(0, 2, n_rows))
    tall = pmb.TallModel(model)
    control = ControlVariate(pmb.find_reference(data=tall), 2, 1.0)
    expected = bound_remainders(tall, control).expected_rows
    assert bound_remainders(tall, control, most_rows=expected).expected_rows == expected
    with pytest.raises(NoPredictorError, match="Exact would take about") as refusal:
        bound_remainders(tall, control, most_rows=expected / 4)
    told = float(str(refusal.value).split("about ")[1].split()[0].replace(",", ""))
    assert told == pytest.approx(expected, rel=0.1)
