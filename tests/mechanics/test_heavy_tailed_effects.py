"""Effects with Laplace priors, which have a peak, and with Cauchy priors, which bend upwards."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.pytensorf import compile as pymc_compile
from scipy.special import log_ndtr, logsumexp, voigt_profile
from scipy.stats import norm

import pymc_minibatch as pmb
from pymc_minibatch.convergence import convergence
from pymc_minibatch.jit.compiled import IN_PYTHON
from pymc_minibatch.latent.conditional import Conditional
from pymc_minibatch.latent.smoothed_prior import without_kinks

SD, GROUPS = 2.0, 60
"""Of rows; how many groups."""


def rows(tail="laplace"):
    """Rows of groups: some five each, or one or two where effects are far out now and then."""
    rng = np.random.default_rng(8)
    if tail == "laplace":
        group = np.sort(rng.integers(0, GROUPS, 300))
        return group, 5.0 + rng.laplace(0, 1.2, GROUPS)[group] + SD * rng.normal(size=300)
    group = np.r_[np.arange(GROUPS), np.arange(0, GROUPS, 2)]
    effects = 0.6 * rng.standard_cauchy(GROUPS)
    return group, 5.0 + effects[group] + SD * rng.normal(size=group.size)


def centred(b):
    return pm.Laplace("effect", 0, b, shape=GROUPS)


def noncentred(b):
    return b * pm.Laplace("z", 0, 1, shape=GROUPS)


def cauchy(b):
    return pm.Cauchy("effect", 0, b, shape=GROUPS)


def model(effects, tail="laplace"):
    group, y = rows(tail)
    with pm.Model() as model:
        mu, b = pm.Normal("mu", 0, 10), pm.HalfNormal("b", 3)
        pm.Normal("y", mu + effects(b)[group], SD, observed=y)
    return model


def log_normal_laplace(x, b, s):
    """Log-density of the sum of a Laplace and a normal variable (Reed, 2006)."""
    sides = [sign * x / b + log_ndtr(-sign * x / s - s / b) for sign in (1.0, -1.0)]
    return s**2 / (2 * b**2) - np.log(2 * b) + logsumexp(sides, axis=0)


def log_normal_cauchy(x, b, s):
    """Log-density of the sum of a Cauchy and a normal variable (Voigt's profile)."""
    return np.log(voigt_profile(x, s, b))


def exact_moments(log_density, tail):
    """Means and standard deviations of mu and log b, on a grid."""
    group, y = rows(tail)
    n = np.bincount(group, minlength=GROUPS)
    seen = n > 0
    means = np.bincount(group, y, minlength=GROUPS)[seen] / n[seen]
    mu, log_b = np.linspace(2.0, 8.0, 241), np.linspace(-4.0, 1.8, 291)
    log_p = np.empty((mu.size, log_b.size))
    for j, b in enumerate(np.exp(log_b)):
        away = means[None, :] - mu[:, None]
        log_p[:, j] = log_density(away, b, SD / np.sqrt(n[seen])).sum(axis=1)
        log_p[:, j] += norm.logpdf(b, 0, 3) + log_b[j]
    log_p += norm.logpdf(mu, 0, 10)[:, None]
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    found = {}
    for name, values, weights in (("mu", mu, p.sum(1)), ("b", log_b, p.sum(0))):
        mean = weights @ values
        found[name] = mean, np.sqrt(weights @ (values - mean) ** 2)
    return found


EFFECTS = {
    "Laplace, centred": (centred, log_normal_laplace, "laplace"),
    "Laplace, not centred": (noncentred, log_normal_laplace, "laplace"),
    "Cauchy": (cauchy, log_normal_cauchy, "cauchy"),
}


@pytest.mark.parametrize("kind", EFFECTS)
def test_draws_are_those_of_the_posterior(kind):
    effects, log_density, tail = EFFECTS[kind]
    with model(effects, tail):
        step = pmb.MinibatchMH()
        idata = pm.sample(
            1500, tune=300, chains=2, cores=1, step=step, random_seed=3, progressbar=False
        )
    for name, (mean, sd) in exact_moments(log_density, tail).items():
        draws = idata.posterior[name].values
        draws = np.log(draws) if name == "b" else draws
        effective = float(convergence(draws[:, :, None]).ess_bulk[0])
        assert effective > 300
        assert abs(draws.mean() - mean) < 4.5 * sd / np.sqrt(effective)
        assert abs(draws.std() / sd - 1) < 4.5 * 1.5 / np.sqrt(2 * effective)


def test_the_scale_is_found_at_set_up():
    """Far from where the search begins: rows and predictors are in units of their own."""
    rng = np.random.default_rng(12)
    group, x = rng.integers(0, 300, 6000), rng.normal(500, 100, 6000).round()
    y = 120 + 0.75 * x + rng.laplace(0, 9, 300)[group] + 60 * rng.normal(size=6000)
    with pm.Model() as model:
        b = pm.HalfNormal("b", 50)
        effect = pm.Laplace("effect", 0, b, shape=300)
        mean = pm.Normal("b0", 500, 500) + pm.Normal("b_x", 0, 2) * x + effect[group]
        pm.Normal("y", mean, pm.HalfNormal("sigma", 100), observed=y)
    with model:
        start = pmb.MinibatchMH(rng=np.random.default_rng(1)).near_mode(model.initial_point())
    assert 3 < np.exp(start["b_log__"]) < 25
    assert 50 < np.exp(start["sigma_log__"]) < 70
    assert 0.65 < start["b_x"] < 0.85


def rounded(build):
    """Whether a log-density of two effects and their scale stays as it is, and its slope."""
    flat = pt.dvector("flat")
    density = build(flat[:2], flat[2])
    smooth = without_kinks(density, flat)
    return smooth is density, pymc_compile([flat], [pt.grad(smooth, flat)], mode=IN_PYTHON)


SHAPES = {
    "divided": lambda x, b: pt.sum(-pt.log(2 * b) - abs(x) / b),
    "summed first": lambda x, b: -(1 / b) * abs(x).sum(),
    "times a rate": lambda x, b: pt.sum(-(1 / b) * abs(x)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_slope_is_that_of_a_normal_prior(shape):
    is_same, slope = rounded(SHAPES[shape])
    assert not is_same
    [found] = slope(np.array([0.7, -3.0, 1.5]))
    np.testing.assert_allclose(found[:2], -np.array([0.7, -3.0]) / (2 * 1.5**2))


OTHERS = {
    "normal": lambda x, b: pt.sum(-(x**2) / b),
    "scale of either sign": lambda x, b: pt.sum(-((x / abs(b)) ** 2) - pt.log(abs(b))),
    "scale times two": lambda x, b: pt.sum(-((x / (2 * abs(b))) ** 2)),
    "scales of their own": lambda x, b: pt.sum(-((b / (abs(x) * pt.constant([1.0, 2.0]))) ** 2)),
    "shifted scale": lambda x, b: pt.sum(-((b / (abs(x) + 0.01)) ** 2)),
    "logarithm": lambda x, b: pt.sum(pt.log(abs(x))) + b,
    "heavier tail": lambda x, b: pt.sum(-pt.log(1 + abs(x) / b)),
    "root": lambda x, b: pt.sum(-((abs(x) / b) ** 0.5)),
    "Huber": lambda x, b: pt.sum(pt.switch(abs(x) < b, -(x**2), -b * abs(x))),
    "product of two": lambda x, b: -abs(x[0]) * abs(x[1]) + b,
    "one for many": lambda x, b: pt.sum(-abs(x[:1]) * pt.constant([1.0, 2.0, 3.0])) + b,
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_stay_as_they_are(other):
    assert rounded(OTHERS[other])[0]


def test_scales_of_either_sign_are_set_up():
    group, y = rows()
    weights = np.linspace(0.5, 2.0, GROUPS)
    with pm.Model():
        effect = pm.Normal("effect", 0, abs(pm.Normal("z")) * weights, shape=GROUPS)
        pm.Normal("y", pm.Normal("mu", 0, 10) + effect[group], SD, observed=y)
        assert pmb.MinibatchMH().n_rows == y.size


def test_a_chain_starts_at_the_mode_if_no_other_start_is_found(monkeypatch):
    with model(centred) as made:
        step = pmb.MinibatchMH(rng=np.random.default_rng(1))
        far = {name: np.full_like(value, 50.0) for name, value in made.initial_point().items()}
        mode = step.latent.coordinates.to_model(step.latent.reference.surrogate.center)
        monkeypatch.setattr(Conditional, "is_proper", property(lambda self: False))
        start = step.near_mode(far)
    np.testing.assert_allclose(step.tall.layout.flatten(start), mode)
