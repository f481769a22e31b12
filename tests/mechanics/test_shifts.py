"""Shifts of coefficients against levels that rows do not see."""

import numpy as np
import pymc as pm
import pytest

from pymc_minibatch.latent.field import LatentField
from pymc_minibatch.latent.locate import locate
from pymc_minibatch.latent.moves.shifted import log_kernel_of, slopes_along
from pymc_minibatch.tall import TallModel

PERSONS, REGIONS, EACH = 60, 6, 12


def field_of(one_row_differs: bool = False) -> LatentField:
    """Persons within regions, with a slope of their own, and three coefficients."""
    rng = np.random.default_rng(11)
    person = np.repeat(np.arange(PERSONS), EACH)
    region = np.arange(PERSONS)[person] % REGIONS
    old = (np.arange(PERSONS)[person] % 4 == 0).astype(float)
    if one_row_differs:
        old[7] = 1.0 - old[7]
    x, other = rng.normal(size=(2, person.size))
    with pm.Model() as model:
        intercept, of_old = pm.Normal("intercept"), pm.Normal("of_old")
        slope, of_other = pm.Normal("slope"), pm.Normal("of_other")
        of_region = pm.StudentT("of_region", nu=4, sigma=pm.HalfNormal("sd_region"), shape=REGIONS)
        of_person = pm.Normal("of_person", 0, pm.HalfNormal("sd_person"), shape=PERSONS)
        own_slope = pm.HalfNormal("sd_slope") * pm.Normal("z_slope", shape=PERSONS)
        eta = intercept + of_old * old + (slope + own_slope[person]) * x + of_other * other
        eta += of_region[region] + of_person[person]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, person.size))
    return locate(TallModel(model), 1.0).reference.surrogate.field


@pytest.fixture(scope="module")
def field() -> LatentField:
    return field_of()


def names_of(field: LatentField) -> list[str]:
    slices, found = field.derivatives.tall.layout.slices, []
    for shift in field.shifts:
        first = shift.variables[0]
        found += [name for name, at in slices.items() if at.start <= first < at.stop]
    return found


def test_which_can_be_shifted(field: LatentField) -> None:
    """One against persons by their slopes, the intercept against regions too."""
    expected = ["intercept", "of_old", "of_region", "slope"]
    assert sorted(set(names_of(field))) == expected
    assert names_of(field).count("intercept") == 2
    [regions] = [shift for shift in field.shifts if shift.variables.size == REGIONS]
    assert np.array_equal(regions.parent, np.arange(PERSONS) % REGIONS)


def test_one_row_is_enough_to_see_a_shift() -> None:
    assert "of_old" not in names_of(field_of(one_row_differs=True))


def test_rows_do_not_see_shifts(field: LatentField) -> None:
    """The log-likelihood of the model stays, though the variables alone would change it."""
    tall, rng = field.derivatives.tall, np.random.default_rng(12)
    likelihood = tall.model.compile_logp(vars=tall.model.observed_RVs)
    for shift in field.shifts:
        here = tall.start + 0.3 * rng.normal(size=tall.start.size)
        direction = shift.direction(field, here)
        assert direction is not None
        step = rng.normal(size=shift.variables.size)
        there, alone = shift.along(direction, here, step), here.copy()
        alone[shift.variables] += step
        before, after, without = (
            float(likelihood(tall.layout.unflatten(point))) for point in (here, there, alone)
        )
        assert after == pytest.approx(before, abs=1e-9)
        assert abs(without - before) > 1e-3


def test_kernels_of_shifts(field: LatentField) -> None:
    """Along a normal prior they are its conditional density; along others, normal densities."""
    rng, start = np.random.default_rng(13), field.derivatives.tall.start
    for shift in field.shifts:
        here = start + 0.3 * rng.normal(size=start.size)
        direction = shift.direction(field, here)
        assert direction is not None
        step = 0.1 * rng.normal(size=shift.variables.size)
        there, every = shift.along(direction, here, step), np.ones(step.size, dtype=bool)
        found = log_kernel_of(field, shift, (here, there), every)
        prior = field.derivatives.prior
        if shift.variables.size == 1 and len(shift.levels.latent) == PERSONS:
            assert found == pytest.approx(prior(here) - prior(there), abs=1e-8)
            continue
        expected = 0.0
        for sign, point in ((1.0, here), (-1.0, there)):
            slopes = slopes_along(field, shift, direction, point)
            for i in range(step.size):  # by differences along each variable
                unit = 1e-3 * np.eye(step.size)[i]
                ends = [prior(shift.along(direction, point, s * unit)) for s in (-1, 0, 1)]
                slope = (ends[2] - ends[0]) / 2e-3
                precision = -(ends[2] - 2 * ends[1] + ends[0]) / 1e-6
                assert slopes.slope[i] == pytest.approx(slope, abs=1e-4)
                away = sign * step[i] - slope / precision
                expected -= sign * 0.5 * (np.log(precision) - precision * away**2)
        assert found == pytest.approx(expected, abs=1e-3)
        assert abs(found - prior(here) + prior(there)) > 1e-6  # not normal


