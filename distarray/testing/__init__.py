"""What programs that use the library can test themselves with."""

from distarray.comm._simulated import simulate

__all__ = ["simulate"]
