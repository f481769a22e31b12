"""Whether a run samples the model's own density: its moves, compared as it goes."""

from pymc_minibatch.witness.comparison import Comparison, SurpriseError
from pymc_minibatch.witness.witness import Witness

__all__ = ["Comparison", "SurpriseError", "Witness"]
