"""Measurements of distarray beside NumPy, hand-written mpi4py and its peers; see README.md."""
