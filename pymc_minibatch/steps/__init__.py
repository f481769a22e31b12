"""PyMC step methods: thin, arguments in, stats out."""

from pymc_minibatch.steps.flymc import FlyMC
from pymc_minibatch.steps.minibatch_mh import MinibatchMH

__all__ = ["FlyMC", "MinibatchMH"]
