"""Ways to move, one file each."""

from pymc_minibatch.proposals.laplace import Laplace
from pymc_minibatch.proposals.random_walk import RandomWalk
from pymc_minibatch.proposals.surrogate_hamiltonian import SurrogateHamiltonian
from pymc_minibatch.proposals.surrogate_langevin import SurrogateLangevin

__all__ = ["Laplace", "RandomWalk", "SurrogateHamiltonian", "SurrogateLangevin"]
