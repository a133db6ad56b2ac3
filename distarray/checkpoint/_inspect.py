"""A view into a checkpoint for one process, such as a notebook; indexing reads the arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from distarray.checkpoint._load import read_manifest
from distarray.checkpoint._load_plan import LoadPlan
from distarray.checkpoint.storage._chunks import Reader
from distarray.checkpoint.storage._dtypes import describe
from distarray.checkpoint.storage._manifest import Entry, Manifest
from distarray.layout import box as boxes
from distarray.ops import expand, normalize_key

_BASIC = (int, np.integer, slice, type(...), type(None))


class StoredArray:
    """An array in a checkpoint, of which indexing reads what it asks for.

    Attributes
    ----------
    name
        Under which it was saved first.
    shape, dtype
        bfloat16 and float8 have a structured dtype of that name, which holds their bits.
    layout
        How it was placed, as text; "" for plain arrays.
    """

    def __init__(self, manifest: Manifest, entry: Entry) -> None:
        self._manifest = manifest
        self._entry = entry
        self.name = entry.name
        self.shape = entry.shape
        self.dtype = entry.dtype
        self.layout = entry.layout

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Read what integers and slices ask for, and for other indices all of the array."""
        given = index if isinstance(index, tuple) else (index,)
        if any(isinstance(one, bool) or not isinstance(one, _BASIC) for one in given):
            return self[...][index]
        box: list[tuple[int, int]] = []
        rest: list[Any] = []  # is left to do with the items of the box
        for item in expand(normalize_key(index), self.shape):
            if isinstance(item, int):
                box.append((item, item + 1))
                rest.append(0)
            elif item is None:
                rest.append(None)
            else:
                box.append((min(item[0], item[-1]), max(item[0], item[-1]) + 1) if item else (0, 0))
                rest.append(slice(None, None, item.step))
        values = np.empty(boxes.shape(tuple(box)), self.dtype)
        if values.size:
            with Reader(self._manifest) as reader:
                reader.read(self._entry, tuple(box), values)
        return values[(*rest, ...) if Ellipsis in given else tuple(rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        values = self[...]
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        placed = f", was {self.layout}" if self.layout else ""
        return f"<{self.name}: {describe(self._entry.spec)} {self.shape}{placed}>"


class Opened(Mapping[str, Any]):
    """The values of a checkpoint by name: `StoredArray` for arrays, plain values as they are.

    Attributes
    ----------
    path
        Where it is.
    saved
        When it was written (UTC), as text.
    world_size
        How many ranks wrote it.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._plan = LoadPlan(manifest, None, 0, manifest.world_size, casts=False)
        self.path = manifest.directory
        self.saved = manifest.saved
        self.world_size = manifest.world_size

    def __getitem__(self, name: str) -> Any:
        found = self._plan.value(name)
        return StoredArray(self._manifest, found) if isinstance(found, Entry) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._plan.names(""))

    def __len__(self) -> int:
        return len(self._plan.names(""))

    def __repr__(self) -> str:
        return (
            f"<checkpoint {self.path}, saved {self.saved} by {self.world_size} "
            f"rank{'' if self.world_size == 1 else 's'}: {len(self)} values>"
        )


def open(path: str | os.PathLike[str], *, step: int | None = None) -> Opened:
    """Return the values of a checkpoint by name, read when they are used (not collective).

    Parameters
    ----------
    path, step
        As for `load`.

    Examples
    --------
    >>> import distarray as da
    >>> da.checkpoint.save("ckpt", {"up": {"weight": da.ones((4, 3)), "bias": da.zeros(3)}})
    >>> saved = da.checkpoint.open("ckpt")
    >>> sorted(saved)
    ['up.bias', 'up.weight']
    >>> print(saved["up.weight"][:2].mean())
    1.0
    """
    return Opened(read_manifest(path, step))
