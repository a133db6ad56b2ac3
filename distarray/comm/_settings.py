"""The library's settings: variables of the environment whose names begin with ``DISTARRAY_``."""

from __future__ import annotations

import os
from typing import Final

NAMES: Final = frozenset(
    "DISTARRAY_" + name
    for name in (
        *("CHECK", "CUDA_AWARE", "KERNELS", "LOCAL_RANK", "NUMBA", "NUM_THREADS", "POOL_LIMIT"),
        *("RANKS_PER_NODE", "SHARED_MEMORY", "TIMEOUT"),
    )
)


def setting(name: str, default: str = "") -> str:
    """Return what a variable says, ``default`` where it is unset, empty or blank.

    ``export DISTARRAY_TIMEOUT=`` is how batch files switch a setting off.
    """
    return os.environ.get(name, "").strip() or default


def misspelt() -> dict[str, str]:
    """Return variables that are set and no settings, with the settings that may be meant.

    Programs may have variables of their own whose names begin alike.
    """
    unknown = [key for key in os.environ if key.startswith("DIST") and key not in NAMES]
    if not unknown:
        return {}
    import difflib

    near = {key: difflib.get_close_matches(key, NAMES, 1, _SIMILARITY) for key in unknown}
    return {key: found[0] for key, found in near.items() if found}


_SIMILARITY: Final = 0.88
"""So alike is a setting to its name without a letter or two, or without the first of its words
(DISTARRAY_THREADS: 0.894), and no name that a program has of its own (DISTARRAY_HOME: 0.83)."""
