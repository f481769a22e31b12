"""What a few passes over all rows buy: mode, Hessian, Taylor surrogate."""

from pymc_minibatch.reference.find import Reference, ReferenceError, find_reference

__all__ = ["Reference", "ReferenceError", "find_reference"]
