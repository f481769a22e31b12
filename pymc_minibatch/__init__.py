"""PyMC step methods that read a few rows of the data at each step."""

from importlib.metadata import version

from pymc_minibatch import plots
from pymc_minibatch.acceptance import (
    Austere,
    Barker,
    CorrectedBarker,
    Exact,
    Naive,
    Penalty,
    SubLhd,
)
from pymc_minibatch.approximate import approximate
from pymc_minibatch.audit import audit
from pymc_minibatch.bounds import (
    Bohning,
    Bound,
    BoundError,
    JaakkolaJordan,
    NoBoundError,
    NoPredictorError,
    StudentT,
)
from pymc_minibatch.chains import sample_on
from pymc_minibatch.check import Check, check
from pymc_minibatch.compare import compare
from pymc_minibatch.convergence import worst
from pymc_minibatch.formulas import groups_as_codes
from pymc_minibatch.jit.memory import NotEnoughMemoryError
from pymc_minibatch.loo import loo
from pymc_minibatch.multilevel import MultilevelResult, multilevel_sgld
from pymc_minibatch.pointwise import log_likelihood
from pymc_minibatch.prediction import NoPredictionError, predict
from pymc_minibatch.proposals import (
    Laplace,
    RandomWalk,
    SurrogateHamiltonian,
    SurrogateLangevin,
)
from pymc_minibatch.reference import NoReferenceError, Reference, find_reference
from pymc_minibatch.report import report
from pymc_minibatch.running import RunningMean
from pymc_minibatch.sample import resume, sample
from pymc_minibatch.stein import SteinDiscrepancy, ksd
from pymc_minibatch.steps import (
    SGFS,
    SGHMC,
    SGLD,
    SGNHT,
    Cyclical,
    FlyMC,
    MinibatchMH,
    Polynomial,
)
from pymc_minibatch.tall import Columns, NotTallError, PartError, TallModel
from pymc_minibatch.verdict import Audit
from pymc_minibatch.warn import MinibatchWarning

__version__ = version("pymc-minibatch")

__all__ = [
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "Audit",
    "Austere",
    "Barker",
    "Bohning",
    "Bound",
    "BoundError",
    "Check",
    "Columns",
    "CorrectedBarker",
    "Cyclical",
    "Exact",
    "FlyMC",
    "JaakkolaJordan",
    "Laplace",
    "MinibatchMH",
    "MinibatchWarning",
    "MultilevelResult",
    "Naive",
    "NoBoundError",
    "NoPredictionError",
    "NoPredictorError",
    "NoReferenceError",
    "NotEnoughMemoryError",
    "NotTallError",
    "PartError",
    "Penalty",
    "Polynomial",
    "RandomWalk",
    "Reference",
    "RunningMean",
    "SteinDiscrepancy",
    "StudentT",
    "SubLhd",
    "SurrogateHamiltonian",
    "SurrogateLangevin",
    "TallModel",
    "approximate",
    "audit",
    "check",
    "compare",
    "find_reference",
    "groups_as_codes",
    "ksd",
    "log_likelihood",
    "loo",
    "multilevel_sgld",
    "plots",
    "predict",
    "report",
    "resume",
    "sample",
    "sample_on",
    "worst",
]
