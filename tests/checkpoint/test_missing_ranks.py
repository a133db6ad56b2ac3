"""Saves and loads that not all ranks call end the program with an error, instead of waiting."""

from __future__ import annotations

import pytest

from tests.test_abort import assert_ended_by, launch

pytestmark = pytest.mark.timeout(120)

PROGRAM = """
import distarray as da
from distarray.checkpoint import load, load_safetensors, save
rank = da.default_mesh().rank
save({path!r}, {{"s": 1}}, step=0, async_op={async_op})
"""


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(
    "call", ["save({path!r}, {{'s': 1}}, step=1)", "load({path!r})", "load_safetensors({path!r})"]
)
def test_others_have_come_to_the_end(tmp_path, call, async_op):
    path = str(tmp_path / "x")
    program = PROGRAM.format(path=path, async_op=async_op)
    ended = launch(f"{program}\nif rank == 0: {call.format(path=path)}")
    assert_ended_by(ended, "CommunicationError: rank 0 waits for ranks [")
    assert "(da.checkpoint." in ended.said
    assert "have come to the end of the program" in ended.said


@pytest.mark.parametrize("other", ["mesh.comm()", "da.ones(12).sum()"])
def test_others_wait_elsewhere(tmp_path, other):
    path = str(tmp_path / "x")
    program = PROGRAM.format(path=path, async_op=False)
    alone = f"save({path!r}, {{'s': 1}}, step=1)"
    ended = launch(f"{program}\nmesh = da.default_mesh()\nif rank == 0: {alone}\nelse: {other}\n")
    assert ended.status != 0
    assert "da.checkpoint.save" in ended.said
