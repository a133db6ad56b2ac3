"""The page of names has every public one, with what its docstring says first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

import distarray as da
import distarray.torch as dt
from distarray._missing_names import INSTEAD_OF_OTHERS

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


def test_names_of_torch_that_are_not_there_name_what_to_do() -> None:
    remedies = {
        name.removeprefix("torch."): remedy
        for name, remedy in INSTEAD_OF_OTHERS.items()
        if name.startswith("torch.")
    }
    assert {"FSDP", "DTensor", "Shard", "init_process_group"} <= remedies.keys()
    for name, remedy in remedies.items():
        with pytest.raises(AttributeError, match=re.escape(f"has no {name!r}; use {remedy}")):
            getattr(dt, name)
        for module, known in re.findall(r"\b(d[at])\.(\w+)", remedy):
            assert hasattr({"da": da, "dt": dt}[module], known)
    with pytest.raises(AttributeError, match=r"module 'distarray\.torch' has no attribute 'FSPD'"):
        dt.FSPD  # noqa: B018
