"""What was saved on some ranks is loaded on others, bit by bit, in any layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.testing import simulate

MESHES = ((1,), (2,), (3,), (4,), (2, 2), (1, 3), (2, 1, 2))
DTYPES = ("?", "u1", "i2", "f2", "f4", "f8", "c8", "c16", ">i4", "S3", "U2", "M8[s]", "i8,f4")


def values_of(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of different bytes."""
    dtype = np.dtype(dtype)
    count = math.prod(shape)
    if dtype.kind == "U":
        return np.array([chr(65 + i % 26) for i in range(count)], dtype).reshape(shape)
    data = np.random.default_rng(count).integers(0, 100, count * dtype.itemsize, np.uint8)
    if dtype.kind == "b":
        return (data > 50).reshape(shape)
    return data.view(dtype).reshape(shape)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> dict[str, Any]:
    """Draw a mesh, placements and a shard order."""
    mesh = draw(st.sampled_from(MESHES))
    choices: list[Any] = [da.Replicate(), *(da.Shard(axis) for axis in range(len(shape)))]
    placements = [draw(st.sampled_from(choices)) for _ in mesh]
    order = draw(st.permutations(range(len(mesh))))
    return {"mesh": mesh, "placements": placements, "order": order}


def layout_of(case: dict[str, Any], shape: tuple[int, ...]) -> da.Layout:
    mesh = da.init_device_mesh(case["mesh"])
    return da.Layout(mesh, case["placements"], shape, shard_order=case["order"])


def distributed(value: np.ndarray, layout: da.Layout) -> da.DistArray:
    """Return an array whose blocks are views, contiguous or not."""
    if layout.mesh.coordinate is None:
        local = np.empty(layout.local_shape(), value.dtype)
    else:
        local = value[(*(slice(*i) for i in layout.local_box()), ...)]
    from distarray.core import new_array

    return new_array(np.asarray(local), layout)


