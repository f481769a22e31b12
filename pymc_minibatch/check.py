"""What sampling a model will be like, found in seconds and without compiling."""

import math
import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np
from pymc.model import Model
from pymc.util import get_var_name
from pymc.vartypes import continuous_types
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Abs, Sign
from pytensor.tensor.elemwise import Elemwise

from pymc_minibatch.acceptance.growing import rows_wanted
from pymc_minibatch.arguments import checked_model
from pymc_minibatch.jit.interpreted import evaluator, only_looking
from pymc_minibatch.latent.choose import most_read, moves_saved_by_hyper
from pymc_minibatch.latent.recognition import has_effects
from pymc_minibatch.latent.sums import find_parabolic_rows
from pymc_minibatch.reference.decide import decide_control_variate
from pymc_minibatch.reference.reference import SeveralModesError
from pymc_minibatch.steps.deciding import settle
from pymc_minibatch.steps.display import mean_rows
from pymc_minibatch.steps.memory import bytes_of_step
from pymc_minibatch.steps.other_data import split_for_step
from pymc_minibatch.tall import NotTallError, TallModel
from pymc_minibatch.tall.missing_responses import without_missing_responses
from pymc_minibatch.tall.observed import refuse_missing_values
from pymc_minibatch.tall.sources import ROWS_IN_MEMORY
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["Check", "check", "checked"]

FEW_ROWS = 10_000
"""With fewer rows NUTS takes less time, compilation included (docs/benchmarks.md)."""

LOOKED_AT = 4000
"""Rows on which moves of all variables at once are set up."""

ALL_READ, SHARE_READ, MOST_READ = 20_000, 0.05, 3000.0
"""Up to so many rows decisions about effects read all of them, as a rule, and then such a share, up
to some thousand rows: 2,660 of 327,000 late flights by airline, destination and day."""

MOST_PARAMETERS = 40
"""With more parameters, or with rows that read several predictors, a look takes many seconds."""

SMOOTH_READ, KINKED_READ = 170.0, 1500.0
"""Rows of a decision about all variables at once if nobody looks, and if rows have kinks: 34 to 507
were measured in 14 models with 3,000 to 54,000 smooth rows, and in two models with 3,000 rows that
have kinks (Laplace and asymmetric Laplace) 757 and all."""

KINKED_OPERATIONS = Abs, Sign
"""Maxima are left out: sums of exponentials take them as well, and are smooth."""

ROWS_OF_MOVE = 1200.0
"""What a move by batches costs, in rows, with the share of it that only noise rejects: 980 to 1,370
in seven of eight models with 30,000 to 60,000 rows."""

TUNED_READ = 50.0
"""Rows of a decision if 16 do, the least, since the first batch is 100 and is tuned slowly."""

SUMS_SECONDS, EFFECTS_SECONDS, PLAIN_SECONDS, SEVERAL_SECONDS = 6.0, 10.0, 5.0, 14.0
"""Seconds of compilation: with effects, if sums over rows do and if rows are read; of all variables
at once, if rows read one predictor and if they read several. Means of 4, 4, 4 and 10 models, which
took 3 to 28 s, on two busy cores."""

FACTOR_SECONDS, BORDER_SECONDS = 2.5, 7.0
"""Seconds that a grouping factor adds for each 10⁵ rows, and that levels beside those of the
largest factor do for each 1,000², as they make the matrix dense. Measured were 16 to 21 s for
73,421 ratings of 1,128 lecturers by 2,972 students, 31 s for 327,346 flights and three factors of
16 to 365 levels, and 22 to 54 s for these and 4,037 aircraft."""

PASSES, SECONDS_OF_ROW = 20.0, 2e-8
"""Passes over all rows that set-up takes, and seconds of one array of a row in a pass."""

DRAWS = 2 * 1000
"""Draws that memory is estimated for: those that :func:`sample` makes by default on two cores."""


