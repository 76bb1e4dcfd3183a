"""Element type conversions."""
