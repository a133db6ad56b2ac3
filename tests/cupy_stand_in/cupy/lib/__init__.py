"""`cupy.lib` of the stand-in."""

from cupy.lib import stride_tricks

__all__ = ["stride_tricks"]
