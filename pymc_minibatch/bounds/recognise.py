"""Recognise the family of a model by the distribution of its observed variable."""

from collections.abc import Sequence

from pytensor.graph.basic import Variable

from pymc_minibatch.bounds.families import FAMILIES
from pymc_minibatch.bounds.likelihood import ADVICE, Likelihood, NoBoundError, Reader
from pymc_minibatch.tall import TallModel

__all__ = ["recognise"]

BUILDERS = {kind: build for family in FAMILIES for kind, build in family.likelihoods.items()}


def recognise(tall: TallModel) -> Likelihood:
    """Find family and predictor of the observed variable.

    Raises
    ------
    NoBoundError
        If there are several observed variables, or theirs is not a family with a known bound, or
        the model computes what rows read from all of them.
    """
    if len(tall.row_names) > 1:
        raise NoBoundError(
            f"The rows belong to several observed variables ({' + '.join(tall.row_names)}), and "
            f"bounds are known for a single one only. {ADVICE}"
        )
    [name] = tall.row_names
    if tall.row_potentials:
        raise NoBoundError(f"{name} is a potential, so its family is not known. {ADVICE}")
    if tall.evaluates_data:
        raise NoBoundError(
            f"{name} depends on a statistic of all rows, such as a mean. Compute it before you "
            f"build the model. {ADVICE}"
        )
    rv = tall.model[name]
    op = rv.owner.op
    for kind, build in BUILDERS.items():
        if isinstance(op, kind):
            value = tall.model.rvs_to_values[rv]
            if value.ndim != 1:
                raise NoBoundError(
                    f"{name} has shape {tuple(value.shape.eval())}: several numbers in each row. "
                    "Write the data in long form, one number a row, with ravel()."
                )
            parameters: Sequence[Variable] = op.dist_params(rv.owner)  # type: ignore[attr-defined]
            return build(Reader(tall, name, value), *parameters)
    family = type(op).__name__.removesuffix("RV")
    reason = REASONS.get(family, "none is known for it")
    raise NoBoundError(
        f"{name} is {family}, which has no quadratic lower bound in its predictor: {reason}. "
        f"{ADVICE}"
    )


REASONS = {
    "Poisson": "the log-likelihood y η - exp(η) falls off faster than any parabola",
    "NegativeBinomial": "with a log link no bound is known that is tight at the mode",
}
