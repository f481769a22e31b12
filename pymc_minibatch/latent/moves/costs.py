"""What moves of effects cost apart from reading rows, and how often a factorization pays."""

from collections.abc import Sequence

from pymc_minibatch.latent.field import LatentField

__all__ = [
    "COSTLY",
    "FACTORING_SHARE",
    "LARGE",
    "OVERHEAD",
    "factoring_share",
    "is_costly",
    "overhead",
]

OVERHEAD, PER_MULTIPLICATION = 3000.0, 1 / 2000
"""What a move costs apart from reading rows, in rows: always, and for factoring a border."""

COSTLY, ROWS_AS_COSTLY = 400**3 / 6, 400**3 / 6 * PER_MULTIPLICATION
"""If more multiplications are needed to factor the border, as each h asks, few scans do; and the
rows whose evaluation takes as long."""

FACTORING_SHARE = 0.02
"""Share of scans in which h moves with η held, where that is costly. With many effects that follow
no hyperparameter in another way, it is larger."""

LARGE = 50
"""A larger border moves in random blocks, if it has to."""


def is_costly(field: LatentField, work: float, n_read: int) -> bool:
    """Whether to factor the border for each h takes too long.

    Parameters
    ----------
    field
        The latent field: effects that are in no sweep follow h by factorizations alone.
    work
        The multiplications.
    n_read
        Rows that each move reads anyway.
    """
    as_long = n_read / ROWS_AS_COSTLY if _unswept(field) > LARGE else 1.0
    return work > COSTLY * max(1.0, as_long)


def factoring_share(
    field: LatentField, collapsed: Sequence[tuple[int, int]] | None, work: float
) -> float:
    """Return the share of scans in which h moves with η held."""
    if collapsed is None:
        return 1.0
    return FACTORING_SHARE if _unswept(field) <= LARGE else max(FACTORING_SHARE, COSTLY / work)


def _unswept(field: LatentField) -> int:
    """Return how many effects and coefficients outside the largest factor are in no other one."""
    return field.latent.dense.size - sum(levels.latent.size for levels in field.levels[1:])


def overhead(field: LatentField, work: float) -> float:
    """Return what a move costs apart from reading rows, in rows."""
    return OVERHEAD + PER_MULTIPLICATION * work + field.latent.groups.shape[0]
