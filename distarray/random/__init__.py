"""Random numbers that depend on the seed and the global index alone, however they are laid out.

``__all__`` has what programs use; the other name is for the floors above.
"""

from typing import TYPE_CHECKING

from distarray._missing_names import add_missing_names, missing_name_error
from distarray.random._blocks import fill_floats as fill_floats
from distarray.random._generator import Generator, default_rng

__all__ = ["Generator", "default_rng"]

add_missing_names(Generator, "random.Generator")

if not TYPE_CHECKING:

    def __getattr__(name):
        raise missing_name_error(f"random.{name}")

    def __dir__():
        return __all__
