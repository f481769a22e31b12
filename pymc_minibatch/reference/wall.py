"""Hard constraints near the mode, where what is made for a Gaussian posterior is no use."""

import numpy as np

from pymc_minibatch.reference.reference import Reference
from pymc_minibatch.tall import TallModel

__all__ = ["NEAR_WALL", "refuse_near_wall"]

DRAWS = 2000
MOST = 1e-3
"""Share of the Gaussian approximation that may lie beyond: that of a wall 3 sds from the mode."""

NEAR_WALL = (
    "It is made for a posterior that is nearly Gaussian, and one that ends at a wall is not. Use "
    "MinibatchMH or FlyMC, which take the constraint exactly, or SGLD or SGHMC, which do not go "
    "there; or write the constraint by a transform (pm.Uniform with its default transform, "
    "pm.TruncatedNormal, an ordered transform), so that there is no wall."
)


def refuse_near_wall(
    tall: TallModel, reference: Reference, active: np.ndarray, method: str
) -> None:
    """Refuse a density that is zero on more than a small part of its Gaussian approximation.

    Raises
    ------
    ValueError
    """
    rng = np.random.default_rng(0)
    precision = reference.precision_at(reference.temperature)[np.ix_(active, active)]
    points = np.tile(reference.center, (DRAWS, 1))
    z = rng.standard_normal((DRAWS, active.size))
    points[:, active] += np.linalg.solve(np.linalg.cholesky(precision).T, z.T).T
    beyond = np.mean([not np.isfinite(tall.compiled_prior_logp(point)) for point in points])
    if beyond > MOST:
        raise ValueError(
            f"{beyond:.0%} of the Gaussian approximation of the posterior lies where the density "
            f"is zero, beyond a hard constraint or the end of a prior. {method}: {NEAR_WALL}"
        )
