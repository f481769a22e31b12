"""PyMC step methods: thin, arguments in, stats out."""

from pymc_minibatch.steps.flymc import FlyMC
from pymc_minibatch.steps.minibatch_mh import MinibatchMH
from pymc_minibatch.steps.schedule import Cyclical, Polynomial
from pymc_minibatch.steps.sgfs import SGFS
from pymc_minibatch.steps.sghmc import SGHMC
from pymc_minibatch.steps.sgld import SGLD
from pymc_minibatch.steps.sgnht import SGNHT

__all__ = ["SGFS", "SGHMC", "SGLD", "SGNHT", "Cyclical", "FlyMC", "MinibatchMH", "Polynomial"]
