"""The one error for ranks that are about to do different things together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from distarray.errors import MismatchError

_SUCH_CALLS = (
    "; of a distributed array x, print(x), float(x), np.asarray(x) and x.full_array() are such "
    "calls"
)
_TENSORS = ("tensor", "torch.")  # in what is done with tensors, which have no such calls

_SHOWN = 8  # ranks and answers that a message lists


def such_calls(*doing: object) -> str:
    """Return what messages about calls that all ranks must make end with.

    These do not look like such calls. Nothing where all that is done is done with tensors.

    Parameters
    ----------
    *doing
        What the ranks that the message is about are doing.
    """
    texts = [str(one) for one in doing]
    of_tensors = texts and all(any(word in text for word in _TENSORS) for text in texts)
    return "" if of_tensors else _SUCH_CALLS


def token(*doing: object) -> int:
    """Return a number below 2**62 that names what a rank is doing, alike in every process.

    Parameters
    ----------
    *doing
        Objects whose ``repr`` is the same in every process.
    """
    digest = hashlib.blake2b(repr(doing).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


class Purpose(NamedTuple):
    """What an exchange is for, where its layouts do not tell it: ranks must agree on that, too."""

    token: int
    text: str

    @classmethod
    def of(cls, text: str) -> Purpose:
        """Return the purpose that a text names."""
        return cls(token("purpose", text), text)


def mismatch(doing: Sequence[Any], ranks: Iterable[int]) -> MismatchError:
    """Return the error to raise, alike on every rank.

    Parameters
    ----------
    doing
        What each rank is about to do.
    ranks
        Their numbers in the MPI world.
    """
    return MismatchError(
        f"ranks are about to do different things together: {differing(doing, ranks)}. Every rank "
        "must make the same calls, on the same mesh, with the same layouts, shapes and dtypes"
        f"{such_calls(*doing)}"
    )


def differing(said: Sequence[Any], ranks: Iterable[int]) -> str:
    """Return each distinct answer with the ranks of the MPI world that gave it, for a message."""
    groups: dict[str, list[int]] = {}
    for rank, one in zip(ranks, said, strict=True):
        groups.setdefault(str(one), []).append(rank)
    parts = [f"{named(found)}: {text}" for text, found in groups.items()]
    more = [f"and {len(parts) - _SHOWN} others"] if len(parts) > _SHOWN else []
    return "; ".join(parts[:_SHOWN] + more)


def named(found: Sequence[int]) -> str:
    """Return some ranks, for a message."""
    if len(found) == 1:
        return f"rank {found[0]}"
    more = f" and {len(found) - _SHOWN} others" if len(found) > _SHOWN else ""
    return f"ranks {', '.join(map(str, found[:_SHOWN]))}{more}"
