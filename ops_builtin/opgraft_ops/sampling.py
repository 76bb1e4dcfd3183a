"""Operators that sample at computed coordinates."""
