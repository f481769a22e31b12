"""The reference point, its Taylor expansion, and the decision to use it."""

import pickle
import warnings

import numpy as np
import pymc as pm
import pytest
from models import logistic_model, logistic_rows
from numba import njit
from scipy.special import polygamma

import pymc_minibatch as pmb
from pymc_minibatch.jit.special import trigamma
from pymc_minibatch.reference import derivatives, taylor
from pymc_minibatch.reference.control_variate import ControlVariate
from pymc_minibatch.reference.curvature import Curvature
from pymc_minibatch.reference.decide import (
    choose_order,
    decide_control_variate,
    gaussian_acceptance,
)
from pymc_minibatch.reference.derivatives import RowDerivatives
from pymc_minibatch.reference.find import SUBSAMPLE
from pymc_minibatch.reference.taylor import compile_remainder, make_target
from pymc_minibatch.tall import TallModel
from pymc_minibatch.tall.checksum import checksum

N, D = 3000, 3


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D))
    y = rng.negative_binomial(2, 0.4, size=N)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=D)
        alpha = pm.HalfNormal("alpha", 2)
        pm.NegativeBinomial("y", mu=pm.math.exp(pm.Data("X", X) @ beta), alpha=alpha, observed=y)
    return model


@pytest.fixture(scope="module")
def tall(model):
    return pmb.TallModel(model)


@pytest.fixture(scope="module")
def reference(tall):
    return pmb.find_reference(data=tall)


def test_trigamma_matches_scipy():
    x = np.geomspace(1e-3, 1e6, 500)
    ours = np.array([trigamma(value) for value in x])
    np.testing.assert_allclose(ours, polygamma(1, x), rtol=1e-13)


def test_trigamma_where_its_square_is_not_a_number():
    """A shape that has become zero, as far from the mode, must not end a run."""
    compiled = njit(lambda x: trigamma(x))
    assert compiled(0.0) == compiled(1e-200) == np.inf
    assert np.isnan(compiled(-1.0))
    assert np.isnan(compiled(np.nan))
    assert compiled(np.inf) == 0.0


def test_the_mode_is_the_mode(model, reference):
    gradient = model.compile_dlogp()(dict(reference.mode))
    sds = np.sqrt(np.diag(reference.covariance))
    assert np.abs(gradient * sds).max() < 1e-2  # in posterior sds, to first order


def test_sums_are_those_of_the_model(model, reference):
    point = dict(reference.mode)
    hessian = model.compile_d2logp(negate_output=False)(point)
    np.testing.assert_allclose(reference.precision_at(1.0), -hessian, rtol=1e-8, atol=1e-8)
    gradient = model.compile_dlogp()(point)
    prior = np.append(-reference.mode["beta"], 0.0)
    a = np.exp(reference.mode["alpha_log__"])
    prior[-1] = 1 - (a / 2) ** 2  # half-normal with scale 2 on the log scale, with its Jacobian
    np.testing.assert_allclose(reference.gradient + prior, gradient, atol=1e-6)


@pytest.mark.parametrize(("order", "ratio"), [(1, 4), (2, 8)])
def test_the_remainder_is_of_the_next_order(tall, reference, order, ratio):
    remainder = compile_remainder(tall, order)
    direction = np.random.default_rng(0).normal(size=D + 1)
    at_mode = tall.compiled_row_logp(reference.flat, *tall.data)
    points = [reference.flat + h * direction for h in (2e-2, 1e-2)]
    sizes = [
        np.linalg.norm(remainder(point, reference.flat, *tall.data) - at_mode) for point in points
    ]
    assert sizes[0] / sizes[1] == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 7.0])
def test_every_order_splits_the_same_density(tall, reference, order, temperature):
    target = make_target(tall, ControlVariate(reference, order, temperature))
    rng = np.random.default_rng(2)

    def density(theta):
        rows = target.row(theta, theta, target.constants, tall.data)[1]
        return target.base(theta, target.constants) + rows.sum() / temperature

    def direct(theta):
        rows = tall.compiled_row_logp(theta, *tall.data)
        return tall.compiled_prior_logp(theta) + rows.sum() / temperature

    for _ in range(5):
        here, there = reference.flat + 0.2 * rng.normal(size=(2, D + 1))
        assert density(there) - density(here) == pytest.approx(
            direct(there) - direct(here), rel=1e-9
        )


