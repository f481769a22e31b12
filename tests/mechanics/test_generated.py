"""Models put together at random: they are split as their log-density says, or refused in words."""

from contextlib import suppress

import pytest
from generated import generate, log_densities_differ

from pymc_minibatch import NotTallError, TallModel


@pytest.mark.parametrize("number", range(100, 110))
def test_the_log_density_of_a_split_is_the_models(number: int) -> None:
    made = generate(1, number)
    with suppress(NotTallError):
        tall = TallModel(made.model)
        assert not log_densities_differ(made.model, tall, seed=number), made.recipe


def test_a_unit_changes_neither_rows_nor_parameters() -> None:
    """It is that of predictors, and coefficients have another prior for it."""
    for number in range(30):
        one, other = (generate(1, number, unit) for unit in (1.0, 2.0**20))
        assert [rv.name for rv in one.model.free_RVs] == [rv.name for rv in other.model.free_RVs]
        assert len(one.recipe) == len(other.recipe)
