"""A pm.Model seen as a prior part plus N independent rows."""

from pymc_minibatch.tall.cluster import PartError
from pymc_minibatch.tall.columns import Columns
from pymc_minibatch.tall.model import TallModel
from pymc_minibatch.tall.refusals import NotTallError
from pymc_minibatch.tall.row_input import RowInput

__all__ = ["Columns", "NotTallError", "PartError", "RowInput", "TallModel"]
