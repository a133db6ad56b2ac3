"""Blocks that ranks of one node read in place, through memory files."""
