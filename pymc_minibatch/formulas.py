"""Bambi's models of data with many groups, built without a matrix of rows by groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pymc_minibatch.warn import warn

__all__ = ["groups_as_codes"]

KNOWN = ("0.6.2",)
"""Versions of formulae whose step is replaced; it reads formulas for Bambi."""


@contextmanager
def groups_as_codes() -> Iterator[None]:
    """Build Bambi models with many groups in time and memory that do not grow with their number.

    For each grouping factor of a formula, such as ``g`` in ``(1 | g)``, Bambi makes a dense matrix
    of rows by groups: 80 GB for a million rows with 10,000 groups. Only the position of the 1 in
    each row is used. In this context these positions are kept instead of the matrix. The model is
    the same, with the same names and priors. It is fitted, and predicts, as any other, also outside
    of the context.

    Factors whose contrasts are not 0 and 1, such as ``(1 | C(g, Sum))``, are read as before.

    Warns
    -----
    MinibatchWarning
        If the version of formulae, which reads formulas for Bambi, is not one that this replacement
        was written for, or the design matrices of a small frame are not Bambi's. Then nothing is
        replaced.

    Raises
    ------
    ModuleNotFoundError
        If Bambi is not installed.

    Examples
    --------
    >>> import bambi as bmb, numpy as np, pandas as pd, pymc_minibatch as pmb
    >>> frame = pd.DataFrame({"y": np.arange(9.0), "g": np.resize(["a", "b", "c"], 9)})
    >>> with pmb.groups_as_codes():
    ...     model = bmb.Model("y ~ 1 + (1 | g)", frame)
    >>> list(model.components["mu"].group_specific_terms)
    ['1|g']
    """
    if reason := reason_against():
        warn(
            "PMB506",
            f"{reason}, so Bambi builds dense matrices of rows by groups, as it does without "
            "groups_as_codes",
        )
        yield
        return
    from pymc_minibatch.bambi_groups import by_code

    with by_code():
        yield


@cache
def reason_against() -> str | None:
    """Say why nothing is replaced, if so."""
    try:
        found = version("formulae")
    except PackageNotFoundError as error:
        raise ModuleNotFoundError("groups_as_codes is for Bambi: pip install bambi") from error
    if found not in KNOWN:
        return f"This release knows formulae {' and '.join(KNOWN)}, not {found}"
    from pymc_minibatch.bambi_groups import is_right

    return None if is_right() else "The design matrices of a small frame are not those of formulae"
