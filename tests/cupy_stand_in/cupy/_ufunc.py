"""Ufuncs as CuPy's: the first loop that takes the operands, no warnings, no `where=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cupy._array import ndarray, operand_of
from cupy.cuda.stream import launched

_DTYPES = {char: np.dtype(char) for char in "?bhilqBHILQefdFD"}
_SCORE = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 2}
_WEAK = {int: 1, float: 2, complex: 2}
_UNLIKE_NUMPY = {"fix": np.trunc}  # names of functions that are no ufuncs of NumPy's


class _Loop:
    """Dtypes of operands and results."""

    __slots__ = ("ins", "outs")

    def __init__(self, text: str, nin: int) -> None:
        chars = text.replace("->", "")
        self.ins = tuple(_DTYPES[char] for char in chars[:nin])
        self.outs = tuple(_DTYPES[char] for char in chars[nin:])


def _power(base: Any, exponent: Any) -> Any:
    """Raise to powers; integers to negative ones give 0, where NumPy raises."""
    if np.result_type(base, exponent).kind in "iu":
        negative = np.less(exponent, 0)
        if np.any(negative):
            found = np.power(base, np.where(negative, 0, exponent).astype(np.asarray(base).dtype))
            return np.where(negative, np.where(np.equal(base, 1), 1, 0), found)
    return np.power(base, exponent)


class ufunc:
    """A function item by item."""

    __module__ = "cupy"

    def __init__(self, public: str, facts: dict[str, Any]) -> None:
        self.name = self.__name__ = facts["name"]
        self.nin, self.nout = facts["nin"], facts["nout"]
        self.nargs = self.nin + self.nout
        self._casting = facts["casting"]
        self._scatter = facts["scatter"]
        self.types = facts["types"]
        known = [t for t in facts["types"] if all(c in _DTYPES for c in t.replace("->", ""))]
        self._loops = [_Loop(text, self.nin) for text in known]
        self._function = _UNLIKE_NUMPY.get(public) or getattr(np, public, None)
        if public in ("power", "pow"):
            self._function = _power
        self._found: dict[Any, _Loop | None] = {}

    def __repr__(self) -> str:
        return f"<ufunc '{self.name}'>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        mask = kwargs.pop("_where", None)
        dtype = kwargs.pop("dtype", None)
        casting = kwargs.pop("casting", self._casting)
        if kwargs:
            raise TypeError(f"Wrong arguments {kwargs}")
        if not self.nin <= len(args) <= self.nargs:
            raise TypeError(
                f"Wrong number of arguments for {self.name!r}. It must be either {self.nin} or "
                f"{self.nargs} (with outputs), but given {len(args)}."
            )
        outs = self._outputs(out, args[self.nin :])
        hosts, weaks = zip(*(operand_of(x) for x in args[: self.nin]), strict=True)
        loop = self._loop(hosts, weaks, dtype)
        given = [x._host for x in outs if x is not None]
        shape = np.broadcast_shapes(*(h.shape for h in hosts), *(g.shape for g in given))
        for one, kind in zip(outs, loop.outs, strict=True):
            if one is not None:
                self._check(one, kind, shape, casting)
        values = self._values(hosts, loop)
        launched(self.name)
        results = []
        for value, kind, one in zip(values, loop.outs, outs, strict=True):
            target = ndarray(shape, kind) if one is None else one
            keep = True if mask is None else operand_of(mask)[0]
            np.copyto(target._host, value.astype(kind, copy=False), casting="unsafe", where=keep)
            results.append(target)
        return results[0] if self.nout == 1 else tuple(results)

    def _outputs(self, out: Any, positional: Sequence[Any]) -> tuple[Any, ...]:
        if out is None:
            outs = (*positional, *(None,) * (self.nout - len(positional)))
        elif positional:
            raise ValueError("Cannot specify 'out' as both a positional and keyword argument")
        elif isinstance(out, tuple):
            if len(out) != self.nout:
                raise ValueError("The 'out' tuple must have exactly one entry per ufunc output")
            outs = out
        elif self.nout != 1:
            raise ValueError("'out' must be a tuple of arrays")
        else:
            outs = (out,)
        for one in outs:
            if one is not None and not isinstance(one, ndarray):
                raise TypeError("Output arguments type must be cupy.ndarray")
        return outs

    def _check(self, out: ndarray, kind: Any, shape: tuple[int, ...], casting: str) -> None:
        if out.shape != shape:
            raise ValueError("Out shape is mismatched")
        if not np.can_cast(kind, out.dtype, casting):
            raise TypeError(
                f"Cannot cast output operand from {kind!r} to {out.dtype!r} according to the rule "
                f"'{casting}'"
            )

    def _loop(self, hosts: Sequence[Any], weaks: Sequence[Any], dtype: Any) -> _Loop:
        kinds = tuple(h.dtype for h in hosts)
        key = (kinds, weaks) if dtype is None else np.dtype(dtype)
        found = self._found.get(key, ())
        if found == ():
            if dtype is None:
                found = self._guess(kinds, weaks)
            else:
                wanted = np.dtype(dtype)
                outs = (one for one in self._loops if all(k == wanted for k in one.outs))
                found = next(outs, None)
            self._found[key] = found
        if found is None:
            raise TypeError(f"Wrong type ({dtype or kinds}) of arguments for {self.name}")
        for host, weak, kind in zip(hosts, weaks, found.ins, strict=True):
            if weak is int and kind.kind in "iub" and all(h.size for h in hosts):
                kind.type(int(host))  # OverflowError where it does not fit
        return found

    def _guess(self, kinds: Sequence[Any], weaks: Sequence[Any]) -> _Loop | None:
        strong = [_SCORE.get(k.kind, 3) for k, w in zip(kinds, weaks, strict=True) if not w]
        weak = [_WEAK[w] for w in weaks if w]
        if not strong or not weak or max(strong) < max(weak):
            weaks = (None,) * len(kinds)
        for loop in self._loops:
            if all(_fits(*one) for one in zip(kinds, weaks, loop.ins, strict=True)):
                return loop
        return None

    def _values(self, hosts: Sequence[Any], loop: _Loop) -> tuple[Any, ...]:
        if self._function is None:
            raise NotImplementedError(f"the stand-in for CuPy has no {self.name}")
        with np.errstate(all="ignore"):
            cast = [h.astype(kind, copy=False) for h, kind in zip(hosts, loop.ins, strict=True)]
            if loop.ins[0].kind == "b" and self.name in ("cupy_subtract", "cupy_negative"):
                result = np.logical_xor(*cast) if self.nin == 2 else cast[0]
            else:
                result = self._function(*cast)
        results = result if self.nout > 1 else (result,)
        return tuple(np.asarray(one) for one in results)

    # --- methods ---------------------------------------------------------------------------------

    def reduce(
        self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> Any:
        """Reduce by addition or multiplication."""
        if self.name == "cupy_add":
            return array.sum(axis, dtype, out, keepdims)
        if self.name == "cupy_multiply":
            return array.prod(axis, dtype, out, keepdims)
        raise NotImplementedError(f"`{self.name}.reduce` is not supported yet")

    def accumulate(self, array: Any, axis: Any = 0, dtype: Any = None, out: Any = None) -> Any:
        """Accumulate by addition or multiplication."""
        if self.name == "cupy_add":
            return array.cumsum(axis, dtype, out)
        if self.name == "cupy_multiply":
            return array.cumprod(axis, dtype, out)
        raise NotImplementedError(f"`{self.name}.accumulate` is not supported yet")

    def reduceat(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        raise NotImplementedError(f"`{self.name}.reduceat` is not supported yet")

    def outer(self, a: Any, b: Any, **kwargs: Any) -> Any:
        """Apply to all pairs."""
        return self(a.reshape(a.shape + (1,) * b.ndim), b, **kwargs)

    def at(self, a: Any, indices: Any, b: Any = None) -> None:
        """Apply in place at indices, for a few functions."""
        if self._scatter is None:
            raise NotImplementedError(f"`{self.name}.at` is not supported yet")
        key = indices._host if isinstance(indices, ndarray) else indices
        self._function.at(a._host, key, operand_of(b)[0])


def _fits(kind: Any, weak: Any, wanted: Any) -> bool:
    if np.can_cast(kind, wanted):
        return True
    if not weak:
        return False
    try:
        return bool(np.result_type(weak(0), wanted) == wanted)
    except TypeError:
        return False
