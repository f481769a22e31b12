"""Whether a model has interchangeable units, as hidden layers and mixtures have.

A posterior with K such units has K! modes for each one that can be found, and an expansion about
one of them is none about the others. They are found by exchanging two, which rows do not notice.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, product

import numpy as np

from pymc_minibatch.tall import TallModel

__all__ = ["interchangeable"]

ROWS, SPREAD = 50, 0.5
TOLERANCE = 1e-9

MOST = 256
"""Ways to exchange units that are tried for each length."""

Axes = Sequence[tuple[str, int]]
"""Variables, and the axis of each along which its entries belong to units."""


def interchangeable(tall: TallModel) -> list[str]:
    """Return names of variables whose first two units can be exchanged; none if there are none."""
    rng = np.random.default_rng(0)
    batch = tall.batch(rng.integers(0, tall.n_rows, min(ROWS, tall.n_rows)))
    flat = tall.start.copy()
    flat = flat + SPREAD * rng.standard_normal(flat.size)
    point = tall.layout.unflatten(flat)
    here = tall.vector_row_logp(flat, *batch)

    def unnoticed(axes: Axes, order: list[int]) -> bool:
        """Whether rows stay the same where entries 0 and 1 are taken in this order."""
        changed = dict(point)
        for name, axis in axes:
            units = np.arange(point[name].shape[axis])
            units[:2] = order
            changed[name] = np.take(point[name], units, axis)
        there = tall.vector_row_logp(tall.layout.flatten(changed), *batch)
        return bool(np.allclose(there, here, rtol=TOLERANCE, atol=TOLERANCE))

    for axes in _candidates({name: np.shape(values) for name, values in point.items()}):
        if unnoticed(axes, [1, 0]) and not any(unnoticed([one], [0, 0]) for one in axes):
            return [name for name, _ in axes]
    return []


def _candidates(shapes: dict[str, tuple[int, ...]]) -> Iterator[Axes]:
    """Yield sets of axes of the same length, at most one of each variable; large sets first."""
    lengths = {length for shape in shapes.values() for length in shape if length > 1}
    for length in sorted(lengths):
        choices = [
            [*((name, axis) for axis, n in enumerate(shape) if n == length), None]
            for name, shape in shapes.items()
            if length in shape
        ]
        for chosen in islice(product(*choices), MOST):
            if axes := [one for one in chosen if one is not None]:
                yield axes
