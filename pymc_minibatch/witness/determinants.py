"""Determinants as the witness finds them: of precisions by elimination, of maps by differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from pymc_minibatch.latent.arrowhead import ArrowheadMatrix
from pymc_minibatch.latent.layout import ArrowheadLayout

__all__ = [
    "NotComparedError",
    "log_determinant",
    "log_determinant_of_few",
    "log_determinant_of_map",
    "quadratic_form",
]

DIAGONAL = 1e-8
"""Relative errors of a map that is diagonal, as two random vectors show it."""

LOST = 1e2 * float(np.finfo(float).eps)
"""Relative rounding errors of terms that cancel in determinants and quadratic forms."""

MOST_SHARE, N_SIGNS = 0.1, 8
"""Share of entries up to which what is left of a dense part is taken for sparse, and random vectors
by which a trace of its inverse is estimated."""

MOST_SOLVED = 10**6
"""Entries of a matrix that is solved for as an array."""

MOST_COLUMNS = 400
"""More columns of a map that is not diagonal are not differenced; the move is not compared then."""


class NotComparedError(Exception):
    """A move of which a determinant takes too long to find."""


def quadratic_form(
    matrix: ArrowheadMatrix, vector: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float]:
    """Return xᵀΛx, and how far rounding may have put it off."""
    dense, groups = matrix.product(*vector)
    value = float(dense @ vector[0]) + float(np.sum(groups * vector[1]))
    size = float(np.abs(matrix.dense.diagonal()) @ vector[0] ** 2)
    size += float(np.sum(np.abs(np.einsum("gqq->gq", matrix.blocks)) * vector[1] ** 2))
    return value, LOST * size


def log_determinant(matrix: ArrowheadMatrix) -> tuple[float, float]:
    """Return log |Λ|, the groups eliminated first, and how far rounding may have put it off.

    All entries are divided by the roots of those on the diagonal, since pivots that are chosen by
    their size lose the digits of small ones. What elimination leaves of the diagonal of the dense
    part may be a small share of it.
    """
    whole, of_blocks = matrix.dense.diagonal(), np.einsum("gqq->gq", matrix.blocks)
    if np.any(whole <= 0.0) or np.any(of_blocks <= 0.0):
        raise NotComparedError
    root, of_groups = 1.0 / np.sqrt(whole), 1.0 / np.sqrt(of_blocks)
    blocks = matrix.blocks * of_groups[:, :, None] * of_groups[:, None, :]
    try:
        lower = np.linalg.cholesky(blocks)
    except np.linalg.LinAlgError:
        raise NotComparedError from None
    log = 2.0 * float(np.log(np.einsum("gqq->gq", lower)).sum())
    log += float(np.log(of_blocks).sum() + np.log(whole).sum())
    if not whole.size:
        return log, 0.0
    left = sparse.diags_array(root) @ matrix.dense @ sparse.diags_array(root)
    if blocks.size:
        cross = sparse.csr_array(matrix.cross)
        cross = sparse.diags_array(of_groups.ravel()) @ cross @ sparse.diags_array(root)
        half = _solved(lower, cross)
        half = sparse.csr_array(half) if sparse.issparse(matrix.dense) else half
        left = left - half.T @ half
    is_sparse = sparse.issparse(left) and left.nnz < MOST_SHARE * whole.size**2
    of_left = _of_sparse if is_sparse else _of_array
    of_dense, lost = of_left(left, np.ones(whole.size))
    return log + of_dense, LOST * lost


def _solved(lower: np.ndarray, cross: Any) -> Any:
    """Return L⁻¹ C; where that has few entries without L⁻¹, which loses digits."""
    n_groups, size = lower.shape[:2]
    if cross.shape[0] * cross.shape[1] <= MOST_SOLVED:
        found = np.linalg.solve(lower, cross.toarray().reshape(n_groups, size, -1))
        return found.reshape(cross.shape)
    each = np.arange(n_groups + 1)
    return sparse.bsr_array((np.linalg.inv(lower), each[:-1], each)) @ cross


def _of_array(matrix: Any, whole: np.ndarray) -> tuple[float, float]:
    """Return the log-determinant, and how many times larger terms that cancel are."""
    array = _whole(matrix)
    sign, log = np.linalg.slogdet(array)
    if sign <= 0:
        raise NotComparedError
    return float(log), float(whole @ np.abs(np.linalg.inv(array).diagonal()))


def _of_sparse(matrix: Any, whole: np.ndarray) -> tuple[float, float]:
    """Return the same of a sparse matrix; of its inverse, traces as random signs show them."""
    try:
        factored = splu(
            sparse.csc_matrix(matrix),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
    except RuntimeError:  # exactly singular
        raise NotComparedError from None
    diagonal = factored.U.diagonal()
    if not np.all(diagonal > 0.0):
        raise NotComparedError
    signs = np.random.default_rng(3).choice([-1.0, 1.0], (whole.size, N_SIGNS))
    traces = np.sum(signs * factored.solve(whole[:, None] * signs), axis=0)
    return float(np.log(diagonal).sum()), float(np.abs(traces).max())


def _whole(matrix: Any) -> np.ndarray:
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)


def log_determinant_of_map(
    follow: Callable[[np.ndarray], np.ndarray], here: np.ndarray, layout: ArrowheadLayout
) -> float:
    """Return log |∂z'/∂z| of an affine map of the latent variables, by differences.

    Groups take from the dense part and from themselves, and the dense part from itself, so that the
    determinant is that of the dense part times those of the groups.
    """
    rng, start = np.random.default_rng(3), follow(here)

    def response(parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        moved = here.copy()
        dense, groups = layout.split(moved)
        layout.put(moved, dense + parts[0], groups + parts[1])
        return layout.split(follow(moved) - start)

    dense, groups = layout.split(np.zeros(here.size))
    size = _sizes(here, layout)
    total = _of_dense(response, (dense, groups), size[0], rng)
    if groups.size:
        blocks = np.empty((*groups.shape, groups.shape[1]))
        for slot in range(groups.shape[1]):
            seed = groups.copy()
            seed[:, slot] = size[1][:, slot]
            of_dense, of_groups = response((dense, seed))
            if np.abs(of_dense).max(initial=0.0) > 0.0:
                raise NotComparedError
            blocks[:, :, slot] = of_groups / size[1][:, slot, None]
        total += float(np.linalg.slogdet(blocks)[1].sum())
    return total


def log_determinant_of_few(
    follow: Callable[[np.ndarray], np.ndarray], here: np.ndarray, positions: np.ndarray
) -> float:
    """Return log |∂z'/∂z| of an affine map that changes a few latent variables, by differences."""
    start, size = follow(here), _size_of(here[positions])
    columns = []
    for position, step in zip(positions, size, strict=True):
        moved = here.copy()
        moved[position] += step
        columns.append((follow(moved) - start)[positions] / step)
    square = np.reshape(columns, (positions.size, positions.size))
    return float(np.linalg.slogdet(square)[1])


