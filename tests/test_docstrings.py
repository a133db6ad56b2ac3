"""Every public function, class and method has an example, which gives what it says."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from tests.on_device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="what is printed is that of the host")


def documented() -> dict[str, str]:
    """Return the docstrings of our public functions, classes and methods, each once, by name."""
    found: dict[str, str] = {}
    rooms = [da, *(one for name in da.__all__ if inspect.ismodule(one := getattr(da, name)))]
    for room in [*rooms, da.DistArray, da.random.Generator]:
        for name in getattr(room, "__all__", None) or dir(room):
            one = inspect.getattr_static(room, name)
            one = getattr(one, "__func__", one)
            ours = (getattr(one, "__module__", None) or "").startswith("distarray")
            is_error = isinstance(one, type) and issubclass(one, Exception)
            if ours and not is_error and not name.startswith("_"):
                found.setdefault(inspect.getdoc(one) or "", f"{room.__name__}.{name}")
    return {name: text for text, name in found.items()}


DOCUMENTED = documented()


def test_every_public_name_has_one_section_of_examples() -> None:
    lacking = [name for name, text in DOCUMENTED.items() if text.count("Examples\n--------\n") != 1]
    assert not lacking


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_example_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where examples write files
    test = doctest.DocTestParser().get_doctest(
        DOCUMENTED[name], {"da": da, "np": np, "__name__": name}, name, None, 0
    )
    assert test.examples
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        failures, _ = doctest.DocTestRunner(verbose=False).run(test, out=out.write)
    assert not failures, out.getvalue()
