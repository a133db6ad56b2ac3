"""safetensors files: read into shards, written by all ranks, the same for the official package."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.errors import (
    ArgumentError,
    CheckpointError,
    DTypeError,
    MismatchError,
    StateDictError,
)
from distarray.testing import simulate

VALUES = {
    "up.weight": np.random.default_rng(0).standard_normal((13, 6)).astype("f4"),
    "up.bias": np.arange(13, dtype="f4"),
    "down.weight": np.random.default_rng(1).standard_normal((6, 13)).astype("f2"),
    "count": np.array(5),
    "mask": np.arange(10) % 3 == 0,
    "empty": np.zeros((0, 3)),
}


def write_by_hand(path: Path, values: dict[str, np.ndarray], **changes: Any) -> None:
    """Write a file as the format's description has it."""
    codes = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "float64": "F64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in values.items():
        start = len(data)
        data += value.tobytes()
        header[name] = {
            "dtype": codes[value.dtype.name],
            "shape": list(value.shape),
            "data_offsets": [start, len(data)],
        }
    for name, change in changes.items():
        header[name].update(change)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def same(found: dict[str, Any], values: dict[str, np.ndarray]) -> None:
    assert found.keys() == values.keys()
    for name, value in values.items():
        whole = found[name].full_array()
        assert whole.dtype == value.dtype
        assert whole.shape == value.shape
        assert whole.tobytes() == value.tobytes()


@pytest.mark.parametrize("ranks", [1, 3])
def test_files_load_into_any_placements_by_patterns(tmp_path, ranks):
    write_by_hand(tmp_path / "model.safetensors", VALUES)

    def load() -> None:
        same(da.checkpoint.load_safetensors(tmp_path), VALUES)
        found = da.checkpoint.load_safetensors(
            tmp_path / "model.safetensors",
            placements={"down.*": [da.Shard(1)], "up.bias": [da.Replicate()], "*": [da.Shard(0)]},
            names={"count": "number"},
        )
        assert found["down.weight"].placements == (da.Shard(1),)
        assert found["up.bias"].placements == (da.Replicate(),)
        found["count"] = found.pop("number")
        same({name: found[name] for name in VALUES}, VALUES)
        target = da.zeros((13, 6), dtype=da.float32)
        da.checkpoint.load_safetensors(tmp_path, {"up": {"weight": target}}, strict=False)
        assert (target.full_array() == VALUES["up.weight"]).all()
        with pytest.raises(StateDictError, match=r"down\.weight has dtype float16"):
            da.checkpoint.load_safetensors(tmp_path, {"down.weight": np.zeros((6, 13))})
        with pytest.raises(ArgumentError, match="no pattern"):
            da.checkpoint.load_safetensors(tmp_path, placements={"up.*": [da.Shard(0)]})

    simulate(ranks, load)


@pytest.mark.parametrize("size", [None, 300, "0.2KB"])
def test_official_package_reads_what_all_ranks_wrote(tmp_path, size):
    official = pytest.importorskip("safetensors.numpy")

    def save() -> None:
        mesh = da.init_device_mesh((2, 2))
        state = {
            name: da.distribute_array(
                value,
                mesh,
                [da.Shard(min(1, value.ndim - 1)), da.Shard(0)]
                if value.ndim
                else [da.Replicate()] * 2,
            )
            for name, value in VALUES.items()
        }
        state["plain"] = VALUES["up.bias"]
        names = da.checkpoint.save_safetensors(tmp_path, state, max_shard_size=size)
        assert (len(names) > 1) == (size is not None)

    simulate(4, save)
    found: dict[str, np.ndarray] = {}
    for file in tmp_path.glob("*.safetensors"):
        found |= official.load_file(file)
    for name, value in {**VALUES, "plain": VALUES["up.bias"]}.items():
        assert found[name].dtype == value.dtype
        assert found[name].tobytes() == value.tobytes()
        assert found[name].shape == value.shape
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    simulate(
        3,
        lambda: same(
            da.checkpoint.load_safetensors(tmp_path), {**VALUES, "plain": VALUES["up.bias"]}
        ),
    )
    da.checkpoint.save_safetensors(tmp_path, {"other": np.ones(2)})
    assert list(da.checkpoint.load_safetensors(tmp_path)) == ["other"]


def test_files_of_the_model_before_go_and_others_stay(tmp_path):
    state = {f"x{i}": np.full(100, float(i)) for i in range(5)}
    before = da.checkpoint.save_safetensors(tmp_path, state, max_shard_size=800)
    assert len(before) == 5
    (tmp_path / "adapter.safetensors").write_bytes(b"another's")
    (tmp_path / "model-00001-of-00009.safetensors").write_bytes(b"of no index")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    index["weight_map"] |= {"away": "../away.safetensors", "config": "config.json"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path.parent / "away.safetensors").write_text("")

    names = da.checkpoint.save_safetensors(tmp_path, state, max_shard_size=1600)
    others = {"adapter.safetensors", "model-00001-of-00009.safetensors", "config.json"}
    found = {p.name for p in tmp_path.iterdir()}
    assert found == {*names, *others, "model.safetensors.index.json"}
    assert (tmp_path.parent / "away.safetensors").exists()
    da.checkpoint.save_safetensors(tmp_path, state)
    assert {p.name for p in tmp_path.iterdir()} == {"model.safetensors", *others}
    same(da.checkpoint.load_safetensors(tmp_path), state)


