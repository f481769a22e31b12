"""Bounds lie below the likelihood, touch it, and add up; what is not bounded is refused."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode

import pymc_minibatch as pmb
from pymc_minibatch.bounds import bound as bound_module
from pymc_minibatch.bounds import jaakkola_jordan
from pymc_minibatch.bounds.choose import BOUNDS, settle
from pymc_minibatch.bounds.collapse import CollapsedTarget
from pymc_minibatch.bounds.laplace import climb
from pymc_minibatch.bounds.recognise import recognise
from pymc_minibatch.jit.compiled import CompiledFunction
from pymc_minibatch.tall import model as tall_module

N_ROWS = 60
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N_ROWS, 2))
GROUP = RNG.integers(0, 3, N_ROWS)
BINARY = RNG.integers(0, 2, N_ROWS)
CLASS = RNG.integers(0, 3, N_ROWS)
REAL = RNG.standard_t(4, N_ROWS)


@pytest.fixture(autouse=True)
def _evaluate_in_python(monkeypatch):
    """Formulas are tested here, and machine code elsewhere: compiling all of it takes minutes."""
    for module in (bound_module, tall_module):
        monkeypatch.setattr(module, "compile_numba", compile_for_tests)


def compile_for_tests(inputs, outputs):
    mode = Mode(linker="py", optimizer="fast_compile")
    function = pymc_compile(list(inputs), list(outputs), mode=mode, on_unused_input="ignore")
    return CompiledFunction(lambda *args: tuple(function(*args)), None, (inputs, outputs))


def coefficients():
    return pm.Normal("beta", shape=2)


def logistic():
    pm.Bernoulli("y", logit_p=0.3 + X @ coefficients(), observed=BINARY)


def by_sigmoid_and_deterministic():
    p = pm.Deterministic("p", pm.math.invlogit(X @ coefficients()))
    pm.Bernoulli("y", p=p, observed=BINARY)


def sigmoid_by_hand():
    pm.Bernoulli("y", p=1 / (1 + pt.exp(-(X @ coefficients()))), observed=BINARY)


def binomial_with_groups():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    alpha = pm.Normal("alpha", mu, tau, shape=3)
    offset = np.linspace(-1, 1, N_ROWS)
    eta = alpha[GROUP] + X @ coefficients() + offset
    pm.Binomial("y", n=3 + GROUP, logit_p=eta, observed=GROUP)


def beta_rates():
    pm.Bernoulli("y", p=pm.Beta("rate", 1, 1, shape=3)[GROUP], observed=BINARY)


def softmax():
    eta = X @ pm.Normal("B", shape=(2, 3)) + pm.Normal("alpha", shape=3)
    pm.Categorical("y", logit_p=eta, observed=CLASS)


def softmax_with_reference_class():
    eta = X @ pm.Normal("B", shape=(2, 2))
    eta = pt.concatenate([pt.zeros((N_ROWS, 1)), eta], axis=1)
    pm.Categorical("y", p=pm.math.softmax(eta, axis=-1), observed=CLASS)


def one_vector_of_class_logits():
    pm.Categorical("y", logit_p=pm.Normal("alpha", shape=3), observed=CLASS)


def student_t():
    mu = 1e3 + X @ coefficients()
    pm.StudentT("y", nu=4, mu=mu, sigma=pm.HalfNormal("sigma"), observed=1e3 + REAL)


def student_t_with_weights():
    sigma = pm.HalfNormal("sigma") * np.linspace(0.5, 2, N_ROWS)
    pm.StudentT("y", nu=3, mu=X @ coefficients(), sigma=sigma, observed=REAL)


def normal():
    pm.Normal("y", X @ coefficients(), pm.HalfNormal("sigma"), observed=REAL)


MODELS = [
    logistic,
    by_sigmoid_and_deterministic,
    sigmoid_by_hand,
    binomial_with_groups,
    beta_rates,
    softmax,
    softmax_with_reference_class,
    one_vector_of_class_logits,
    student_t,
    student_t_with_weights,
    normal,
]
FAMILIES = {"softmax": "softmax", "one": "softmax", "student": "student_t", "normal": "normal"}


def tall_model(build):
    with pm.Model() as model:
        build()
    return pmb.TallModel(model)


def random_points(tall, n=4, spread=0.8):
    start = tall.layout.flatten(tall.model.initial_point())
    return start + spread * np.random.default_rng(1).normal(size=(n, start.size))


def collapsed_sum(target, constants, point):
    """Log of prior and bounds, less the prior."""
    base, _ = target.base(point, constants)
    return base - float(target.tall.compiled_prior_logp(point))


@pytest.mark.parametrize("build", MODELS, ids=lambda build: build.__name__)
def test_bounds_and_gaps_make_the_likelihood(build):
    """Σ log B collapsed + Σ gaps is the log-likelihood up to a constant, and gaps are positive."""
    tall = tall_model(build)
    likelihood = recognise(tall)
    assert likelihood.family == FAMILIES.get(build.__name__.split("_")[0], "logistic")
    active, rows = np.arange(tall.layout.size), np.arange(N_ROWS)
    touch, *points = random_points(tall)
    for tuned in (False, True):
        bound = BOUNDS[likelihood.family]
        target = CollapsedTarget(tall, likelihood, bound, active, tuned)
        constants = target.constants(touch)
        offsets = []
        for point in [touch, *points]:
            gaps = target.gaps(point, touch, rows)
            assert gaps.min() > -1e-9
            whole = tall.logp(tall.layout.unflatten(point)) - tall.prior_logp(
                tall.layout.unflatten(point)
            )
            offsets.append(whole - gaps.sum() - collapsed_sum(target, constants, point))
        np.testing.assert_allclose(offsets, offsets[0], rtol=0, atol=1e-7)
        if tuned:
            np.testing.assert_allclose(target.gaps(touch, touch, rows), 0.0, atol=1e-9)


@pytest.mark.parametrize("build", [logistic, softmax, student_t], ids=lambda build: build.__name__)
def test_gradients(build):
    tall = tall_model(build)
    likelihood = recognise(tall)
    active = np.arange(tall.layout.size)
    bound = BOUNDS[likelihood.family]
    target = CollapsedTarget(tall, likelihood, bound, active, tuned=True)
    touch, point, *_ = random_points(tall)
    constants, batch = target.constants(touch), target.batch(np.arange(10))

    def odds(at):
        return np.log(np.expm1(target.compiled_gap(at, touch, *batch))).sum()

    def base(at):
        return target.base(at, constants)[0]

    _, base_gradient = target.base(point, constants)
    _, odds_gradient = target.compiled_gap.jitted(point, touch, *batch)
    for function, gradient in ((odds, odds_gradient), (base, base_gradient)):
        steps = 1e-6 * np.eye(point.size)
        expected = [(function(point + s) - function(point - s)) / 2e-6 for s in steps]
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("build", [logistic, student_t], ids=lambda build: build.__name__)
def test_climb_ends_near_the_mode(build):
    tall = tall_model(build)
    likelihood = recognise(tall)
    active = np.arange(tall.layout.size)
    bound = BOUNDS[likelihood.family]
    target = CollapsedTarget(tall, likelihood, bound, active, tuned=True)
    found = climb(target, tall.layout.flatten(tall.model.initial_point()))
    reference = pmb.find_reference(data=tall)
    distance = (found - reference.flat) / np.sqrt(np.diag(reference.covariance))
    assert abs(distance).max() < 0.3


def test_large_offsets_keep_their_digits():
    """The statistics are sums about the reference point: y may be large and vary little."""

    def far():
        pm.Normal("y", 1e4 + X @ coefficients(), 1.0, observed=1e4 + REAL)

    tall = tall_model(far)
    target, _, settled = settle(tall, np.arange(2), "auto", True, None)
    points = settled.approximation[0] + settled.approximation[1] @ np.ones(2) * [[0.0], [1.0]]
    sums = [collapsed_sum(target, settled.constants, point) for point in points]
    whole = [float(tall.compiled_row_logp(point, *tall.data).sum()) for point in points]
    assert np.diff(sums) == pytest.approx(np.diff(whole), rel=1e-9)


# --- What is refused --------------------------------------------------------------------------


def poisson():
    pm.Poisson("y", pm.math.exp(X @ coefficients()), observed=GROUP)


def probit():
    pm.Bernoulli("y", p=pm.math.invprobit(X @ coefficients()), observed=BINARY)


def neural_network():
    hidden = pt.tanh(X @ pm.Normal("W", shape=(2, 3)))
    pm.Bernoulli("y", logit_p=hidden @ pm.Normal("v", shape=3), observed=BINARY)


def relu_network():
    hidden = pt.maximum(X @ pm.Normal("W", shape=(2, 3)), 0.0)
    pm.Bernoulli("y", logit_p=hidden @ np.ones(3), observed=BINARY)


def not_centred():
    z, tau = pm.Normal("z", shape=3), pm.HalfNormal("tau")
    pm.Bernoulli("y", logit_p=(tau * z)[GROUP], observed=BINARY)


def product():
    pm.Bernoulli("y", logit_p=pm.Normal("a") * pm.Normal("b") * X[:, 0], observed=BINARY)


def unknown_nu():
    nu = pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=X @ coefficients(), sigma=1.0, observed=REAL)


def heteroscedastic():
    sigma = pm.math.exp(X @ pm.Normal("gamma", shape=2))
    pm.Normal("y", X @ coefficients(), sigma, observed=REAL)


def two_numbers_in_a_row():
    pm.Bernoulli("y", logit_p=coefficients(), observed=np.column_stack([BINARY, BINARY]))


def two_observed():
    eta = X @ coefficients()
    pm.Bernoulli("y", logit_p=eta, observed=BINARY)
    pm.Normal("w", eta, 1.0, observed=REAL)


REFUSED = [
    (poisson, "y is Poisson, .* falls off faster than any parabola. Use MinibatchMH, or bring"),
    (
        probit,
        "not the sigmoid .*; for other links .probit.*Use MinibatchMH, or bring a",
    ),
    (neural_network, "not affine in W, so that quadratic bounds do not collapse.*MinibatchMH"),
    (relu_network, "not affine in W"),
    (not_centred, "not affine in tau_log__.*Use MinibatchMH"),
    (product, "not affine in a, b"),
    (unknown_nu, r"cannot update nu_log__, the nu of y.*FlyMC\(vars="),
    (heteroscedastic, "The scale of y differs between rows in a way that depends on gamma"),
    (two_numbers_in_a_row, "several numbers in each row. Write the data in long form"),
    (two_observed, r"The rows belong to several observed variables .y \+ w."),
]


@pytest.mark.parametrize(("build", "message"), REFUSED, ids=[b.__name__ for b, _ in REFUSED])
def test_refused(build, message):
    tall = tall_model(build)
    with pytest.raises(pmb.NoBoundError, match=message):
        settle(tall, np.arange(tall.layout.size), "auto", True, None)


def test_a_bound_for_another_likelihood_is_refused():
    tall = tall_model(logistic)
    with pytest.raises(ValueError, match=r"Bohning.* is no bound .* which is logistic"):
        settle(tall, np.arange(2), pmb.Bohning(), True, None)


@pytest.mark.parametrize("bound", [pmb.JaakkolaJordan, pmb.StudentT])
@pytest.mark.parametrize("xi", [-1.0, np.nan, np.inf])
def test_bad_touching_points_are_refused(bound, xi):
    with pytest.raises(ValueError, match="xi must be finite and not negative"):
        bound(xi=xi)


def test_a_bound_above_the_likelihood_is_refused(monkeypatch):
    """The curvature of a wrong formula is too small."""
    right = jaakkola_jordan.quadratic_coefficient
    monkeypatch.setattr(jaakkola_jordan, "quadratic_coefficient", lambda xi: 0.5 * right(xi))
    tall = tall_model(logistic)
    with pytest.raises(pmb.BoundError, match=r"The lower bound of row \d+ of y lies above"):
        settle(tall, np.arange(2), "auto", True, None)


def test_gaps_that_do_not_fit_the_bound_are_refused(monkeypatch):
    right = pmb.JaakkolaJordan.gap
    monkeypatch.setattr(pmb.JaakkolaJordan, "gap", lambda *args: 1.01 * right(*args))
    tall = tall_model(logistic)
    with pytest.raises(pmb.NoBoundError, match="is not that of logistic rows"):
        settle(tall, np.arange(2), "auto", True, None)


# --- A bound that the user brings -------------------------------------------------------------


def laplace_errors(xi=1.0, shift=0.0, total_shift=0.0):
    """Laplace errors with a Gaussian bound: -|r| >= -(r²/xi + xi)/2, a xi for each row."""
    touch = xi + 0.1 * np.arange(N_ROWS) / N_ROWS
    beta = coefficients()
    residual = REAL - X @ beta
    pm.Laplace("y", X @ beta, 1.0, observed=REAL)
    rows = -np.log(2) - (residual**2 / touch + touch) / 2 + shift
    xw = X / touch[:, None]
    quadratic = beta @ (X.T @ xw) @ beta - 2 * (REAL @ xw) @ beta + (REAL**2 / touch).sum()
    total = N_ROWS * (shift - np.log(2)) - quadratic / 2 - touch.sum() / 2 + total_shift
    return pmb.Bound(rows, total)


def settle_brought(**changes):
    with pm.Model() as model:
        bound = laplace_errors(**changes)
    tall = pmb.TallModel(model)
    return tall, settle(tall, np.arange(2), bound, True, None)


def test_bound_of_the_user():
    tall, (target, _, settled) = settle_brought()
    points, rows = random_points(tall), np.arange(N_ROWS)
    for point in points:
        gaps = target.gaps(point, settled.constants[0], rows)
        assert gaps.min() >= -1e-12
        whole = tall.compiled_row_logp(point, *tall.data).sum()
        assert whole == pytest.approx(
            gaps.sum() + collapsed_sum(target, settled.constants, point), rel=1e-12
        )


def test_bound_of_the_user_above_the_likelihood():
    with pytest.raises(pmb.BoundError, match=r"The lower bound of row \d+ of y lies above"):
        settle_brought(shift=0.5)


def test_bound_of_the_user_that_does_not_add_up():
    with pytest.raises(pmb.BoundError, match=r"add up to .* and its total is"):
        settle_brought(total_shift=0.01)


def test_bound_of_the_user_with_wrong_shapes():
    with pm.Model() as model:
        beta = coefficients()
        pm.Laplace("y", X @ beta, 1.0, observed=REAL)
        bound = pmb.Bound(beta.sum(), beta.sum())
    with pytest.raises(pmb.BoundError, match=r"rows of shape \(N,\) and a total that is a scalar"):
        settle(pmb.TallModel(model), np.arange(2), bound, True, None)