@settings(max_examples=30)
@given(st.data())
def test_any_layout_loads_what_any_other_saved(tmp_path_factory, data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    value = values_of(shape, data.draw(st.sampled_from(DTYPES)))
    saved, wanted = data.draw(layouts(shape)), data.draw(layouts(shape))
    path = tmp_path_factory.mktemp("any") / "x"
    simulate(
        4, lambda: da.checkpoint.save(path, {"x": distributed(value, layout_of(saved, shape))})
    )

    def load() -> None:
        layout = layout_of(wanted, shape)
        found = da.checkpoint.load(path, {"x": layout})["x"]
        assert found.layout is layout
        assert found.dtype == value.dtype
        expected = distributed(value, layout).to_local()
        assert found.to_local().tobytes() == expected.tobytes()
        target = (
            da.zeros(shape, dtype=value.dtype, mesh=layout.mesh)
            if value.dtype.kind in "bifc"
            else None
        )
        if target is not None and value.dtype.isnative:
            filled = da.checkpoint.load(path, {"x": target})["x"]
            assert filled is target
            whole = filled.full_array()
            if layout.mesh.coordinate is not None:
                assert whole.tobytes() == value.tobytes()
        plain = da.checkpoint.load(path, {"x": np.empty(shape, value.dtype)})["x"]
        assert plain.tobytes() == value.tobytes()

    simulate(4, load)


@pytest.mark.parametrize("verify", [True, False])
def test_parts_of_large_chunks_are_right_across_blocks(tmp_path, verify):
    """Several blocks with checksums each, and boxes that begin and end within them."""
    value = np.random.default_rng(0).standard_normal((300, 11, 400))
    path = tmp_path / "x"

    def save() -> None:
        da.checkpoint.save(path, {"x": da.distribute_array(value, placements=[da.Shard(0)])})

    simulate(2, save)

    def load(axis: int) -> None:
        mesh = da.init_device_mesh((3,))
        layout = da.Layout(mesh, [da.Shard(axis)], value.shape)
        found = da.checkpoint.load(path, {"x": layout}, verify=verify)["x"]
        assert (found.full_array() == value).all()

    for axis in range(3):
        simulate(3, load, axis)
    stored = da.checkpoint.open(path)["x"]
    assert (stored[7:200:3, -1, 5:] == value[7:200:3, -1, 5:]).all()
    assert (stored[250:3:-7, None, 5] == value[250:3:-7, None, 5]).all()
    assert stored[5:2].shape == value[5:2].shape
    assert (np.asarray(stored) == value).all()
    assert stored[..., 3].shape == (300, 11)


STATE = {
    "step": 7,
    "loss": float("nan"),
    "big": -(2**80),
    "rate": 0.1,
    "minus": -0.0,
    "text": "käse \ud800",
    "bytes": b"\x00\xff",
    "none": None,
    "flag": True,
    "complex": complex(1, float("inf")),
    "list": [1, [2.5, "x"], (), {}],
    "tuple": (1, 2),
    "scalar": np.float32(3.5),
    3: {"nested": {(1, 2): "key"}},
}


def test_plain_values_come_back_as_they_were(tmp_path):
    da.checkpoint.save(tmp_path / "x", STATE)
    found = da.checkpoint.load(tmp_path / "x")
    assert repr(found) == repr(STATE)
    assert type(found["scalar"]) is np.float32
    assert math.copysign(1, found["minus"]) == -1


def test_state_is_filled_in_place_and_named_keys_alone_are_loaded(tmp_path):
    def program() -> None:
        x = da.ones((5, 3))
        rng = da.random.default_rng(5)
        rng.random(3)
        numpy_rng = np.random.default_rng(1)
        state = {"x": x, "n": np.arange(4.0), "rng": [rng, numpy_rng], "step": 3, "nothing": None}
        da.checkpoint.save(tmp_path / "x", state)
        expected = rng.random(), numpy_rng.random()
        y, n = da.zeros((5, 3)), np.zeros(4)
        rngs = [da.random.default_rng(0), np.random.default_rng(0)]
        found = da.checkpoint.load(tmp_path / "x", {"x": y, "n": n, "rng": rngs})
        assert found["x"] is y
        assert found["n"] is n
        assert (y.full_array() == 1).all()
        assert n.tolist() == [0, 1, 2, 3]
        assert (rngs[0].random(), rngs[1].random()) == expected
        assert da.checkpoint.load(tmp_path / "x", {"step": 0}) == {"step": 3}
        assert da.checkpoint.load(tmp_path / "x", {"nothing": 1}) == {"nothing": None}
        whole = da.checkpoint.load(tmp_path / "x")
        assert whole["x"].placements == (da.Shard(0),)

    simulate(3, program)


def test_read_only_blocks_and_partial_results_are_not_filled(tmp_path):
    def program() -> None:
        da.checkpoint.save(tmp_path / "x", {"x": da.ones((6,))})
        mesh = da.default_mesh()
        block = np.broadcast_to(1.0, (3,))
        shared = da.DistArray.from_local(block, mesh, [da.Shard(0)])
        with pytest.raises(da.errors.StateDictError, match="read-only"):
            da.checkpoint.load(tmp_path / "x", {"x": shared})
        partial = da.ones((2, 6)).sum(axis=0)
        with pytest.raises(da.errors.StateDictError, match="partial result"):
            da.checkpoint.load(tmp_path / "x", {"x": partial})

    simulate(2, program)


def test_ranks_outside_of_meshes_and_of_the_communicator(tmp_path):
    """A mesh of some ranks saves; a communicator of others loads."""
    value = np.arange(10.0)

    def save() -> None:
        mesh = da.DeviceMesh([2, 1])
        da.checkpoint.save(tmp_path / "x", {"x": da.distribute_array(value, mesh, src=None)})

    def load() -> None:
        from distarray.comm import world

        few = world().subgroup((0, 2))
        if few is not None:
            found = da.checkpoint.load(tmp_path / "x", {"x": np.zeros(10)}, comm=few)["x"]
            assert (found == value).all()

    simulate(3, save)
    simulate(3, load)


def test_partial_arrays_are_reduced(tmp_path):
    def save() -> None:
        x = da.distribute_array(np.arange(12.0).reshape(4, 3), placements=[da.Shard(0)])
        total = x.sum(axis=0)
        assert total.layout.has_partial
        da.checkpoint.save(tmp_path / "x", {"t": total})

    simulate(3, save)
    assert da.checkpoint.open(tmp_path / "x")["t"][:].tolist() == [18, 22, 26]


def test_every_byte_is_written_once_and_copies_are_shared_out(tmp_path):
    value = np.arange(1 << 20, dtype=np.float64)

    def save() -> None:
        state = {"x": da.distribute_array(value, placements=[da.Replicate()]), "n": value}
        da.checkpoint.save(tmp_path / "x", state)

    simulate(4, save)
    sizes = [p.stat().st_size for p in (tmp_path / "x").glob("data-*")]
    assert len(sizes) == 4
    assert sum(sizes) < 2 * value.nbytes + 4 * 8192
    assert max(sizes) < 1.1 * min(sizes)


def test_each_rank_reads_what_it_needs_alone(tmp_path, monkeypatch):
    from distarray.checkpoint._load import read_manifest
    from distarray.checkpoint.storage import _files
    from distarray.checkpoint.storage._chunks import Reader

    counts = []
    read_at = _files.read_at
    monkeypatch.setattr(_files, "read_at", lambda *a: counts.append(read_at(*a)) or counts[-1])

    value = np.arange(1 << 21, dtype=np.float64).reshape(-1, 512)
    simulate(4, lambda: da.checkpoint.save(tmp_path / "x", {"x": da.distribute_array(value)}))
    manifest = read_manifest(tmp_path / "x")
    entry = manifest.arrays["x"]
    for verify, most in ((True, value.nbytes // 3 + (4 << 20)), (False, value.nbytes // 3 + 4096)):
        layout = da.Layout(da.AbstractMesh((3,)), [da.Shard(0)], value.shape)
        box = layout.local_box((1,))
        target = np.empty(layout.local_shape((1,)))
        with Reader(manifest, verify) as reader:
            reader.read(entry, box, target)
        assert target.nbytes <= sum(counts) <= most
        counts.clear()
        assert (target == value[slice(*box[0])]).all()


def test_values_that_differ_between_ranks(tmp_path):
    def save() -> None:
        rank = da.default_mesh().rank
        da.checkpoint.save(tmp_path / "x", {"own": da.checkpoint.PerRank({"seed": rank})})
        found = da.checkpoint.load(tmp_path / "x", {"own": None})
        assert found == {"own": {"seed": rank}}

    simulate(3, save)

    def load() -> None:
        with pytest.raises(da.errors.StateDictError, match="each of 3 ranks"):
            da.checkpoint.load(tmp_path / "x", {"own": None})
        everything = da.checkpoint.load(tmp_path / "x")["own"].value
        assert everything == [{"seed": 0}, {"seed": 1}, {"seed": 2}]

    simulate(2, load)


@pytest.mark.parametrize("what", ["value", "array", "keys", "path"])
def test_ranks_that_save_different_states_all_raise(tmp_path, what):
    def program() -> None:
        rank = da.default_mesh().rank
        state: dict[str, Any] = {"a": 1, "n": np.zeros(3)}
        path = tmp_path / "x"
        if what == "value":
            state["a"] = rank
        elif what == "array":
            state["n"] = np.full(3, rank)
        elif what == "keys" and rank:
            state["more"] = 1
        elif what == "path":
            path = tmp_path / str(rank)
        with pytest.raises(da.errors.MismatchError):
            da.checkpoint.save(path, state)

    simulate(3, program)
    assert list(tmp_path.iterdir()) == []


def test_names_shapes_and_dtypes_are_checked_before_anything_changes(tmp_path):
    def program() -> None:
        path = tmp_path / "x"
        da.checkpoint.save(path, {"m": {"a": da.ones((4,)), "b": np.ones(3), "c": 1}})
        a = da.zeros((4,))

        def refused(template: Any, match: str) -> None:
            with pytest.raises(da.errors.StateDictError, match=match):
                da.checkpoint.load(path, template)
            assert (a.full_array() == 0).all()

        refused({"m": {"a": a, "b": np.zeros(3)}}, "lacks m.c")
        refused({"m": {"a": a, "b": np.zeros(3), "c": 1, "d": 2}}, "checkpoint lacks m.d")
        refused({"m": {"a": a, "b": np.zeros(4), "c": 1}}, r"m.b has shape \(3,\)")
        refused({"m": {"a": a, "b": np.zeros(3, "f4"), "c": 1}}, "m.b has dtype float64")
        refused({"m": {"a": a, "b": np.zeros(3), "c": np.zeros(1)}}, "m.c is no array")
        refused({"m": {"a": None, "b": None, "d": None}}, "checkpoint lacks m.d; .* lacks m.c")
        refused({"m": {"a": {"e": None}, "b": None, "c": None}}, "checkpoint lacks m.a.e")
        refused({"m": [None]}, "checkpoint lacks m.0")
        b = np.zeros(3, "f4")
        found = da.checkpoint.load(path, {"m": {"a": a, "b": b, "c": 0}}, cast=True)
        assert found["m"]["c"] == 1
        assert b.tolist() == [1, 1, 1]

    simulate(2, program)
    with pytest.warns(UserWarning, match="m.d"):
        found = da.checkpoint.load(tmp_path / "x", {"m": {"b": np.zeros(3), "d": 5}}, strict=False)
    assert found["m"]["d"] == 5
    assert found["m"]["b"].tolist() == [1, 1, 1]


def test_what_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(da.errors.ArgumentTypeError, match=r"a\.b is a builtins\.object"):
        da.checkpoint.save(tmp_path / "x", {"a": {"b": object()}})
    with pytest.raises(da.errors.DTypeError):
        da.checkpoint.save(tmp_path / "x", {"a": np.array([object()])})
    with pytest.raises(da.errors.ArgumentError, match="both called"):
        da.checkpoint.save(tmp_path / "x", {"a.b": 1, "a": {"b": 2}})
    assert list(tmp_path.iterdir()) == []


class Counter:
    """Something with a state."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"n": 0, "history": [np.zeros(2)]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_objects_with_a_state_dict(tmp_path):
    counter, other = Counter(), Counter()
    counter.state = {"n": 4, "history": [np.arange(3), np.ones(1)]}
    da.checkpoint.save(tmp_path / "x", {"c": counter})
    assert da.checkpoint.load(tmp_path / "x", {"c": other})["c"] is other
    assert repr(other.state) == repr(counter.state)


def test_opened_checkpoints_read_what_is_indexed(tmp_path):
    value = np.arange(60.0).reshape(5, 4, 3)
    state = {"x": value, "one": np.array(7), "m": {"k": [1, "a"]}, "none": np.zeros((0, 2))}
    da.checkpoint.save(tmp_path / "x", state)
    found = da.checkpoint.open(tmp_path / "x")
    assert list(found) == ["x", "one", "m.k.0", "m.k.1", "none"]
    assert (found["m.k.0"], found["m.k.1"]) == (1, "a")
    assert found["none"][:].shape == (0, 2)
    assert found["one"][()] == 7
    x = found["x"]
    assert (x.shape, x.ndim, len(x), x.dtype) == ((5, 4, 3), 3, 5, np.float64)
    for index in (
        0,
        -1,
        slice(1, 4),
        (slice(None), 2),
        (..., 1),
        (1, ..., slice(0, 3, 2)),
        ([0, 2],),
    ):
        assert (x[index] == value[index]).all()
    assert (x[value[:, 0, 0] > 20] == value[value[:, 0, 0] > 20]).all()
    with pytest.raises(IndexError):
        x[5]
    with pytest.raises(IndexError):
        x[0, 0, 0, 0]
    with pytest.raises(KeyError):
        found["m"]["gone"]
    with pytest.raises(KeyError):
        found["gone"]


def test_memory_that_cannot_hold_what_was_saved_is_refused(tmp_path):
    def program() -> None:
        saved = {"a": np.ones((40, 3)), "b": np.ones((40, 3)), "c": np.ones((40, 3)), "d": 1.0}
        saved["c"][31, 1] = 2  # in the share of one rank
        da.checkpoint.save(tmp_path / "x", saved)
        constant = np.zeros((40, 3))
        constant.flags.writeable = False
        with pytest.raises(da.errors.StateDictError, match="a is read-only; pass a copy"):
            da.checkpoint.load(tmp_path / "x", {"a": constant})
        view = np.lib.stride_tricks.as_strided
        for strides in ((0, 8), (8, 8), (16, 8)):
            mixed = view(np.zeros(200), (40, 3), strides)
            with pytest.raises(da.errors.StateDictError, match="a has items that share memory"):
                da.checkpoint.load(tmp_path / "x", {"a": mixed})
        for strides in ((24, 8), (8, 320), (-24, 8), (16, 640)):
            base = np.zeros(500)
            start = base[117:] if strides[0] < 0 else base
            apart = view(start, (40, 3), strides)
            da.checkpoint.load(tmp_path / "x", {"a": apart})
            assert (apart == 1).all()
        twice = np.zeros((40, 3))
        da.checkpoint.load(tmp_path / "x", {"a": twice, "b": twice})
        assert (twice == 1).all()
        twice[...] = 0
        with pytest.raises(da.errors.StateDictError, match="a and c are the same array"):
            da.checkpoint.load(tmp_path / "x", {"a": twice, "c": twice})
        assert (twice == 0).all()
        da.checkpoint.load(tmp_path / "x", {"a": twice, "c": twice}, strict=False)
        assert (twice == 1).all()

    simulate(3, program)


def test_what_has_no_name_is_not_saved(tmp_path):
    with pytest.raises(da.errors.ArgumentError, match="has the key '', which gives no name"):
        da.checkpoint.save(tmp_path / "x", {"": np.ones(3)})
    da.checkpoint.save(tmp_path / "x", {"a": {"": np.ones(3)}})
    assert (da.checkpoint.load(tmp_path / "x")["a"][""] == 1).all()
