"""The examples of public functions and methods run, and give what they say, on one process."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import types
from typing import Any

import numpy as np
import pytest

import distarray as da
from tests.on_device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="what is printed is that of the host")


def documented() -> dict[str, Any]:
    """Return public functions and methods whose docstrings have examples, by name."""
    found: dict[str, Any] = {}
    rooms = [da, da.DistArray, da.random.Generator]
    rooms += [one for name in da.__all__ if isinstance(one := getattr(da, name), types.ModuleType)]
    for room in rooms:
        for name in getattr(room, "__all__", None) or dir(room):
            one = inspect.getattr_static(room, name)
            one = getattr(one, "__func__", one)
            ours = (getattr(one, "__module__", None) or "").startswith("distarray")
            if ours and ">>>" in (one.__doc__ or "") and not name.startswith("_"):
                found[f"{room.__name__}.{name}"] = one
    return found


ELSEWHERE = {"distarray.checkpoint.load_safetensors", "distarray.checkpoint.open"}
"""Examples with files that there must be; tests/checkpoint/test_page.py runs such."""
DOCUMENTED = {name: one for name, one in documented().items() if name not in ELSEWHERE}


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_example_gives_what_it_says(name: str) -> None:
    text = inspect.getdoc(DOCUMENTED[name])
    assert text is not None
    test = doctest.DocTestParser().get_doctest(
        text, {"da": da, "np": np, "__name__": name}, name, None, 0
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        failures, _ = doctest.DocTestRunner(verbose=False).run(test, out=out.write)
    assert not failures, out.getvalue()
