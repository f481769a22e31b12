"""Numba loops; they know arrays, not PyMC."""
