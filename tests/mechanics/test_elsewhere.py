"""Other modes of levels, far from where they were found."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch import MinibatchMH
from pymc_minibatch.latent.choose import make_latent_sampler
from pymc_minibatch.latent.sampler import LatentSampler
from pymc_minibatch.tall import TallModel

G, ROWS = 40, 60
RNG = np.random.default_rng(3)
GROUP = np.repeat(np.arange(G), ROWS)
X = RNG.normal(size=GROUP.size)
TRUE = RNG.normal(1.0, 0.7, G)
Y = np.abs(TRUE)[GROUP] + 0.2 * X + 0.5 * RNG.normal(size=GROUP.size)
ANGLES = np.sort(RNG.uniform(0.2, 1.3, G))
WAVE = 2.0 * np.sin(ANGLES)[GROUP] + 0.2 * X + 0.3 * RNG.normal(size=GROUP.size)


def mirrored() -> pm.Model:
    """Rows cannot tell the sign of a level, of which the prior prefers one."""
    with pm.Model() as model:
        level = pm.Normal("level", 0.1, pm.HalfNormal("sd", 2), shape=G)
        eta = pm.math.sqrt(level[GROUP] ** 2 + 0.01) + pm.Normal("slope") * X
        pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=Y)
    return model


def waves() -> pm.Model:
    """Rows cannot tell an angle from half a turn less that angle."""
    with pm.Model() as model:
        angle = pm.VonMises("angle", 0, pm.HalfNormal("kappa", 0.3), shape=G)
        eta = 2.0 * pm.math.sin(angle[GROUP]) + pm.Normal("slope") * X
        pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=WAVE)
    return model


def sampler_of(model: pm.Model) -> LatentSampler:
    return make_latent_sampler(TallModel(model), None, 1.0)


@pytest.mark.parametrize("model", [mirrored, waves])
def test_other_modes_are_found(model: Callable[[], pm.Model]) -> None:
    """Levels whose modes are more than eight standard deviations apart have a jump."""
    sampler = sampler_of(model())
    [levels] = sampler.field.levels
    centers = sampler.reference.surrogate.center[levels.latent][:, 0]
    assert sampler.decisions.level_rows is not None
    [(highest, jumps)] = sampler.decisions.level_rows.elsewhere
    if model is mirrored:
        expected, sd = -2 * centers, 0.5 / np.sqrt(ROWS)
    else:
        expected, sd = np.pi - 2 * centers, 0.3 / np.sqrt(ROWS) / (2 * np.cos(centers))
    are_apart = np.abs(expected) > 8 * sd
    found = np.abs(jumps[:, :, 0] - expected).min(axis=0) < 2 * sd
    assert are_apart.sum() > 20
    assert found[are_apart].all()
    assert np.all(highest[found & are_apart] > -5.0)


def test_a_mode_is_found_that_few_rows_of_a_level_cannot_tell_from_the_center() -> None:
    """Each level has a smooth change; the search ends beside that of the largest one."""
    rng = np.random.default_rng(11)
    n, n_levels = 50_000, 200
    share = 1.0 / np.arange(1, n_levels + 1) ** 0.7
    level, time = rng.choice(n_levels, n, p=share / share.sum()), rng.uniform(0, 104, n)
    mean, sd = np.array([50, 0.1, 6, 52]), np.array([8, 0.05, 2, 10])
    true = mean + sd * rng.normal(size=(n_levels, 4))
    true[0] = 64.7, 0.12, 6.3, 32.2
    a, b, d, at = true[level].T
    y = a + b * time + d / (1 + np.exp(-(time - at) / 3)) + 7 * rng.normal(size=n)
    with pm.Model() as model:
        mu = pm.Normal("mu", [50, 0, 0, 52], [30, 1, 10, 20])
        scale = pm.HalfNormal("scale", [20, 0.5, 5, 15])
        parts = [pm.Normal(f"z{i}", mu[i], scale[i], shape=n_levels)[level] for i in range(4)]
        width = pm.Gamma("width", 2, 0.5)
        change = parts[2] * pm.math.sigmoid((time - parts[3]) / width)
        pm.Normal("y", parts[0] + parts[1] * time + change, pm.HalfNormal("sigma", 20), observed=y)
    sampler = sampler_of(model)
    [levels] = sampler.field.levels
    center = sampler.reference.surrogate.center[levels.latent]
    assert sampler.decisions.level_rows is not None
    [(_, jumps)] = sampler.decisions.level_rows.elsewhere
    ends = np.concatenate([center[None], center + jumps])
    nearest = np.abs((ends - true) / [1, 0.03, 1, 3]).max(axis=2).min(axis=0)
    assert nearest[0] < 3.0


def test_no_other_mode_is_found_of_plain_levels() -> None:
    with pm.Model() as model:
        level = pm.Normal("level", pm.Normal("mu"), pm.HalfNormal("sd"), shape=G)
        pm.Poisson("y", pm.math.exp(level[GROUP] + pm.Normal("slope") * X), observed=np.rint(Y**2))
    level_rows = sampler_of(model).decisions.level_rows
    if level_rows is not None:
        assert not level_rows.elsewhere[0].jumps.any()


def test_shares_of_modes() -> None:
    """Of all levels, given the others, each draw against the odds of its two mirrored modes."""
    model = mirrored()
    with model:
        idata = pm.sample(
            1000, tune=300, step=MinibatchMH(), chains=2, cores=1, random_seed=4, progressbar=False
        )
    level, sd = idata.posterior["level"].values, idata.posterior["sd"].values[..., None]
    log_odds = 2 * 0.1 * np.abs(level) / sd**2  # of the positive mode, by the prior alone
    share = 1 / (1 + np.exp(-log_odds))
    surplus = (level > 0) - share  # the mean of each is 0
    errors = surplus.reshape(2, 20, 50, G).mean(axis=2).reshape(40, G)
    z = errors.mean(axis=0) / (errors.std(axis=0, ddof=1) / np.sqrt(40))
    assert np.abs(z).max() < 5.0
    assert np.abs(surplus.mean(axis=(0, 1))).max() < 0.15
