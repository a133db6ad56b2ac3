"""Special functions: SciPy's ufuncs, which work on each process's block of an array.

`distarray.special.erf` is `scipy.special.erf`, and so are all others that are ufuncs. They move
nothing. Where `SCIPY_ARRAY_API=1` is set, `scipy.special` looks for its functions here, in the
array's namespace, and else gathers the whole array.

Examples
--------
>>> import distarray as da
>>> print(da.special.expit(da.asarray([0.0, 800.0])))
[0.5 1. ]
"""

from typing import Any

import numpy as np


def _find(special: Any, name: str) -> Any:
    """Return a ufunc of SciPy's; None where there is none of this name."""
    found = getattr(special, name, None)
    if not isinstance(found, np.ufunc):  # where SciPy dispatches, it wraps its ufuncs
        found = getattr(found, "__wrapped__", None)
    return found if isinstance(found, np.ufunc) else None


def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        try:
            from scipy import special
        except ImportError:
            raise AttributeError(
                f"distarray.special.{name} is SciPy's, which is not installed; install scipy"
            ) from None
        found = _find(special, name)
        if found is not None:
            return found
    raise AttributeError(f"distarray.special has no {name!r}: scipy.special has no ufunc of it")


def __dir__() -> list[str]:
    try:
        from scipy import special
    except ImportError:
        return []
    return [name for name in special.__all__ if _find(special, name) is not None]
