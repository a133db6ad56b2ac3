"""The algebra of the reductions that `Partial` may stand for: tables, no arithmetic on arrays."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

Scalar: TypeAlias = bool | int | float | complex


class Reduction(NamedTuple):
    """What may be known of a reduction without doing it.

    Attributes
    ----------
    name : str
        As in ``Partial(name)``.
    kinds : str
        NumPy dtype kinds whose blocks it can reduce.
    idempotent : bool
        Whether reducing copies of one value gives this value (so that a replicated value is
        a valid operand on every coordinate). True of `avg` as well in that sense, but `avg` is
        no associative operation and so is not called idempotent here.
    linear : bool
        Whether it commutes with sums and with scaling (`sum`, `avg`).
    """

    name: str
    kinds: str
    idempotent: bool
    linear: bool

    def identity(self, kind: str, itemsize: int) -> Scalar | None:
        """Return the value that changes nothing when it is reduced with others.

        Parameters
        ----------
        kind : str
            NumPy dtype kind: one of ``b i u f c``.
        itemsize : int
            Bytes of one element; bounds the integers.

        Returns
        -------
        bool, int, float, complex or None
            None where there is none: for `avg`, whose result depends on how many operands there
            are, and for kinds that the reduction does not accept.
        """
        if kind not in self.kinds:
            return None
        match self.name:
            case "sum" if kind in "fc":
                # -0.0 + -0.0 is -0.0, while 0.0 + -0.0 is 0.0 (IEEE 754, 6.3).
                return -0.0 if kind == "f" else complex(-0.0, -0.0)
            case "sum" | "any" | "bor" | "bxor":
                return _number(0, kind)
            case "prod" | "all":
                return _number(1, kind)
            case "band":
                return _largest(kind, itemsize) if kind in "bu" else -1
            case "min":
                return _largest(kind, itemsize)
            case "max":
                return _smallest(kind, itemsize)
            case _:
                return None

    def has_exact_identity(self, kind: str) -> bool:
        """Tell whether there is an identity that leaves every value as it is.

        Of complex products there is none: infinity times ``1 + 0j`` has NaN in it.
        """
        return kind in self.kinds and self.name != "avg" and (self.name, kind) != ("prod", "c")

    def keeps_copies(self) -> bool:
        """Tell whether reducing copies of one value gives this value (`avg` included)."""
        return self.idempotent or self.name == "avg"


def _number(value: int, kind: str) -> Scalar:
    """Return a small integer as the Python type of a dtype kind."""
    convert: dict[str, type] = {"b": bool, "f": float, "c": complex}
    return convert.get(kind, int)(value)  # type: ignore[no-any-return]


_LARGEST: Final[dict[str, Scalar]] = {"b": True, "f": math.inf, "c": complex(math.inf, math.inf)}
_SMALLEST: Final[dict[str, Scalar]] = {"b": False, "u": 0, "f": -math.inf, "c": -_LARGEST["c"]}


def _largest(kind: str, itemsize: int) -> Scalar:
    """Return the value that no value of the dtype exceeds (NumPy orders complex by parts)."""
    if kind in "iu":
        return int(2 ** (8 * itemsize - (kind == "i")) - 1)
    return _LARGEST[kind]


def _smallest(kind: str, itemsize: int) -> Scalar:
    """Return the value that no value of the dtype falls below."""
    if kind == "i":
        return int(-(2 ** (8 * itemsize - 1)))
    return _SMALLEST[kind]


_ROWS = (
    Reduction("sum", "biufc", idempotent=False, linear=True),
    Reduction("avg", "biufc", idempotent=False, linear=True),
    Reduction("min", "biufc", idempotent=True, linear=False),
    Reduction("max", "biufc", idempotent=True, linear=False),
    Reduction("prod", "biufc", idempotent=False, linear=False),
    Reduction("any", "b", idempotent=True, linear=False),
    Reduction("all", "b", idempotent=True, linear=False),
    Reduction("band", "biu", idempotent=True, linear=False),
    Reduction("bor", "biu", idempotent=True, linear=False),
    Reduction("bxor", "biu", idempotent=False, linear=False),
)

REDUCTIONS: Final = MappingProxyType({row.name: row for row in _ROWS})
"""Every reduction by name, in the order in which error messages list them."""
