"""How often the corrected Barker test accepts, against 1 / (1 + exp(-delta)).

400,000 decisions for each delta leave a standard error of at most 8e-4, and all |z| together stay
below `Z_MAX` in all but one run in 10^4. Where s² is estimated from few rows, the test has an error
of its own that is larger; so most stand-ins below give each batch exactly the spread that belongs
to its s², and the others have batches of at least 100 rows.
"""

import numpy as np
import pytest
from numba import njit
from row_pairs import at_both
from scipy.special import expit
from scipy.stats import norm

from pymc_minibatch import CorrectedBarker
from pymc_minibatch.acceptance.decision import RowReaders, row_workspace
from pymc_minibatch.jit.pointers import address_of
from pymc_minibatch.kernels.rows import make_readers
from pymc_minibatch.reference.density import Density

DELTAS = np.linspace(-6.0, 6.0, 13)
FEW_DELTAS = np.array([-3.0, -1.0, 1.0, 3.0])
N_DECISIONS = 400_000
Z_MAX = 5.2

TEMPERATURE = 50.0
PSI = -0.7
"""The part of delta that does not come from rows."""


@njit
def draw_rows_of_known_spread(rng, current, proposed, density, rows, n_seen, n):
    """Add rows with mean ``proposed[0]`` plus noise and standard deviation ``proposed[1]``.

    The noise has the variance of a mean of rows that are drawn without replacement.
    """
    spread, m = proposed[1], n - n_seen
    mean = proposed[0] + spread * np.sqrt(1 / m - 1 / density.data[0].size) * rng.standard_normal()
    unit = spread / np.sqrt(m * (m + 1) / 12)  # of m even steps with standard deviation `spread`
    for i in range(m):
        rows.log_ratios[n_seen + i] = mean + unit * (i - (m - 1) / 2)
    return -1


@njit
def draw_normal_rows(rng, current, proposed, density, rows, n_seen, n):
    """Add independent normal log ratios, with that mean and standard deviation, to a batch."""
    for i in range(n_seen, n):
        rows.log_ratios[i] = proposed[0] + proposed[1] * rng.standard_normal()
    return -1


@njit
def sum_rows(current, proposed, density):
    return proposed[0] * density.data[0].size, -1


@njit
def row(point, constants, batch):
    offset, x = batch
    return offset + point[0] + point[1] * x


ROWS = at_both(row)
ROW = address_of(ROWS, np.zeros(2), np.zeros(2), (), (np.zeros(1), np.zeros(1)))


def make_counter(*readers):
    """Return a function that decides many times and counts."""
    decide = CorrectedBarker().build(RowReaders(*readers))

    @njit
    def count(rng, n_decisions, current, proposed, density, rows, parameters):
        n_accepted = batch_rows = 0
        largest_s2 = 0.0
        for _ in range(n_decisions):
            decision = decide(rng, PSI, current, proposed, density, rows, parameters)
            n_accepted += decision.accepted
            batch_rows += decision.batch_size
            largest_s2 = max(largest_s2, decision.log_ratio_var)
        return n_accepted, batch_rows / n_decisions, largest_s2

    return count


count_known_spread = make_counter(draw_rows_of_known_spread, sum_rows, None)
count_normal = make_counter(draw_normal_rows, sum_rows, None)
count_real_rows = make_counter(*make_readers([1, 1]))


def measure(count, delta, spread, batch_size, data, sigma=1.0):
    """Return the standard score of the frequency, the mean batch size and the largest s².

    At the proposal the log-likelihood of all rows together is higher by the part of `delta` that
    is not `PSI`, and that of single rows varies with standard deviation `spread`.
    """
    n_rows = data[0].size
    test = CorrectedBarker(sigma=sigma, test_error=None)
    n_accepted, batch_rows, largest_s2 = count(
        np.random.default_rng(20_170_709 + round(10 * delta)),
        N_DECISIONS,
        np.zeros(2),
        np.array([(delta - PSI) * TEMPERATURE / n_rows, spread]),
        Density(data, (), row=ROW if len(data) == 2 else 0),
        row_workspace(n_rows),
        test.parameters(TEMPERATURE, np.array([batch_size]), n_rows),
    )
    probability = expit(delta)
    error = np.sqrt(probability * (1 - probability) / N_DECISIONS)
    return (n_accepted / N_DECISIONS - probability) / error, batch_rows, largest_s2


