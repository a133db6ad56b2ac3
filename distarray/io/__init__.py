"""Arrays in files that other programs read and write: NumPy's .npy, HDF5 and zarr.

Stored arrays are read by `distarray.asarray` as well: of an HDF5 dataset, a zarr array or a memory
map each process reads its block alone.
"""

from distarray.io._npy import load, save
from distarray.io._stored import store

__all__ = ["load", "save", "store"]
