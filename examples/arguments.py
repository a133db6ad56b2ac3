"""Limits of the numbers that the examples take as arguments."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any


def at_least(least: float, kind: Any = int, most: float = math.inf) -> Callable[[str], Any]:
    """Return a type, for argparse, of finite numbers within limits."""

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except (ValueError, ZeroDivisionError):
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind.__name__}") from None
        if not least <= number <= most or math.isinf(number):
            limits = f"from {least:g} on" if math.isinf(most) else f"from {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text} is not a number {limits}")
        return number

    return read


def mesh_shape(text: str) -> tuple[int, ...]:
    """Return the lengths of a mesh, such as 2,2."""
    return tuple(map(at_least(1), text.split(",")))
