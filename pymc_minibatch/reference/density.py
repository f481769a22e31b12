"""What compiled rows are computed from: data, constants and the addresses of their functions."""

from typing import Any, NamedTuple

import numpy as np

from pymc_minibatch.jit.pointers import address_of, batch_of_one
from pymc_minibatch.reference.gradient import GradientTarget
from pymc_minibatch.reference.taylor import Target
from pymc_minibatch.tall import TallModel

__all__ = ["Density", "make_density"]


class Density(NamedTuple):
    """What the rows are computed from.

    Attributes
    ----------
    data
        Arrays with rows along the first axis, those of the model and columns of the target.
    constants
        What else the terms of the rows read.
    row, base
        Addresses of the compiled functions; see
        :class:`~pymc_minibatch.reference.taylor.Target`.
    drawn
        Of rows that were drawn and gathered before: the weights by which they stand for all, empty
        where each serves once, and an array of one number; see :mod:`.kernels.residents`.
    """

    data: tuple[np.ndarray, ...]
    constants: tuple[Any, ...]
    row: int = 0
    base: int = 0
    drawn: tuple[np.ndarray, ...] = ()


def make_density(
    tall: TallModel,
    target: Target | GradientTarget,
    data: tuple[np.ndarray, ...] | None = None,
) -> Density:
    """Compile the parts of a target for the data; the addresses are good as long as it is alive.

    Rows are those of the model, or others of it that were gathered before.
    """
    base, row, constants = target[:3]
    point, data = tall.layout.empty(), tall.data if data is None else data
    points: tuple[np.ndarray, ...] = (point,)
    if isinstance(target, Target):
        points, data = (point, point), (*data, *target.columns)
    row_address = address_of(row, *points, constants, batch_of_one(data))
    return Density(data, constants, row_address, address_of(base, point, constants))
