"""What programs that use the library can test themselves with."""

from distarray.comm.simulated._ranks import simulate

__all__ = ["simulate"]
