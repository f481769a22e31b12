"""What `approximate` returns is a result like others, whatever the model came from."""

import pickle
import sys

import bambi
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.special import gammaln
from scipy.stats import loggamma

import pymc_minibatch as pmb
from pymc_minibatch.approximation.check import Check, Scanned, Shift, check_of
from pymc_minibatch.approximation.design import weighted_design
from pymc_minibatch.approximation.marginal import FieldIntegral
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.moves.scan import LatentMoves
from pymc_minibatch.tall import TallModel
from tests.models import logistic_model, logistic_rows


@pytest.fixture(scope="module")
def model():
    return logistic_model()


@pytest.fixture(scope="module")
def idata(model):
    return pmb.approximate(model, draws=200, random_seed=1)


def test_the_verdict_is_in_the_attributes(idata):
    assert idata.attrs["verdict"] in ("use", "check")
    assert {"largest_shift", "pareto_k", "seconds", "reason"} <= set(idata.attrs)
    assert idata.posterior["beta"].shape == (1, 200, 2)
    assert np.isfinite(idata.sample_stats["lp"]).any()


def test_other_functions_read_it(model, idata):
    assert np.isfinite(pmb.loo(idata, model=model).elpd)
    assert pmb.predict(idata, model=model, random_seed=2)
    pmb.compare({"approximate": idata, "again": idata}, baseline="again")


def test_the_check_does_not_depend_on_the_number_of_draws(model, idata):
    few = pmb.approximate(model, draws=10, random_seed=1)
    assert few.posterior.sizes["draw"] == 10
    assert few.attrs["largest_shift_error"] < 0.1
    assert few.attrs["verdict"] == idata.attrs["verdict"]


def group_effects(kind):
    """Thirty groups with normal or Student t effects, or with intercepts and slopes."""
    rng = np.random.default_rng(9)
    group, x = rng.integers(0, 30, 400), rng.normal(size=400)
    with pm.Model() as model:
        sd = pm.HalfNormal("sd", 1)
        if kind == "student":
            effect = pm.StudentT("effect", nu=4, mu=0, sigma=sd, shape=30)[group]
        elif kind == "centred":
            effect = pm.Normal("effect", 0, sd, shape=30)[group]
        else:
            effect = sd * pm.Normal("z", shape=30)[group]
        if kind == "slopes":
            effect = effect + pm.HalfNormal("of_x", 1) * pm.Normal("slopes", shape=30)[group] * x
        rows = rng.poisson(np.exp(0.4 * rng.normal(size=30))[group])
        pm.Poisson("y", pm.math.exp(pm.Normal("mu") + effect), observed=rows)
    return model


@pytest.mark.parametrize("kind", ["normal", "centred", "student", "slopes"])
def test_groups_add_up_to_the_posterior(kind):
    """Beside its Gaussian, each level has its own share; what it is then has their moments."""
    sampler = make_latent_sampler(TallModel(group_effects(kind)), None, 1.0, may_sum=False)
    reference = sampler.reference
    given = reference.surrogate.factored_later(reference.hyper)
    found = FieldIntegral(sampler).correction(given, 1.0)
    assert found is not None
    rng, shape = np.random.default_rng(10), sampler.field.latent.groups.shape
    pairs = [rng.standard_normal(shape) for _ in range(2000)]
    border = np.zeros(sampler.field.latent.dense.size)
    values = np.array([found.apply((border, s * eta))[0][1] for eta in pairs for s in (1, -1)])
    np.testing.assert_allclose(values.mean(axis=0), found.mean, atol=0.02)
    covariances = found.root @ np.swapaxes(found.root, 1, 2)
    variances = np.einsum("gii->gi", covariances)
    np.testing.assert_allclose(values.var(axis=0), variances, rtol=0.2)


