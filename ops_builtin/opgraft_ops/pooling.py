"""Pooling over sliding windows."""
