"""A disk that is full while a checkpoint is written: the error names the file."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import distarray as da


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let the system refuse to make a file larger, as it does where a disk is full."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors"])
def test_the_error_names_the_file(tmp_path, kind):
    da.default_mesh()
    state = {"x": np.zeros(100_000)}
    call, path, name = {
        "checkpoint": (da.checkpoint.save, "x", "data-[0-9a-f]+-00000"),
        "safetensors": (da.checkpoint.save_safetensors, "x.safetensors", r"\.x\.safetensors\.tmp-"),
    }[kind]
    with room_for(100_000), pytest.raises(da.errors.CheckpointError, match=f"File too.*{name}"):
        call(tmp_path / path, state)
    assert list(tmp_path.iterdir()) == []
