"""Every exception the library raises; each is also the nearest builtin exception."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import numpy as np

public_code: dict[CodeType, Callable[[Any], str]] = {}
"""Of public functions, what tells the name of one from its arguments and variables."""


def _public_call() -> str:
    """Return the name of the public function that the program has called, or nothing."""
    found = ""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in public_code:
            found = public_code[frame.f_code](frame.f_locals)
        frame = frame.f_back
    return found


class DistArrayError(Exception):
    """Base of all errors raised by the library.

    One that is raised by functions of which a public one is made begins with the name of that.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if args and isinstance(args[0], str):
            name = _public_call()
            if name and not re.search(rf"\b{re.escape(name)}\b", args[0]):
                self.args = (f"{name}: {args[0]}", *self.args[1:])


def __dir__() -> list[str]:
    return [name for name, one in globals().items() if isinstance(one, type) and "Error" in name]


class MeshError(DistArrayError, ValueError):
    """A mesh that cannot exist, or that does not suit what was asked of it."""


class PlacementError(DistArrayError, ValueError):
    """Placements that do not fit their mesh or array."""


class LayoutError(DistArrayError, ValueError):
    """A layout that is not one: boundaries, order or local blocks that do not fit."""


class ShapeError(DistArrayError, ValueError):
    """Shapes that do not fit together."""


class AxisError(DistArrayError, np.exceptions.AxisError):
    """An array axis out of range, or named twice.

    Of one out of range `axis` and `ndim` tell which of how many, as NumPy's do.
    """

    def __init__(self, text: str, axis: int | None = None, ndim: int | None = None) -> None:
        super().__init__(text)
        self.axis, self.ndim = axis, ndim

    def __str__(self) -> str:
        return str(self.args[0])  # NumPy's keeps the text that it was made with, or makes one


class IndexingError(DistArrayError, IndexError):
    """An index out of range or of a kind that is not supported."""


class DTypeError(DistArrayError, TypeError):
    """A data type that cannot take part in what was asked."""


class LinAlgError(DistArrayError, ValueError):
    """A matrix that a function of linear algebra cannot work on: not square, singular, or such.

    It is raised as `distarray.linalg.LinAlgError`, which is NumPy's of that name as well.
    """


class NonFiniteError(DistArrayError, RuntimeError, ArithmeticError):
    """A number that is infinite or not one, where a finite one is needed."""


class FloatingError(DistArrayError, FloatingPointError):
    """A division by zero, an overflow or the like, where `np.errstate` asks to raise it.

    All processes of the mesh raise it if one does; those outside of it are not told, and go on.
    """


class ZeroWeightError(DistArrayError, ZeroDivisionError):
    """Weights that add up to zero."""


class ArgumentError(DistArrayError, ValueError):
    """An argument with a value outside what the function accepts."""


class OutOfRangeError(ArgumentError, OverflowError):
    """A number that the data type it must take cannot hold."""


class ReadOnlyError(ArgumentError):
    """An array that may not be written into: a copy of items of another, or memory of others."""


class ArgumentTypeError(DistArrayError, TypeError, ValueError):
    """An argument of a type the function does not accept.

    It is a ValueError as well, which NumPy's functions raise for many of them.
    """


class MissingPackageError(DistArrayError, ModuleNotFoundError):
    """An optional package that a function needs is not installed."""


class DeviceError(DistArrayError, RuntimeError):
    """A device that is missing, or operands on different devices."""


class CommunicationError(DistArrayError, RuntimeError):
    """A failure of the transport or of a peer.

    Ranks that take part in one may have called different functions, and say the same.
    """

    def __init__(self, *args: Any) -> None:
        Exception.__init__(self, *args)


class MismatchError(CommunicationError, ValueError):
    """Ranks that disagree about what they are doing together."""


class ImplicitCommunicationError(CommunicationError):
    """An operation would move data that the user did not ask to move."""


class OutOfMemoryError(DistArrayError, MemoryError):
    """A buffer that could not be had; the message says how much and what holds the rest."""


class ModifiedError(DistArrayError, RuntimeError):
    """A tensor that was changed in place before the backward pass, which needs it as it was."""


class ExportError(DistArrayError, BufferError):
    """An array whose memory cannot be handed to another library as it is."""


class StateDictError(DistArrayError, RuntimeError):
    """A state dict whose names or shapes are not those of the module."""


class FileError(DistArrayError, OSError):
    """A file that is missing, of another format, damaged, or could not be written."""


class CheckpointError(FileError):
    """A checkpoint that is missing, damaged, of a newer format, or could not be written."""