@dataclass(frozen=True)
class Check:
    """How a model would be sampled, and at what cost.

    Attributes
    ----------
    supported : bool
        Whether :class:`MinibatchMH` can sample the model.
    exact : bool or None
        Whether decisions will be exact; None if that is not known before the mode is found.
    updates : dict of str to str
        How each free variable is updated.
    n_rows : int
        N; 0 if there are no rows.
    expected_rows : float
        Estimated rows per decision; NaN if the model is not supported.
    setup_seconds : float
        Estimated seconds of the first set-up, including compilation.
    memory : int
        Estimated bytes of set-up and sampling beyond the data of the model, with 2,000 draws of
        all variables.
    method : {"minibatch", "nuts"}
        What :func:`sample` chooses.
    reasons : list of str
        The reasons for this choice.

    Examples
    --------
    >>> import pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    >>> found = pmb.check(model)
    >>> found.supported, found.method
    (False, 'nuts')
    """

    supported: bool
    exact: bool | None
    updates: dict[str, str]
    n_rows: int
    expected_rows: float
    setup_seconds: float
    memory: int
    method: str
    reasons: list[str] = field(default_factory=list)

    def _facts(self) -> Mapping[str, str]:
        if not self.supported:
            return {"supported": "no", "method": self.method, "why": " ".join(self.reasons)}
        exact = {True: "yes", False: "no", None: "not known before the mode is found"}[self.exact]
        return {
            "supported": f"yes, {self.n_rows:,} rows",
            "exact": exact,
            **{f"updates {name}": how for name, how in self.updates.items()},
            "expected rows": f"{mean_rows(self.expected_rows)} per decision",
            "set-up": f"about {self.setup_seconds:,.0f} s the first time",
            "memory": f"about {self.memory / 1e6:,.0f} MB",
            "method": self.method,
            "why": " ".join(self.reasons),
        }

    def __str__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts))
        return "\n".join(f"{name:{width}}  {fact}" for name, fact in facts.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(fact)}</td></tr>"
            for name, fact in self._facts().items()
        )
        return f"<table>{rows}</table>"


def check(model: Any = None, *, data: Any = None) -> Check:
    """Estimate within seconds how a model would be sampled, without compiling anything.

    The code that sets up a step also splits the model here, so both refuse the same models with
    the same message. Rows, seconds and bytes are estimates.

    Parameters
    ----------
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own; see :class:`TallModel`.

    Returns
    -------
    Check
        Whether the model is supported, how it would be sampled, and at what cost. It prints as a
        table.

    Raises
    ------
    TypeError
        If there is no model.

    See Also
    --------
    sample : Samples by the method that is named here.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=np.random.default_rng(1).normal(size=20_000))
    >>> found = pmb.check(model)
    >>> found.supported, found.method
    (True, 'minibatch')
    """
    of_bambi = model is not None and not isinstance(model, Model) and hasattr(model, "build")
    if of_bambi:
        if not getattr(model, "built", True):
            model.build()
        model = model.backend.model
    return checked(checked_model(model), data, keeps_rows=not of_bambi)[0]


def checked(
    model: Model, data: Any, *, keeps_rows: bool = True
) -> tuple[Check, TallModel | None, list[str]]:
    """Return the check, the split, and the variables that a step can move.

    `keeps_rows` says whether draws of Deterministics with one value per row are kept, which Bambi
    leaves out.
    """
    free = without_missing_responses(model).free_RVs
    moved = [rv.name for rv in free if rv.dtype in continuous_types]
    try:
        if not moved:
            raise NotTallError("The model has no continuous free variable.")
        refuse_missing_values(model, data)
        tall = split_for_step(model, data, ROWS_IN_MEMORY)
    except NotTallError as error:
        left = dict.fromkeys((rv.name for rv in model.free_RVs), "NUTS, or as PyMC chooses")
        refused = Check(
            supported=False,
            exact=None,
            updates=left,
            n_rows=0,
            expected_rows=math.nan,
            setup_seconds=math.nan,
            memory=0,
            method="nuts",
            reasons=[str(error)],
        )
        return refused, None, moved
    return _of_split(tall, moved, keeps_rows), tall, moved