def _of_dense(
    response: Callable[..., tuple[np.ndarray, np.ndarray]],
    zero: tuple[np.ndarray, np.ndarray],
    size: np.ndarray,
    rng: np.random.Generator,
) -> float:
    dense, groups = zero
    if not dense.size:
        return 0.0
    ratios = []
    for _ in range(2):
        seed = size * (0.5 + rng.random(dense.size))
        ratios.append(response((seed, groups))[0] / seed)
    if np.allclose(ratios[0], ratios[1], rtol=DIAGONAL, atol=0.0):
        return float(np.log(np.abs(ratios[0])).sum())
    if dense.size > MOST_COLUMNS:
        raise NotComparedError
    columns = []
    for j in range(dense.size):
        seed = dense.copy()
        seed[j] = size[j]
        columns.append(response((seed, groups))[0] / size[j])
    return float(np.linalg.slogdet(np.array(columns))[1])


def _sizes(here: np.ndarray, layout: ArrowheadLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return by how much to move each latent variable: about as much as it is."""
    dense, groups = layout.split(here)
    return _size_of(dense), _size_of(groups)


def _size_of(part: np.ndarray) -> np.ndarray:
    bank = np.abs(part).mean() if part.size else 0.0
    return np.maximum(np.abs(part), bank or 1.0)