def test_the_slope_of_a_corrected_field():
    rng = np.random.default_rng(11)
    sampler = make_latent_sampler(TallModel(group_effects("slopes")), None, 1.0)
    reference = sampler.reference
    given = reference.surrogate.factored_later(reference.hyper)
    found = FieldIntegral(sampler).correction(given, 1.0)
    border, groups = sampler.field.latent.noise(rng)

    def moved(entry):
        step = np.zeros(groups.shape)
        step.flat[entry] = 1e-6
        ends = [found.apply((border, groups + s * step))[0][1].ravel() for s in (1, -1)]
        return (ends[0] - ends[1]) / 2e-6

    jacobian = np.array([moved(entry) for entry in range(groups.size)])
    _, log_slope = found.apply((border, groups))
    np.testing.assert_allclose(np.linalg.slogdet(jacobian)[1], log_slope, rtol=1e-6, atol=1e-6)


APPROXIMATE = sys.modules["pymc_minibatch.approximate"]


@pytest.mark.parametrize("kind", ["normal", "slopes"])
def test_draws_do_not_depend_on_the_cores(kind, monkeypatch):
    for name, rows in (("PROCESS_ROWS", 0.0), ("CHECK_ROWS", 1e6)):
        monkeypatch.setattr(APPROXIMATE, name, rows)
    one, two = (
        pmb.approximate(group_effects(kind), draws=60, correct=True, random_seed=1, cores=cores)
        for cores in (1, 2)
    )
    for name, draws in one.posterior.data_vars.items():
        np.testing.assert_array_equal(two.posterior[name], draws)
    assert one.attrs["reason"] == two.attrs["reason"]


@pytest.fixture
def plans(monkeypatch):
    """The names of the moves of each scan."""
    made, draw = [], LatentMoves.draw

    def noted(self, *args):
        made.append({planned.move.name for planned in self.plan})
        return draw(self, *args)

    monkeypatch.setattr(LatentMoves, "draw", noted)
    return made


def test_trajectories_are_left_out_of_long_scans(plans, monkeypatch):
    for name, rows in (("LONG_ROWS", 0.0), ("ROWS_BY_EFFECT", 0), ("CHECK_ROWS", 1e6)):
        monkeypatch.setattr(APPROXIMATE, name, rows)
    model = group_effects("normal")
    short = pmb.approximate(model, draws=50, random_seed=1, cores=1)
    names = set.union(*plans)
    assert "trajectory" in names  # when it was compiled
    assert "trajectory" not in plans[-1]
    plans.clear()
    with model:
        step = pmb.MinibatchMH(start=short)
        pm.sample(5, tune=5, chains=1, cores=1, step=step, progressbar=False, random_seed=1)
    assert plans[-1] == names


def test_trajectories_are_put_back_if_scans_are_slow(plans, monkeypatch):
    rows = {"LONG_ROWS": 0.0, "ROWS_BY_EFFECT": 0, "CHECK_ROWS": 1e6, "SLOW_ROWS": 0.0}
    for name, value in (rows | {"SLOW": -1.0}).items():
        monkeypatch.setattr(APPROXIMATE, name, value)
    pmb.approximate(group_effects("normal"), draws=50, random_seed=1, cores=1, correct=False)
    assert "trajectory" in plans[-1]
    assert any("trajectory" not in names for names in plans)


def test_draws_start_nuts(model, idata):
    starts = [{"beta": idata.posterior["beta"].values[0, k]} for k in range(2)]
    with model:
        pm.sample(2, tune=2, chains=2, cores=1, initvals=starts, progressbar=False, random_seed=1)


