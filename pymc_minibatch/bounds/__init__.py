"""Lower bounds of likelihoods for Firefly Monte Carlo, one file each."""

from pymc_minibatch.bounds.bohning import Bohning
from pymc_minibatch.bounds.bound import Bound
from pymc_minibatch.bounds.jaakkola_jordan import JaakkolaJordan
from pymc_minibatch.bounds.likelihood import NoBoundError
from pymc_minibatch.bounds.predictor import NoPredictorError
from pymc_minibatch.bounds.student_t import StudentT
from pymc_minibatch.bounds.target import BoundError

__all__ = [
    "Bohning",
    "Bound",
    "BoundError",
    "JaakkolaJordan",
    "NoBoundError",
    "NoPredictorError",
    "StudentT",
]
