"""What the real CuPy has, as `extract.py` found it."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

_data: dict[str, Any] = json.loads(Path(__file__).with_name("data.json").read_text())

VERSION: str = _data["version"]
NAMES: dict[str, frozenset[str]] = {module: frozenset(n) for module, n in _data["names"].items()}
UFUNCS: dict[str, dict[str, Any]] = _data["ufuncs"]
SIGNATURES: dict[str, str | None] = _data["signatures"]
METHODS: dict[str, str | None] = _data["methods"]


def signature(text: str) -> inspect.Signature:
    """Return the signature that a text such as "(a, axis=None)" describes."""
    space: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef f{text}: ...", space)
    return inspect.signature(space["f"])
