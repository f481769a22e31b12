"""Find the family of rows, and with it a bound on their third derivatives by their predictor.

For a row f(η), K is to be a number with |f'''| ≤ K on an interval about η̂. The families
(:mod:`.families`) are told apart on random rows. Then each row has to have the remainder of its
family, by its values (:mod:`.row_claims`).
"""

from functools import partial

import numpy as np

from pymc_minibatch.bounds.families import FAMILIES
from pymc_minibatch.bounds.families.family import Third, Trial
from pymc_minibatch.bounds.predictor import NoPredictorError, Predictor
from pymc_minibatch.bounds.recognise import recognise
from pymc_minibatch.tall import TallModel

__all__ = ["KNOWN", "find_third"]

KNOWN = ", ".join(rows for family in FAMILIES if family.third for rows in family.rows)
"""The rows for which a bound is known, for the user."""

TRIAL_ROWS = 500

MOST = 0.9
"""Share of the trial rows that are of a family if the others are taken for strange."""


def find_third(tall: TallModel, predictor: Predictor, reference: np.ndarray) -> Third:
    """Find the family of the rows, and with it a bound.

    Raises
    ------
    NoPredictorError
        If no bound is known, or a row is not of the family of most others.
    """
    rng = np.random.default_rng(20240719)
    rows = np.sort(tall.random_rows(rng, min(TRIAL_ROWS, tall.n_rows)))
    batch = tall.batch(rows)
    derivatives = predictor.vector_derivatives.outputs
    eta, start = predictor.vector_eta(reference, *batch), tall.start.copy()
    trial = Trial(derivatives, eta, batch, partial(recognise, tall), start)
    strange = None
    for family in FAMILIES if np.any(derivatives(eta, *batch)[0]) else ():
        # Lines between kinks, as of Laplace errors, have no second derivative.
        with np.errstate(all="ignore"):
            found = family.third(trial) if family.third else None
        if found is None:
            continue
        third, fits = found
        if fits.all():
            return third
        if strange is None and fits.mean() > MOST:
            strange = f"row {rows[np.argmin(fits)]} of {' + '.join(tall.row_names)} is not of the "
            strange += f"family of most others ({' or '.join(family.rows)})"
    if strange is not None:
        raise NoPredictorError(strange)
    raise NoPredictorError(
        f"no bound on the third derivative of {' + '.join(tall.row_names)} by its predictor is "
        f"known; it is for {KNOWN}"
    )
