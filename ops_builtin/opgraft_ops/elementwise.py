"""Arithmetic and other element-by-element operators."""