def effects_and_scales():
    """Rows that read an effect that is no affine function of the parameters, and a scale."""
    rng = np.random.default_rng(5)
    x, group = rng.normal(size=(500, 2)), rng.integers(0, 6, 500)
    with pm.Model() as model:
        effect = pm.Normal("mu") + pm.HalfNormal("tau") * pm.Normal("z", shape=6)
        mean = effect[group] + x @ pm.Normal("beta", shape=2)
        pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=rng.normal(size=500))
    return model


@pytest.mark.parametrize("with_effects", [False, True])
@pytest.mark.parametrize("order", [1, 2])
def test_remainders_by_what_rows_read(with_effects, order, tall, monkeypatch):
    tall = TallModel(effects_and_scales()) if with_effects else tall
    rng = np.random.default_rng(6)
    points = tall.start + 0.3 * rng.normal(size=(2, tall.layout.size))
    by_structure = taylor.compiled_remainder(tall, order)(*points, *tall.data)
    monkeypatch.setattr(taylor, "_reads_by_structure", lambda tall: False)
    by_parameters = taylor.compiled_remainder(tall, order)(*points, *tall.data)
    np.testing.assert_allclose(by_structure, by_parameters, rtol=1e-9, atol=1e-9)


def test_save_and_load(tall, reference, tmp_path):
    reference.save(tmp_path / "reference.npz")
    loaded = pmb.Reference.load(tmp_path / "reference.npz")
    np.testing.assert_array_equal(loaded.flat, reference.flat)
    np.testing.assert_array_equal(loaded.hessian, reference.hessian)
    np.testing.assert_array_equal(loaded.mode["beta"], reference.mode["beta"])
    assert loaded.passes == reference.passes
    assert loaded.n_rows == N
    loaded.check_fits(tall)


def test_auto_takes_order_two_where_it_pays(model, tall, reference):
    assert choose_order(tall, reference)[0] == 2
    step = pmb.MinibatchMH(model=model, reference=reference)
    assert step.control_variate == 2
    assert isinstance(step.proposal, pmb.Laplace)


def test_more_rows_than_the_subsample():
    """The mode of a subsample is some standard deviations away from that of all rows."""
    y = np.random.default_rng(3).normal(0.3, 1.0, 6 * SUBSAMPLE)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        sigma = pm.HalfNormal("sigma")
        pm.Normal("y", mu, sigma, observed=y)
    reference = pmb.find_reference(model)
    gradient = model.compile_dlogp()(dict(reference.mode))
    assert np.abs(gradient * np.sqrt(np.diag(reference.covariance))).max() < 1e-2
    assert pmb.MinibatchMH(model=model, reference=reference).control_variate == 2


def test_auto_falls_back_where_there_is_no_mode():
    x = np.repeat([-1.0, 1.0], 50)
    with pm.Model():
        slope = pm.Flat("slope")
        pm.Bernoulli("y", logit_p=slope * x, observed=x > 0)
        with pytest.warns(UserWarning, match="No control variate") as caught:
            step = pmb.MinibatchMH()
        assert [warning.filename for warning in caught] == [__file__]
        assert step.control_variate == 0
        assert isinstance(step.proposal, pmb.RandomWalk)
        with pytest.raises(ValueError, match=r"flat about its mode, mostly along slope"):
            pmb.MinibatchMH(control_variate=2)


def mixture(weights):
    rng = np.random.default_rng(4)
    y = np.where(rng.random(5000) < weights[0], -2.0, 2.0) + rng.normal(size=5000)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2)
        pm.NormalMixture("y", weights, mu, 1.0, observed=y)
    return model


def test_several_modes():
    """Swapping the components of a mixture with equal weights gives the other mode."""
    model = mixture([0.5, 0.5])
    with pytest.warns(UserWarning, match="several modes"):
        reference = pmb.find_reference(model)
    assert reference.several_modes
    np.testing.assert_allclose(np.sort(reference.mode["mu"]), [-2, 2], atol=0.2)
    with pytest.warns(UserWarning, match=r"several modes.*pass reference=pmb\.find_reference\(\)"):
        step = pmb.MinibatchMH(model=model)
    assert step.control_variate == 0
    assert pmb.MinibatchMH(model=model, reference=reference).control_variate == 2


def test_an_improbable_mode_does_not_count():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not pmb.find_reference(mixture([0.8, 0.2])).several_modes


