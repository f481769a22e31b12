"""`approximate`: set-up, draws, the check, and what is returned."""

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import current_process
from typing import Any, Literal, NamedTuple

import numpy as np
import xarray as xr
from arviz_stats.base.array import array_stats
from pymc.util import get_random_generator

from pymc_minibatch.approximation.check import GOOD_K, Check, Scanned, check_of
from pymc_minibatch.approximation.design import FINITE_K
from pymc_minibatch.approximation.draws import (
    Approximation,
    GaussianApproximation,
    Mixture,
    approximation_of,
)
from pymc_minibatch.approximation.field import FieldApproximation
from pymc_minibatch.approximation.tree import tree_of, variables
from pymc_minibatch.arguments import checked_count, checked_model
from pymc_minibatch.draws import built_by_bambi
from pymc_minibatch.jit.cores import n_cores
from pymc_minibatch.jit.memory import give_back_memory
from pymc_minibatch.latent.moves.trajectory import Trajectory
from pymc_minibatch.options import check_labels, check_names
from pymc_minibatch.processes import forks, in_processes
from pymc_minibatch.recorded import Values
from pymc_minibatch.reference import NoReferenceError
from pymc_minibatch.results import note_made_of
from pymc_minibatch.steps import MinibatchMH
from pymc_minibatch.steps.start import SetUp, keep
from pymc_minibatch.tall import TallModel

__all__ = ["approximate"]

TUNED = 30
"""Scans that tune the moves, which are made about the mode already."""

SCANS, MOST_SCANS = 2, 8
"""Scans from each draw; more if they are cheap, and one if the fewest draws cost too much."""

LEAST_STARTS, MOST_STARTS, MORE = 48, 1000, 3
"""Draws from which scans are made, however many are to be returned, and how many times as many if
noise leaves the verdict open."""

CHECK_ROWS, CHECK_ENTRY_ROWS, CORRECTION_ROWS = 2e8, 1e4, 2e9
"""Rows that the check may read (some 2 s), how many more for each variable, for which set-up takes
longer, too, and rows that a correction may read that nobody has asked for (some 20 s)."""

ASKED_ROWS = 1e10
"""The same for a correction that was asked for (about 100 s)."""

TUNE_ROWS = 1e8
"""Rows that these may read, beyond those whose cost is measured (about 1 s)."""

LONG_ROWS, ROWS_BY_EFFECT = 5e5, 20
"""Scans of so many rows, with so many for each effect, leave out trajectories, which cost more than
all other moves together. If scans turn out to be slow, trajectories are put back."""

SLOW, SLOW_ROWS = 0.5, 1e9
"""Scans go on while their end points depend on the start by more than this, up to so many rows."""

FORGOTTEN = 0.15
"""The same for a correction: the share of the approximation's error that is left."""

SCAN_ROWS, PLAIN_SCAN_ROWS, ENTRY_ROWS = 2e5, 3e4, 80.0
"""What a scan costs beside reading rows, in rows (1.5 ms, or 0.2 ms without effects), and what it
costs for each variable."""

DENSITY_ROWS, LEAST_DENSITIES, MOST_DENSITIES = 1e7, 10, 400
"""Rows for the log-density of the model at single draws, and at how many of them."""

RATIO_ROWS, LEAST_RATIOS = 8e7, 40
"""The same for the ratios of which k̂ is found."""

MOST_ENTRIES, CHECKED = 3e7, 200
"""Numbers of all draws together (a quarter of a GB) from which on the check is made of some draws,
before all are drawn."""

KEPT_STARTS = 50
"""Points that are kept for chains to start from."""

SHARES, PROCESS_ROWS = 4, 5e7
"""Shares of the starts, each of which one process scans, and rows from which processes pay (half a
second)."""

WARMED, LEAST_TUNED = 10, 13
"""Scans before those whose cost is measured, and how many there are at least."""