def spread_of_rows(s2, batch_size, n_rows):
    """Return the standard deviation of log ratios that gives a batch this s²."""
    return np.sqrt(s2 / (1 / batch_size - 1 / n_rows)) * TEMPERATURE / n_rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "s2"),
    [
        (1.0, 0.0),
        (1.0, 0.3),
        (1.0, 0.9),
        (0.8, 0.0),
        (0.8, 0.5),
        (1.2, 0.0),
        (1.2, 0.9),
        (1.2, 1.4),
    ],
)
def test_minibatch(sigma, s2):
    """The noise of the batch takes the place of a part of the logistic noise."""
    n_rows, batch_size = 1000, 10
    spread = spread_of_rows(s2, batch_size, n_rows)
    for delta in DELTAS:
        z, batch_rows, largest_s2 = measure(
            count_known_spread, delta, spread, batch_size, (np.empty(n_rows),), sigma
        )
        assert abs(z) < Z_MAX
        assert batch_rows >= batch_size  # more where it is not sure of its s²
        assert largest_s2 <= sigma**2


@pytest.mark.parametrize("batch_size", [51, 100])
def test_all_rows(batch_size):
    """Reading all rows leaves Barker's test, not the rule to accept iff delta > 0."""
    for delta in DELTAS:
        z, batch_rows, s2 = measure(count_normal, delta, 1e3, batch_size, (np.empty(100),))
        assert abs(z) < Z_MAX
        assert (batch_rows, s2) == (100, 0.0)


def test_grown_batch_of_known_spread():
    """Rows are added until s² < sigma², as many as other rows say."""
    n_rows, batch_size = 1000, 10
    spread = spread_of_rows(3.0, batch_size, n_rows)
    for delta in DELTAS:
        z, batch_rows, largest_s2 = measure(
            count_known_spread, delta, spread, batch_size, (np.empty(n_rows),)
        )
        assert abs(z) < Z_MAX
        assert batch_rows > 3 * batch_size
        assert largest_s2 <= 1.0


@pytest.mark.slow
def test_grown_batch_of_normal_rows():
    """The rows of the first batch stay in the batch that is grown from it."""
    n_rows, batch_size = 1_000_000, 100
    spread = spread_of_rows(3.0, batch_size, n_rows)
    for delta in FEW_DELTAS:
        z, batch_rows, largest_s2 = measure(
            count_normal, delta, spread, batch_size, (np.empty(n_rows),)
        )
        assert abs(z) < Z_MAX
        assert 3 * batch_size < batch_rows < 8 * batch_size
        assert largest_s2 <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [100, 200])
def test_rows_without_replacement(batch_size):
    """A third of all rows is read at both points, or all of them; rows differ by far more.

    The log-likelihoods of a row at the two points differ by much less than those of two rows at the
    same point, so s² is below sigma² only if the points are evaluated on the same rows.
    """
    n_rows = 300
    rng = np.random.default_rng(1)
    offset = rng.normal(0.0, 100.0, n_rows)
    x = rng.permutation(norm.ppf((np.arange(n_rows) + 0.5) / n_rows))
    spread = spread_of_rows(0.5, 100, n_rows)
    for delta in FEW_DELTAS:
        z, batch_rows, _ = measure(count_real_rows, delta, spread, batch_size, (offset, x))
        assert abs(z) < Z_MAX
        assert batch_size <= batch_rows <= n_rows
