"""The machine's processor, and what was measured of it: files of JSON that later processes read.

They lie beside the compiled kernels, one for each processor model and name. Nodes may differ, and a
file may be gone at any time: what ranks must agree on is not taken from here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from pathlib import Path
from typing import Any, Final

_PROCESSORS: Final = Path("/proc/cpuinfo")


@functools.cache
def label() -> str:
    """Name the processor by its model name, family and model, as in ``amd-epyc-f25-m17``."""
    facts = _facts()
    name = re.sub(r"\([^)]*\)", "", facts.get("model name", platform.machine()))
    words = [word.lower() for word in re.findall(r"[A-Za-z0-9]+", name)]
    numbers = [f"{key[0]}{facts[key]}" for key in ("family", "model") if key in facts]
    return "-".join(words + numbers)


def load(name: str) -> dict[str, Any]:
    """Return what was stored under a name for this processor; nothing where that cannot be read."""
    import json  # here, as what follows: milliseconds of the import of the package

    with contextlib.suppress(ValueError):
        found = json.loads(read(f"{name}-{label()}.json") or "{}")
        if isinstance(found, dict):
            return found
    return {}


def store(name: str, content: dict[str, Any]) -> Path | None:
    """Keep something under a name for this processor; None where no folder can be written."""
    import json

    return write(f"{name}-{label()}.json", json.dumps(content, indent=1).encode())


def read(name: str) -> bytes | None:
    """Return the content of a file, from the best folder that has it."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            return (folder / name).read_bytes()
    return None


def write(name: str, content: bytes) -> Path | None:
    """Replace a file as a whole; None where no folder can be written."""
    import tempfile

    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(content)
            os.replace(file.name, path)  # at once: others read the old file or the new one
            return path
    return None


def features() -> str:
    """Return what the system says that the processor can do."""
    facts = _facts()
    return facts.get("flags") or facts.get("Features") or platform.processor()


def _folders() -> list[Path]:
    """Return where files may be kept, best first."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(__file__).parent / "__pycache__", Path(home) / "distarray"]


def _facts() -> dict[str, str]:
    """Return what the system tells of its first processor."""
    facts: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _PROCESSORS.read_text().splitlines():
            if not line.strip():
                break
            key, _, value = line.partition(":")
            facts[key.strip().removeprefix("cpu ")] = value.strip()
    return facts
