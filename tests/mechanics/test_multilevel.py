"""Multilevel SGLD: what it returns, what it refuses, and where it stops."""

import signal
import threading
from functools import partial

import numpy as np
import pymc as pm
import pytest
from models import N_ROWS, logistic_model, normal_model

from pymc_minibatch import TallModel, find_reference, multilevel_sgld
from pymc_minibatch.multilevel.estimand import make_estimand
from pymc_minibatch.multilevel.level import Level, Schedule, allocate


@pytest.fixture(scope="module")
def logistic():
    model = logistic_model()
    return {"model": model, "reference": find_reference(model), "random_seed": 1}


def test_result(logistic):
    result = multilevel_sgld(lambda beta: pm.math.stack([beta, beta**2]), rtol=0.1, **logistic)
    assert result.converged
    assert result.estimate.shape == result.standard_error.shape == result.bias.shape == (2, 2)
    assert list(result.summary.index) == ["f[0, 0]", "f[0, 1]", "f[1, 0]", "f[1, 1]"]
    levels = result.levels
    assert np.allclose(levels["step"], levels["step"][0] / 2.0**levels.index)
    assert np.allclose(levels["length"], levels["length"][0] * (levels.index + 1))
    assert (levels["total"] == levels["samples"] * levels["cost"]).all()
    error = result.summary["standard_error"][result.decisive]
    assert error >= 0.999 * np.sqrt((levels["variance"] / levels["samples"]).sum())
    assert result.n_gradient > levels["total"].sum()
    assert result.epochs == result.n_gradient / 600
    for part in (result.decisive, "rmse", "variance", "row evaluations", "meets the target"):
        assert part in str(result)
    assert len(result.plot().axes) == 3


def test_variables(logistic):
    result = multilevel_sgld("beta", rtol=0.3, **logistic)
    mean, variance = (result.estimate["beta"].sel(moment=m) for m in ("mean", "variance"))
    covariance = logistic["reference"].covariance
    sd = np.sqrt(np.diag(covariance))
    assert (abs(mean - logistic["reference"].mode["beta"]) < 1.5 * sd).all()
    assert np.allclose(variance, sd**2, rtol=1.0)
    names = ["mean of beta[0]", "mean of beta[1]", "variance of beta[0]", "variance of beta[1]"]
    assert list(result.summary.index) == names


def test_named_variables(logistic):
    names = ["beta", "beta"]
    by_name = multilevel_sgld(names, rtol=0.3, **logistic).summary
    assert list(by_name.index) == [
        f"{kind} of beta[{i}]" for kind in ("mean", "variance") for i in range(2)
    ]
    assert by_name.equals(multilevel_sgld(logistic["model"]["beta"], rtol=0.3, **logistic).summary)


def test_arguments_with_defaults(logistic):
    a, b, c = (
        multilevel_sgld(f, rtol=0.1, **logistic).estimate
        for f in (
            lambda beta: beta[0] ** 2,
            lambda beta, power=2, **rest: beta[0] ** power,
            partial(lambda power, beta: beta[0] ** power, 2),
        )
    )
    assert a == b == c


def test_constrained_variables():
    """Moments are of σ itself, not of its logarithm; a Deterministic is like a variable."""
    with normal_model() as model:
        pm.Deterministic("precision", model["sigma"] ** -2)
        result = multilevel_sgld(["sigma", "precision"], rtol=0.1, random_seed=1).estimate
    sigma = model.rvs_to_values[model["y"]].eval().std()
    sd = sigma / np.sqrt(2 * N_ROWS)
    mean, variance = result["sigma"].to_numpy()
    assert mean == pytest.approx(sigma, abs=sd)
    assert variance == pytest.approx(sd**2, rel=0.5)
    mean, variance = result["precision"].to_numpy()
    assert mean == pytest.approx(sigma**-2, abs=2 * sigma**-3 * sd)
    assert variance == pytest.approx((2 * sigma**-3 * sd) ** 2, rel=0.5)


