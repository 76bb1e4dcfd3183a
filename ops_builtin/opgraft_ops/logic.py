"""Comparison, logic and bitwise operators."""