def _of_split(tall: TallModel, moved: list[str], keeps_rows: bool) -> Check:
    """Say how a model that splits is sampled."""
    whole = len(moved) == len(tall.model.free_RVs)
    manner = _manner(tall, whole)
    updates = {name: manner.updates.get(name, TOGETHER) for name in moved}
    updates |= {
        rv.name: "another step of PyMC, which reads all rows"
        for rv in tall.model.free_RVs
        if rv.name not in moved
    }
    method, reason = "minibatch", manner.reason
    if tall.n_rows < FEW_ROWS:
        method = "nuts"
        reason = (
            f"With {tall.n_rows:,} rows, fewer than {FEW_ROWS:,}, NUTS takes less time. {reason}"
        )
    elif latent := tall.latent_of_rows:
        method = "nuts"
        names = ", ".join(latent)
        reason = f"With a value of {names} for each row, NUTS takes less time. {reason}"
    return Check(
        supported=True,
        exact=manner.exact,
        updates=updates,
        n_rows=tall.n_rows,
        expected_rows=manner.expected_rows,
        setup_seconds=_seconds(tall, manner),
        memory=_bytes(tall, whole, keeps_rows),
        method=method,
        reasons=[reason],
    )


WITH_EFFECTS = "with the effects that depend on it"

TOGETHER = "jointly with all others, by proposals for a nearly normal posterior"


class _Manner(NamedTuple):
    """How a model is sampled."""

    exact: bool | None
    expected_rows: float
    updates: dict[str, str]
    reason: str
    seconds: float
    """Of compilation."""


def _manner(tall: TallModel, whole: bool) -> _Manner:
    structure = tall.structure
    if structure is None or not (whole and _has_effects(tall)):
        return _of_all_at_once(tall)
    updates = _updates_of_effects(tall, structure)
    of_factors = _seconds_of_factors(structure, tall.n_rows)
    seconds = EFFECTS_SECONDS + of_factors
    if find_parabolic_rows(tall, structure) is not None:
        reason = (
            "Sums over the rows are sufficient statistics: set-up computes them, and no decision "
            "reads a row."
        )
        return _Manner(True, 0.0, updates, reason, SUMS_SECONDS + of_factors)
    if tall.n_rows <= ALL_READ or _all_rows_are_cheaper(tall, structure, updates):
        reason = "All rows decide on updates of effects and scales, which takes less time here."
        return _Manner(True, float(tall.n_rows), updates, reason, seconds)
    rows = min(SHARE_READ * tall.n_rows, MOST_READ)
    reason = "Effects are updated group by group, and scales together with their effects."
    return _Manner(None, rows, updates, reason, seconds)


def _all_rows_are_cheaper(
    tall: TallModel, structure: RowStructure, updates: Mapping[str, str]
) -> bool:
    """Whether moves by batches cost more than to evaluate all rows, as set-up decides it."""
    sizes = {name: where.stop - where.start for name, where in tall.layout.slices.items()}
    of_values = {get_var_name(rv): tall.model.rvs_to_values[rv].name for rv in tall.model.free_RVs}
    n_scales = sum(sizes[of_values[n]] for n, words in updates.items() if words == WITH_EFFECTS)
    most = most_read(len(structure.predictors))
    return ROWS_OF_MOVE * moves_saved_by_hyper(n_scales) > most * tall.n_rows


def _of_all_at_once(tall: TallModel) -> _Manner:
    """Set up moves of all variables at once on a few rows, each of which stands for many."""
    reason = "All variables are updated jointly."
    structure = tall.structure
    is_small = structure is not None and len(structure.predictors) == 1
    if tall.partitions is not None or not is_small or tall.layout.size > MOST_PARAMETERS:
        rows = min(tall.n_rows, KINKED_READ if _has_kinks(tall) else SMOOTH_READ)
        return _Manner(None, rows, {}, reason, SEVERAL_SECONDS)
    part = _some_rows(tall, LOOKED_AT)
    temperature = part.n_rows / tall.n_rows
    with warnings.catch_warnings(), only_looking():
        warnings.simplefilter("ignore")
        try:
            control = decide_control_variate(part, None, "auto", temperature, one_mode=False)
            settled = settle(part, control, "auto", "auto")
        except SeveralModesError:
            reason = "The posterior has several modes, and effects are updated about each in turn."
            return _Manner(None, float(tall.n_rows), {}, reason, EFFECTS_SECONDS)
    test = settled.acceptance
    told = settled.reason[:1].upper() + settled.reason[1:]
    if settled.prepared is not None:
        return _Manner(True, settled.rows_read, {}, f"{reason} {told}.", PLAIN_SECONDS)
    if control is None or not control.order or not np.isfinite(settled.rows_read):
        return _Manner(False, float(tall.n_rows), {}, f"{reason} {told}.", PLAIN_SECONDS)
    limits = test.parameters(temperature, np.empty(1), tall.n_rows)[0]
    wanted = rows_wanted(limits, settled.rows_read, tall.n_rows)
    rows = min(tall.n_rows, max(wanted, TUNED_READ))
    return _Manner(False, rows, {}, f"{reason} {told}.", PLAIN_SECONDS)