def test_what_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(DTypeError, match="x has dtype complex128"):
        da.checkpoint.save_safetensors(tmp_path / "x", {"x": np.zeros(2, complex)})
    with pytest.raises(da.errors.ArgumentTypeError, match="tensors alone"):
        da.checkpoint.save_safetensors(tmp_path / "x", {"x": np.zeros(2), "step": 3})
    with pytest.raises(ArgumentError, match="one file"):
        da.checkpoint.save_safetensors(
            tmp_path / "x.safetensors", {"x": np.zeros(2)}, max_shard_size=9
        )
    with pytest.raises(ArgumentError, match="max_shard_size"):
        da.checkpoint.save_safetensors(tmp_path / "x", {"x": np.zeros(2)}, max_shard_size="many")

    def differ() -> None:
        with pytest.raises(MismatchError):
            da.checkpoint.save_safetensors(
                tmp_path / "x", {"x": np.full(2, da.default_mesh().rank)}
            )

    simulate(2, differ)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=100)
@given(data=st.data())
def test_damaged_headers_and_lengths_never_crash(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "x.safetensors"
    write_by_hand(path, VALUES)
    content = bytearray(path.read_bytes())
    length = 8 + int.from_bytes(content[:8], "little")
    at = data.draw(st.integers(0, length - 1))
    if data.draw(st.booleans()):
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[at : at + data.draw(st.integers(1, 50))]
    path.write_bytes(content)
    try:
        found = da.checkpoint.load_safetensors(path)
    except da.errors.DistArrayError:
        return
    total = sum(array.nbytes for array in found.values())
    assert total == sum(value.nbytes for value in VALUES.values())


def test_damage_is_named(tmp_path):
    path = tmp_path / "x.safetensors"

    def refused(match: str) -> None:
        with pytest.raises(CheckpointError, match=match):
            da.checkpoint.load_safetensors(path)

    refused("cannot be opened")
    path.write_bytes(b"abc")
    refused("no safetensors file, or truncated")
    path.write_bytes(struct.pack("<Q", 1 << 40))
    refused("no safetensors file, or truncated")
    path.write_bytes(struct.pack("<Q", 2) + b"[]")
    refused("cannot be read")
    write_by_hand(path, VALUES, mask={"data_offsets": [0, 10]})
    refused("damaged: the data of")
    write_by_hand(path, VALUES, mask={"shape": [11]})
    refused("do not fit")
    write_by_hand(path, VALUES, mask={"dtype": "Q7"})
    refused("dtype 'Q7' is not known")
    write_by_hand(path, VALUES)
    path.write_bytes(path.read_bytes()[:-1])
    refused("truncated: it has")
    with pytest.raises(CheckpointError, match="has neither"):
        da.checkpoint.load_safetensors(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be opened"):
        da.checkpoint.load_safetensors(tmp_path)
    write_by_hand(path, VALUES)
    index.write_text(json.dumps({"weight_map": {"a": "x.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"'a' is in x\.safetensors, where it is not"):
        da.checkpoint.load_safetensors(tmp_path)


def test_parallelized_modules_take_and_give_files(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors")
    official = pytest.importorskip("safetensors.torch")
    from torch import nn

    import distarray.torch as dt

    def build() -> nn.Module:
        torch.manual_seed(3)
        model = nn.ModuleDict(
            {"up": nn.Linear(6, 13), "down": nn.Linear(13, 6), "e": nn.Embedding(4, 6)}
        )
        model["head"] = nn.Linear(6, 4, bias=False)
        model["head"].weight = model["e"].weight
        return model.bfloat16()

    model = build()
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    del whole["head.weight"]
    official.save_file({f"model.{k}": v for k, v in whole.items()}, tmp_path / "hub.safetensors")

    def program() -> None:
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        mesh = da.init_device_mesh((3,))
        dt.parallelize_module(
            model, mesh, {"up": dt.ColwiseParallel(), "down": dt.RowwiseParallel()}
        )
        found = da.checkpoint.load_safetensors(
            tmp_path / "hub.safetensors", model, names=lambda name: name.removeprefix("model.")
        )
        assert found is model
        for name, value in dt.state_dict(model).items():
            assert torch.equal(value, whole.get(name, whole["e.weight"])), name
        da.checkpoint.save_safetensors(tmp_path / "out", model, max_shard_size=200)

    torch.manual_seed(3)
    simulate(3, program)
    found: dict[str, Any] = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        with safetensors.safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
            found |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(found[name], value)


def test_an_index_says_which_of_two_files_counts(tmp_path):
    for number in (1, 2):
        state = {f"own{number}": np.ones(2), "w": np.full(3, float(number))}
        da.checkpoint.save_safetensors(tmp_path / f"{number}.safetensors", state)
    weights = {"own1": "1.safetensors", "own2": "2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    for number in (1, 2):
        index.write_text(json.dumps({"weight_map": weights | {"w": f"{number}.safetensors"}}))
        found = da.checkpoint.load_safetensors(tmp_path)
        assert set(found) == {"own1", "own2", "w"}
        assert (found["w"].full_array() == number).all()
    index.write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(CheckpointError, match=r"both have 'w', and .* does not say which"):
        da.checkpoint.load_safetensors(tmp_path)


@pytest.mark.parametrize("told", ["[Infinity, 8]", "[0, NaN]", "[0.0, 8]", "[true, 8]", '["0", 8]'])
def test_offsets_that_are_no_integers(tmp_path, told):
    header = f'{{"x": {{"dtype": "F64", "shape": [1], "data_offsets": {told}}}}}'.encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=r"x\.safetensors has a header that cannot be read"):
        da.checkpoint.load_safetensors(path)
