"""Prove and measure on a GPU: ``python -m benchmarks.gpu --out DIR``."""
