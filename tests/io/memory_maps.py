"""Memory maps of .npy files, opened by ranks that are threads of one process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

_parsing = threading.Lock()


def open_map(path: Path, mode: Any) -> np.memmap[Any, Any]:
    """Return a map of a file; CPython 3.11 fails where two threads parse its header at once."""
    with _parsing:
        mapped = np.load(path, mmap_mode=mode)
    assert isinstance(mapped, np.memmap)
    return mapped
