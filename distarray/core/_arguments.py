"""Arguments that all ways of making an array share: the mesh, the placements, a plain value."""

from __future__ import annotations

import operator
import re
import threading
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from distarray.comm import DeviceMesh, _backend, default_mesh, default_placements
from distarray.comm.cuda import _device
from distarray.core._base import BaseArray
from distarray.core._dtypes import refusal
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DistArrayError,
    DTypeError,
    FileError,
    ShapeError,
)
from distarray.layout import AbstractMesh, Placement
from distarray.layout import box as boxes
from distarray.typing import Box, Buffer, Shape

_ITEMS_TOLD = 16
"""How many items of an array a message shows: about a line."""
parsing = threading.Lock()
"""For ranks that are threads: CPython 3.11 counts the depth of what is parsed for all at once."""
_ADDRESS = re.compile(" at 0x[0-9a-f]+", re.IGNORECASE)


def describe(value: Any) -> str:
    """Return what a message says of an argument: alike on all ranks, and without communication."""
    if isinstance(value, BaseArray):
        return f"a DistArray of shape {tuple(value.layout.shape)}"
    if isinstance(value, np.ndarray) and value.size > _ITEMS_TOLD:
        return f"an array of NumPy's of shape {value.shape}"
    return _ADDRESS.sub("", repr(value))


def check_flag(name: str, key: str, value: Any) -> bool:
    """Return an argument that is true or false: a boolean, or an integer as NumPy takes it.

    Raises
    ------
    ArgumentTypeError
        If it is neither.
    """
    if value.__class__ is bool:
        return value  # type: ignore[no-any-return]
    try:
        return bool(value) if isinstance(value, np.bool_) else operator.index(value) != 0
    except TypeError:
        raise ArgumentTypeError(f"{name}({key}={describe(value)}): must be True or False") from None


def check_integer(name: str, key: str, value: Any) -> int:
    """Return an argument that is one integer.

    Raises
    ------
    ArgumentTypeError
        If it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name}({key}={describe(value)}): must be an integer") from None


def check_number(name: str, key: str, value: Any) -> Any:
    """Return an argument that is one number, which arrays without axes are as well.

    Raises
    ------
    ArgumentTypeError
        If it is none.
    """
    if isinstance(value, Number):
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biufc":
        number: Any = plain_buffer(value, f"{name}({key}=)")
        if not number.ndim:
            return number[()]
    raise ArgumentTypeError(f"{name}({key}={describe(value)}): must be a number")


def check_order(name: str, order: Any, known: str) -> str:
    """Return an order of items in memory, one of the letters `known`.

    Raises
    ------
    ArgumentTypeError
        If it is no text.
    ArgumentError
        If it is another text.
    """
    if isinstance(order, str) and len(order) == 1 and order in known:
        return order
    error = ArgumentError if isinstance(order, str) else ArgumentTypeError
    letters = " or ".join(map(repr, known))
    raise error(f"{name} got order={describe(order)}; it takes {letters}")


def check_choice(name: str, key: str, value: Any, known: Sequence[str | None]) -> Any:
    """Return an argument that is one of some words.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is none of them.
    """
    if (value is None or isinstance(value, str)) and value in known:
        return value
    error = ArgumentError if isinstance(value, str) else ArgumentTypeError
    words = ", ".join(repr(one) for one in known if one is not None)
    raise error(f"{name}({key}={describe(value)}): one of {words}")


def check_casting(name: str, casting: Any) -> Any:
    """Return a rule of NumPy's for conversions; see `check_choice`."""
    return check_choice(name, "casting", casting, _CASTING)


_CASTING = ("no", "equiv", "safe", "same_kind", "unsafe")


def check_device_name(device: Any) -> Any:
    """Return the name of a device, or None.

    Raises
    ------
    ArgumentTypeError
        If it is no text.
    """
    if device is not None and not isinstance(device, str):
        raise ArgumentTypeError(f"device={describe(device)}: one of 'cpu', 'cuda', 'cuda:<number>'")
    return device


def as_integers(value: Any) -> tuple[int, ...]:
    """Return an integer, or several, as a tuple, as NumPy reads them.

    Raises
    ------
    TypeError
        If it is something else.
    """
    if not isinstance(value, tuple):
        try:
            return (operator.index(value),)
        except TypeError:
            pass
    return tuple(map(operator.index, value))


def normalize_shape(shape: Any, inferred: bool = False) -> Shape:
    """Return `shape` (an int or a sequence of ints) as a tuple; -1 only where one is `inferred`.

    Raises
    ------
    ArgumentTypeError
        If it holds something that is not an integer.
    ShapeError
        If a size is negative.
    """
    if shape.__class__ is int and shape >= 0:
        return (shape,)
    try:
        sizes = as_integers(shape)
    except TypeError:
        raise ArgumentTypeError(
            f"shape {describe(shape)} is not an integer or a sequence of integers; pass e.g. "
            f"(512, {-1 if inferred else 64})"
        ) from None
    if not inferred and sizes and min(sizes) < 0:
        raise ShapeError(f"shape {sizes} has a negative size; every size must be 0 or more")
    return sizes


