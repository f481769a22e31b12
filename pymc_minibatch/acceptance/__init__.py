"""Minibatch acceptance tests, one file each, and the correction distribution."""

from pymc_minibatch.acceptance.corrected_barker import CorrectedBarker
from pymc_minibatch.acceptance.penalty import Penalty

__all__ = ["CorrectedBarker", "Penalty"]
