"""What a few passes over all rows buy: mode, Hessian, Taylor surrogate."""

from pymc_minibatch.reference.find import NoReferenceError, Reference, find_reference

__all__ = ["NoReferenceError", "Reference", "find_reference"]
