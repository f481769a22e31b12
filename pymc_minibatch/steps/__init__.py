"""PyMC step methods: thin, arguments in, stats out."""

from pymc_minibatch.steps.flymc import FlyMC
from pymc_minibatch.steps.minibatch_mh import MinibatchMH
from pymc_minibatch.steps.sgfs import SGFS
from pymc_minibatch.steps.sgld import SGLD

__all__ = ["SGFS", "SGLD", "FlyMC", "MinibatchMH"]
