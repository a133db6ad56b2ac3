"""Whole jobs that lose a rank while they save; `tests/checkpoint/kills.py` does so for long."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_killed_rank_leaves_a_whole_checkpoint() -> None:
    pytest.importorskip("mpi4py")
    spec = importlib.util.spec_from_file_location("kills", Path(__file__).with_name("kills.py"))
    kills = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kills)
    found = kills.kill_often(4, seed=1)
    assert found["the last was there"] + found["the next was there"] == 4
