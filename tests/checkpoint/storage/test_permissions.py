"""Files that the process may not read or write are named."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import distarray as da

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be somebody whom permissions bind, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("pattern", ["data-*", "manifest.json"])
def test_files_that_may_not_be_read_are_named(folder, pattern):
    da.checkpoint.save(folder / "x", {"n": np.arange(5)})
    (file,) = (folder / "x").glob(pattern)
    file.chmod(0)
    with (
        without_privileges(),
        pytest.raises(da.errors.CheckpointError, match=rf"{file.name} cannot be .*Permission"),
    ):
        da.checkpoint.load(folder / "x")
    with (
        without_privileges(),
        pytest.raises(da.errors.CheckpointError, match=rf"{file.name} cannot be .*Permission"),
    ):
        da.checkpoint.open(folder / "x")["n"][:]


def test_directories_that_may_not_be_written_are_named(folder):
    state = {"n": np.arange(5)}
    da.checkpoint.save(folder / "x", state)
    folder.chmod(0o555)
    with (
        without_privileges(),
        pytest.raises(da.errors.CheckpointError, match=rf"Permission denied: .*{folder.name}"),
    ):
        da.checkpoint.save(folder / "x", {"n": np.zeros(5)})
    folder.chmod(0o755)
    assert da.checkpoint.load(folder / "x")["n"].tolist() == [0, 1, 2, 3, 4]