def _has_kinks(tall: TallModel) -> bool:
    """Whether rows have kinks in the parameters, such as those of |y − μ|, by their operations."""
    (flat, *batch), outputs = tall.batch_graph
    nodes = {variable.owner for variable in ancestors(outputs) if variable.owner is not None}
    for node in nodes:
        if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, KINKED_OPERATIONS):
            read = set(ancestors(node.inputs))
            if flat in read and not read.isdisjoint(batch):
                return True
    return False


def _some_rows(tall: TallModel, n: int) -> TallModel:
    """Return a model with some of the rows, which shares nothing that is made later."""
    part = copy(tall)
    for name in list(vars(part)):
        if name.startswith(("compiled_", "vector_", "_structure", "checksum")):
            del vars(part)[name]
    if n < tall.n_rows:
        rows = np.sort(np.random.default_rng(1).choice(tall.n_rows, n, replace=False))
        part.row_inputs = {name: each.taken(rows) for name, each in tall.row_inputs.items()}
        part.n_rows = n
    return part


def _has_effects(tall: TallModel) -> bool:
    return tall.structure is not None and has_effects(tall, tall.structure)


def _updates_of_effects(tall: TallModel, structure: RowStructure) -> dict[str, str]:
    """Say how the variables of a model with effects are updated."""
    free = set(tall.model.free_RVs)
    scales = {
        get_var_name(parent)
        for rv in free
        for parent in free.intersection(ancestors(rv.owner.inputs))
    } | _that_enter_curved(tall, structure)
    return {
        rv.name: WITH_EFFECTS
        if rv.name in scales
        else "with the other effects and coefficients, or level by level"
        for rv in tall.model.free_RVs
    }


def _that_enter_curved(tall: TallModel, structure: RowStructure) -> set[str]:
    """Return variables of which effects are no affine function, as exp(log sd) · z is not of sd."""
    effects = evaluator([structure.flat], [structure.phi])
    one, other = np.random.default_rng(1).standard_normal((2, tall.layout.size))
    found = set()
    for value in tall.model.value_vars:
        where = tall.layout.slices.get(value.name)
        if where is None:
            continue
        end, middle = one.copy(), one.copy()
        end[where], middle[where] = other[where], (one[where] + other[where]) / 2
        with np.errstate(all="ignore"):
            ends, twice = effects(one) + effects(end), 2 * effects(middle)
        if not np.allclose(ends, twice, rtol=1e-6, atol=1e-6, equal_nan=True):
            found.add(tall.model.values_to_rvs[value].name)
    return found


def _seconds_of_factors(structure: RowStructure, n_rows: int) -> float:
    """Estimate the seconds that grouping factors add, by their number and their levels."""
    gathered = [term for term in structure.terms if term.index is not None]
    first_of = dict[Any, slice]()  # effects that rows gather alike are of one factor
    for term in gathered:
        first_of.setdefault(term.index, term.block)
    sizes = list({block.start: block.stop - block.start for block in first_of.values()}.values())
    border = sum(sizes) - max(sizes, default=0)
    of_rows = FACTOR_SECONDS * len(sizes) * n_rows / 1e5
    return of_rows + BORDER_SECONDS * (border / 1000) ** 2


def _seconds(tall: TallModel, manner: _Manner) -> float:
    """Estimate the seconds of set-up: compilation, and passes over all rows."""
    return manner.seconds + PASSES * tall.n_rows * len(tall.data) * SECONDS_OF_ROW


def _bytes(tall: TallModel, whole: bool, keeps_rows: bool) -> int:
    """Estimate the bytes of set-up and sampling."""
    of_draws = tall.layout.size
    if keeps_rows:
        of_draws += sum(tall.sizes_of_row_deterministics().values())
    return int(bytes_of_step(tall, whole and _has_effects(tall)) + 8 * DRAWS * of_draws)
