"""Small blocks: every rank sends all of its own, in one message to all.

What a rank needs of them it takes out of the messages where these lie. So a round costs no
description of blocks, and blocks of several arrays travel in one round. They are packed one after
another, each in C order, and all ranks know from the layouts where each begins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from distarray.comm import POOLED_BYTES, Communicator
from distarray.layout import Layout

_MOST_BYTES: Final = 128 * 1024
"""Of the blocks of a rank, together, each of fewer than `POOLED_BYTES`: larger ones lie
where others can read them. Any number that slots hold does. Of two blocks of 60 KiB to join them
took 40 us on two ranks of Zen 5 otherwise, and takes 17."""

_ALIGNED: Final = 16
"""Blocks begin at a multiple of so many bytes, which suits all data types."""


class SmallBlocks:
    """Blocks of some layouts that travel together.

    Parameters
    ----------
    sources
        Layout and dtype of each.
    communicator
        Of the ranks that exchange them.
    peers
        The ranks of the communicator of whose blocks this one takes a part, for each layout.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Layout, np.dtype[Any]]],
        communicator: Communicator,
        peers: Sequence[Collection[int]],
    ) -> None:
        self._communicator = communicator
        self._most = sum(largest_block(*source) for source in sources)
        places: list[list[tuple[int, Any, int, tuple[int, ...]]]] = [[] for _ in sources]
        for peer, rank in enumerate(communicator.ranks):
            start = 0
            for found, (layout, dtype), wanted in zip(places, sources, peers, strict=True):
                coordinate = layout.mesh.coordinate_of(rank)
                shape = (0,) if coordinate is None else layout.local_shape(coordinate)
                if peer in wanted and peer != communicator.rank:
                    found.append((peer, dtype, start, shape))
                start += _padded(prod(shape) * dtype.itemsize)
        self._places = places

    def exchange(
        self, blocks: Sequence[np.ndarray], token: int, what: object
    ) -> list[dict[int, np.ndarray]] | None:
        """Return for each layout the blocks of the peers, valid until the next round.

        None where that needs another way, on all ranks alike.
        """
        parts = []
        for one in blocks:
            parts.append(one.tobytes())
            if one.nbytes % _ALIGNED:
                parts.append(bytes(-one.nbytes % _ALIGNED))
        payload = b"".join(parts)
        told = self.send(payload, token, what)
        if told is None:
            return None
        return [self._views(i, block, told) for i, block in enumerate(blocks)]

    def send(self, payload: bytes, token: int, what: object) -> Sequence[Any] | None:
        """Return every rank's bytes, valid until the next round; None as in `exchange`."""
        return self._communicator.exchange_small(payload, token, what, self._most)

    def exchange_one(
        self, block: np.ndarray, token: int, what: object
    ) -> dict[int, np.ndarray] | None:
        """Return the one item of what `exchange` returns of one block, in less time."""
        told = self.send(block.tobytes(), token, what)
        return None if told is None else self._views(0, block, told)

    def _views(self, i: int, block: np.ndarray, told: Sequence[Any]) -> dict[int, np.ndarray]:
        """Return the blocks of the i-th layout in what ranks have sent, and the own one."""
        views = {self._communicator.rank: block}
        for peer, dtype, start, shape in self._places[i]:
            views[peer] = np.ndarray(shape, dtype, told[peer], start)
        return views


def are_small(
    sources: Sequence[tuple[Layout, np.dtype[Any]]], communicator: Communicator | None = None
) -> bool:
    """Tell whether blocks of some layouts may travel together; by default, on one node."""
    most = _MOST_BYTES if communicator is None else min(_MOST_BYTES, communicator.sends_whole)
    sizes = [largest_block(*source) for source in sources]
    return sum(sizes) <= most and max(sizes, default=0) < POOLED_BYTES


def largest_block(layout: Layout, dtype: np.dtype[Any]) -> int:
    """Return the bytes that the largest block of a layout takes in a message."""
    return _padded(layout.largest_block * dtype.itemsize)


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED
