"""Models put together at random: they are split as their log-density says, or refused in words."""

from contextlib import suppress

import pytest
import wider
from generated import check_split, generate, log_densities_differ

from pymc_minibatch import NotTallError, TallModel


@pytest.mark.parametrize("number", range(100, 110))
def test_the_log_density_of_a_split_is_the_models(number: int) -> None:
    made = generate(1, number)
    with suppress(NotTallError):
        tall = TallModel(made.model)
        assert not log_densities_differ(made.model, tall, seed=number), made.recipe


@pytest.mark.parametrize("number", range(40, 48))
def test_so_are_those_of_more_kinds(number: int) -> None:
    made = wider.generate(20261127, number)
    outcome = check_split(made)
    assert outcome.kind != "fault", (outcome.words, made.recipe)


def test_a_unit_changes_neither_rows_nor_parameters() -> None:
    """It is that of predictors, and coefficients have another prior for it."""
    for number in range(30):
        one, other = (generate(1, number, unit) for unit in (1.0, 2.0**20))
        assert [rv.name for rv in one.model.free_RVs] == [rv.name for rv in other.model.free_RVs]
        assert len(one.recipe) == len(other.recipe)
