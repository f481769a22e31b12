"""Minibatch acceptance tests, one file each, and the correction distribution."""

from pymc_minibatch.acceptance.corrected_barker import CorrectedBarker

__all__ = ["CorrectedBarker"]
