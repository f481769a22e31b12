"""Steps that share a chain, and the data to which they are bound.

With ``data=`` the data in the model are a stand-in, which every step of PyMC takes for the data. So
a variable on which the rows depend may be left only to a step that is bound to the same data.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakSet

import numpy as np

from pymc_minibatch.tall import TallModel

__all__ = ["check_others_are_bound", "left_to_others", "register"]


class BoundStep(Protocol):
    """What is looked at in a step."""

    tall: TallModel
    var_names: list[str]
    last_point: np.ndarray


_steps: WeakSet[BoundStep] = WeakSet()


def register(step: BoundStep) -> None:
    """Make a step known to the others of this process."""
    _steps.add(step)


def left_to_others(tall: TallModel, names: Sequence[str]) -> list[str]:
    """List the variables that the rows of bound data depend on and a step does not move."""
    left = [name for name in tall.row_parameters if name not in names] if tall.is_bound else []
    if left:
        _ = tall.checksum  # once, not in each chain
    return left


def check_others_are_bound(
    step: BoundStep, left: Sequence[str], point: Mapping[str, np.ndarray]
) -> None:
    """Refuse variables that were moved by a step that is not bound to the same data.

    What a step that is bound to them has moved is where that step left it. Before the first draw of
    `step` such a step must at least be there.

    Raises
    ------
    ValueError
        Naming the variables.
    """
    flat, where = step.tall.layout.flatten(point), step.tall.layout.slices
    others = [other for other in _steps if other is not step]

    def is_bound(name: str) -> bool:
        own = step.last_point
        if own.size and np.array_equal(flat[where[name]], own[where[name]]):
            return True  # it has not moved
        return any(
            name in other.var_names
            and (not own.size or _left_at(other, name, flat[where[name]]))
            and other.tall.is_bound
            and other.tall.checksum == step.tall.checksum
            for other in others
        )

    unbound = [name for name in left if not is_bound(name)]
    if unbound:
        raise ValueError(
            f"The rows depend on {unbound}, which {type(step).__name__} leaves to a step that sees "
            "only the stand-in in the model, not what is bound by data. Leave out vars, or sample "
            "these variables with a step of this package, too, with the same data."
        )


def _left_at(other: BoundStep, name: str, value: np.ndarray) -> bool:
    """Whether a step's last draw ended with this value."""
    last = other.last_point
    return bool(last.size) and np.array_equal(last[other.tall.layout.slices[name]], value)
