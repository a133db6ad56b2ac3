"""Random numbers that depend on the seed and the global index alone, however they are laid out.

``__all__`` has what programs use; the other name is for the floors above.
"""

from distarray.random._blocks import fill_floats as fill_floats
from distarray.random._generator import Generator, default_rng

__all__ = ["Generator", "default_rng"]