def test_many_group_effects_far_from_the_subsample():
    """The Hessian of a subsample misleads here, and the search goes on with all rows."""
    rng = np.random.default_rng(5)
    n_groups, n_rows = 60, 40_000
    group = rng.integers(0, n_groups, n_rows)
    y = rng.random(n_rows) < 1 / (1 + np.exp(-0.5 * rng.normal(size=n_groups)[group]))
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=n_groups)
        pm.Bernoulli("y", logit_p=mu + tau * z[group], observed=y)
    reference = pmb.find_reference(model)
    gradient = model.compile_dlogp()(dict(reference.mode))
    assert np.sqrt(gradient @ reference.covariance @ gradient) < 1e-2


@pytest.mark.parametrize("centred", [True, False])
def test_a_warning_where_full_size_moves_need_most_rows(centred):
    """mu + sd * z with many rows per group is a thin curved ridge, on which no expansion holds."""
    rng = np.random.default_rng(6)
    group = rng.integers(0, 12, 30_000)
    y = rng.normal(size=12)[group] + rng.normal(0, 0.3, group.size)
    with pm.Model() as model:
        mu, sd = pm.Normal("mu"), pm.HalfNormal("sd", 1)
        if centred:
            effect = pm.Normal("effect", mu, sd, shape=12)
        else:
            effect = mu + sd * pm.Normal("z", shape=12)
        pm.Normal("y", effect[group], 0.3, observed=y)
    tall = pmb.TallModel(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decide_control_variate(tall, None, "auto", 1.0)
    assert ["let MinibatchMH choose" in str(warning.message) for warning in caught] == [True][
        centred:
    ]


@pytest.mark.parametrize("prior", ["StudentT", "Gumbel"])
def test_acceptance_of_gaussian_moves(prior):
    """Against quadrature, where the posterior is about as skewed or heavy-tailed as its prior."""
    parameters = {"StudentT": {"nu": 2}, "Gumbel": {"mu": 0, "beta": 1}}[prior]
    with pm.Model() as model:
        x = getattr(pm, prior)("x", **parameters)
        pm.Normal("y", x, 30, observed=np.zeros(50))
    tall = pmb.TallModel(model)
    reference = pmb.find_reference(data=tall)
    sd = reference.covariance[0, 0] ** 0.5
    delta = np.linspace(-30, 30, 3001) * sd
    log_p = np.array([tall.compiled_prior_logp(reference.flat + d) for d in delta[:, None]])
    log_p += delta * reference.gradient + delta**2 * reference.hessian[0] / 2
    p, q = np.exp(log_p - log_p.max()), np.exp(-((delta / sd) ** 2) / 2)
    p, q = p / p.sum(), q / q.sum()
    exact = np.minimum(np.outer(p, q), np.outer(q, p)).sum()
    assert exact < 0.8
    assert gaussian_acceptance(tall, ControlVariate(reference, 2, 1.0)) == pytest.approx(
        exact, abs=0.06
    )


def model_of(y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1, observed=y)
    return model


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(2).normal(size=200)


@pytest.fixture(scope="module")
def small_reference(values):
    return pmb.find_reference(model_of(values))


def few_changed(values):
    """Change values between those of which the log-likelihoods are compared."""
    changed = values.copy()
    changed[[3, 4]] = values[[4, 3]]
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (np.copy, None),
        (lambda y: y[:-1], "other data: .* 200 .* 199"),
        (lambda y: y + 1e-9, "other data: values"),
        (few_changed, "other data: values"),
    ],
    ids=["equal", "shorter", "slightly other values", "two rows exchanged"],
)
def test_a_reference_of_other_data_is_noticed(small_reference, values, change, message):
    other = pmb.TallModel(model_of(change(values)))
    if message is None:
        small_reference.check_fits(other)
    else:
        with pytest.raises(ValueError, match=message):
            small_reference.check_fits(other)


def test_a_reference_of_another_likelihood_is_noticed(small_reference, values):
    with pm.Model() as model:
        pm.Logistic("y", pm.Normal("mu"), 1, observed=values)
    with pytest.raises(ValueError, match="another likelihood: at its point row 0"):
        small_reference.check_fits(pmb.TallModel(model))


def test_labels_that_changed_are_noticed(caplog):
    """Most of 20,000 labels are right, and those that are not lie between those compared."""
    X, y = logistic_rows(20_000)
    reference = pmb.find_reference(logistic_model(20_000))
    y[1:601] = 1 - y[1:601]
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("y", logit_p=pm.Data("X", X) @ beta, observed=y)
    with caplog.at_level("INFO", "pymc.minibatch"):
        step = pmb.MinibatchMH(model=model, reference=reference)
    assert "The reference is of other data: values" in caplog.text
    expected = pmb.find_reference(model)
    np.testing.assert_allclose(step.reference.flat, expected.flat, atol=1e-4)


