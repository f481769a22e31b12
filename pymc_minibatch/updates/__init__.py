"""Ways to move θ given the bright rows, one file each."""

from pymc_minibatch.updates.hamiltonian import HAMILTONIAN
from pymc_minibatch.updates.langevin import LANGEVIN
from pymc_minibatch.updates.metropolis import METROPOLIS
from pymc_minibatch.updates.slice import SLICE
from pymc_minibatch.updates.update import Update

__all__ = ["UPDATES"]

UPDATES: dict[str, Update] = {
    "metropolis": METROPOLIS,
    "langevin": LANGEVIN,
    "slice": SLICE,
    "hamiltonian": HAMILTONIAN,
}
