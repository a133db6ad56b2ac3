"""What the ranks of a mesh would read several times over they read once, together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.checkpoint import _fill
from distarray.checkpoint.storage import _files
from distarray.errors import CheckpointError
from distarray.testing import simulate

BLOCK = 1 << 20


class Counting:
    """How many bytes of data files are read while it is a context."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.total = 0

    def __enter__(self) -> Counting:
        self.total, lock, read_at = 0, threading.Lock(), _files.read_at

        def counted(file: int, target: Any, offset: int) -> int:
            found = read_at(file, target, offset)
            with lock:
                self.total += found
            return found

        self._context = self._monkeypatch.context()
        self._context.__enter__().setattr(_files, "read_at", counted)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)


def saved(path: Path, value: np.ndarray, ranks: int, placement: da.Placement) -> None:
    simulate(
        ranks,
        lambda: da.checkpoint.save(path, {"x": da.distribute_array(value, None, [placement])}),
    )


def check(path: Path, value: np.ndarray, layout: da.Layout, **options: Any) -> None:
    found = da.checkpoint.load(path, {"x": layout}, **options)["x"]
    box = layout.local_box()
    if box is not None:
        expected = value[tuple(slice(*interval) for interval in box)]
        assert found.to_local().tobytes() == expected.tobytes()


WANTED = [
    ((4,), [da.Shard(1)], {}),
    ((3,), [da.Shard(1)], {}),
    ((4,), [da.Replicate()], {}),
    ((2, 2), [da.Shard(0), da.Shard(1)], {}),
    ((2, 2), [da.Shard(1), da.Shard(1)], {"shard_order": (1, 0)}),
    ((2, 2), [da.Replicate(), da.Shard(1)], {}),
    ((2,), [da.Shard(1)], {"boundaries": {1: (0, 0, 1000)}}),
    ((4,), [da.Shard(0)], {}),
]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("slab", [1 << 40, 1 << 18])
@pytest.mark.parametrize(("mesh", "placements", "options"), WANTED, ids=str)
def test_every_byte_is_read_once(tmp_path, monkeypatch, mesh, placements, options, slab, verify):
    monkeypatch.setattr(_fill, "_SLAB_BYTES", slab)
    monkeypatch.setattr(_fill, "_SHARE_BYTES", slab)
    value = np.random.default_rng(0).standard_normal((2111, 1000))
    saved(tmp_path / "x", value, 3, da.Shard(0))

    def load() -> None:
        layout = da.Layout(da.init_device_mesh(mesh), placements, value.shape, **options)
        check(tmp_path / "x", value, layout, verify=verify)

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    assert value.nbytes <= counting.total
    if slab > value.nbytes:  # parts begin and end within blocks
        assert counting.total <= value.nbytes + (6 * BLOCK if verify else 0)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> dict[str, Any]:
    """Draw ranks, a mesh of them, placements, and which axis cuts first."""
    mesh = draw(st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1, 2)]))
    choices: list[Any] = [da.Replicate(), *(da.Shard(axis) for axis in range(len(shape)))]
    ranks = draw(st.permutations(range(4)))[: int(np.prod(mesh))]
    return {
        "ranks": np.array(ranks).reshape(mesh).tolist(),
        "placements": [draw(st.sampled_from(choices)) for _ in mesh],
        "order": draw(st.permutations(range(len(mesh)))),
    }


@settings(max_examples=25)
@given(data=st.data())
def test_any_layout_is_read_together_as_well(tmp_path_factory, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    dtype = data.draw(st.sampled_from(["u1", "f2", "f4", "f8", "c16", "M8[s]"]))
    value = np.random.default_rng(0).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
    array = np.frombuffer(value, dtype).reshape(shape)
    wanted = [data.draw(layouts(shape)) for _ in range(3)]
    slab = data.draw(st.sampled_from([1, 50, 1 << 30]))
    path = tmp_path_factory.mktemp("any") / "x"
    axis = data.draw(st.integers(0, len(shape) - 1))

    def program() -> None:
        layout = da.Layout(da.default_mesh(), [da.Shard(axis)], shape)
        local = array[tuple(slice(*interval) for interval in layout.local_box())]
        x = da.DistArray.from_local(local.copy(), layout.mesh, layout.placements, shape=shape)
        da.checkpoint.save(path, {str(i): x for i in range(3)})
        asked = {}
        for i, case in enumerate(wanted):
            mesh = da.DeviceMesh(case["ranks"])
            asked[str(i)] = da.Layout(mesh, case["placements"], shape, shard_order=case["order"])
        found = da.checkpoint.load(path, asked)
        for name, layout in asked.items():
            box = layout.local_box()
            if box is not None:
                expected = array[tuple(slice(*interval) for interval in box)]
                assert found[name].to_local().tobytes() == expected.tobytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fill, "BLOCK_BYTES", 0)
        patch.setattr(_fill, "_SLAB_BYTES", slab)
        patch.setattr(_fill, "_SHARE_BYTES", slab)
        _fill._plan_reads.cache_clear()
        simulate(4, program)
    _fill._plan_reads.cache_clear()


def test_plain_arrays_are_read_once_and_conversions_and_empty_shares_are_right(
    tmp_path, monkeypatch
):
    value = np.random.default_rng(0).standard_normal((3000, 200))
    wide = np.random.default_rng(1).standard_normal((400_000, 2))
    simulate(2, lambda: da.checkpoint.save(tmp_path / "x", {"n": value, "w": wide}))

    def load() -> None:
        n = np.zeros(value.shape, np.float32)[:, ::-1]
        w = da.zeros(wide.shape, placements=[da.Shard(1)])  # two ranks have nothing
        da.checkpoint.load(tmp_path / "x", {"n": n, "w": w}, cast=True)
        assert (n == value.astype(np.float32)).all()
        assert (w.full_array() == wide).all()

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    assert counting.total <= value.nbytes + wide.nbytes + 12 * BLOCK