def test_the_same_data_are_recognised_wherever_they_lie(small_reference, tmp_path):
    """A memory map of a smaller type, and an array in another order in memory."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(30_000, 5)).astype(np.float32)
    x[0, 0] = -0.0
    counts = rng.poisson(3.0, 30_000)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    wide = np.asfortranarray(x.astype(float)) + 0.0
    assert checksum([mapped, counts.astype(np.int8)]) == checksum([wide, counts])
    assert checksum([mapped, counts]) != checksum([mapped, counts[::-1]])
    assert checksum([counts[:-1]]) != checksum([counts])


@pytest.mark.parametrize("name", ["r", "r.v1", "r.npz"])
def test_a_reference_is_found_under_the_name_it_was_saved(small_reference, tmp_path, name):
    small_reference.save(tmp_path / name)
    assert pmb.Reference.load(str(tmp_path / name)).checksum == small_reference.checksum


@pytest.mark.parametrize("content", [b"", b"garbage" * 10, "cut", "other", "objects"])
def test_a_damaged_reference_is_refused(small_reference, tmp_path, content):
    path = tmp_path / "r.npz"
    small_reference.save(path)
    whole = path.read_bytes()
    if content == "other":
        np.savez(path, a=np.zeros(2))
    elif content == "objects":
        np.savez(path, **{"mode/mu": np.array([None])})
    else:
        path.write_bytes(whole[: len(whole) // 2] if content == "cut" else content)
    with pytest.raises(ValueError, match=r"r\.npz (is not|has no)") as refusal:
        pmb.Reference.load(path)
    assert "allow_pickle" not in str(refusal.value)
    path.write_bytes(whole)
    path.unlink()  # nothing holds it open


def test_arguments_are_checked(model, reference):
    with pytest.raises(ValueError, match="control_variate must be"):
        pmb.MinibatchMH(model=model, control_variate=3)
    with pytest.raises(ValueError, match="Laplace moves about a reference"):
        pmb.MinibatchMH(model=model, control_variate=0, proposal=pmb.Laplace())
    with pytest.raises(ValueError, match="random_walk"):
        pmb.Laplace(random_walk=0)
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=np.arange(10.0))
        with pytest.raises(ValueError, match="of another model"):
            pmb.MinibatchMH(reference=reference)


def test_hessian_by_what_the_rows_read(monkeypatch):
    """Dense columns, levels, a scale that enters by its log, weights, and two predictors."""
    rng = np.random.default_rng(3)
    n = 300
    X, level, weight = rng.normal(size=(n, 4)), rng.integers(0, 3, n), rng.uniform(size=n)
    with pm.Model() as model:
        beta, effect = pm.Normal("beta", shape=4), pm.Normal("effect", shape=3)
        spread = pm.math.exp(pm.Normal("gamma") * X[:, 0] + pm.Normal("log_scale"))
        mean = X @ beta + effect[level] * weight + pm.Exponential("rate", 1.0)
        pm.Normal("y", mean, spread, observed=X[:, 1])
    tall = TallModel(model)
    theta = rng.normal(0, 0.3, tall.layout.size)
    found = []
    for by_reading in (True, False):
        monkeypatch.setattr(derivatives, "is_cheaper", lambda structure, dim: by_reading)  # noqa: B023
        of_rows = RowDerivatives(tall)
        assert (of_rows.by_reading is not None) == by_reading
        found.append(of_rows.gradient_hessian(theta, tall.data))
        found[-1] += (of_rows.value_gradient(theta, tall.data)[1],)
        found[-1] += (of_rows.product(theta, theta, tall.data),)
    for by_rows, by_products in zip(*found, strict=True):
        np.testing.assert_allclose(by_rows, by_products, rtol=1e-9, atol=1e-9)
    sums = Curvature(tall.structure).sums_at(theta)
    sent = pickle.loads(pickle.dumps(sums))  # as to the workers of a cluster
    np.testing.assert_array_equal(sent(*tall.data)[1], sums(*tall.data)[1])


def test_a_flat_prior_has_no_curvature():
    """Its gradient is constant, and so is what multiplies a vector."""
    with pm.Model() as model:
        mu = pm.Flat("mu", shape=3)
        pm.Normal("y", np.eye(3)[np.arange(60) % 3] @ mu, 1.0, observed=np.arange(60.0))
    reference = pmb.find_reference(model)
    np.testing.assert_array_equal(reference.prior_hessian, np.zeros((3, 3)))
    np.testing.assert_allclose(reference.covariance, np.eye(3) / 20)
