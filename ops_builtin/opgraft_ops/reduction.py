"""Reductions, cumulative sums, and sorting."""
