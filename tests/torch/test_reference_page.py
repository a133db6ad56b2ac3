"""The page of names has every public one, with what its docstring says first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import distarray.torch as dt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch_reference.md"


def test_page_lists_all_public_names_once() -> None:
    listed = re.findall(r"^- `(\w+)`: (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(dict(listed)) == len(listed)
    assert dict(listed) == {
        name: (getattr(dt, name).__doc__ or "").splitlines()[0].replace("``", "`")
        for name in dt.__all__
    }


def test_names_are_sorted_and_there() -> None:
    assert dt.__all__ == sorted(dt.__all__)
    assert [name for name in dt.__all__ if not hasattr(dt, name)] == []
