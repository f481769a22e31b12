"""Chains for which batches do not pay go on along trajectories with all rows."""

from contextlib import suppress

import arviz as az
import numpy as np
import pymc as pm
import pytest
from pymc.exceptions import SamplingError
from scipy.stats import gamma

import pymc_minibatch as pmb
from pymc_minibatch.reference import decide
from pymc_minibatch.steps.mixing import Mixing
from pymc_minibatch.steps.trajectories import Trajectories, WhitenedPotential

QUIET = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}
COUNTS = np.random.default_rng(1).poisson(2.0, 400)


def rates():
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Poisson("y", rate, observed=COUNTS)
    return model


def responses(n_persons=60, n_items=20):
    """A three-parameter logistic model of answers, which multiplies unknowns within a mixture."""
    rng = np.random.default_rng(5)
    person, item = (each.ravel() for each in np.mgrid[:n_persons, :n_items])
    ability, slope = rng.normal(size=n_persons), rng.lognormal(0.0, 0.3, n_items)
    hard, guess = rng.normal(size=n_items), rng.beta(5, 20, n_items)
    known = 1 / (1 + np.exp(-slope[item] * (ability[person] - hard[item])))
    right = rng.random(person.size) < guess[item] + (1 - guess[item]) * known
    with pm.Model() as model:
        ability = pm.Normal("ability", 0, 1, shape=n_persons)
        slope = pm.LogNormal("slope", 0, 0.5, shape=n_items)
        hard = pm.Normal("hard", 0, 1.5, shape=n_items)
        guess = pm.Beta("guess", 5, 20, shape=n_items)
        known = pm.math.sigmoid(slope[item] * (ability[person] - hard[item]))
        p = guess[item] + (1 - guess[item]) * known
        pm.Bernoulli("right", p=p, observed=right.astype(int))
    return model


@pytest.fixture
def forced(monkeypatch):
    """Let every chain find after 100 draws that batches do not pay."""
    monkeypatch.setattr(Mixing, "goes_nowhere", lambda self, *_: len(self.draws) == 100)


def interrupting(at):
    """Return what draws along a trajectory, but raises an interrupt at one of them."""
    draw, seen = Trajectories.draw, []

    def interrupted(self, flat, rng, tune):
        seen.append(tune)
        if len(seen) == at:
            raise KeyboardInterrupt
        return draw(self, flat, rng, tune)

    return interrupted


def test_trajectories_sample_the_posterior(forced):
    model = rates()
    step = pmb.MinibatchMH(model=model)
    found = pmb.sample(model, 3000, 400, 2, step=step, random_seed=1, **QUIET)
    stats = found.sample_stats
    assert (stats["batch_size"] == COUNTS.size).all()
    assert stats["exact"].all()
    assert stats["witness_error"].max() < 1e-6
    posterior = gamma(2.0 + COUNTS.sum(), scale=1 / (1.0 + COUNTS.size))
    draws = found.posterior["rate"]
    error = posterior.std() / np.sqrt(float(az.ess(draws.values)))
    assert abs(float(draws.mean()) - posterior.mean()) < 4.5 * error
    np.testing.assert_allclose(draws.std(), posterior.std(), rtol=0.1)


def test_known_correlations_are_kept_and_variances_are_learnt_beside_them():
    """Where the covariance that is known is wrong by a factor along each of its coordinates."""
    rng = np.random.default_rng(7)
    n, d = 4000, 60
    cholesky = np.tril(rng.normal(size=(d, d))) + 9.0 * np.eye(d)
    wrong = np.exp(rng.uniform(-2.0, 2.0, d))
    draws = (rng.normal(size=(n, d)) * wrong) @ cholesky.T
    potential = WhitenedPotential(np.zeros(d), cholesky)
    potential.rng = rng
    for draw in draws:
        potential.update(draw, np.zeros(d), tune=True)
    momenta = np.array([potential.random() for _ in range(n)])
    velocities = np.array([potential.velocity(momentum) for momentum in momenta])
    moved = np.linalg.solve(cholesky, velocities.T).T / wrong
    np.testing.assert_allclose(np.cov(moved.T), np.eye(d), atol=0.5)  # windows have 101 draws
    energies = [potential.energy(momentum) for momentum in momenta]
    assert abs(np.mean(energies) - d / 2) < 5 * np.sqrt(d / 2 / n)
    out = np.empty(d)
    assert potential.velocity_energy(momenta[0], out) == pytest.approx(energies[0])
    np.testing.assert_allclose(out, velocities[0])


def test_a_stored_run_goes_on_along_its_trajectories(forced, tmp_path):
    model = rates()
    whole = pmb.sample(
        model, 200, 300, 2, step=pmb.MinibatchMH(model=model), random_seed=2, **QUIET
    )

    for at in (50, 270):  # while it tunes, and afterwards
        store = tmp_path / f"run-{at}"
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt, SamplingError):
            patch.setattr(Trajectories, "draw", interrupting(at))
            step = pmb.MinibatchMH(model=model)
            pmb.sample(model, 200, 300, 2, step=step, random_seed=2, store=store, **QUIET)
        resumed = pmb.resume(store, model=model, progressbar=False)
        np.testing.assert_array_equal(resumed.posterior["rate"], whole.posterior["rate"])