def approximate(
    model: Any = None,
    *,
    draws: int = 1000,
    data: Any = None,
    random_seed: Any = None,
    correct: bool | Literal["auto"] = "auto",
    var_names: Sequence[str] | None = None,
    cores: int | None = None,
) -> xr.DataTree:
    """Approximate the posterior, and check the approximation by exact transitions.

    Draws come from the approximation that the set-up of :class:`MinibatchMH` makes: Gaussian about
    the mode, or for models with effects, Laplace's approximation with corrections of third order.
    From some of the draws the step makes a few of its own transitions, which leave the posterior
    as it is. If these move the draws systematically, the approximation is wrong by as much, and
    the transitions correct it.

    Parameters
    ----------
    model : pymc.Model or bambi.Model, optional
        The model; taken from the context if not given.
    draws : int, default 1000
        Draws to return.
    data : dict, DataFrame, path, Columns or TallModel, optional
        Data instead of the model's own, as :class:`MinibatchMH` takes them.
    random_seed : seed or numpy.random.Generator, optional
        Chooses the draws.
    correct : bool or "auto", default "auto"
        Whether to return where the transitions lead instead of draws from the approximation. They
        start from all draws then, and the check is one of the corrected draws. "auto" does so if
        the check finds an error, and if the transitions cost no more than about 2 × 10⁹ evaluations
        of rows.
    var_names : list of str, optional
        Variables of the result; all free variables and Deterministics if not given, except for
        Deterministics with one value per row.
    cores : int, optional
        Processes that make the transitions, if these take long enough; at most four, and as many as
        there are cores if not given. Draws are the same however many there are. There is one where
        processes cannot be forked, as on Windows, and if the data are on a cluster.

    Returns
    -------
    DataTree
        As ``pm.sample`` returns it, with one chain. Its attributes are

        - ``verdict``: ``"use"``, ``"check"`` or ``"do not use"``; ``reason`` says it in words;
        - ``largest_shift``: the largest error of a mean that the check has seen, in posterior
          standard deviations; ``largest_shift_error`` its standard error and
          ``largest_shift_variable`` the variable;
        - ``pareto_k``: Pareto's k̂ of the ratios of posterior and approximation, as functions of the
          hyperparameters and the coefficients that many rows share;
        - ``corrected``: whether transitions were made from all draws;
        - ``seconds``: what all of it took, and ``setup_seconds``.

        Sample stats are ``lp`` and ``log_q``, the log-densities of the model and the
        approximation, at some of the draws and NaN elsewhere, and those by which :func:`compare`
        and :func:`predict` recognise the rows.

    Raises
    ------
    NoReferenceError
        If the posterior has no mode, or has several and no effects.
    NotTallError
        If the model does not split into a prior part and independent rows.
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_minibatch as pmb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.normal(size=(10_000, 3))
    >>> bought = rng.binomial(1, 1 / (1 + np.exp(-X @ [0.5, -1.0, 0.3])))
    >>> with pm.Model():
    ...     beta = pm.Normal("beta", shape=3)
    ...     y = pm.Bernoulli("y", logit_p=X @ beta, observed=bought)
    ...     idata = pmb.approximate(random_seed=1)
    >>> idata.posterior["beta"].mean(("chain", "draw")).values.round(1)
    array([ 0.5, -1. ,  0.3])
    >>> idata.attrs["verdict"]
    'use'
    """
    started = time.perf_counter()
    draws = checked_count("draws", draws, 2)
    if correct not in (True, False, "auto"):
        raise ValueError(f"correct must be True, False or 'auto'; got {correct!r}.")
    if cores is not None:
        cores = checked_count("cores", cores, 1)
    bambi = model if built_by_bambi(model) else None
    of = checked_model(model) if bambi is None else bambi.backend.model
    check_names(of, var_names)
    check_labels(of)
    rng = get_random_generator(random_seed)
    with _without_row_warnings():
        step = MinibatchMH(data=data, model=of, rng=rng.spawn(1)[0])
    names = variables(step.tall.model, step.tall, var_names)
    set_up = dict(step.__dict__)
    run = _Run(step, rng, draws, cores)
    found = run.checked(correct)
    attrs = {
        "verdict": found.check.verdict,
        "reason": found.check.reason,
        "largest_shift": found.check.largest.size,
        "largest_shift_error": found.check.largest.error,
        "largest_shift_variable": found.check.largest.name,
        "pareto_k": found.check.pareto_k,
        "corrected": int(found.corrected),
        "setup_seconds": step.setup_seconds,
    }
    tree = tree_of(_values(found.points, step.tall, names), of, run.stats(found), attrs)
    if bambi is not None:
        tree = bambi.backend._clean_results(tree, omit_offsets=True, include_response_params=False)
    note_made_of(tree, step)
    keep(tree, SetUp(set_up, found.points[:KEPT_STARTS].copy()))
    for part in (tree, tree["posterior"]):
        part.attrs["seconds"] = part.attrs["sampling_time"] = time.perf_counter() - started
    return tree


