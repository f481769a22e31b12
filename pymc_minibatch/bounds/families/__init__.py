"""Families of likelihoods, one file each: how they are recognised, and how they are bounded."""

from pymc_minibatch.bounds.families.exponential import EXPONENTIAL
from pymc_minibatch.bounds.families.family import Family
from pymc_minibatch.bounds.families.logistic import LOGISTIC
from pymc_minibatch.bounds.families.normal import NORMAL
from pymc_minibatch.bounds.families.probit import PROBIT
from pymc_minibatch.bounds.families.softmax import SOFTMAX
from pymc_minibatch.bounds.families.student_t import STUDENT_T

__all__ = ["FAMILIES"]

FAMILIES: tuple[Family, ...] = (NORMAL, EXPONENTIAL, LOGISTIC, PROBIT, STUDENT_T, SOFTMAX)
"""Rows are taken for the first of them that they fit."""