def test_ranks_that_want_different_things_read_for_themselves(tmp_path):
    value = np.random.default_rng(0).standard_normal((2000, 300))
    saved(tmp_path / "x", value, 2, da.Shard(0))

    def load() -> None:
        rank = da.default_mesh().rank
        plain = np.zeros(value.shape)
        state = {"x": plain} if rank else {}
        if rank == 2:
            layout = da.Layout(da.DeviceMesh([2]), [da.Replicate()], value.shape)
            state = {"x": layout}
        found = da.checkpoint.load(tmp_path / "x", state)
        if rank == 1:
            assert (plain == value).all()
        elif rank == 2:
            assert (found["x"].to_local() == value).all()

    simulate(3, load)


def test_meshes_that_share_ranks(tmp_path, monkeypatch):
    """Rows and columns of ranks, each of which wants columns of the array."""
    value = np.random.default_rng(0).standard_normal((2000, 300))
    simulate(2, lambda: da.checkpoint.save(tmp_path / "x", dict.fromkeys("ab", value)))

    def load() -> None:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        asked = {
            name: da.Layout(mesh[axis], [da.Shard(1)], value.shape)
            for name, axis in (("a", "tp"), ("b", "dp"))
        }
        found = da.checkpoint.load(tmp_path / "x", asked)
        for name in "ab":
            assert (found[name].full_array() == value).all()

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    assert counting.total <= 2 * 2 * value.nbytes + 16 * BLOCK


@pytest.mark.parametrize("victim", range(4))
def test_a_rank_that_cannot_read_fails_all(tmp_path, monkeypatch, victim):
    """Of two meshes: those of the other one are told as well, and nobody waits."""
    value = np.random.default_rng(0).standard_normal((2000, 300))
    simulate(2, lambda: da.checkpoint.save(tmp_path / "x", dict.fromkeys("ab", value)))
    read_at = _files.read_at

    def failing(file: int, target: Any, offset: int) -> int:
        if da.default_mesh().rank == victim:
            raise OSError(5, "Input/output error")
        return read_at(file, target, offset)

    def load() -> str:
        mesh = da.init_device_mesh((2, 2), ("dp", "tp"))
        asked = {
            name: da.Layout(mesh[axis], [da.Shard(1)], value.shape)
            for name, axis in (("a", "tp"), ("b", "dp"))
        }
        with pytest.raises(CheckpointError) as raised:
            da.checkpoint.load(tmp_path / "x", asked)
        return str(raised.value)

    monkeypatch.setattr(_files, "read_at", failing)
    messages = simulate(4, load)
    assert all("cannot be read at byte" in message for message in messages)
    assert all("data-" in message for message in messages)
    others = [message for rank, message in enumerate(messages) if rank != victim]
    assert all(message.startswith(f"on rank {victim}: ") for message in others)


def test_damage_is_named_by_all(tmp_path):
    value = np.random.default_rng(0).standard_normal((2000, 300))
    saved(tmp_path / "x", value, 2, da.Shard(0))
    data = sorted((tmp_path / "x").glob("data-*"))[1]
    content = bytearray(data.read_bytes())
    content[-5000] ^= 1
    data.write_bytes(content)

    def load() -> None:
        columns = da.Layout(da.default_mesh(), [da.Shard(1)], value.shape)
        with pytest.raises(CheckpointError, match=r"00001.safetensors is damaged: bytes .* 'x'"):
            da.checkpoint.load(tmp_path / "x", {"x": columns})

    simulate(3, load)


def test_without_checksums_gaps_are_left_out(tmp_path, monkeypatch):
    value = np.random.default_rng(0).standard_normal((12, 64 << 10))
    da.checkpoint.save(tmp_path / "x", {"x": value})

    def load() -> None:
        layout = da.Layout(da.init_device_mesh((1, 2)), [da.Replicate(), da.Shard(1)], value.shape)
        check(tmp_path / "x", value, layout, verify=False)

    with Counting(monkeypatch) as counting:
        simulate(2, load)
    assert counting.total == value.nbytes


def test_safetensors_files_are_read_once(tmp_path, monkeypatch):
    value = np.random.default_rng(0).standard_normal((3000, 200))
    da.checkpoint.save_safetensors(tmp_path / "x", {"w": value})

    def load() -> None:
        found = da.checkpoint.load_safetensors(tmp_path / "x", placements=[da.Shard(1)])
        assert (found["w"].full_array() == value).all()

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    assert counting.total < value.nbytes + 10_000


def test_weights_cut_by_columns_and_shares_of_them(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    import distarray.torch as dt

    weight = torch.randn(8192, 512, generator=torch.Generator().manual_seed(0))

    def module(mesh: da.DeviceMesh) -> torch.nn.Module:
        one = torch.nn.Sequential(torch.nn.Linear(512, 8192, bias=False, device="meta"))
        one.to_empty(device="cpu")
        dt.parallelize_module(one, mesh["tp"], {"0": dt.RowwiseParallel()})
        return dt.fully_shard(one, mesh=mesh["dp"])

    simulate(1, lambda: da.checkpoint.save(tmp_path / "x", {"0.weight": weight}))

    def load() -> None:
        found = module(da.init_device_mesh((2, 2), ("dp", "tp")))
        da.checkpoint.load(tmp_path / "x", found)
        assert torch.equal(dt.full_tensor(found[0].weight), weight)

    with Counting(monkeypatch) as counting:
        simulate(4, load)
    assert counting.total <= weight.nbytes + 4 * BLOCK
