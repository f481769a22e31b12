"""What a few passes over all rows buy: mode, Hessian, Taylor surrogate."""

from pymc_minibatch.reference.find import find_reference
from pymc_minibatch.reference.reference import NoReferenceError, Reference

__all__ = ["NoReferenceError", "Reference", "find_reference"]
