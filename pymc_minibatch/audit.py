"""Was a run right? Its moves beside the model's own density, its decisions beside all rows.

An audit is the witness of a run (:mod:`pymc_minibatch.witness`) with more moves: from draws of the
run, moves are made as the step makes them, and their log ratios compared with PyMC's own
log-density. If batches of rows decide, the decision on each of some moves is repeated many
times, each time with a part ψ that needs no rows so that the log ratio by all rows is one of a few
given numbers. So the frequency of acceptance can be compared with the probability that the test
stands for, and the estimates of log ratios with what all rows make them.

The exact test has no such probability, but a balance: with ψ = 0 and r the log ratio that the rows
add, it must accept the move e^r times as often as the move back.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pymc_minibatch.acceptance.decision import row_workspace
from pymc_minibatch.arguments import checked_count
from pymc_minibatch.draws import draws_of_step
from pymc_minibatch.jit.cache import class_key
from pymc_minibatch.jit.compiled import CompiledFunction, jit_kept
from pymc_minibatch.kernels.audit import make_proposing, make_repeating
from pymc_minibatch.kernels.residents import Residents
from pymc_minibatch.steps import MinibatchMH
from pymc_minibatch.steps.common import TallStep
from pymc_minibatch.tall.passes import sum_over_chunks
from pymc_minibatch.verdict import CONFIDENCE, TUNING, Audit, judge
from pymc_minibatch.witness import Comparison
from pymc_minibatch.witness.repeats import (
    LOG_RATIOS,
    Repeats,
    decided_by_batches,
    repeat_on_effects,
)

__all__ = ["audit"]

LOOKS = 50
"""Draws from which moves are compared with the model's density; each takes some eight passes."""

SPREAD = 0.19
"""Mean of p (1 − p) over the log ratios at which decisions are repeated."""

PILOT, MOST_READ, MOST_REPEATS = 64, 2e8, 50_000
"""Decisions on a move at least, by which the rows of a batch are known; rows that all decisions of
an audit may read, and decisions on a move at most, unless `n_repeats` is given."""

ESTIMATES = 64
"""Estimates of the log ratio of a move, besides those of decisions."""


def audit(
    idata: xr.DataTree,
    step: TallStep,
    *,
    model: Any = None,
    n_moves: int = 200,
    n_repeats: int | None = None,
    limit: float = 1e-3,
    random_seed: int = 0,
) -> Audit:
    """Check the moves of a run against the model's own density, its decisions against all rows.

    Parameters
    ----------
    idata : DataTree
        Result of ``pm.sample``, perhaps read from a store; its posterior must hold all free
        variables of the model.
    step : MinibatchMH, FlyMC, SGFS, SGLD, SGHMC or SGNHT
        The step of the run, or one made in the same way. The audit uses its tuned state. If it has
        made no draws in this process (as with ``cores`` above 1), it is tuned anew.
    model : bambi.Model, optional
        For a result of Bambi its model, which knows how the intercept was corrected.
    n_moves : int, default 200
        Moves on which decisions are repeated, from draws at equal distances. Each reads all rows at
        two points.
    n_repeats : int, optional
        Decisions on each of these moves. If not given, as many as are needed to detect errors of
        `limit`, unless they would read more than 2·10⁸ rows in all.
    limit : float, default 1e-3
        The mean error of acceptance probabilities that the audit should detect. The default is the
        error that tests allow in a decision.
    random_seed : int, default 0
        Seed of moves and batches.

    Returns
    -------
    Audit
        ``print`` it for the verdict.

    Raises
    ------
    TypeError
        If `step` is no step of this package.
    ValueError
        If the posterior lacks variables, has fewer than 40 draws, or draws that are not finite; if
        `limit` is not positive.
    SamplingError
        If a row is impossible at a draw, or beyond the bound of an exact test.
    RuntimeError
        If data or files are not those on which the step was set up.

    Notes
    -----
    The false-positive rate is 0.1 %. The verdict is "not resolved" if an error of
    `limit` would not have been seen, and says how many repetitions it takes. Decisions on the
    levels of a factor are compared with all rows, but not repeated. For gradient steps the audit
    compares gradients of all rows, because the noise of batches is part of these methods. An audit
    does not show whether chains have converged, and it does not check regions that no chain has
    visited.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> data = 3 + np.random.default_rng(1).standard_t(4, size=20_000)
    >>> with pm.Model():
    ...     mu, sigma = pm.Normal("mu", 0, 10), pm.HalfNormal("sigma", 2)
    ...     y = pm.StudentT("y", nu=4, mu=mu, sigma=sigma, observed=data)
    ...     step = pmb.MinibatchMH()
    ...     idata = pm.sample(
    ...         step=step, draws=500, tune=500, chains=2, cores=1, random_seed=1,
    ...         progressbar=False,
    ...     )
    >>> print(pmb.audit(idata, step))
    52 comparisons of 3 kinds, at draws of the run, agree with the model's own log-density to ...
    Decisions by batches (Penalty): 200 moves, ... decisions on each, about ... rows per decision.
    The acceptance probability is off by ... on average (95 % interval ... to ...), and by ... ± ...
    towards the sign of the log ratio. ... all tests together have p = 0.1....
    No deviation was found; one of 0.001 on average would have been seen.
    """
    if not isinstance(step, TallStep):
        raise TypeError(
            f"step must be a step of this package, such as MinibatchMH; got an object of type "
            f"{type(step).__name__}. Pass the step of the run, or one made in the same way."
        )
    if not limit > 0:
        raise ValueError(f"limit must be positive; got {limit}.")
    n_moves = checked_count("n_moves", n_moves, 1)
    step.refuse_other_data()
    draws = draws_of_step(idata, step.tall, model)
    points = draws.all_points(step.tall, max(n_moves, 40), least=40)[:n_moves]
    rng, saved = np.random.default_rng(random_seed), step.sampling_state
    is_tuned = step.n_draws > 0 and not step.tune
    try:
        if not is_tuned:
            _tune(step, points[0], random_seed)
        compared = _compared(step, points, rng)
        plan = _Plan(n_repeats, limit, len(points))
        repeats = _repeats(step, points, plan, rng)
    finally:
        step.sampling_state = saved
    return judge(step, compared, repeats, limit, is_tuned)