@pytest.mark.parametrize("where", ["mean", "scale", "column"])
def test_one_row_that_reads_an_effect_twice_is_enough(where: str) -> None:
    """Few rows of very many would not be among those on which a shift is compared."""
    rng, n = np.random.default_rng(14), 40 * PERSONS * EACH
    person, other = rng.integers(0, PERSONS, n), rng.integers(0, REGIONS, n)
    region, few = np.arange(PERSONS)[person] % REGIONS, np.zeros(n)
    few[-7] = 2.0
    with pm.Model() as model:
        z, u = pm.Normal("z", shape=PERSONS), pm.Normal("u", shape=REGIONS)
        eta = pm.Normal("a") + pm.HalfNormal("sd_z") * z[person] + u[region]
        log_scale = pm.Normal("log_sigma")
        if where == "scale":
            log_scale += few * u[other]
        else:
            eta += few * (u[other] if where == "mean" else u[3])
        pm.Normal("y", eta, pm.math.exp(log_scale), observed=rng.normal(size=n))
    found = locate(TallModel(model), 1.0).reference.surrogate.field
    start = found.derivatives.tall.layout.slices["u"].start
    shifted = {k - start for shift in found.shifts for k in shift.variables.tolist()}
    twice = 3 if where == "column" else int(other[-7])
    assert shifted & set(range(REGIONS)) == set(range(REGIONS)) - {twice}


@pytest.mark.parametrize("one_row_differs", [False, True])
def test_rows_with_several_predictors(one_row_differs: bool) -> None:
    """Each threshold reads the level and the properties of its group."""
    rng = np.random.default_rng(13)
    person = np.repeat(np.arange(PERSONS), EACH)
    old = (np.arange(PERSONS)[person] % 4 == 0).astype(float)
    size = rng.normal(size=PERSONS)[person]
    if one_row_differs:
        old[7] = 1.0 - old[7]
    with pm.Model() as model:
        of_old, of_size, of_x = pm.Normal("of_old"), pm.Normal("of_size"), pm.Normal("of_x")
        z = pm.Normal("z", shape=PERSONS)
        eta = of_old * old + of_size * size + of_x * rng.normal(size=person.size)
        eta += pm.HalfNormal("sd") * z[person]
        ordered, begin = pm.distributions.transforms.ordered, np.array([-1.0, 0.0, 1.0])
        cuts = pm.Normal("cuts", 0, 2, shape=3, transform=ordered, initval=begin)
        y = rng.integers(0, 4, person.size)
        pm.OrderedLogistic("y", eta=eta, cutpoints=cuts, observed=y, compute_p=False)
    found = locate(TallModel(model), 1.0).reference.surrogate.field
    assert names_of(found) == (["of_size"] if one_row_differs else ["of_old", "of_size"])


def test_means_of_several_effects_are_shifted_once_each() -> None:
    """Whichever of a level's own entries could make up for them."""
    rng = np.random.default_rng(17)
    person = np.repeat(np.arange(PERSONS), EACH)
    columns = rng.normal(size=(person.size, 3))
    with pm.Model() as model:
        mean, sd = pm.Normal("mean", shape=3), pm.HalfNormal("sd", shape=3)
        effects = mean + sd * pm.Normal("z", shape=(PERSONS, 3))
        eta = (effects[person] * columns).sum(axis=1)
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, person.size))
    found = locate(TallModel(model), 1.0).reference.surrogate.field
    start = found.derivatives.tall.layout.slices["mean"].start
    shifted = [k - start for shift in found.shifts for k in shift.variables.tolist()]
    assert sorted(shifted) == [0, 1, 2]
