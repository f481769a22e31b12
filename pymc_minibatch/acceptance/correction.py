r"""The correction distribution of the corrected Barker test.

Barker's test accepts iff :math:`\Delta + X_{\log} > 0`, with :math:`X_{\log}` standard logistic.
A minibatch estimate of :math:`\Delta` brings approximately normal noise of its own, which can stand
in for part of the logistic variable once that is written as

.. math:: X_{\log} \approx N(0, \sigma^2) + X_{\mathrm{corr}}.

The decomposition is section 4 of [1]_, which finds the density of :math:`X_{\mathrm{corr}}` by
regularised least squares, with negative values set to zero afterwards. Here
:math:`X_{\mathrm{corr}}` is a symmetric discrete distribution, found by non-negative least squares
[2]_: positivity is a constraint instead of a repair, so no regularisation is needed and the
distance between the distribution functions falls by four orders of magnitude at
:math:`\sigma = 1`. Lawson's reweighting then moves the fit from least squares towards the least
maximum error, the one that bounds the error of the test.

No exact :math:`X_{\mathrm{corr}}` exists for any :math:`\sigma > 0`, because the quotient of the
characteristic functions grows without bound; hence the best approximation and its error.

References
----------
.. [1] Seita, D., Pan, X., Chen, H. and Canny, J. (2017). An efficient minibatch acceptance test for
   Metropolis-Hastings. Uncertainty in Artificial Intelligence.
.. [2] Lawson, C. L. and Hanson, R. J. (1995). Solving Least Squares Problems. SIAM.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls
from scipy.special import expit, ndtr

SIGMA_MIN = 0.5
SIGMA_MAX = 1.4

LARGEST_ERROR = 5e-4
"""The error of the correction is smaller for every sigma up to the largest."""

# The logistic tail beyond the outermost atom is lost, and exp(-28) = 7e-13 is below the error of
# every sigma from 0.8 up. A longer reach leaves residuals that are nothing but rounding.
REACH = 28.0
SPACING = 0.16
MARGIN = 4.0

# Mass and variance are least squares equations too. These factors make them hold to rounding, at no
# measurable cost in the error; factors a hundred times larger spoil the fit at sigma <= 0.8.
MASS_FACTOR = 1e3
VARIANCE_FACTOR = 10.0

# SciPy's own limit, 3 iterations an unknown, is too low for small sigma, which needs up to 200.
ITERATIONS_PER_ATOM = 2000

REWEIGHTINGS = 6
REWEIGHTING_FLOOR = 0.1

SMOOTHNESS_NODES = 97

# The mass beyond 10 is 5e-5, too little for |G'''| to reach its maximum there.
BULK = 10.0

# A maximum half a step from the nearest point of the search is missed by 9e-4 of its value.
GRID_ALLOWANCE = 1.001


class Correction(NamedTuple):
    """Decomposition of the standard logistic into N(0, sigma^2) + X_corr, X_corr discrete.

    All arrays are read-only, since every caller shares them.

    Attributes
    ----------
    sigma : float
        Standard deviation of the normal part.
    atoms : ndarray of shape (K,)
        Values of X_corr, ascending and exactly symmetric about 0.
    weights : ndarray of shape (K,)
        Their probabilities, positive, symmetric, with sum 1.
    cumulative : ndarray of shape (K,)
        Cumulative sums of `weights`, the last exactly 1. With u uniform on [0, 1),
        ``atoms[searchsorted(cumulative, u, side="right")]`` is a draw of X_corr.
    cdf_error : float
        Largest distance, over the whole line, between the distribution function of
        N(0, sigma^2) + X_corr and the logistic one.
    variance_grid : ndarray of shape (M,)
        Increasing values of the variance s^2 that the minibatch takes over, from 0 to sigma^2.
    smoothness : ndarray of shape (M,)
        sup |G'''| at each of these, G the distribution function of N(0, sigma^2 - s^2) + X_corr;
        inf at s^2 = sigma^2, where G jumps. It never decreases, for less normal noise never smooths
        more, so the value at the next node up is a bound between two nodes.
    """

    sigma: float
    atoms: np.ndarray
    weights: np.ndarray
    cumulative: np.ndarray
    cdf_error: float
    variance_grid: np.ndarray
    smoothness: np.ndarray


def correction(sigma: float) -> Correction:
    """Find the correction distribution that completes N(0, sigma^2) to a standard logistic.

    The first call for a value of `sigma` takes a fraction of a second; later ones return the same
    object.

    Parameters
    ----------
    sigma : float
        Standard deviation of the normal part, from 0.5 to 1.4. A larger one tolerates noisier
        estimates, hence smaller batches, and has a larger error: 2e-12 at 0.8, 6e-8 at 1, 2e-5 at
        1.2, 5e-4 at 1.4.

    Returns
    -------
    Correction
        The distribution, its error and the smoothness of what remains of the sum.

    Raises
    ------
    ValueError
        If `sigma` is outside [0.5, 1.4] or not a number.
    """
    return _correction(checked_sigma(sigma))


def checked_sigma(sigma: float) -> float:
    """Return a standard deviation for which a correction is known, as a float.

    Raises
    ------
    ValueError
        As :func:`correction` does.
    """
    sigma = float(sigma)
    if not SIGMA_MIN <= sigma <= SIGMA_MAX:
        raise ValueError(
            f"sigma must lie in [{SIGMA_MIN}, {SIGMA_MAX}], got {sigma}. Above {SIGMA_MAX} the "
            f"error of the acceptance test soon exceeds 1e-3; below {SIGMA_MIN} the test needs "
            "more rows with no gain in accuracy. Use 1.0 if in doubt."
        )
    return sigma


@cache
def _correction(sigma: float) -> Correction:
    """Solve for a `sigma` that is known to be in range."""
    half_atoms, half_weights, cdf_error = _fit(sigma)
    atoms, weights = _unfold(half_atoms, half_weights)
    cumulative = np.cumsum(weights)
    cumulative[-1] = 1.0
    # Even steps of the remaining standard deviation lie closer and closer in s^2 towards sigma^2.
    remaining = sigma * np.linspace(1.0, 0.0, SMOOTHNESS_NODES)
    variance_grid = remaining[0] ** 2 - remaining**2
    finite = [_sup_third_derivative(tau, atoms, weights) for tau in remaining[:-1]]
    smoothness = np.array([*finite, np.inf])
    for array in (atoms, weights, cumulative, variance_grid, smoothness):
        array.flags.writeable = False
    return Correction(sigma, atoms, weights, cumulative, cdf_error, variance_grid, smoothness)


def _fit(sigma: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Fit the distribution of |X_corr| by non-negative least squares, reweighted.

    Returns
    -------
    atoms, weights : ndarray of shape (K,)
        Values and probabilities of |X_corr|, before those of probability 0 are left out.
    error : float
        Largest distance between the distribution functions.
    """
    atoms = np.arange(0.0, REACH + SPACING / 2, SPACING)
    x = np.arange(0.0, REACH + MARGIN, SPACING)
    design = _survival(x, atoms, sigma)
    target = expit(-x)
    moments = np.stack([np.full_like(atoms, MASS_FACTOR), VARIANCE_FACTOR * atoms**2])
    moment_target = [MASS_FACTOR, VARIANCE_FACTOR * (np.pi**2 / 3 - sigma**2)]

    best, error = np.zeros_like(atoms), np.inf
    importance = np.ones_like(x)
    for _ in range(1 + REWEIGHTINGS):
        scale = np.sqrt(importance / importance.mean())
        weights, _ = nnls(
            np.vstack([scale[:, None] * design, moments]),
            np.concatenate([scale * target, moment_target]),
            maxiter=ITERATIONS_PER_ATOM * atoms.size,
        )
        weights /= weights.sum()
        new_error = _cdf_error(atoms, weights, sigma)
        if new_error >= error:
            break
        best, error = weights, new_error
        residual = np.abs(design @ weights - target)
        importance *= REWEIGHTING_FLOOR + residual / residual.max()
    return atoms, best, error


def _survival(x: np.ndarray, atoms: np.ndarray, sigma: float) -> np.ndarray:
    """Probability that N(0, sigma^2) plus or minus an atom exceeds x, shape (x.size, atoms.size).

    Survival functions keep their relative accuracy in the right tail, where distribution functions
    round to 1.
    """
    x = x[:, None]
    survival: np.ndarray = 0.5 * (ndtr((atoms - x) / sigma) + ndtr((-atoms - x) / sigma))
    return survival


def _cdf_error(atoms: np.ndarray, weights: np.ndarray, sigma: float) -> float:
    """Largest distance to the logistic distribution function, by symmetry on x >= 0 alone.

    The grid ends where both survival functions are below 1e-17 and can only decrease.
    """
    x = np.arange(0.0, 1.5 * REACH, SPACING / 40)
    kept = weights > 0
    return float(np.abs(_survival(x, atoms[kept], sigma) @ weights[kept] - expit(-x)).max())


def _unfold(half_atoms: np.ndarray, half_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn the distribution of |X_corr| into that of X_corr, without the atoms never drawn."""
    atoms = np.concatenate([-half_atoms[:0:-1], half_atoms])
    weights = np.concatenate([half_weights[:0:-1] / 2, half_weights[:1], half_weights[1:] / 2])
    # Doubles below 1 are drawn in steps of 2^-53: a smaller probability has no draw to fall on.
    kept = weights > 2.0**-53
    return atoms[kept], weights[kept] / weights[kept].sum()


def _sup_third_derivative(tau: float, atoms: np.ndarray, weights: np.ndarray) -> float:
    """Bound |G'''| for G the distribution function of N(0, tau^2) + X_corr.

    The points lie a twentieth of tau apart, within 2 tau of an atom. If atoms leave a wider gap,
    |G'''| is largest next to an atom.
    """
    step = tau / 20
    centres = np.round(atoms[(atoms >= 0) & (atoms <= BULK)] / step)
    x = step * np.unique(centres[:, None] + np.arange(-40, 41))
    z = (x[:, None] - atoms) / tau
    third = (z**2 - 1) * np.exp(-0.5 * z**2) @ weights / (np.sqrt(2 * np.pi) * tau**3)
    return float(GRID_ALLOWANCE * np.abs(third).max())
