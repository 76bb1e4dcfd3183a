"""Detection post-processing."""
