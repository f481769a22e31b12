"""Coefficients that few rows tell are right, from few rows for each decision."""

import pytest

from benchmarks.rare_rows import measure as measured
from benchmarks.rare_rows import poisson

Z_MAX = 4.5


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["auto", "corrected_barker"])
def test_a_category_of_28_rows(acceptance):
    """Uniform batches of 100 rows put the coefficient a tenth of a standard deviation off."""
    found = measured(poisson(2), 3000, acceptance=acceptance)
    assert found.noise < 0.03
    assert abs(found.error) < Z_MAX * found.noise
    assert found.rows < 500
    assert found.warnings == 0
