"""Distributions that follow from uniform, normal and exponential numbers by a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.layout import Placement
from distarray.typing import Buffer

INTEGERS = np.dtype(np.int64)
"""Of distributions of whole numbers."""
_LEAST = 2.0**-54
"""What stands for 0, which is as likely as any other uniform number, where it has no logarithm."""


def read_scalar(name: str, value: Any) -> float:
    """Return a real number of a distribution as a float.

    Raises
    ------
    ArgumentTypeError
        If it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"{name}={value!r} is not one real number; draw standard values and scale them, e.g. "
            "loc + scale * rng.standard_normal(size)"
        ) from None


def _scale(name: str, value: Any, positive: bool = False) -> float:
    """Return a number that must not be negative, or, if `positive`, 0 either."""
    found = read_scalar(name, value)
    if not found >= 0 or (positive and not found):
        raise ArgumentError(f"{name}={value!r} must be {'above 0' if positive else '0 or more'}")
    return found


def _inside(numbers: Buffer) -> Buffer:
    """Return numbers of which none is 0."""
    return np.maximum(numbers, _LEAST)


_DOCUMENTATION = """{sentence}

Parameters
----------
{parameters}
size, dtype, mesh, placements
    As for `random`.

Raises
------
ArgumentError
    If {wrong}.

Examples
--------
>>> import distarray as da
>>> print(da.random.default_rng(7).{name}({arguments}, 3))
{example}
"""


