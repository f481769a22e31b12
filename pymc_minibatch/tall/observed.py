"""What a model observes: log-density terms, and along which axes their rows may lie."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.simulator import SimulatorRV
from pymc.model import Model
from pymc.util import get_var_name
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.type import TensorType, continuous_dtypes
from pytensor.tensor.variable import TensorConstant, TensorVariable

from pymc_minibatch.tall.gathered import readable
from pymc_minibatch.tall.missing_responses import SUFFIX, is_of_pymc, missing_responses
from pymc_minibatch.tall.refusals import NotTallError, unfit_data, whole_term
from pymc_minibatch.tall.slicing import data_leaves, leaf_value

__all__ = [
    "ObservedTerm",
    "apart",
    "candidate_axes",
    "largest_log_density",
    "observed_terms",
    "row_counts",
    "sum_rows",
]

LARGER = 10
"""Potentials determine the rows if they have so many times more than what is observed.

Others, such as a prior of neighbouring areas that reads their pairs, are no likelihoods.
"""


FEW_ROWS = 10_000
"""Rows of all shorter likelihoods together that each transition may evaluate: they cost some tenth
of a millisecond, and exact tests and bounds stay possible, which are of one likelihood."""

FEW_EFFECTS = 30
"""Effects of which shorter likelihoods may read some if they are left to the prior part: the prior
of more effects would have no form that is known."""

LOG_OF_ONE = 0.1
"""Log of the largest probability, with room for rounding."""

MOST_ALIKE = 8
"""Variables of one length that are rows together; each row reads all of their predictors."""


@dataclass(frozen=True)
class ObservedTerm:
    """An observed variable, or a potential in its place.

    Attributes
    ----------
    name
        Its name.
    leaf
        Its data; None for a potential.
    term
        Its log-density; one axis less for each axis of a multivariate distribution.
    distribution
        Name of its distribution.
    shape
        Shape of its data.
    rest
        What a potential adds to the sum of its terms, a scalar; None if nothing.
    """

    name: str
    leaf: Variable | None
    term: TensorVariable
    distribution: str
    shape: tuple[int, ...]
    rest: TensorVariable | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the axes along which rows may lie."""
        return self.shape[: self.term.ndim]

    @property
    def longest(self) -> int:
        """The number of rows that it may have, or would if it were not one number for all."""
        return max(self.lengths or self.shape, default=0)


def observed_terms(model: Model) -> list[ObservedTerm]:
    """List the observed variables.

    Raises
    ------
    NotTallError
        If values are missing, data are a minibatch, or shapes do not match.
    """
    observed = model.observed_RVs
    if not observed:
        return []
    refuse_missing_values(model)
    for rv in observed:
        _refuse_what_is_no_row(rv)
    leaves = [data_leaves([model.rvs_to_values[rv]])[-1] for rv in observed]
    try:
        terms = model.logp(vars=observed, sum=False)
    except ValueError as error:
        names = [get_var_name(rv) for rv in observed]
        values = [model.rvs_to_values[rv] for rv in observed]
        raise unfit_data(names, data_leaves([*observed, *values]), error) from error
    rows: list[Any] = readable(terms, model)
    return [
        ObservedTerm(get_var_name(rv), leaf, term, _distribution(rv), leaf_value(leaf).shape)
        for rv, leaf, term in zip(observed, leaves, rows, strict=True)
    ]


