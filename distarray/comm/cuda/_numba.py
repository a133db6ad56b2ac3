"""Import Numba's part for GPUs whole, also where its version and NumPy's are of different times.

What of it is imported late, when a kernel is first compiled, may name what NumPy has no longer
(numba-cuda 0.30 has ``np.row_stack``, which NumPy 2.5 has not), or warn where programs make errors
of warnings. Imported here, both concern nobody else.
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import Any, Final

import numba
import numpy as np

_LATE: Final = ("numba.cuda.np.arrayobj", "numba.cuda.cudaimpl")
_REMOVED: Final = {"row_stack": np.vstack}


def cuda() -> Any:
    """Return the module ``numba.cuda``."""
    with warnings.catch_warnings(), _with_removed():
        warnings.simplefilter("ignore")
        found = importlib.import_module("numba.cuda")
        if not numba.config.ENABLE_CUDASIM:
            for name in _LATE:
                with contextlib.suppress(ModuleNotFoundError):  # not in all versions
                    importlib.import_module(name)
    return found


@contextlib.contextmanager
def _with_removed() -> Iterator[None]:
    """Lend NumPy the names that it has no more."""
    lent = [name for name in _REMOVED if not hasattr(np, name)]
    for name in lent:
        setattr(np, name, _REMOVED[name])
    try:
        yield
    finally:
        for name in lent:
            delattr(np, name)
