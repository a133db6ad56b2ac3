"""What programs that use the library can test themselves with."""

from distarray.comm import simulate

__all__ = ["simulate"]
