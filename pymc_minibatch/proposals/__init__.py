"""Ways to propose a move, one file each."""

from pymc_minibatch.proposals.laplace import Laplace
from pymc_minibatch.proposals.random_walk import RandomWalk

__all__ = ["Laplace", "RandomWalk"]
