"""Products that sum over axes."""
