"""Operators that pick, place and count elements by index."""