def apart(terms: Sequence[ObservedTerm], sizes: Mapping[str, int]) -> list[list[ObservedTerm]]:
    """Sort terms by the rows that they have in common; one set if they are to be split together.

    Those of one length have theirs in common, unless they are many. Potentials may have rows of
    their own, as those of censored times beside events; others, of entries of parameters, are left
    to the prior part. So are short likelihoods that read no effects: variables of some size, given
    by the names of their values, of which rows gather entries.
    """
    seen = [term for term in terms if term.leaf is not None and term.longest > 1]
    if any(not term.lengths for term in seen):
        return [list(terms)]
    sets: dict[int, list[ObservedTerm]] = {}
    for term in seen:
        sets.setdefault(max(term.lengths), []).append(term)
    for term in terms:
        if term.leaf is None and (max(term.lengths) in sets or _reads_values(term)):
            sets.setdefault(max(term.lengths), []).append(term)
    lengths = sorted(sets, reverse=True)
    if max(map(len, sets.values()), default=0) > MOST_ALIKE:
        return [[term] for each in sets.values() for term in each]
    shorter = [term for length in lengths[1:] for term in sets[length]]
    effects = {name for name in _gathered(terms) if sizes.get(name, 0) > FEW_EFFECTS}
    read = {name for term in shorter for name in _roots(term.term)}
    are_apart = sum(lengths[1:]) > FEW_ROWS or not effects.isdisjoint(read)
    return list(sets.values()) if are_apart else [list(terms)]


def _gathered(terms: Sequence[ObservedTerm]) -> set[str]:
    """Name the variables of which entries are gathered."""
    nodes = {each.owner for term in terms for each in ancestors([term.term]) if each.owner}
    gathers = [node for node in nodes if isinstance(node.op, AdvancedSubtensor)]
    return {name for node in gathers for name in _roots(node.inputs[0])}


def _roots(variable: Variable) -> set[str]:
    return {each.name for each in ancestors([variable]) if each.owner is None and each.name}


def _reads_values(term: ObservedTerm) -> bool:
    """Whether a potential reads data as values, and not only as positions of parameters."""
    stack, found = [term.term], set()
    while stack:
        variable = stack.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable.owner is not None:
            chooses = isinstance(variable.owner.op, AdvancedSubtensor)
            stack.extend(variable.owner.inputs[: 1 if chooses else None])
    return any(max(term.lengths) in leaf_value(leaf).shape for leaf in _leaves(found))


def _leaves(variables: Iterable[Any]) -> list[Variable]:
    return [v for v in variables if isinstance(v, SharedVariable | TensorConstant)]


def row_counts(terms: Sequence[ObservedTerm]) -> list[int]:
    """List the numbers of rows that the model may have, the largest first.

    Raises
    ------
    NotTallError
        If there are no terms, only one row, or one log-density for all entries of what has most.
    ValueError
        If there are no rows.
    """
    if not terms:
        raise NotTallError(
            "The model has no observed variable, and no potential that is a sum over rows of data. "
            "Give the likelihood its data with observed=."
        )
    main = max(terms, key=lambda t: t.longest / (LARGER if t.leaf is None else 1))
    if main.leaf is not None and 0 in main.shape:
        raise ValueError(f"{main.name} has no rows. Look at the data that were passed as observed.")
    if main.longest < 2:
        raise NotTallError(f"{main.name} has a single row; minibatches need at least two.")
    if not main.lengths:
        raise NotTallError(whole_term(main.name, main.distribution))
    return sorted({length for length in main.lengths if length > 1}, reverse=True)


def sum_rows(terms: Sequence[ObservedTerm], n_rows: int) -> TensorVariable:
    """Add the terms of each row up, over variables and over the axes that hold no rows."""
    rows = []
    for observed in terms:
        axis = observed.lengths.index(n_rows)
        others = [other for other in range(observed.term.ndim) if other != axis]
        rows.append(observed.term.sum(axis=others) if others else observed.term)
    return pt.add(*rows) if len(rows) > 1 else rows[0]


def _refuse_what_is_no_row(rv: TensorVariable) -> None:
    if isinstance(rv.owner.op, MinibatchRandomVariable):
        raise NotTallError(
            f"{rv.name} has total_size, so its data are a minibatch already. Give the whole "
            "data and leave total_size out."
        )
    if not isinstance(rv.type, TensorType):
        raise NotTallError(
            f"{rv.name} is a variable of pymc.dims, whose arrays have names for axes. Write it "
            "with the distribution of pymc that has the same name, and dims=."
        )
    if isinstance(rv.owner.op, SimulatorRV):
        raise NotTallError(
            f"{rv.name} is a pm.Simulator, whose rows have no log-density. Sample this model with "
            "pm.sample_smc."
        )


