"""Settings that are empty count as unset, whichever they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import distarray
from distarray.comm import _launcher, _settings
from distarray.comm.device_messages import _awareness
from distarray.comm.failures import _watchdog
from distarray.comm.kernels import _jit, _threads
from distarray.comm.shared_memory import _arena

PACKAGE = Path(distarray.__file__).parent
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


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("DISTARRAY_TIMOUT", "DISTARRAY_TIMEOUT"),
        ("DISTARRAY_CHECKS", "DISTARRAY_CHECK"),
        ("DISTARRAY_THREADS", "DISTARRAY_NUM_THREADS"),
        ("DIST_ARRAY_SHARED_MEMORY", "DISTARRAY_SHARED_MEMORY"),
    ],
)
def test_misspelt_settings_are_warned_of_on_the_first_rank(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.warns(UserWarning, match=f"{name} is no setting; {meant} may be meant"):
        _launcher.warn_of_misspelt_settings()
    monkeypatch.setenv("PMI_RANK", "1")
    _launcher.warn_of_misspelt_settings()


@pytest.mark.parametrize("name", [*sorted(_settings.NAMES), "DISTARRAY_HOME", "DISTARRAY_ENV"])
def test_settings_and_names_of_a_program_are_not_warned_of(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    _launcher.warn_of_misspelt_settings()


def test_import_warns_of_a_misspelt_setting() -> None:
    program = [sys.executable, "-c", "import distarray"]
    environment = os.environ | {"DISTARRAY_TIMOUT": "5", "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert "DISTARRAY_TIMOUT is no setting" in done.stderr


def test_all_settings_are_known_and_told_of() -> None:
    read = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"[\"'](DISTARRAY_[A-Z_]+)[\"']", path.read_text())
    }
    assert read == _settings.NAMES
    told = re.findall(r"`(DISTARRAY_[A-Z_]+)", (PACKAGE.parent / "README.md").read_text())
    assert set(told) >= _settings.NAMES


def test_settings_are_read_in_one_place() -> None:
    direct = [
        path.name
        for path in PACKAGE.rglob("*.py")
        if re.search(r"environ(\.get\(|\[)\s*[\"']DISTARRAY_", path.read_text())
    ]
    assert direct == []