@pytest.mark.parametrize(
    "options",
    [{"fallback": None}, {"proposal": pmb.RandomWalk()}, {"batch_size": 50}, {"temperature": 2.0}],
    ids=str,
)
def test_what_was_asked_for_is_done(forced, options):
    model = rates()
    step = pmb.MinibatchMH(model=model, **options)
    pm.sample(20, tune=300, chains=1, step=step, model=model, random_seed=1, **QUIET)
    assert not step.by_trajectories


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="fallback must be 'nuts' or None"):
        pmb.MinibatchMH(model=rates(), fallback="hmc")


def test_a_product_of_unknowns_within_a_mixture_mixes(forced):
    model = responses()
    found = pmb.sample(
        model, 1000, 500, 2, step=pmb.MinibatchMH(model=model), random_seed=3, **QUIET
    )
    assert found.sample_stats["rows_per_sweep"].isnull().all()
    ess, rhat = az.ess(found.posterior.to_dataset()), az.rhat(found.posterior.to_dataset())
    assert min(float(ess[name].min()) for name in ess.data_vars) > 150
    assert max(float(rhat[name].max()) for name in rhat.data_vars) < 1.06
    with model:
        other = pm.sample(1000, tune=500, chains=2, random_seed=4, **QUIET)
    for name in ("ability", "slope", "hard", "guess"):
        means, errors = zip(
            *(moments(each.posterior[name]) for each in (found, other)), strict=True
        )
        assert (np.abs(means[0] - means[1]) < 5.0 * np.hypot(*errors)).all()


def moments(draws):
    """Means, and their Monte Carlo errors."""
    sd = draws.std(("chain", "draw"))
    return draws.mean(("chain", "draw")), sd / np.sqrt(az.ess(draws.to_dataset())[draws.name])


OUTCOMES = 1.3 + np.random.default_rng(2).exponential(0.5, 3000)


def support_with_an_end(kind):
    """Rows that are impossible at some parameters, and the mean and sd of where the support ends.

    Given the rate λ, the smallest outcome less the shift is exponential with rate N λ. Uniform rows
    leave θ with a Pareto density of N + 1 beyond the largest one. Priors are wide.
    """
    n = OUTCOMES.size
    with pm.Model() as model:
        if kind == "shift":
            end, rate = pm.Normal("end", 0, 10, initval=0.0), pm.HalfNormal("rate", 10)
            pm.Potential("y", pm.logp(pm.Exponential.dist(rate), OUTCOMES - end))
            spread = (OUTCOMES - OUTCOMES.min()).mean() / n
            return model, OUTCOMES.min() - spread, spread
        end = pm.HalfNormal("end", 1e3, initval=50.0)
        pm.Uniform("y", 0, end, observed=OUTCOMES)
    return model, OUTCOMES.max() * n / (n - 1), OUTCOMES.max() / n


@pytest.mark.parametrize("kind", ["shift", "uniform"])
def test_supports_that_end_at_a_parameter_are_sampled_with_all_rows(kind):
    model, mean, sd = support_with_an_end(kind)
    with model:
        step = pmb.MinibatchMH()
        idata = pm.sample(step=step, tune=600, draws=800, chains=1, random_seed=3, **QUIET)
    assert step.by_trajectories
    end = idata.posterior["end"].to_numpy()
    assert np.all(end < OUTCOMES.min() if kind == "shift" else end > OUTCOMES.max())
    error = sd / np.sqrt(float(az.ess(end)))
    assert float(az.ess(end)) > 60
    assert abs(end.mean() - mean) < 5 * error + 0.02 * sd
    assert 0.6 * sd < end.std() < 1.6 * sd


@pytest.mark.parametrize("options", [{"fallback": None}, {"batch_size": 50}])
def test_a_row_that_is_impossible_stops_chains_that_may_not_read_all(options):
    model, *_ = support_with_an_end("shift")
    with model, pytest.raises(SamplingError, match="likelihood depends on the parameters"):
        pm.sample(step=pmb.MinibatchMH(**options), tune=600, draws=50, chains=1, **QUIET)


def test_chains_without_a_mode_go_along_trajectories_at_once(monkeypatch):
    """The posterior is normal, so that its moments are known."""

    def fails(*args, **kwargs):
        raise pmb.NoReferenceError("there is none")

    monkeypatch.setattr(decide, "search", fails)
    rng = np.random.default_rng(6)
    X = rng.normal(size=(500, 6)) @ (np.eye(6) + 0.5)
    y = X @ rng.normal(size=6) + rng.normal(size=500)
    with pm.Model():
        pm.Normal("y", pm.math.dot(X, pm.Normal("b", 0, 1, shape=6)), 1.0, observed=y)
        with pytest.warns(pmb.MinibatchWarning, match="No control variate"):
            step = pmb.MinibatchMH()
        idata = pm.sample(1000, tune=300, step=step, chains=1, random_seed=1, **QUIET)
    assert (idata["sample_stats"]["n_gradient"].values > 0).all()
    covariance = np.linalg.inv(X.T @ X + np.eye(6))
    draws, sds = idata["posterior"]["b"].values[0], np.sqrt(np.diag(covariance))
    ess = az.ess(idata["posterior"])["b"].values
    assert np.all(ess > 200)
    assert np.all(np.abs(draws.mean(axis=0) - covariance @ X.T @ y) < 5 * sds / np.sqrt(ess))


def test_chains_that_are_to_have_no_mode_go_by_batches():
    with pm.Model():
        pm.Normal("y", pm.Normal("b", 0, 1, shape=6).sum(), 1.0, observed=np.ones(100))
        step = pmb.MinibatchMH(control_variate=0)
    assert not step.fallback.begins_at_once(1000, 1000)
