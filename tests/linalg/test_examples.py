"""The examples in the documentation of linear algebra and transforms print what they say."""

from __future__ import annotations

import doctest

import pytest

import distarray as da

NAMES = [f"{room}.{name}" for room in ("linalg", "fft") for name in getattr(da, room).__all__]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.host_only
def test_example_prints_what_it_says(name: str) -> None:
    room, _, own = name.partition(".")
    function = getattr(getattr(da, room), own)
    if not function.__module__.startswith(f"distarray.{room}."):
        return  # one of the main namespace
    tests = [one for one in doctest.DocTestFinder().find(function, own, globs={}) if one.examples]
    assert tests
    for one in tests:
        assert doctest.DocTestRunner(verbose=False).run(one).failed == 0
