"""Items and persons: thresholds of each item, and effects that multiply each other."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import expit

from pymc_minibatch.latent.locate import LatentModel, locate
from pymc_minibatch.tall import TallModel

PERSONS, ITEMS, CUTS = 300, 10, 3


def graded_model(*, products: bool = True) -> tuple[pm.Model, np.ndarray]:
    """Return graded responses, with the log of the discriminations that made them."""
    rng = np.random.default_rng(1)
    person, item = np.divmod(np.arange(PERSONS * ITEMS), ITEMS)
    log_a = rng.normal(0.2, 0.35, ITEMS) if products else np.zeros(ITEMS)
    cuts = np.sort(rng.normal(0, 0.7, (ITEMS, 1)) + rng.normal(0, 1.5, (ITEMS, CUTS)), axis=1)
    score = np.exp(log_a)[item] * rng.normal(size=PERSONS)[person] + rng.logistic(size=item.size)
    y = (score[:, None] > cuts[item]).sum(axis=1)
    with pm.Model() as model:
        ability = pm.Normal("ability", 0, 1, shape=PERSONS)
        thresholds = pm.Normal(
            "thresholds",
            0,
            3,
            shape=(ITEMS, CUTS),
            transform=pm.distributions.transforms.ordered,
            initval=np.tile(np.linspace(-2, 2, CUTS), (ITEMS, 1)),
        )
        eta = ability[person]
        if products:
            eta = pm.LogNormal("discrimination", 0, 0.5, shape=ITEMS)[item] * eta
        pm.OrderedLogistic("y", eta=eta, cutpoints=thresholds[item], observed=y, compute_p=False)
    return model, log_a


@pytest.fixture(scope="module")
def graded() -> tuple[TallModel, LatentModel, np.ndarray]:
    model, log_a = graded_model()
    tall = TallModel(model)
    return tall, locate(tall, 1.0), log_a


def is_affine(tall: TallModel) -> bool:
    """Whether what rows read is affine in the parameters, by values."""
    assert tall.structure is not None
    phi = pm.pytensorf.compile([tall.structure.flat], tall.structure.phi)
    a, b = np.random.default_rng(2).normal(size=(2, tall.layout.size))
    return np.allclose(phi(a) + phi(b), phi(a + b) + phi(np.zeros_like(a)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("products", [True, False])
def test_rows_read_thresholds_before_they_are_ordered(products: bool) -> None:
    assert is_affine(TallModel(graded_model(products=products)[0]))


def test_levels_whose_prior_is_one_number_for_a_vector_are_swept(
    graded: tuple[TallModel, LatentModel, np.ndarray],
) -> None:
    """Thresholds and discrimination of an item move together, by their own prior."""
    tall, located, _ = graded
    field = located.reference.surrogate.field
    assert not field.hyper.size
    [persons, items] = field.levels
    assert persons.latent.shape == (PERSONS, 1)
    assert items.latent.shape == (ITEMS, CUTS + 1)
    assert items.prior is not None
    point = tall.start + np.random.default_rng(3).normal(0, 0.3, tall.start.size)
    moved = point.copy()
    moved[items.latent[2]] += 0.4
    change = items.prior.logp(moved) - items.prior.logp(point)
    assert change[2] != 0.0
    assert not np.delete(change, 2).any()
    total = tall.compiled_prior_logp(moved) - tall.compiled_prior_logp(point)
    np.testing.assert_allclose(change[2], total, rtol=1e-9)


def test_what_multiplies_abilities_is_found_where_the_joint_mode_has_no_finite_averages(
    graded: tuple[TallModel, LatentModel, np.ndarray],
) -> None:
    """There discriminations are some thirty times too large."""
    tall, located, log_a = graded
    surrogate = located.reference.surrogate
    center = surrogate.field.derivatives.coordinates.to_model(surrogate.center)
    error = center[tall.layout.slices["discrimination_log__"]] - log_a
    assert abs(error.mean()) < 0.25
    assert np.abs(error).max() < 0.8


def test_many_items_are_found_where_averages_about_the_joint_mode_lead_astray() -> None:
    rng = np.random.default_rng(115)
    persons, items = 1000, 60
    ability, a = rng.normal(size=persons), rng.lognormal(0, 0.3, items)
    difficulty = rng.normal(0, 1.2, items)
    person, item = np.divmod(np.arange(persons * items), items)
    y = rng.random(person.size) < expit(a[item] * (ability[person] - difficulty[item]))
    with pm.Model() as model:
        theta = pm.Normal("ability", 0, 1, shape=persons)
        discrimination = pm.LogNormal("discrimination", 0, 0.5, shape=items)
        b = pm.Normal("difficulty", 0, 2, shape=items)
        eta = discrimination[item] * (theta[person] - b[item])
        pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
    tall = TallModel(model)
    surrogate = locate(tall, 1.0).reference.surrogate
    center = surrogate.field.derivatives.coordinates.to_model(surrogate.center)
    error = center[tall.layout.slices["discrimination_log__"]] - np.log(a)
    assert abs(error.mean()) < 0.1
    assert np.abs(error).max() < 0.5
