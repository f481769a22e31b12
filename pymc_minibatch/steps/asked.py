"""What the user of a step asks for, and what its set-up may presume."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pymc_minibatch import acceptance as acceptance_tests
from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.proposals import Laplace, RandomWalk, SurrogateHamiltonian, SurrogateLangevin
from pymc_minibatch.proposals.proposal import Proposal
from pymc_minibatch.reference import Reference
from pymc_minibatch.reference.decide import check_control_variate

__all__ = ["Asked", "Claims", "RowChoice"]

type RowChoice = Literal["auto", "size", "uniform"]

TESTS: Mapping[str, Callable[[], Acceptance]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", test.__name__).lower(): test
    for test in acceptance_tests.TESTS
}
"""By their names for the user, such as "corrected_barker"."""

PROPOSALS: Mapping[str, Callable[[], Proposal]] = {
    "laplace": Laplace,
    "surrogate_hamiltonian": SurrogateHamiltonian,
    "surrogate_langevin": SurrogateLangevin,
    "random_walk": RandomWalk,
}


class Claims(NamedTuple):
    """What set-up may presume, unless its witness finds it wrong.

    Attributes
    ----------
    sums
        That sums say everything of the rows.
    effects
        That effects and their scales are a latent Gaussian field.
    bounds
        That third derivatives of rows are bounded.
    expansion
        That rows are an expansion and its remainders.
    """

    sums: bool = True
    effects: bool = True
    bounds: bool = True
    expansion: bool = True


class Asked(NamedTuple):
    """What the user has asked for; None or "auto" where that is left open."""

    acceptance: Acceptance | None
    proposal: Proposal | None
    reference: Reference | None
    control_variate: Literal["auto", 0, 1, 2]
    rows: RowChoice

    @classmethod
    def of(
        cls,
        acceptance: Acceptance | str | None,
        proposal: Proposal | str | None,
        reference: Reference | None,
        control_variate: Literal["auto", 0, 1, 2],
        rows: RowChoice,
    ) -> "Asked":
        """Look up names, and refuse what does not exist.

        Raises
        ------
        ValueError
            If an argument is none of its choices.
        """
        is_open = acceptance is None or (isinstance(acceptance, str) and acceptance == "auto")
        test = None if is_open else _named("acceptance", acceptance, TESTS, "build")
        moves = None if proposal is None else _named("proposal", proposal, PROPOSALS, "build")
        if rows not in ("auto", "size", "uniform"):
            raise ValueError(f"row_sampling must be 'auto', 'size' or 'uniform'; got {rows!r}.")
        check_control_variate(reference, control_variate)
        return cls(test, moves, reference, control_variate, rows)

    @property
    def is_open(self) -> bool:
        """Whether the test is to be chosen."""
        return self.acceptance is None

    @property
    def may_move_effects(self) -> bool:
        """Whether effects may be moved by themselves, about what is found for them."""
        of_effects = self.reference is None and self.proposal is None
        return of_effects and self.control_variate in ("auto", 2)

    @property
    def leaves_expansion_open(self) -> bool:
        """Whether rows need not be expanded."""
        return self.may_move_effects and self.is_open and self.control_variate == "auto"

    def refuse_batch_size(self) -> None:
        """Refuse a size of the first batch if the test chooses it.

        Raises
        ------
        ValueError
        """
        test = self.acceptance
        if test is not None and test.first_batch == "designed":
            raise ValueError(
                f"{type(test).__name__} chooses the size of its batches itself; leave batch_size "
                "out."
            )

    @property
    def may_stay(self) -> bool:
        """Whether rows may stay where they live, and some be gathered."""
        by_size = self.acceptance is None or self.acceptance.draws_by_size
        return by_size and self.rows != "uniform" and self.control_variate != 0


def _named(argument: str, value: Any, known: Mapping[str, Callable[[], Any]], needs: str) -> Any:
    """Return what the user named, or passed as an instance that has the method `needs`.

    Raises
    ------
    ValueError
        If it is neither.
    """
    if isinstance(value, str) and value in known:
        return known[value]()
    if isinstance(value, str | type) or not hasattr(value, needs):
        first = next(iter(known.values()))
        is_class = isinstance(value, type)
        shown = value.__name__ if is_class else repr(value)
        called = f" Call the class: {shown}()." if is_class else ""
        raise ValueError(
            f"{argument} must be one of {', '.join(map(repr, known))}, or an instance such as "
            f"{first()!r}; got {shown}.{called}"
        )
    return value
