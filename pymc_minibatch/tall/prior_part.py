"""Terms of the prior part that would read every row, which a model is refused for."""

from collections.abc import Sequence, Set

from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_minibatch.tall.evaluated import data_evaluated
from pymc_minibatch.tall.potentials import has_rows
from pymc_minibatch.tall.refusals import NotTallError, leaf_name
from pymc_minibatch.tall.slicing import data_leaves, leaf_value
from pymc_minibatch.tall.some_rows import taken_first

__all__ = ["refuse_passes"]


def refuse_passes(
    model: Model,
    terms: Sequence[tuple[str, Variable]],
    variables: Sequence[Variable],
    rows: Set[Variable],
    n_rows: int,
    *,
    is_bound: bool,
) -> None:
    """Refuse a prior part whose evaluation takes a pass over all rows.

    Parameters
    ----------
    model
        The model.
    terms : sequence of (str, Variable)
        Its potentials, by name, as far as they are no rows.
    variables : sequence of Variable
        Its random variables that have no rows.
    rows : set of Variable
        The arrays that hold rows.
    n_rows : int
        N.
    is_bound : bool
        Whether the data in the model are a stand-in, of which nothing is computed ahead.

    Raises
    ------
    NotTallError
        Naming the term.
    """
    for name, term in terms:
        if has_rows(term, n_rows):
            raise NotTallError(
                f"Potential {name} reads data with {n_rows} rows and is not a "
                "sum of one term for each of them, so every step would cost a full pass. "
                "Compute what it needs before building the model, or let it end with the sum."
            )
    for rv in variables:
        read = rows & set(ancestors([rv]))
        if read and (is_bound or _reads_rows(model, rv, n_rows)):
            names = ", ".join(sorted(leaf_name(leaf) for leaf in read))
            raise NotTallError(
                f"The distribution of {rv.name} reads {names} with {n_rows} rows, so "
                "every step would cost a full pass. Compute what it needs before building the "
                "model."
            )


def _reads_rows(model: Model, rv: Variable, n_rows: int) -> bool:
    """Whether the density of a variable reads rows at each draw, and not once."""
    evaluated = data_evaluated(taken_first(model.logp(vars=[rv], sum=False)))
    return any(n_rows in leaf_value(leaf).shape for leaf in data_leaves(evaluated))