type Known = tuple[tuple[np.ndarray, np.ndarray], float]
"""Means and standard deviations of the approximation, and Pareto's k̂."""


class Found(NamedTuple):
    """Draws and what is known of them.

    Attributes
    ----------
    points : ndarray, shape (S, D)
        Unconstrained draws.
    log_q : ndarray, shape (S,)
        Log-density of the approximation; NaN of corrected draws.
    check : Check
        What the check has found.
    corrected : bool
        Whether transitions were made from all draws.
    """

    points: np.ndarray
    log_q: np.ndarray
    check: Check
    corrected: bool


class _Run:
    """One approximation of a model that is set up."""

    def __init__(
        self, step: MinibatchMH, rng: np.random.Generator, draws: int, cores: int | None
    ) -> None:
        self.step, self.rng, self.n_draws = step, rng, draws
        can_fork = forks() and step.tall.partitions is None and not current_process().daemon
        self.cores = (n_cores() if cores is None else cores) if can_fork else 1
        if step.latent is not None and not step.latent.has_determinant:
            raise NoReferenceError(
                f"{step.latent.field.latent.dense.size:,} coefficients and effects are outside of "
                "the largest grouping factor. Sample the model instead, with MinibatchMH: the "
                "density of hyperparameters is known to an estimate only."
            )
        known = approximation_of(step.latent, step.control, step.tall)
        if known is None:
            raise NoReferenceError(
                "There is no single mode about which the posterior could be approximated; the "
                "warnings above say why. Sample the model instead, with MinibatchMH or NUTS."
            )
        self.approximation: Approximation = known
        self.n_modes = known.n_modes if isinstance(known, Mixture) else 1
        has_looked_far = isinstance(known, GaussianApproximation) and known.looks_far
        self.good_k = FINITE_K if has_looked_far else GOOD_K
        self.cost, self.left_out, self.leaves_out = 0.0, ExitStack(), False
        if step.latent is not None:
            step.steps_per_draw = 1
            layout = step.latent.field.latent
            by_effects = ROWS_BY_EFFECT * (layout.dense.size + layout.groups.size)
            if self.n_modes == 1 and step.n_rows >= max(LONG_ROWS, by_effects):
                self.left_out.enter_context(step.latent.moves.without(Trajectory))
                self.leaves_out = True

    def checked(self, correct: bool | str) -> Found:
        """Draw, check, and correct if it is asked for, or found to be needed and cheap enough."""
        with self.left_out:
            return self._checked(correct)

    def _checked(self, correct: bool | str) -> Found:
        self._tune()
        size = self.approximation.center.size
        check_rows = CHECK_ROWS + CHECK_ENTRY_ROWS * size
        n_starts = int(np.clip(check_rows / self.cost / SCANS, LEAST_STARTS, MOST_STARTS))
        n_pool = max(self.n_draws, n_starts)  # few draws would not tell
        if correct is not True and n_pool * size > MOST_ENTRIES:
            # Scans take memory, too; the other draws are made later.
            n_pool = min(n_pool, max(CHECKED, n_starts))
        pool, log_q = self.approximation.draw(self.rng, n_pool)
        n_scanned = n_pool if correct is True else n_starts
        fewest = 1 if n_scanned <= LEAST_STARTS else SCANS
        n_scans = int(np.clip(check_rows / self.cost / n_scanned, fewest, MOST_SCANS))
        end, check = self._looked_at(pool, n_scanned, n_scans)
        n_corrected, n_scans = max(n_pool, self.n_draws), max(n_scans, SCANS)
        affordable = 2 * n_scans * self.cost * n_corrected <= CORRECTION_ROWS
        is_good = check.verdict == "use" and check.is_settled
        if correct is False or (correct == "auto" and (not affordable or is_good)):
            if n_pool != self.n_draws:
                del pool, end  # memory for all draws
                gc.collect()
                give_back_memory()
                pool, log_q = self.approximation.draw(self.rng, self.n_draws)
            return Found(pool, log_q, check, False)
        if n_pool < n_corrected:
            rest = self.approximation.draw(self.rng, n_corrected - n_pool).points
            pool = np.concatenate([pool, rest])
        if len(end) < len(pool):
            end = np.concatenate([end, self._scanned(pool[len(end) :], n_scans).end])
        rows = ASKED_ROWS if correct is True else CORRECTION_ROWS
        known = _moments(end), check.pareto_k
        again, check = self._compared(end, known, n_scans, slow=FORGOTTEN, rows=rows)
        ends = self._with_moments_of_all(again)[: self.n_draws]
        return Found(ends, np.full(self.n_draws, np.nan), check, True)

    def _looked_at(self, pool: np.ndarray, n_starts: int, n_scans: int) -> tuple[np.ndarray, Check]:
        """Compare where scans from some draws lead, from more if noise leaves the verdict open."""
        known = _moments(pool), self._pareto_k()
        scanned, check = self._compared(pool[:n_starts], known, n_scans, slow=SLOW, rows=SLOW_ROWS)
        if check.is_noisy and LEAST_STARTS < n_starts < len(pool):
            more = pool[n_starts : MORE * n_starts]
            others, _ = self._compared(more, known, n_scans, slow=SLOW, rows=SLOW_ROWS)
            parts = zip(scanned[:3], others[:3], strict=True)
            start, mean, end = (np.concatenate(both) for both in parts)
            scanned = Scanned(start, mean, end)
            check = self._check_of(scanned, known)
        return scanned.end, check

    def _check_of(self, scanned: Scanned, known: Known) -> Check:
        slices, (moments, pareto_k) = self.step.tall.layout.slices, known
        return check_of(scanned, moments, slices, pareto_k, self.n_modes, self.good_k)

    def _compared(
        self, starts: np.ndarray, known: Known, n_scans: int, *, slow: float, rows: float
    ) -> tuple[Scanned, Check]:
        """Make scans from some points until they have moved, or rows are used up; compare."""
        n_made, scanned = n_scans, self._scanned(starts, n_scans)
        check = self._check_of(scanned, known)
        while check.slowness > slow:
            if self.leaves_out and check.slowness > SLOW:
                self._put_back()
                n_made = 1
            elif 2 * n_made * self.cost * len(starts) > rows:
                break
            scanned = self._scanned(scanned.end, n_made)._replace(start=starts)
            check = self._check_of(scanned, known)
            n_made *= 2
        return scanned, check

    def _put_back(self) -> None:
        """Let scans make all moves."""
        self.left_out.close()
        self.leaves_out = False
        self._tune()

    def _with_moments_of_all(self, scanned: Scanned) -> np.ndarray:
        """Return the last points, moved a little to have mean and sd of all that scans led to."""
        ends, (own_mean, own_sd) = scanned.end, _moments(scanned.end)
        assert scanned.moments is not None
        mean, sd = scanned.moments
        moves = self.step.tall.layout.is_continuous & (own_sd > 0)
        scale = np.where(moves, sd / np.where(moves, own_sd, 1.0), 1.0)
        return np.asarray(np.where(moves, mean + scale * (ends - own_mean), ends))

    def stats(self, found: Found) -> dict[str, np.ndarray]:
        """Return the sample stats."""
        step, n = self.step, self.n_draws
        log_p = np.full(n, np.nan)
        for s in range(min(n, self._n_densities)):
            log_p[s] = step.model_density(found.points[s])
        return {
            "lp": log_p,
            "log_q": found.log_q,
            "n_rows": np.full(n, step.n_rows),
            "setup_seconds": np.full(n, step.setup_seconds),
            **{name: np.full(n, value) for name, value in step.identity.items()},
        }

    @property
    def _n_densities(self) -> int:
        return int(np.clip(DENSITY_ROWS / self.step.n_rows, LEAST_DENSITIES, MOST_DENSITIES))

    def _tune(self) -> None:
        """Tune the moves, and find what a scan costs, in rows."""
        step, point = self.step, self.approximation.center.copy()
        step.setup_chain(self.rng.spawn(1)[0], TUNED, 0)
        read: list[float] = []
        while len(read) < TUNED and (len(read) < LEAST_TUNED or sum(read) < TUNE_ROWS):
            read.append(_scan(step, point))
        step.stop_tuning()
        beside = PLAIN_SCAN_ROWS if step.latent is None else SCAN_ROWS
        beside += ENTRY_ROWS * point.size
        self.cost = float(np.mean(read[WARMED:])) + beside

    def _scanned(self, starts: np.ndarray, n_scans: int) -> Scanned:
        """Make scans from each of some points, in processes if they take long enough."""
        origin = starts.mean(axis=0)
        shares = np.array_split(starts, min(SHARES, len(starts)))
        jobs = [
            (self.step, share, n_scans, origin, rng)
            for share, rng in zip(shares, self.rng.spawn(len(shares)), strict=True)
        ]
        if self.cores > 1 and n_scans * self.cost * len(starts) > PROCESS_ROWS:
            cores = min(self.cores, len(jobs))
            give_back_memory()
            made: Iterator[Any] = in_processes(
                _scans_from, jobs, what="transitions", cores=cores, blas_cores=1
            )
        else:
            made = self._one_by_one(jobs)
        mean, end = np.empty_like(starts), np.empty_like(starts)
        squares, first = np.empty((len(jobs), starts.shape[1])), np.cumsum([0, *map(len, shares)])
        for k, found in made:  # each share is let go before the next one comes
            where = slice(first[k], first[k + 1])
            mean[where], end[where], squares[k] = found
        shift = mean.mean(axis=0)
        variance = squares.sum(axis=0) / max(n_scans * len(starts), 1) - (shift - origin) ** 2
        moments = shift, np.sqrt(np.maximum(variance, 0.0))
        return Scanned(starts, mean, end, moments)

    def _one_by_one(self, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        before = self.step.sampling_state
        for k, job in enumerate(jobs):
            yield from ((k, found) for found in _scans_from(*job))
            self.step.sampling_state = before

    def _pareto_k(self) -> float:
        """Return k̂ of the ratios of posterior and approximation."""
        known = self.approximation
        if isinstance(known, Mixture):
            return float("nan")
        if known.pareto_k is not None:
            return known.pareto_k
        if isinstance(known, FieldApproximation):
            n = np.clip(RATIO_ROWS / 2 / known.cost, LEAST_RATIOS, MOST_DENSITIES)
            ratios = known.log_ratios(self.rng, int(n))
        else:
            points, log_q = known.draw(self.rng, max(self._n_densities, LEAST_RATIOS))
            ratios = np.array([self.step.model_density(point) for point in points]) - log_q
        ratios = np.where(np.isfinite(ratios), ratios, -np.inf)
        return float(array_stats.psislw(-ratios)[1]) if np.ptp(ratios) > 1e-9 else 0.0


def _scans_from(
    step: MinibatchMH,
    starts: np.ndarray,
    n_scans: int,
    origin: np.ndarray,
    rng: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Make scans from each of some points; yield means, ends and the sum of squares once."""
    step.setup_chain(rng, 0, n_scans * len(starts))
    means, ends, squares = np.zeros_like(starts), starts.copy(), np.zeros(starts.shape[1])
    for mean, end in zip(means, ends, strict=True):
        for _ in range(n_scans):
            _scan(step, end)
            mean += end / n_scans
            squares += (end - origin) ** 2
    yield means, ends, squares


def _scan(step: MinibatchMH, point: np.ndarray) -> float:
    """Move a point in place by one scan; return how many rows were read."""
    stats = step._draw(point)
    step.n_draws += 1
    return float(stats["n_likelihood"])


def _moments(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, without a copy of all points."""
    mean, squares = points.mean(axis=0), np.zeros(points.shape[1])
    for point in points:
        squares += (point - mean) ** 2
    return mean, np.sqrt(squares / len(points))


def _values(points: np.ndarray, tall: TallModel, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the values of variables at points; those that are in the points are views."""
    model, layout = tall.model, tall.layout
    found: dict[str, Any] = dict.fromkeys(names)
    for rv in model.free_RVs:  # no copy of many effects
        value = model.rvs_to_values[rv]
        if rv.name in names and value.name == rv.name:
            shape = layout.shapes[layout.names.index(rv.name)]
            found[rv.name] = points[:, layout.slices[rv.name]].reshape(len(points), *shape)
    others = [name for name in names if found[name] is None]
    return found | (Values(model, layout, others)(points) if others else {})


@contextmanager
def _without_row_warnings() -> Iterator[None]:
    """Keep quiet of Deterministics with one value per row, which are left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Deterministics .* have one value for each")
        yield
