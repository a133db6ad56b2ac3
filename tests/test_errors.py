"""Errors are caught as NumPy's are, and are the same after a way between processes."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.testing import simulate

CLASSES = [one for one in vars(da.errors).values() if isinstance(one, type)]


@pytest.mark.parametrize("kind", [*CLASSES, da.linalg.LinAlgError])
def test_errors_are_the_same_after_pickling(kind: Any) -> None:
    if issubclass(kind, da.errors.DistArrayError):
        found = pickle.loads(pickle.dumps(kind("some words")))
        assert type(found) is kind
        assert str(found) == "some words"


AXES = {
    "one": lambda xp, x: xp.sum(x, axis=4),
    "from the last": lambda xp, x: xp.sort(x, axis=-3),
    "one of several": lambda xp, x: xp.mean(x, axis=(0, 2)),
    "of no axes": lambda xp, x: xp.max(x[0, 0], axis=1),
    "of the result": lambda xp, x: xp.expand_dims(x, 3),
    "of the second": lambda xp, x: xp.cross(x, x, axisb=2),
}


@pytest.mark.parametrize("name", AXES)
def test_an_axis_out_of_range_is_told_as_by_numpy(name: str) -> None:
    with pytest.raises(np.exceptions.AxisError) as expected:
        AXES[name](np, np.ones((3, 3)))

    def program() -> None:
        with pytest.raises(da.errors.AxisError) as caught:
            AXES[name](da, da.ones((3, 3)))
        found = pickle.loads(pickle.dumps(caught.value))
        assert (found.axis, found.ndim) == (expected.value.axis, expected.value.ndim)
        assert str(found) == str(caught.value)

    simulate(2, program)


MADE_OF_OTHERS = {
    "allclose": lambda x: da.allclose(x, "a"),
    "argpartition": lambda x: da.argpartition(x, 1, order="a"),
    "clip": lambda x: da.clip(x, 1, 2, out=3),
    "corrcoef": lambda x: da.corrcoef(x, dtype="what"),
    "diagflat": lambda x: da.diagflat(x, 1.5),
    "dot": lambda x: da.dot(x, da.ones(5)),
    "fliplr": lambda x: da.fliplr("a"),
    "inner": lambda x: da.inner(x, da.ones(5)),
    "kron": lambda x: da.kron(x, da.asarray(["a"])),
    "lstsq": lambda x: da.linalg.lstsq(x, "a"),
    "nancumsum": lambda x: da.nancumsum(x, out=3),
    "partition": lambda x: x.partition(1, order="a"),
    "ptp": lambda x: da.ptp(x, axis=4),
    "select": lambda x: da.select([x > 1], [x], np.ones(2)),
    "sort_complex": lambda x: da.sort_complex("a"),
    "std": lambda x: da.std(x, where="a"),
    "sum": lambda x: np.sum(x, axis=4),
    "svdvals": lambda x: np.linalg.svdvals(x[0]),
    "trace": lambda x: np.trace(x, offset="a"),
    "trapezoid": lambda x: da.trapezoid(x, dx="a"),
    "tril_indices_from": lambda x: da.tril_indices_from(x, "a"),
    "vdot": lambda x: np.vdot(x, da.ones(3)),
    "vecmat": lambda x: da.vecmat(da.ones(3), x),
}


@pytest.mark.parametrize("name", MADE_OF_OTHERS)
def test_errors_name_the_function_that_is_called(name: str) -> None:
    def program() -> str:
        with pytest.raises(da.errors.DistArrayError) as caught:
            MADE_OF_OTHERS[name](da.ones((4, 4)))
        assert type(pickle.loads(pickle.dumps(caught.value))) is caught.type
        return str(caught.value)

    first, other = simulate(2, program)
    assert first == other
    assert first.startswith((name, f"linalg.{name}"))


@pytest.mark.parametrize("name", ["sum", "max", "any", "mean", "argmin", "cumsum", "squeeze"])
@pytest.mark.parametrize("axis", [0, -1])
def test_an_array_without_axes_has_no_first_axis(name: str, axis: int) -> None:
    def program() -> None:
        with pytest.raises(da.errors.AxisError, match="it has none"):
            getattr(da, name)(da.asarray(3.0), axis=axis)

    simulate(2, program)


CALLS = {
    "axis out of range": lambda xp, x: xp.sum(x, axis=4),
    "axis named twice": lambda xp, x: xp.transpose(x, (0, 0)),
    "no axis": lambda xp, x: xp.sum(x, axis="a"),
    "bytes as axes": lambda xp, x: xp.sum(x, axis=b"x"),
    "axis of the second": lambda xp, x: xp.cross(x, x, axisb=2),
    "sizes": lambda xp, x: x + xp.ones(5),
    "pad: no such word": lambda xp, x: xp.pad(x, 1, what=3),
    "pad: no such mode": lambda xp, x: xp.pad(x, 1, mode="what"),
    "pad: negative": lambda xp, x: xp.pad(x, -1),
    "fftfreq: a word": lambda xp, x: xp.fft.fftfreq("a"),
    "rfftfreq: a fraction": lambda xp, x: xp.fft.rfftfreq(1.5),
    "casting: refused": lambda xp, x: x.astype("i4", casting="same_kind"),
    "item out of range": lambda xp, x: x.item(12),
    "casting: no word": lambda xp, x: xp.add(x, x, casting=None),
    "casting: no such word": lambda xp, x: xp.add(x, x, casting="what"),
    "kind: no word": lambda xp, x: xp.sort(x, kind=1.5),
    "partition: no word": lambda xp, x: xp.partition(x, 1, kind=1.5),
    "mode: no word": lambda xp, x: xp.correlate(xp.ones(3), xp.ones(3), mode=None),
    "order of the sort": lambda xp, x: xp.sqrt(x, order="what"),
    "method": lambda xp, x: xp.quantile(x, 0.5, method=None),
    "norm": lambda xp, x: xp.linalg.norm(x, ord=b"x"),
    "keepdims": lambda xp, x: xp.sum(x, keepdims=[1, 2]),
    "not square": lambda xp, x: xp.linalg.inv(x),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_catches_the_error_of_numpy_catches_ours(name: str) -> None:
    call = CALLS[name]
    with pytest.raises(Exception) as caught:
        call(np, np.ones((3, 4 if name != "axis of the second" else 3)))
    expected = caught.type
    if expected.__module__.startswith("numpy._core"):  # private ones
        expected = expected.__base__

    def program() -> None:
        x = da.ones((3, 4 if name != "axis of the second" else 3))
        with CommLog() as log, pytest.raises(expected) as ours:
            call(da, x)
        assert isinstance(ours.value, da.errors.DistArrayError)
        assert log.count() == 0

    simulate(2, program)


JOINS = ["concat", "stack", "vstack", "hstack", "dstack", "column_stack"]


@pytest.mark.parametrize("name", ["convolve", "correlate", "append", *JOINS, "fft.fft", "fft.fft2"])
def test_errors_name_the_function_that_was_called(name: str) -> None:
    room, _, own = name.rpartition(".")

    def program() -> None:
        first, second = da.init_device_mesh((2,)), da.DeviceMesh([1, 0])
        x, y = (da.ones((4,) * (1 + (own == "fft2")), mesh=mesh) for mesh in (first, second))
        function = getattr(getattr(da, room) if room else da, own)
        if room:
            call = lambda: function(x, out=y)  # noqa: E731
        else:
            call = lambda: function([x, y]) if own in JOINS else function(x, y)  # noqa: E731
        with pytest.raises(da.errors.MeshError, match=f"^{own}"):
            call()

    simulate(2, program)


DATES = np.array(["2020-01-01", "2021-02-03"], "M8[D]")

UNLIKE = {
    "full: text too short for a date": lambda: da.full(3, DATES[0], dtype="S3"),
    "full_like: text too short": lambda: da.full_like(da.ones(3), DATES[0], dtype="U2"),
    "choose: choices": lambda: da.choose(da.asarray([0, 1]), [da.asarray(["a", "b"]), DATES]),
    "choose: beyond int64": lambda: da.choose(da.asarray(np.uint64([0, 1])), [1, 2]),
    "histogram2d": lambda: da.histogram2d(da.asarray(DATES), da.ones(2), bins=2),
    "unwrap": lambda: da.unwrap(da.asarray(DATES)),
    "cg": lambda: da.linalg.cg(da.asarray(DATES[:1].reshape(1, 1)), da.ones(1)),
    "i0 of structures": lambda: da.i0(da.asarray(np.zeros(1, "V3"))),
    "i0 of text that is no number": lambda: da.i0(da.asarray(["1", "x"])),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_dtypes_that_do_not_go_together_are_an_error_on_every_rank(name: str) -> None:
    def program() -> type:
        with pytest.raises(da.errors.DistArrayError) as caught:
            UNLIKE[name]()
        return caught.type

    assert len(set(simulate(2, program))) == 1
