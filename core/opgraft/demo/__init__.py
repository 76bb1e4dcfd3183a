"""The model that `opgraft demo` runs."""
