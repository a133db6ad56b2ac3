"""Parallel styles: parameters cut over a mesh axis, and what moves in and out of a module."""