def test_a_jump(logistic):
    """Differences of indicators are nearly all 0, which is not to be taken for no bias."""
    mode, sd = logistic["reference"].mode["beta"], np.sqrt(logistic["reference"].covariance[0, 0])
    result = multilevel_sgld(lambda beta: beta[0] > mode[0] + 2 * sd, rtol=0.2, **logistic)
    assert (result.levels["samples"].iloc[1:3] > 50).all()
    assert (result.levels["variance"].iloc[1] > 0).all()


def test_an_event_too_rare(logistic):
    mode = logistic["reference"].mode["beta"]
    with pytest.warns(UserWarning, match=r"f\[1\] was 0 on all paths.*too rare"):
        result = multilevel_sgld(
            lambda beta: pm.math.stack([beta[0], beta[0] > mode[0] + 1]), **logistic
        )
    assert "too rare" in str(result)


def test_cores_do_not_matter(logistic):
    one, two = (multilevel_sgld("beta", rtol=0.3, cores=n, **logistic) for n in (1, 2))
    assert one.estimate.equals(two.estimate)


def test_an_interrupt(logistic, monkeypatch, request):
    """It ends the threads, and leaves all fit for another run."""
    # A shell in the background starts programs with interrupts ignored.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, usual))
    mode, add = logistic["reference"].mode["beta"], Level.add

    interrupt = threading.Thread(target=signal.raise_signal, args=[signal.SIGINT])

    def interrupted(level, differences):
        add(level, differences)
        if interrupt.ident is None:  # once: a second one would interrupt the end of the first
            interrupt.start()

    arguments = {"f": lambda beta: ((beta - mode) ** 2).sum(), **logistic}
    before = threading.active_count()
    monkeypatch.setattr(Level, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        multilevel_sgld(rtol=0.001, **arguments)
    interrupt.join()
    assert threading.active_count() <= before + 1
    monkeypatch.undo()
    assert multilevel_sgld(rtol=0.2, **arguments).converged


def test_stops_at_the_limit(logistic):
    mode = logistic["reference"].mode["beta"]
    arguments = {"f": lambda beta: ((beta - mode) ** 2).sum(), "rtol": 0.01, **logistic}
    with pytest.warns(UserWarning, match="max_evaluations=1e\\+07"):
        result = multilevel_sgld(max_evaluations=1e7, **arguments)
    assert not result.converged
    assert result.n_gradient <= 1e7
    assert (result.summary["rmse"] > result.summary["target"]).all()


def test_out_of_reach(logistic):
    mode = logistic["reference"].mode["beta"]
    with pytest.raises(ValueError, match=r"rtol=1e-09 cannot be met.*rtol=.* can be"):
        multilevel_sgld(lambda beta: beta, rtol=1e-9, **logistic)
    with pytest.raises(ValueError, match=r"may be zero.*add a constant"):
        multilevel_sgld(lambda beta: beta[0] - mode[0], rtol=0.01, max_evaluations=1e7, **logistic)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda beta: pm.math.log(beta[0] - beta[0]), "f is .* at the posterior mode"),
        (lambda beta: pm.math.log(beta[0] - 0.8), "f is"),
        (lambda gamma: gamma, "arguments of f must be variables.*gamma"),
        (lambda: 1.0, "f has none"),
        ("gamma", "got \\['gamma'\\]"),
        ([], "names no variables"),
        (lambda beta: beta[:0], "empty"),
        (lambda beta: None, "must return.*None"),
        (lambda beta: [beta, beta[0]], "same shape"),
        (lambda beta: pm.math.log(beta).astype("complex128"), "real"),
        (lambda beta: pm.Normal.dist(beta), "draws random numbers"),
        (lambda *beta: beta[0], "f has none"),
        (None, "function, or names"),
        (3, "function, or names"),
    ],
)
def test_unfit_functions(logistic, f, message):
    with pytest.raises(ValueError, match=message):
        multilevel_sgld(f, **logistic)


