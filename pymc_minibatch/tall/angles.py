"""Angles lie on a line, where a whole turn changes nothing; their copies share their density.

PyMC's transform of an angle leaves its value on the real line. The density there is periodic and
has no integral, so that chains wander from turn to turn for ever. Here the copies v + 2πk of an
angle share its density, by shares that add up to one,

    w(v) = S((π + v) / s) S((π − v) / s),    S(x) = 1 / (1 + e^{−x}).

Apart from e^{−2π/s}, this is S((π + v) / s) + S((π − v) / s) − 1, whose sum over k telescopes. So
draws of the angle are those of the model, whatever s is.
"""

import math

import pytensor.tensor as pt
from pymc.distributions.transforms import CircularTransform
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

__all__ = ["log_share_of_copy", "values_of_angles"]

SOFTNESS = math.pi / 40
"""s, in radians: e^{−2π/s} is 10⁻³⁵, and within a quarter of a turn of 0 the share is one to nine
digits."""


def values_of_angles(model: Model) -> list[Variable]:
    """List the value variables that are angles."""
    transforms = model.rvs_to_transforms
    return [
        value
        for rv, value in model.rvs_to_values.items()
        if isinstance(transforms.get(rv), CircularTransform)
    ]


def log_share_of_copy(values: TensorVariable) -> TensorVariable:
    """Return log w of the values of angles, a graph of their shape."""
    ends: TensorVariable = pt.softplus((values - math.pi) / SOFTNESS)
    return -ends - pt.softplus(-(values + math.pi) / SOFTNESS)
