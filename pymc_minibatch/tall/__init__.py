"""A pm.Model seen as a prior part plus N independent rows."""

from pymc_minibatch.tall.model import NotTallError, RowInput, TallModel

__all__ = ["NotTallError", "RowInput", "TallModel"]
