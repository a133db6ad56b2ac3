"""A checkpoint that an earlier version wrote on two ranks loads, bit by bit, on any number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray.testing import simulate

PATH = Path(__file__).parent / "data" / "version_1"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_checkpoint_of_version_1_loads(ranks):
    def program():
        mesh = da.init_device_mesh((ranks,))
        x = da.zeros((7, 5), dtype="f4", mesh=mesh, placements=[da.Shard(1)])
        rng = da.random.default_rng(0)
        state = {"x": x, "plain": None, "bits": None, "empty": None, "nested": None, "random": rng}
        if ranks == 2:
            state["own"] = da.checkpoint.PerRank(None)
        found = da.checkpoint.load(PATH, {**state, "z": None, "tied": None})
        assert np.array_equal(x.full_array(), np.arange(35, dtype="f4").reshape(7, 5))
        assert np.array_equal(found["tied"].full_array(), x.full_array())
        assert np.array_equal(found["z"].full_array(), np.arange(6) * (1 - 2j))
        assert found["plain"].dtype == ">i4"
        assert np.array_equal(found["plain"], np.arange(12).reshape(3, 4).T)
        assert found["bits"].dtype.names == ("bfloat16",)
        assert np.array_equal(found["bits"].view("u2"), np.arange(6))
        assert found["empty"].shape == (0, 3)
        nested = found["nested"]
        assert nested["list"] == [1, 2.5, None, True, float("inf"), 2**70]
        assert nested["tuple"] == ("a", b"\x00b", 1 + 2j)
        assert nested[3] == np.float16(1.5)
        assert nested["k", 1] == "Ärger"
        if ranks == 2:
            rank = mesh.coordinate[0]
            assert found["own"]["seed"] == rank
            assert np.array_equal(found["own"]["at"], np.arange(rank + 1))
        goes_on = da.random.default_rng(5)
        goes_on.random((3,))
        assert np.array_equal(rng.random((4,)).full_array(), goes_on.random((4,)).full_array())

    simulate(ranks, program)


def test_an_old_checkpoint_is_still_checked(tmp_path):
    for file in PATH.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    data = next(tmp_path.glob("data-*-00000.safetensors"))
    content = bytearray(data.read_bytes())
    content[4096] ^= 1
    data.write_bytes(content)
    with pytest.raises(da.errors.CheckpointError, match="4b2d0191"):
        da.checkpoint.load(tmp_path, {"x": None})