def choose_mesh(mesh: Any) -> DeviceMesh:
    """Return `mesh`, or the default mesh for None.

    Raises
    ------
    ArgumentTypeError
        If it is no mesh, or one without processes.
    """
    if mesh is None:
        return default_mesh()
    if isinstance(mesh, DeviceMesh):
        return mesh
    if isinstance(mesh, AbstractMesh):
        raise ArgumentTypeError(
            f"mesh={mesh} is an AbstractMesh, with no processes to hold an array; make one of the "
            f"same shape with init_device_mesh({mesh.shape}, {mesh.axis_names})"
        )
    raise ArgumentTypeError(
        f"mesh={describe(mesh)} is not a mesh; pass a DeviceMesh, made for instance by "
        "init_device_mesh((4,)), or None for the default one"
    )


def choose_placements(mesh: DeviceMesh, placements: Any, ndim: int) -> tuple[Placement, ...]:
    """Return `placements` as a tuple, or the default ones for None.

    Whether they fit the mesh and an array, the layout that they make finds out.

    Raises
    ------
    ArgumentTypeError
        If they are no sequence.
    """
    if placements is None:
        return default_placements(mesh, ndim)
    if isinstance(placements, (Placement, str)) or not isinstance(placements, Sequence):
        raise ArgumentTypeError(
            f"placements={describe(placements)}: must be a sequence with one placement for each of "
            f"the {mesh.ndim} axes of {mesh}, for instance {[*default_placements(mesh, 1)]}"
        )
    return tuple(placements)


def check_position(src: Any, mesh: DeviceMesh, name: str = "src") -> int:
    """Return an argument, `src` or another one, as a position in the mesh.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is none.
    """
    try:
        position = operator.index(src)
    except TypeError:
        raise ArgumentTypeError(
            f"{name}={describe(src)}: must be the position in the mesh of the one process that has "
            "the value, an integer, or None where all have it"
        ) from None
    if not 0 <= position < mesh.size:
        raise ArgumentError(
            f"{name}={src} is no position in {mesh}; it must be 0 to {mesh.size - 1}"
        )
    return position


_STORES = (np.memmap, np.recarray)
"""Subclasses of NumPy's array that say where values lie or how they are named, and no more."""


def plain_buffer(
    value: Any, call: str, device: str = "cpu", *, dtype: Any = None, objects: bool = False
) -> Buffer:
    """Return a plain value as an array; a NumPy or CuPy array is returned itself.

    Whatever users pass as values comes through here. `dtype` is for values that are no arrays yet;
    `objects` lets arrays of Python objects pass.

    Raises
    ------
    ArgumentTypeError
        If it is distributed already, a list of such arrays, or an array of a class whose items mean
        more than their values: a mask, a unit, the algebra of matrices would be lost.
    ArgumentError
        If it is no regular array, as nested sequences of different lengths.
    DTypeError
        If its items are Python objects, which cannot travel.
    """
    if isinstance(value, BaseArray):
        raise ArgumentTypeError(
            f"{call} takes plain arrays, and got a DistArray; pass x.to_local() for this process's "
            "block, or use x.redistribute(placements, mesh=...)"
        )
    if type(value) is np.ndarray or _backend.is_cupy(value):
        buffer = value
    elif isinstance(value, np.ndarray):
        if not isinstance(value, _STORES):
            raise ArgumentTypeError(
                f"{call} got a {type(value).__name__}, whose class gives its items a meaning (a "
                "mask, a unit, matrix products) that a DistArray would lose; pass plain values: "
                "np.asarray(value), of a masked array value.filled(...)"
            )
        buffer = np.asarray(value)
    else:
        if _holds_arrays(value):
            raise ArgumentTypeError(
                f"{call} got a {type(value).__name__} of distributed arrays; da.stack(...) makes "
                "one array of them"
            )
        if value is None and not objects:
            raise DTypeError(f"{call} got None, and takes an array; a function may lack a return")
        try:
            buffer = _backend.asarray(value, device, dtype)
        except DistArrayError:
            raise
        except (TypeError, ValueError, OverflowError) as error:
            raise refusal(error)(
                f"{call} got {type(value).__name__} that is no array: {error}; pass an array, "
                "numbers, or nested sequences of equal lengths"
            ) from None
    if not objects:
        check_travels(buffer.dtype, value)
    return buffer


def join_arrays(value: Any) -> Any:
    """Return a list that holds distributed arrays as one of these, stacked; any other value itself.

    Of arrays without axes, numbers, NumPy makes an array.
    """
    if _holds_arrays(value):
        return np.stack([join_arrays(one) for one in value])
    return value


