"""Rows: one public callable per function, a file per category of the standard."""
