"""A step that is set up, handed on with a result."""

from typing import Any

import numpy as np

__all__ = ["SetUp", "keep", "kept"]

KEY = "pymc_minibatch"


class SetUp:
    """What a step is set up with, which goes with a result but not into files or copies.

    Parameters
    ----------
    attributes
        Those of the step.
    points : ndarray, shape (K, D)
        Unconstrained points from which chains may start.
    """

    def __init__(self, attributes: dict[str, Any] | None, points: np.ndarray) -> None:
        self.attributes, self.points = attributes, points

    def __deepcopy__(self, memo: Any) -> "SetUp":
        return self

    def __reduce__(self) -> Any:
        return SetUp, (None, np.empty((0, 0)))


def keep(idata: Any, set_up: SetUp) -> None:
    """Put a set-up into a result."""
    idata.encoding = {**idata.encoding, KEY: set_up}


def kept(idata: Any, model: Any) -> SetUp:
    """Return the set-up of a result.

    Raises
    ------
    ValueError
        If it has none, or it is of another model or of other data.
    """
    set_up = getattr(idata, "encoding", {}).get(KEY)
    if not isinstance(set_up, SetUp) or set_up.attributes is None:
        raise ValueError(
            "start must be a result of pmb.approximate from this process: one that was saved, or "
            "part of one, holds no set-up. Pass its draws to pm.sample as "
            "initvals instead."
        )
    if set_up.attributes["tall"].given_model is not model:
        raise ValueError("start is of another model. Pass what pmb.approximate(model) returned.")
    if names := set_up.attributes["_shared_values"].changed():
        verb = "were" if len(names) > 1 else "was"
        raise ValueError(
            f"{', '.join(names)} {verb} set since start was found. Call pmb.approximate again."
        )
    return set_up