def _holds_arrays(value: Any) -> bool:
    if type(value) not in (list, tuple) or not value or isinstance(value[0], _NUMBERS):
        return False
    return any(one.ndim if isinstance(one, BaseArray) else _holds_arrays(one) for one in value)


_NUMBERS = (bool, int, float, complex, str, bytes, np.generic)


def plain_source(value: Any, call: str, dtype: Any = None) -> Any:
    """Return a plain value as `read_box` takes it: an array, or one that is stored, as it is.

    Stored is what has a shape, a dtype and slices of which it makes arrays: HDF5, zarr and netCDF
    variables and their like. See `plain_buffer` for what is raised.
    """
    stored = (
        isinstance(getattr(value, "shape", None), tuple)
        and isinstance(getattr(value, "dtype", None), np.dtype)
        and hasattr(value, "__getitem__")
        and not isinstance(value, (np.ndarray, np.generic, BaseArray))
        and not _backend.is_cupy(value)
        and not is_sparse(value)
    )
    if not stored:
        return plain_buffer(value, call, dtype=dtype)
    check_travels(value.dtype, value)
    return value


def read_box(source: Any, box: Box, call: str) -> Buffer:
    """Return a box of what `plain_source` gave; of a stored array nothing else is read.

    What goes wrong then may do so on one rank alone: a file that only this one cannot read.

    Raises
    ------
    FileError
        If a stored array cannot be read.
    ArgumentTypeError, ArgumentError
        If a slice of it is no plain array of the slice's shape and of its dtype.
    """
    key: Any = boxes.slices(box)
    if _backend.is_buffer(source):
        return source[(*key, ...)]  # an array also where it has no axes
    kind = type(source).__name__
    try:
        found = getattr(source, "iloc", source)[key]  # pandas: slices by position
    except OSError as error:
        raise FileError(f"{call} cannot read {key} of {kind}: {error}") from error
    part = plain_buffer(found, call)
    if part.shape != boxes.shape(box):
        raise ArgumentError(
            f"{call} got {kind} of shape {tuple(source.shape)}, whose slice {key} has shape "
            f"{part.shape}, not {boxes.shape(box)}; pass np.asarray(value)"
        )
    if part.dtype.newbyteorder("=") != source.dtype.newbyteorder("="):
        raise ArgumentError(
            f"{call} got {kind} of {source.dtype}, whose slices have {part.dtype}, as where a "
            "library scales what is stored; ask it for the stored items (netCDF4: "
            "set_auto_scale(False)) and scale these, or pass np.asarray(value)"
        )
    return part


def is_stored(source: Any) -> bool:
    """Tell whether what `plain_source` gave is read from elsewhere, which may fail on one rank."""
    return not _backend.is_buffer(source)


def check_device(block: Buffer, mesh: DeviceMesh, call: str) -> None:
    """Refuse a block that is not where the blocks of a mesh are."""
    if not _backend.is_here(block, mesh.device):
        have, want = _backend.device_of(block), mesh.device
        if _backend.kind_of(want) == "cuda":
            want = f"cuda:{_device.number_of(want)}"
        raise DeviceError(
            f"{call} got a block on {have!r}, and the blocks of {mesh} are on {want!r} here; pass "
            f"one that is there, or a mesh with device={_backend.kind_of(have)!r}"
        )


def check_travels(dtype: Any, value: Any = None) -> None:
    """Refuse dtypes whose items cannot travel.

    Parameters
    ----------
    value : object, optional
        Where the dtype is from; it decides what the message says to do.

    Raises
    ------
    DTypeError
        If `dtype` holds Python objects.
    """
    if dtype.hasobject:
        raise DTypeError(
            f"dtype {dtype} holds Python objects, which cannot be sent as memory; "
            f"{_objects_remedy(value)}"
        )


def is_sparse(value: Any) -> bool:
    """Tell whether a value is a sparse array of SciPy's, or like them."""
    return hasattr(value, "tocsr")


SPARSE_REMEDY = (
    "there are no distributed sparse arrays: pass value.toarray(), or keep the rows of each "
    "process and multiply by them in a function; see the section on sparse matrices in "
    "docs/iterative.md"
)


def _objects_remedy(value: Any) -> str:
    """Return what to do instead with a value that NumPy takes as Python objects."""
    kind = type(value).__name__
    if is_sparse(value):
        return SPARSE_REMEDY
    if hasattr(value, "asstr") or kind == "AsStrView":  # h5py
        return (
            "of an h5py string dataset pass dataset.astype('S8'), and not asstr(): with a length "
            "that the longest text has in UTF-8"
        )
    if value is None or hasattr(value, "shape") or isinstance(value, (list, tuple)):
        return (
            "convert the values to a numeric, string or structured dtype first: "
            "np.asarray(value).astype(float), or astype('U8') of text of at most 8 characters"
        )
    return (
        f"a {kind} is no array to NumPy, but one object; pass an array, or a list of numbers or "
        "text: list(value), of a dict list(value.values())"
    )
