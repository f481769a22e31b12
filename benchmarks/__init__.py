"""Comparisons with other samplers, and how the cost of a draw scales."""