def test_a_step_takes_over_the_set_up(model, idata, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("set up again")

    monkeypatch.setattr(pmb.MinibatchMH, "_set_up", refuse)
    with model:
        step = pmb.MinibatchMH(start=idata)
        chains = pm.sample(
            20, tune=20, chains=2, cores=1, step=step, progressbar=False, random_seed=1
        )
        with pytest.raises(ValueError, match="leave out row_sampling"):
            pmb.MinibatchMH(start=idata, row_sampling="uniform")
    assert chains.posterior.sizes["draw"] == 20
    with pytest.raises(ValueError, match="another model"):
        pmb.MinibatchMH(start=idata, model=logistic_model())
    with model, pytest.raises(ValueError, match="initvals"):
        pmb.MinibatchMH(start=chains)


def test_it_can_be_copied_and_pickled(idata):
    assert pickle.loads(pickle.dumps(idata.copy(deep=True))).attrs["verdict"]


def test_data_take_the_place_of_the_models_own():
    X, _ = logistic_rows(900)
    y = np.ones(900, dtype=int)
    idata = pmb.approximate(
        logistic_model(), draws=50, data={"X": X, "y": y}, correct=False, random_seed=1
    )
    assert int(idata.sample_stats["n_rows"][0, 0]) == 900
    assert bool(idata.sample_stats["stand_in"].all())


def test_a_seed_gives_the_same_draws(model, idata):
    again = pmb.approximate(model, draws=200, random_seed=1)
    np.testing.assert_array_equal(again.posterior["beta"], idata.posterior["beta"])


def test_a_model_of_bambi_has_its_own_variables():
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"x": 3 + rng.normal(size=400), "g": rng.choice(list("abcdefgh"), 400)})
    frame["y"] = 1 + 0.5 * frame["x"] + rng.normal(size=400)
    fitted = bambi.Model("y ~ x + (1|g)", frame)
    idata = pmb.approximate(fitted, draws=100, random_seed=4)
    assert abs(float(idata.posterior["Intercept"].mean()) - 1) < 0.8
    assert "1|g" in idata.posterior
    assert "mu" not in idata.posterior
    assert pmb.predict(idata, model=fitted, random_seed=5)


def test_arguments_are_checked(model):
    with pytest.raises(ValueError, match="correct"):
        pmb.approximate(model, correct="yes")
    with pytest.raises(ValueError, match="draws"):
        pmb.approximate(model, draws=1)
    with pytest.raises(ValueError, match="cores"):
        pmb.approximate(model, cores=0)
    with pytest.raises(ValueError, match="no variable"):
        pmb.approximate(model, var_names=["gamma"])


