"""What a row is beyond the surrogate.

The surrogate has the log-likelihood to second order, and of the third order the part C that groups
can say (:mod:`.cubic`). What is left of a row needs no more than its local inputs at two points:

    rₙ(φ) = f(vₙ) − f(v̂ₙ) − f'Δv − ½ Δvᵀ f'' Δv − cₙ(u),   Δv = vₙ − v̂ₙ,

with cₙ its share in C.
"""

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace

from pymc_minibatch.jit.compiled import CompiledFunction, compile_numba
from pymc_minibatch.latent.cubic import row_cubic
from pymc_minibatch.latent.expansion import row_derivatives
from pymc_minibatch.tall.structure import RowStructure

__all__ = ["compile_remainder"]


def compile_remainder(structure: RowStructure, n_phi: int, cubic: bool) -> CompiledFunction:
    """Compile ``(reading, reference, *batch) -> remainders`` of the rows of a batch.

    Parameters
    ----------
    structure
        What the rows read.
    n_phi
        Size P of φ.
    cubic
        Whether the third order is subtracted; a reading is then φ followed by u in the positions of
        its entries, shape (2P,), and φ otherwise.
    """
    reading, reference = pt.dvector("reading"), pt.dvector("reference")
    here: list[Any] = structure.local_graphs(reading[:n_phi])
    there: list[Any] = structure.local_graphs(reference)
    first, second = row_derivatives(structure)
    locals_: list[Any] = structure.locals
    deltas: list[Any] = [a - b for a, b in zip(here, there, strict=True)]
    at_reference: Any = structure.row
    for i, delta in enumerate(deltas):
        at_reference = at_reference + first[i] * delta
        for j, other in enumerate(deltas[: i + 1]):
            at_reference = at_reference + (0.5 if i == j else 1.0) * second[i][j] * delta * other
    if cubic:
        at_reference = at_reference + row_cubic(structure, reading[n_phi:])
    row: Any
    taylor: Any
    [row] = graph_replace([structure.row], dict(zip(locals_, here, strict=True)), strict=False)
    [taylor] = graph_replace([at_reference], dict(zip(locals_, there, strict=True)), strict=False)
    return compile_numba([reading, reference, *structure.batch], [row - taylor])
