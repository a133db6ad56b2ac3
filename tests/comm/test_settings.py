"""Settings that are empty count as unset, whichever they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import distarray
from distarray.comm import _launcher
from distarray.comm.device_messages import _awareness
from distarray.comm.failures import _watchdog
from distarray.comm.kernels import _jit, _threads
from distarray.comm.shared_memory import _arena

READERS = {
    "DISTARRAY_TIMEOUT": _watchdog.timeout,
    "DISTARRAY_NUM_THREADS": _threads._read_setting,
    "DISTARRAY_POOL_LIMIT": lambda: _arena._default_limit(),
    "DISTARRAY_KERNELS": _jit.forced.__wrapped__,
    "DISTARRAY_NUMBA": _jit.forced.__wrapped__,
    "DISTARRAY_CUDA_AWARE": _awareness.setting,
    "DISTARRAY_LOCAL_RANK": _launcher.launched_local_rank,
    "DISTARRAY_RANKS_PER_NODE": lambda: _launcher.node_name(5),
}


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("name", READERS)
def test_setting_that_is_empty_counts_as_unset(
    name: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    unset = READERS[name]()
    monkeypatch.setenv(name, empty)
    assert READERS[name]() == unset


def test_settings_are_read_in_one_place() -> None:
    package = Path(distarray.__file__).parent
    direct = [
        path.name
        for path in package.rglob("*.py")
        if re.search(r"environ(\.get\(|\[)\s*[\"']DISTARRAY_", path.read_text())
    ]
    assert direct == []