def autoregressive(error, stays, n=400, size=3, seed=1):
    """Scans whose stationary mean is `error` from that of the draws, in standard deviations."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(n, size))

    def moved(points):
        noise = np.sqrt(1 - stays**2) * rng.normal(size=points.shape)
        return error + stays * (points - error) + noise

    one = moved(start)
    two = moved(one)
    return check_of(
        Scanned(start, (one + two) / 2, two),
        (start.mean(axis=0), start.std(axis=0)),
        {"a": slice(0, size)},
        0.1,
    )


def test_errors_are_those_of_the_mean_however_slowly_scans_move():
    for stays in (0.0, 0.5):
        largest = autoregressive(0.8, stays).largest
        assert abs(largest.size - 0.8) < 6 * largest.error


def scans_to(scales, stays, n=2000, seed=2):
    """Scans that lead from unit variances to some scales; `stays` of each element."""
    rng, scales, stays = np.random.default_rng(seed), np.asarray(scales), np.asarray(stays)
    start = rng.normal(size=(n, scales.size))
    start = (start - start.mean(axis=0)) / start.std(axis=0)  # as draws are
    end = stays * start + scales * np.sqrt(1 - stays**2) * rng.normal(size=start.shape)
    moments = start.mean(axis=0), start.std(axis=0)
    return check_of(Scanned(start, end, end), moments, {"a": slice(0, scales.size)}, 0.1)


@pytest.mark.parametrize("stays", [0.0, 0.5, 0.8])
def test_errors_of_scales_are_found_however_slowly_scans_move(stays):
    largest = scans_to([1.4] * 3, [stays] * 3, n=20_000).widest
    assert abs(largest.scale - 0.4) < 4 * largest.scale_error < 0.2


def test_one_element_of_twenty_is_not_lost():
    others = [1.0] * 19
    assert scans_to([1.0, *others], [0.3] * 20).verdict == "use"
    slow = scans_to([1.0, *others], [0.95, *(0.3 * np.ones(19))])
    assert slow.verdict == "check"
    assert abs(slow.slowness - 0.95) < 0.03
    assert scans_to([1.5, *others], [0.3] * 20).verdict != "use"


@pytest.mark.parametrize("seed", range(3))
def test_thousands_of_effects_are_not_wrong_by_chance(seed):
    """Of so many variances of 48 starts, some are a third of what they should be."""
    check = scans_to(np.ones(10_000), 0.3 * np.ones(10_000), n=48, seed=seed)
    assert check.is_settled
    assert check.verdict != "do not use"


def test_one_wrong_effect_of_thousands_is_found():
    scales = np.r_[2.5, np.ones(4999)]
    assert not scans_to(scales, 0.3 * np.ones(5000), n=500).is_settled


def test_the_verdict_follows_the_error():
    assert autoregressive(0.0, 0.2, n=1000).verdict == "use"
    assert autoregressive(0.25, 0.2, n=4000).verdict == "check"
    assert autoregressive(1.0, 0.2).verdict == "do not use"
    assert autoregressive(0.0, 0.99).verdict != "use"


def test_an_error_near_what_matters_is_to_be_checked():
    for size, error, verdict in ((0.05, 0.03, "use"), (0.15, 0.03, "check")):
        of_mean = Shift("a", size, error, size - 4 * error, 0.0, 0.02, 0.2)
        of_sd = Shift("a", 0.0, 0.02, -0.1, size, error, 0.2)
        assert Check([of_mean], 0.1).verdict == verdict
        assert Check([of_sd], 0.1).verdict == verdict


@pytest.mark.parametrize("n", [64, 1024])
def test_weighted_points_have_the_moments_of_a_skewed_density(n):
    """The log of a Gamma variable with shape 30 beside a normal one, about the mode."""
    rng, shape = np.random.default_rng(4), 30.0

    def log_densities(z):
        x = z[:, 0] / np.sqrt(shape)
        return shape * (x - np.exp(x)) - 0.5 * (z[:, 1] - 0.1 * z[:, 0]) ** 2

    design = weighted_design(rng, log_densities, 2, n)
    assert design is not None
    mean, covariance = design.moments
    exact = loggamma(shape)
    skewed = np.sqrt(shape) * (exact.mean() - np.log(shape))
    variance = shape * exact.var()
    atol = 0.05 if n == 64 else 0.02
    np.testing.assert_allclose(mean, [skewed, 0.1 * skewed], atol=atol)
    expected = variance * np.array([[1, 0.1], [0.1, 0.01]]) + np.diag([0, 1])
    np.testing.assert_allclose(covariance, expected, atol=3 * atol)
    log_integral = loggamma_integral(shape) + 0.5 * np.log(2 * np.pi)
    assert abs(design.log_evidence - log_integral) < atol


def loggamma_integral(shape):
    """Log ∫ exp(a x − a eˣ) dz, z = √a x."""
    return gammaln(shape) - shape * np.log(shape) + 0.5 * np.log(shape)


def two_peaks(z):
    """An eighth of the mass is five by five standard deviations away, and twice as wide."""
    near = np.log(7 / 8) - 0.5 * np.sum(z**2, axis=1)
    far = np.log(1 / 32) - 0.125 * np.sum((z - 5) ** 2, axis=1)
    return np.logaddexp(near, far)


@pytest.mark.parametrize("seed", range(4))
def test_mass_far_from_the_mode_is_found(seed):
    design = weighted_design(np.random.default_rng(seed), two_peaks, 2, 4096, looks_far=True)
    assert design is not None
    assert design.is_even
    mean, covariance = design.moments
    np.testing.assert_allclose(mean, 5 / 8, atol=0.15)
    variance = 7 / 8 + 4 / 8 + 25 * 7 / 64
    np.testing.assert_allclose(np.diagonal(covariance), variance, rtol=0.15)
    assert abs(design.log_evidence - np.log(2 * np.pi)) < 0.03


def test_weights_without_variance_are_to_be_checked():
    shift = Shift("a", 0.02, 0.02, -0.1, 0.0, 0.02, 0.2)
    assert Check([shift], 0.6).verdict == "use"
    assert Check([shift], 0.6, good_k=0.5).verdict == "check"


def test_uneven_weights_are_not_used():
    def log_densities(z):
        return -2e4 * np.sum((z - 3) ** 2, axis=1)

    for n in (64, 512):
        design = weighted_design(np.random.default_rng(5), log_densities, 6, n)
        assert design is not None
        assert not design.is_even


def test_a_report_is_of_chains():
    idata = pmb.approximate(group_effects("normal"), draws=50, random_seed=1)
    with pytest.raises(ValueError, match="verdict, reason and pareto_k"):
        pmb.report(idata)