def _tune(step: TallStep, flat: np.ndarray, random_seed: int) -> None:
    """Bring the step to where it was in the run: moves and batches are tuned anew."""
    step.setup_chain(np.random.default_rng(random_seed), TUNING, 0)
    point = step.tall.layout.unflatten(flat)
    for _ in range(TUNING):
        point, _ = step.step(point)
    step.stop_tuning()


def _compared(step: TallStep, points: np.ndarray, rng: np.random.Generator) -> list[Comparison]:
    """Compare moves of all kinds with the model's own density, from draws at equal distances."""
    look = step.look()
    if look is None:
        return []
    chosen = np.unique(np.linspace(0, len(points) - 1, LOOKS).astype(int))
    found = list(look.look_at_batches(rng, points[0]))
    for point in points[chosen]:
        found += look.look(rng, point.copy())
    return found


class _Plan(NamedTuple):
    """How often decisions are repeated: as was asked, or so that errors of `limit` are seen."""

    asked: int | None
    limit: float
    n_moves: int

    def __call__(self, batch_size: float) -> int:
        """Return the decisions on a move, given the rows that one takes."""
        if self.asked is not None:
            return self.asked
        affordable = MOST_READ / (max(batch_size, 1.0) * self.n_moves)
        return int(np.clip(self.wanted(SPREAD), PILOT, max(PILOT, min(affordable, MOST_REPEATS))))

    def wanted(self, spread: float) -> int:
        """Return the decisions on a move that make errors of `limit` visible."""
        return math.ceil(1.1 * spread * (CONFIDENCE / self.limit) ** 2 / self.n_moves)


def _repeats(
    step: TallStep, points: np.ndarray, plan: _Plan, rng: np.random.Generator
) -> list[Repeats]:
    """Repeat decisions by batches, if any decide."""
    if not isinstance(step, MinibatchMH):
        return []
    if step.latent is None:
        return _plain_repeats(step, points, plan, rng)
    look, found = step.look(), list[Repeats]()
    if not decided_by_batches(look):
        return []
    for turn, point in enumerate(points):
        n = plan(np.mean([each.batch_size for each in found])) if found else PILOT
        repeated = repeat_on_effects(look, rng, point, n, turn)
        if repeated is not None:
            found.append(repeated)
    return found


class _Repeated(NamedTuple):
    """What repeated decisions on one move gave."""

    accepted: np.ndarray
    sizes: np.ndarray
    estimates: np.ndarray


def _plain_repeats(
    step: MinibatchMH, points: np.ndarray, plan: _Plan, rng: np.random.Generator
) -> list[Repeats]:
    proposed = _propose(step, points, rng)
    exact = _log_ratios(step, points, proposed)
    possible = np.isfinite(exact)
    moves = list(zip(points[possible], proposed[possible], exact[possible], strict=True))
    repeat, is_exact = _repeater(step, rng), step.acceptance.is_exact
    make = partial(_balanced if is_exact else _repeated, step, repeat)
    if not moves:
        return []
    pilot = np.mean([make(*move, n_repeats=PILOT).batch_size for move in moves[:8]])
    return [make(*move, n_repeats=plan(float(pilot))) for move in moves]


