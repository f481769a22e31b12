"""Multilevel estimates of posterior expectations."""

from pymc_minibatch.multilevel.result import MultilevelResult
from pymc_minibatch.multilevel.sgld import multilevel_sgld

__all__ = ["MultilevelResult", "multilevel_sgld"]
