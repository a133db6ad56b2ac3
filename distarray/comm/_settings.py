"""The library's settings: variables of the environment whose names begin with ``DISTARRAY_``."""

from __future__ import annotations

import os


def setting(name: str, default: str = "") -> str:
    """Return what a variable says, ``default`` where it is unset, empty or blank.

    ``export DISTARRAY_TIMEOUT=`` is how batch files switch a setting off.
    """
    return os.environ.get(name, "").strip() or default
