"""Attention and what surrounds it."""
