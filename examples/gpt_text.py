"""Text that every machine with Python has: the source of its standard library, byte by byte."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch

from distarray import DeviceMesh, Replicate, distribute_array


class Text:
    """A text as numbers, one for each kind of byte that is in it.

    Parameters
    ----------
    data
        The bytes.

    Attributes
    ----------
    alphabet
        The bytes that occur, in order.
    train, held_out
        The numbers to learn from, and the last twentieth of them all.
    """

    def __init__(self, data: np.ndarray) -> None:
        self.alphabet, numbers = np.unique(data, return_inverse=True)
        split = len(numbers) * 19 // 20
        self.train, self.held_out = numbers[:split], numbers[split:]

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text, without bytes that the alphabet lacks."""
        data = np.frombuffer(text.encode(), np.uint8)
        return np.searchsorted(self.alphabet, data[np.isin(data, self.alphabet)]).tolist()

    def decode(self, numbers: list[int]) -> str:
        """Return the text of some numbers."""
        return self.alphabet[numbers].tobytes().decode(errors="replace")


def read(size: int = 2_000_000) -> np.ndarray:
    """Read the first bytes of the standard library's modules, in the order of their names."""
    parts: list[bytes] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        if sum(map(len, parts)) >= size:
            break
    return np.frombuffer(b"".join(parts)[:size], np.uint8)


def read_once(mesh: DeviceMesh, size: int = 2_000_000) -> np.ndarray:
    """Read on the mesh's first rank and send to all: other nodes may have another Python."""
    data = read(size) if mesh.rank == 0 else None
    everywhere = [Replicate()] * mesh.ndim
    return distribute_array(data, mesh, everywhere).to_local()


def batch(
    numbers: np.ndarray, step: int, count: int, length: int, *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the passages of one step, the same on every rank.

    Returns
    -------
    words, following : Tensor, shape (count, length), int64
        Passages, and the same one byte further on.
    """
    starts = np.random.default_rng((seed, step)).integers(0, len(numbers) - length, count)
    passages = numbers[starts[:, None] + np.arange(length + 1)]
    return torch.from_numpy(passages[:, :-1].copy()), torch.from_numpy(passages[:, 1:].copy())
