"""Random numbers that depend on the seed and the global index alone, however they are laid out."""

from distarray.random._generator import Generator, default_rng

__all__ = ["Generator", "default_rng"]
