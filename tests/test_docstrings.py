"""Every public function, class and method has an example, which gives what it says."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distarray as da
from tests.on_device import DEVICE

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="what is printed is that of the host")


def documented(*rooms: Any) -> dict[str, str]:
    """Return the docstrings of our public functions, classes and methods, each once, by name."""
    found: dict[str, str] = {}
    for room in rooms:
        for name in getattr(room, "__all__", None) or dir(room):
            one = inspect.getattr_static(room, name, None)
            one = getattr(one, "__func__", one)
            ours = (getattr(one, "__module__", None) or "").startswith("distarray")
            is_error = isinstance(one, type) and issubclass(one, Exception)
            if ours and not is_error and not name.startswith("_") and hasattr(room, name):
                found.setdefault(inspect.getdoc(one) or "", f"{room.__name__}.{name}")
    return {name: text for text, name in found.items()}


def lack_examples(documented: dict[str, str]) -> list[str]:
    """Return the names whose docstrings have not one section of examples."""
    return [name for name, text in documented.items() if text.count("Examples\n--------\n") != 1]


def failures_of(name: str, text: str, **known: Any) -> str:
    """Run the examples of a docstring; return what was printed that is not what it says."""
    test = doctest.DocTestParser().get_doctest(text, {**known, "__name__": name}, name, None, 0)
    assert test.examples
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        failures, _ = doctest.DocTestRunner(verbose=False).run(test, out=out.write)
    return out.getvalue() if failures else ""


DOCUMENTED = documented(
    da,
    *(one for name in da.__all__ if inspect.ismodule(one := getattr(da, name))),
    da.DistArray,
    da.random.Generator,
)


def test_every_public_name_has_one_section_of_examples() -> None:
    assert lack_examples(DOCUMENTED) == []


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_example_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where examples write files
    assert failures_of(name, DOCUMENTED[name], da=da, np=np) == ""
