"""Searching and counting: bins of histograms."""
