"""Tools with which programs that use the library test themselves."""

from typing import TYPE_CHECKING

from distarray._missing_names import missing_name_error
from distarray.comm import simulate
from distarray.core import clear_cache
from distarray.redistribute import clear_plans

__all__ = ["reset", "simulate"]


def reset() -> None:
    """Forget what this process has resolved and planned: the next calls are as the first ones.

    Nothing is communicated, and no array changes. Useful before a test that times first calls, or
    that counts what a program keeps.

    Examples
    --------
    >>> import distarray as da
    >>> from distarray.testing import reset
    >>> before = da.ones(3) + 1
    >>> reset()
    >>> print(da.ones(3) + 1)
    [2. 2. 2.]
    """
    clear_cache()
    clear_plans()


if not TYPE_CHECKING:

    def __getattr__(name):
        raise missing_name_error(f"testing.{name}")

    def __dir__():
        return __all__