def refuse_missing_values(model: Model, data: Any = None) -> None:
    """Refuse rows with missing values, which PyMC makes variables of.

    Those of a response are drawn given all else, unless `data` are other data than the model's own
    (:mod:`.missing_responses`). Those of a covariate, which other rows or potentials read, are like
    any other variables if they are continuous. So are those of a variable that is shorter than
    others and has no axis of their lengths, such as a property of groups.

    Raises
    ------
    NotTallError
        Saying which, and how many.
    """
    drawn = [] if getattr(data, "is_bound", data is not None) else missing_responses(model)
    free = [rv for rv in model.free_RVs if rv not in drawn]
    imputed = [rv for rv in free if get_var_name(rv).endswith(SUFFIX)]
    shapes = _observed_shapes(model) if imputed else {}
    read = set(ancestors([*model.observed_RVs, *model.potentials])) if imputed else set()
    for rv in imputed:
        if rv in read and rv.dtype in continuous_dtypes:
            continue
        name = get_var_name(rv).removesuffix(SUFFIX)
        if f"{name}_observed" not in shapes:
            continue
        n = int(np.prod(model.eval_rv_shapes()[rv.name]))
        size = n + math.prod(shapes[f"{name}_observed"])
        others = [shape for other, shape in shapes.items() if other != f"{name}_observed"]
        lengths = {length for shape in others for length in shape}
        if size < max(lengths, default=0) and size not in lengths:
            continue
        raise NotTallError(
            f"{name} has {n:,} missing value{'s' * (n > 1)}, which PyMC imputes as free variables. "
            "Remove those rows, or impute their values, before you build the model."
        )


def _observed_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    leaves = {rv.name: data_leaves([model.rvs_to_values[rv]]) for rv in model.observed_RVs}
    return {name: np.shape(leaf_value(found[-1])) for name, found in leaves.items() if found}


def _distribution(rv: TensorVariable) -> str:
    names = getattr(rv.owner.op, "_print_name", None)
    return names[0] if names else type(rv.owner.op).__name__.removesuffix("RV")


def largest_log_density(model: Model, names: Sequence[str]) -> float:
    """Return the largest log-likelihood that a row of some variables can have.

    Probabilities are at most one. A sum of log Γ whose digits are lost, as those of a beta-binomial
    with a concentration of 10¹⁸ are, may have any value.
    """
    variables: list[Any] = [rv for rv in model.basic_RVs if rv.name in names]
    is_complete = len(variables) == len(names)  # rows of potentials may have any value
    ops: list[Any] = [v.owner.op for v in ancestors(variables) if v.owner is not None]
    ops += [op.base_rv_op for op in ops if hasattr(op, "base_rv_op")]  # of a truncated one
    is_known = all(map(is_of_pymc, ops))  # others may leave constants out
    is_discrete = all(np.issubdtype(rv.dtype, np.integer) for rv in variables)
    return LOG_OF_ONE if is_complete and is_discrete and is_known else math.inf


def candidate_axes(leaves: Sequence[Variable], n_rows: int) -> dict[Variable, list[int]]:
    """Find the axes along which the rows of each leaf may lie.

    Leaves are ordered by their kind: machine code is made for a list of types, and then serves all
    models that have the same.
    """

    def kind(leaf: Any) -> tuple[int, str]:
        return -leaf.type.ndim, leaf.type.dtype

    axes = {
        leaf: [axis for axis, length in enumerate(leaf_value(leaf).shape) if length == n_rows]
        for leaf in sorted(leaves, key=kind)
    }
    return {leaf: found for leaf, found in axes.items() if found}