def _repeated(
    step: MinibatchMH,
    repeat: Callable[..., _Repeated],
    here: np.ndarray,
    there: np.ndarray,
    exact: float,
    *,
    n_repeats: int,
) -> Repeats:
    """Compare how often a move is accepted with the probability that the test stands for."""
    targets, base = np.resize(LOG_RATIOS, n_repeats), _base(step, here, there)
    found = repeat(here, there, targets - exact, min(n_repeats, ESTIMATES))
    probability = step.acceptance.ideal(targets, found.sizes == step.n_rows)
    return Repeats(
        "all at once",
        exact,
        float(found.sizes.mean()),
        found.accepted - probability,
        probability * (1 - probability),
        targets,
        found.estimates - (exact - base),
    )


def _balanced(
    step: MinibatchMH,
    repeat: Callable[..., _Repeated],
    here: np.ndarray,
    there: np.ndarray,
    exact: float,
    *,
    n_repeats: int,
) -> Repeats:
    """Compare how often a move and the move back are accepted for the rows alone."""
    base = _base(step, here, there)
    left, psi = exact - base, np.full(n_repeats, -base)
    there_and_back = repeat(here, there, psi, 0), repeat(there, here, -psi, 0)
    forward, back = (found.accepted for found in there_and_back)
    # Divided so that both terms are at most 1.
    weights = min(1.0, math.exp(-left)), min(1.0, math.exp(left))
    variance = weights[0] ** 2 * forward.var() + weights[1] ** 2 * back.var()
    variance += (weights[0] ** 2 + weights[1] ** 2) / n_repeats
    return Repeats(
        "all at once",
        exact,
        float(np.mean([found.sizes.mean() for found in there_and_back])),
        weights[0] * forward - weights[1] * back,
        np.full(n_repeats, variance),
        np.full(n_repeats, left),
        np.empty(0),
    )


def _propose(step: MinibatchMH, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    keys = [class_key(step.proposal), repr(step.proposal.jit_options)]
    propose = jit_kept(make_proposing(step.proposal.build()[0]), keys)
    proposed = points.copy()
    for here, there in zip(points, proposed, strict=True):
        for _ in range(100):
            propose(rng, here, there, step._active, step.proposal_state, step.guide)
            if np.isfinite(step.tall.compiled_prior_logp(there)):
                break
    return proposed


def _log_ratios(step: MinibatchMH, points: np.ndarray, proposed: np.ndarray) -> np.ndarray:
    """Read all rows for the log ratios of the target, by the model alone."""
    row_logp = step.tall.compiled_row_logp

    sums = partial(_sums, row_logp, points, proposed)
    [total] = sum_over_chunks(sums, step.tall.data, "Auditing the decisions")
    rows = total / step.temperature
    prior = step.tall.compiled_prior_logp
    priors = [
        float(prior(there)) - float(prior(here))
        for here, there in zip(points, proposed, strict=True)
    ]
    return rows + np.array(priors)


def _sums(
    row_logp: CompiledFunction, points: np.ndarray, proposed: np.ndarray, *batch: np.ndarray
) -> list[np.ndarray]:
    """Sum the log ratios of a chunk for each move."""
    moves = zip(points, proposed, strict=True)
    ratios = [(row_logp(there, *batch) - row_logp(here, *batch)).sum() for here, there in moves]
    return [np.array(ratios)]


def _base(step: MinibatchMH, here: np.ndarray, there: np.ndarray) -> float:
    target = step.target
    return target.base(there, target.constants) - target.base(here, target.constants)


def _repeater(step: MinibatchMH, rng: np.random.Generator) -> Callable[..., _Repeated]:
    ndims = [values.ndim for values in step.density.data]
    loop = make_repeating(ndims, step.acceptance.build, step.drawing)
    kernel = jit_kept(loop, [class_key(step.acceptance), repr(ndims), repr(step.drawing)])
    step._first_batch[0] = step.batch_state.size[0]
    first = int(np.clip(step._first_batch[0], 2, max(2, step.n_rows // 2)))
    rows, density, n_rows, numbers = step.workspace, step.density, step.n_rows, None
    if step.sized is not None:  # rows of its own, each of which serves again
        residents = Residents.gather(step.sized, step.n_residents, rng, once=False)
        n_rows, numbers = step.n_residents, residents.numbers
        rows = row_workspace(n_rows, residents.table)
        density = density._replace(data=residents.data, drawn=residents.drawn)
    scale = n_rows / step.temperature

    def repeat(here: np.ndarray, there: np.ndarray, psi: np.ndarray, n_estimates: int) -> _Repeated:
        accepted, sizes = np.array(psi, dtype=float), np.full(psi.size, first)
        means, variances = np.empty((2, n_estimates))
        _, bad_row = kernel(
            rng,
            here,
            there,
            density,
            rows,
            step.test_parameters,
            accepted,
            sizes,
            means,
            variances,
        )
        step.refuse_impossible(bad_row, here, numbers)
        return _Repeated(accepted, sizes, scale * means)

    return repeat
