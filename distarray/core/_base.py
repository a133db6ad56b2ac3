"""The base of every distributed array: one local block and one layout, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from distarray.typing import Buffer, Shape

if TYPE_CHECKING:
    from distarray.layout import Layout

Self = TypeVar("Self", bound="BaseArray")


class BaseArray:
    """A local block and the layout that says which part of the global array it is.

    Everything below the final class makes results with `operand._new(block, layout)`, so nothing
    below needs to know that class. Where there is no operand (creation), use `new_array`.
    """

    __slots__ = ("__weakref__", "_layout", "_local", "_origin", "_owners", "_reduced", "_source")

    _local: Buffer
    _layout: Layout
    _origin: Any
    """Set where the array is a copy made by `x[key]`: a weak reference to `x`, and the key as text;
    None where a loop over `x`, or `unstack`, made it.

    In-place operators on it then wait for `x[key] = ...` (see `_read_only`).
    """
    _owners: Any
    """Set where it is a read-only copy until the memory that it was copied from is gone: whose.

    None where it stays one.
    """
    _reduced: Any
    """Set where the array is Partial and computed by an operation, in memory that nobody else has:
    what it was reduced to, an array; None as long as nothing has needed that; False from when it is
    written into on, and None again once `assign` has written all of it.

    Writing changes it on all ranks together, so that they decide alike what to reduce.
    """
    _source: Any
    """Set where a Partial array may look at the memory of such a one: a weak reference to it."""

    def _new(self: Self, local: Buffer, layout: Layout) -> Self:
        """Return an array of this array's class; nothing is checked and nothing is copied.

        `local` must be an array (never a NumPy scalar) of shape `layout.local_shape()`.
        """
        array = object.__new__(self.__class__)
        array._local = local
        array._layout = layout
        if layout.has_partial and self._layout.has_partial:
            array._source = self._computed_source()
        return array

    def _new_apart(self: Self, local: Buffer, layout: Layout) -> Self:
        """Return `_new` of a block in memory of its own, which users may write into."""
        array = self._new(local, layout)
        array._source = None
        return array

    def _computed_source(self) -> Any:
        """Return which computed Partial array has the memory, as a weak reference; None: none."""
        return ref(self) if hasattr(self, "_reduced") else getattr(self, "_source", None)

    @property
    def layout(self) -> Layout:
        """The layout: mesh, placements, global shape."""
        return self._layout

    @property
    def shape(self) -> Shape:
        """The global shape."""
        return self._layout.shape

    @property
    def ndim(self) -> int:
        """The number of array axes."""
        return len(self._layout.shape)

    @property
    def size(self) -> int:
        """The number of items of the global array."""
        return self._layout.size

    @property
    def dtype(self) -> Any:
        """The data type, equal on every rank."""
        return self._local.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one item."""
        return int(self._local.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the global array, each item counted once."""
        return self._layout.size * int(self._local.dtype.itemsize)


open_traces: dict[int, list[Any]] = {}
"""The calls of fused functions that each thread is in, by its number; see `engine._fusion`."""

_final: type[BaseArray] = BaseArray


def set_array_class(cls: type[BaseArray]) -> None:
    """Make `cls` the class that `new_array` builds (called once, by the floor that defines it)."""
    global _final
    _final = cls


def new_array(local: Buffer, layout: Layout) -> Any:
    """Return an array of the final class over `local`; nothing is checked and nothing is copied."""
    array = object.__new__(_final)
    array._local = local
    array._layout = layout
    return array
