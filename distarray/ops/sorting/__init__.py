"""Sorting: order-preserving keys, places found by counting, sorts and merges of blocks."""
