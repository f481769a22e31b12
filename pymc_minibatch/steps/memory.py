"""How much memory a step takes, estimated before anything is made."""

from pymc_minibatch.latent.expansion import COPIES
from pymc_minibatch.reference.search_density import MATRICES
from pymc_minibatch.tall import TallModel

__all__ = ["bytes_of_step"]

ROW_BYTES, BASE_BYTES = 24, 2e8
"""Bytes that set-up keeps for each row, and apart from rows."""


def bytes_of_step(tall: TallModel, with_effects: bool) -> float:
    """Estimate the bytes of set-up and sampling beyond the data of the model, without draws.

    Parameters
    ----------
    tall
        The model.
    with_effects
        Whether effects are updated by group. Then the levels of the largest grouping factor have
        blocks of their own, and all else that rows read has a dense matrix; otherwise all
        parameters have.
    """
    copies = 1 if tall.is_bound and tall.partitions is None else 0
    of_rows = tall.n_rows * (copies * tall.row_bytes + ROW_BYTES)
    return of_rows + BASE_BYTES + _of_curvature(tall, with_effects)


def _of_curvature(tall: TallModel, with_effects: bool) -> float:
    """Estimate the bytes of matrices of second derivatives."""
    structure = tall.structure
    if structure is None or not with_effects:
        return 8.0 * MATRICES * tall.layout.size**2
    gathered = {(t.block.start, t.block.stop) for t in structure.terms if t.index is not None}
    levels = max((stop - start for start, stop in gathered), default=0)
    width = sum(stop - start == levels for start, stop in gathered)
    n_dense = structure.n_read - levels * width
    n_columns = sum(t.block.stop - t.block.start for t in structure.terms if t.index is None)
    return 8.0 * COPIES * (n_dense**2 + levels * width * (n_columns + width))
