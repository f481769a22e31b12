"""Minibatch acceptance tests, one file each, and the correction distribution."""

from pymc_minibatch.acceptance.austere import Austere
from pymc_minibatch.acceptance.barker import Barker
from pymc_minibatch.acceptance.corrected_barker import CorrectedBarker
from pymc_minibatch.acceptance.decision import Acceptance
from pymc_minibatch.acceptance.exact import Exact
from pymc_minibatch.acceptance.naive import Naive
from pymc_minibatch.acceptance.penalty import Penalty
from pymc_minibatch.acceptance.sub_lhd import SubLhd

TESTS: tuple[type[Acceptance], ...] = (
    Exact,
    CorrectedBarker,
    Penalty,
    Naive,
    Barker,
    Austere,
    SubLhd,
)
"""In the order in which they are named: those meant for use before those for comparison."""

__all__ = ["Austere", "Barker", "CorrectedBarker", "Exact", "Naive", "Penalty", "SubLhd"]
