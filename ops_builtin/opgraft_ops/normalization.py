"""Normalization over batches, channels and layers."""