def test_a_reference_of_another_model(logistic):
    """Which has as many parameters."""
    with pytest.raises(ValueError, match=r"another model.*'beta': \(2,\).*'sigma_log__'"):
        multilevel_sgld("sigma", model=normal_model(), reference=logistic["reference"])


def test_functions_of_the_rows(logistic):
    X = logistic["model"]["X"]
    with pytest.raises(ValueError, match="reads the rows"):
        multilevel_sgld(lambda beta: (X @ beta).sum(), **logistic)


@pytest.mark.parametrize(
    "bad",
    [
        {"rtol": 0.0},
        {"rtol": -1.0},
        {"average": 0},
        {"cores": 0},
        {"batch_size": 1.5},
        {"max_evaluations": 0},
    ],
)
def test_bad_arguments(logistic, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        multilevel_sgld("beta", **logistic, **bad)


def test_allocation():
    variances, costs = np.array([4.0, 1.0, 0.1]), np.array([1.0, 3.0, 8.0])
    samples = allocate(variances, costs)
    assert (variances / samples).sum() == pytest.approx(1)
    rates = np.sqrt(variances / costs) / samples
    assert np.allclose(rates, rates[0])


def test_moments_of_a_level():
    values = 1e6 + np.random.default_rng(1).normal(size=(100, 3))
    level = Level()
    for block in np.split(values, [10, 40]):
        level.add(block)
    assert np.allclose(level.mean, values.mean(axis=0), rtol=1e-14)
    assert np.allclose(level.covariance, np.cov(values.T), rtol=1e-9)


@pytest.mark.parametrize("antithetic", [True, False])
def test_lengths_of_paths(antithetic):
    schedule = Schedule(0.5, 6, 2, antithetic, 10, 3)
    assert schedule.cost(0) == 3 * 10 * 6
    for level in range(1, 5):
        c = schedule.coupling(level)
        below = schedule.length(level - 1)
        assert c.n_joint * 2 * c.step_size == below
        assert c.n_alone * c.step_size == schedule.length(level) - below
        assert c.every * 2 * c.step_size == schedule.step_size


def test_jacobian_of_moments(logistic):
    """Of means and variances, by which errors of expectations become theirs."""
    tall = TallModel(logistic["model"])
    estimand = make_estimand("beta", tall, logistic["reference"].flat)
    expectation, small = np.array([0.1, -0.2, 0.5, 0.3]), 1e-6
    jacobian = estimand.estimates(expectation)[1]
    for column, change in zip(jacobian.T, small * np.eye(4), strict=True):
        ahead, behind = (estimand.estimates(expectation + s * change)[0] for s in (1, -1))
        assert np.allclose((ahead - behind) / (2 * small), column, atol=1e-8)


@pytest.mark.parametrize("nu", [2.5, 3, 5])
def test_heavy_tails_are_refused(nu):
    """A prior alone informs b, and paths near its mode tell nothing of its tails."""
    y = np.random.default_rng(1).normal(size=500)
    with pm.Model():
        a, b = pm.Normal("a", 0, 10), pm.StudentT("b", nu=nu)
        pm.Normal("y", a + 0.0 * b, 1.0, observed=y)
        with pytest.raises(ValueError, match=r"heavier tails .* mostly along b"):
            multilevel_sgld(lambda b: pm.math.sqrt(1 + b * b), rtol=0.05, random_seed=1)


def test_tails_of_rows_that_are_many_are_no_reason_to_refuse():
    rng = np.random.default_rng(1)
    x = rng.normal(size=2000)
    with pm.Model():
        b = pm.StudentT("b", nu=3, shape=2)
        pm.StudentT("y", nu=3, mu=b[0] + b[1] * x, sigma=1.0, observed=rng.standard_t(3, 2000))
        assert multilevel_sgld("b", rtol=0.3, random_seed=1).converged
