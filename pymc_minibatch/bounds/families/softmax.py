"""Rows of one class of several, with probabilities by softmax."""

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Sub
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.random.basic import CategoricalRV
from pytensor.tensor.special import Softmax
from pytensor.tensor.variable import TensorVariable

from pymc_minibatch.bounds.bohning import Bohning
from pymc_minibatch.bounds.families.family import Family
from pymc_minibatch.bounds.likelihood import Likelihood, Reader

__all__ = ["SOFTMAX"]


def categorical(reader: Reader, p: Variable) -> Likelihood:
    """Read one number for each row and class."""
    eta = reader.unlinked(p, Softmax, "the softmax")
    eta = pt.cast(_without_common_terms(eta if eta.ndim == 2 else eta[None, :]), "float64")
    rows = pt.zeros((reader.observed.shape[0], 1), dtype="float64")
    return reader.likelihood("softmax", eta + rows)


def _without_common_terms(eta: TensorVariable) -> TensorVariable:
    """Drop what is added to all classes alike, such as the maximum that PyMC subtracts."""
    op = eta.owner.op if eta.owner else None
    subtracts = isinstance(op, Elemwise) and isinstance(op.scalar_op, Sub)
    if subtracts and eta.owner.inputs[1].type.broadcastable[-1]:
        return _without_common_terms(eta.owner.inputs[0])
    return eta


SOFTMAX = Family(name="softmax", likelihoods={CategoricalRV: categorical}, bound=Bohning())
