"""Short runs of models put together at random: the witness agrees, or they are refused in words.

``python -m tests.generated`` checks as many more as one likes.
"""

import pytest
from generated import check, check_posterior, generate

NUMBERS = (0, 2, 3, 4, 8, 10, 11, 13, 26, 29)
"""Models of seed 1: those that take least time, and two that once were faults."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", NUMBERS)
def test_no_model_fails_silently(number: int) -> None:
    made = generate(1, number)
    outcome = check(made)
    assert outcome.kind != "fault", (outcome.words, made.recipe)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [9, 15])
def test_posteriors_are_those_of_importance_sampling(number: int) -> None:
    """Models of seed 20261127; ``python -m tests.generated --posterior`` compares more."""
    made = generate(20261127, number)
    outcome = check_posterior(made)
    assert outcome.kind == "agreed", (outcome.words, made.recipe)
