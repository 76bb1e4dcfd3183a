"""Operators that pad, tile, expand, and move blocks of elements."""