def _of_place_and_scale(
    name: str, sentence: str, kind: str, formula: Callable[[Buffer], Buffer], example: str
) -> Callable[..., Any]:
    """Return a method that scales and moves what a formula makes of numbers of a kind."""

    def draw(
        self: Any,
        loc: Any = 0.0,
        scale: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        loc, scale = read_scalar("loc", loc), _scale("scale", scale)
        return self._made(kind, lambda x: loc + scale * formula(x), size, dtype, mesh, placements)

    draw.__doc__ = _DOCUMENTATION.format(
        name=name,
        sentence=sentence,
        parameters="loc, scale : float\n    Where its middle is, and how wide it is; scalars.",
        wrong="`scale` is negative",
        arguments="0.0, 2.0",
        example=example,
    )
    draw.__name__, draw.__qualname__ = name, f"Generator.{name}"
    return draw


def _of_shape(
    name: str, sentence: str, formula: Callable[[Buffer, float], Buffer], example: str
) -> Callable[..., Any]:
    """Return a method that draws what a formula makes of exponential numbers and a parameter."""

    def draw(
        self: Any,
        a: Any,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        a = _scale("a", a, positive=True)
        return self._made("exponential", lambda e: formula(e, a), size, dtype, mesh, placements)

    draw.__doc__ = _DOCUMENTATION.format(
        name=name,
        sentence=sentence,
        parameters="a : float\n    Its shape, a scalar.",
        wrong="`a` is not above 0",
        arguments="3.0",
        example=example,
    )
    draw.__name__, draw.__qualname__ = name, f"Generator.{name}"
    return draw


def _two_sided(u: Buffer) -> Buffer:
    far = np.log(2.0 * np.minimum(_inside(u), 1.0 - u))
    return np.where(u < 0.5, far, -far)


class Distributions:
    """Methods of `Generator` that draw of other distributions."""

    __slots__ = ()

    _floats: Callable[..., Any]
    _made: Callable[..., Any]

    gumbel = _of_place_and_scale(
        "gumbel",
        "Draw floats from the Gumbel distribution of largest values.",
        "exponential",
        lambda e: -np.log(_inside(e)),
        "[-0.07926324  2.90320946 -0.80560669]",
    )
    laplace = _of_place_and_scale(
        "laplace",
        "Draw floats from the Laplace distribution, exponential to both sides.",
        "uniform",
        _two_sided,
        "[-0.6945605   1.74654078 -1.60573097]",
    )
    logistic = _of_place_and_scale(
        "logistic",
        "Draw floats from the logistic distribution.",
        "uniform",
        lambda u: np.log(_inside(u) / (1.0 - u)),
        "[-1.20909808  2.6644468  -2.48476406]",
    )
    pareto = _of_shape(
        "pareto",
        "Draw floats from the Pareto II or Lomax distribution.",
        lambda e, a: np.expm1(e / a),
        "[0.41454673 0.08119263 0.64653139]",
    )
    power = _of_shape(
        "power",
        "Draw floats from [0, 1] with a density of power `a - 1`.",
        lambda e, a: np.power(-np.expm1(-e), 1.0 / a),
        "[0.86476905 0.59325011 0.91893164]",
    )

    def standard_exponential(
        self,
        size: Any = None,
        dtype: Any = np.float64,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the exponential distribution of mean 1.

        Parameters
        ----------
        size, dtype, mesh, placements
            As for `random`.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).standard_exponential(3))
        [1.04042743 0.23419417 1.49601266]
        """
        return self._floats("exponential", 0.0, 1.0, size, dtype, mesh, placements)

    def standard_cauchy(
        self,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the Cauchy distribution of location 0 and scale 1.

        Parameters
        ----------
        size, dtype, mesh, placements
            As for `random`.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).standard_cauchy(3))
        [-0.4965206   1.29934589 -1.17816316]
        """

        def formula(u: Buffer) -> Buffer:
            return np.tan(np.pi * (u - 0.5))

        return self._made("uniform", formula, size, dtype, mesh, placements)

    def exponential(
        self,
        scale: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the exponential distribution, of mean `scale`.

        Parameters
        ----------
        scale : float
            A scalar.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `scale` is negative.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).exponential(2.0, 3))
        [2.08085487 0.46838834 2.99202533]
        """
        return self._floats(
            "exponential", 0.0, _scale("scale", scale), size, dtype, mesh, placements
        )

    def geometric(
        self,
        p: Any,
        size: Any = None,
        *,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw how many trials it takes to succeed.

        Parameters
        ----------
        p : float
            The probability of success in one trial, a scalar.
        size, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `p` is not above 0, or above 1.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).geometric(0.2, 5))
        [ 5  2  7 11  5]
        """
        p = _scale("p", p, positive=True)
        if p > 1:
            raise ArgumentError(f"p={p!r} is a probability and must be at most 1")
        rate = -np.log1p(-p) if p < 1 else np.inf

        def formula(e: Buffer) -> Buffer:
            return np.clip(np.ceil(e / rate), 1, 2.0**63 - 1024)

        return self._made("exponential", formula, size, INTEGERS, mesh, placements)

    def lognormal(
        self,
        mean: Any = 0.0,
        sigma: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats whose logarithms are normal.

        Parameters
        ----------
        mean, sigma : float
            Mean and standard deviation of the logarithms, scalars.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `sigma` is negative.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).lognormal(0.0, 0.5, 3))
        [1.20281861 0.49796921 2.03120125]
        """
        mean, sigma = read_scalar("mean", mean), _scale("sigma", sigma)
        return self._made(
            "normal", lambda n: np.exp(mean + sigma * n), size, dtype, mesh, placements
        )

    def rayleigh(
        self,
        scale: Any = 1.0,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the Rayleigh distribution: lengths of two normal coordinates.

        Parameters
        ----------
        scale : float
            Their standard deviation, a scalar.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `scale` is negative.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).rayleigh(2.0, 3))
        [2.8850337  1.36877805 3.45949437]
        """
        scale = _scale("scale", scale)
        return self._made(
            "exponential", lambda e: scale * np.sqrt(2.0 * e), size, dtype, mesh, placements
        )

    def triangular(
        self,
        left: Any,
        mode: Any,
        right: Any,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from a triangle over an interval.

        Parameters
        ----------
        left, mode, right : float
            The ends of the interval, and where the triangle is highest; scalars.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If they are not in this order, or the interval is empty.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).triangular(0.0, 1.0, 4.0, 3))
        [1.21425838 2.41712227 0.94661847]
        """
        left, mode, right = (
            read_scalar(name, value)
            for name, value in (("left", left), ("mode", mode), ("right", right))
        )
        if not (left <= mode <= right and left < right):
            raise ArgumentError(
                f"left={left!r}, mode={mode!r}, right={right!r} must be in this order, and left "
                "below right"
            )
        width, before, after = right - left, mode - left, right - mode

        def formula(u: Buffer) -> Buffer:
            rising = left + np.sqrt(u * (width * before))
            return np.where(
                u * width <= before, rising, right - np.sqrt((1.0 - u) * (width * after))
            )

        return self._made("uniform", formula, size, dtype, mesh, placements)

    def weibull(
        self,
        a: Any,
        size: Any = None,
        *,
        dtype: Any = np.float64,
        mesh: Any = None,
        placements: Sequence[Placement] | None = None,
    ) -> Any:
        """Draw floats from the Weibull distribution of scale 1.

        Parameters
        ----------
        a : float
            Its shape, a scalar.
        size, dtype, mesh, placements
            As for `random`.

        Raises
        ------
        ArgumentError
            If `a` is negative.

        Examples
        --------
        >>> import distarray as da
        >>> print(da.random.default_rng(7).weibull(2.0, 3))
        [1.02001345 0.48393612 1.22311597]
        """
        a = _scale("a", a)
        return self._made(
            "exponential",
            lambda e: np.power(e, 1.0 / a) if a else 0.0 * e,
            size,
            dtype,
            mesh,
            placements,
        )
