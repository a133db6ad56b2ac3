"""Damage is found and named, or does not matter; wrong values are never loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray.checkpoint.storage._manifest import compose_manifest
from distarray.errors import CheckpointError
from distarray.testing import simulate

VALUE = np.random.default_rng(0).standard_normal((60, 40))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "whole"

    def save() -> None:
        state = {"x": da.distribute_array(VALUE), "n": np.arange(7), "step": 3, "name": "run"}
        da.checkpoint.save(path, state)

    simulate(2, save)
    return path


def files_of(path: Path) -> list[Path]:
    return sorted(path.iterdir())


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_never_load_wrong_values(whole, tmp_path_factory, data):
    copy = tmp_path_factory.mktemp("copy") / "x"
    shutil.copytree(whole, copy)
    file = data.draw(st.sampled_from(files_of(copy)))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "delete", "zero", "end"]))
    if kind == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del content[at:]
    elif kind == "insert":
        content[at:at] = data.draw(st.binary(min_size=1, max_size=8))
    elif kind == "delete":
        del content[at : at + data.draw(st.integers(1, 8))]
    elif kind == "zero":
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    else:
        content += data.draw(st.binary(min_size=1, max_size=8))
    file.write_bytes(content)
    failure, found = None, None
    try:
        found = da.checkpoint.load(copy)
    except da.errors.CheckpointError as error:
        failure = str(error)
    if found is None:
        assert failure is not None
        assert file.name in failure
    else:
        assert found["x"].full_array().tobytes() == VALUE.tobytes()
        assert found["n"].tolist() == list(range(7))
        assert (found["step"], found["name"]) == (3, "run")


def test_each_damage_is_said(whole, tmp_path):
    def damaged(change: object, match: str) -> None:
        copy = tmp_path / "x"
        shutil.copytree(whole, copy)
        change(copy)

        def load() -> None:
            with pytest.raises(da.errors.CheckpointError, match=match):
                da.checkpoint.load(copy)

        simulate(3, load)
        shutil.rmtree(copy)

    def manifest(path: Path) -> Path:
        return path / "manifest.json"

    def data(path: Path) -> Path:
        return sorted(path.glob("data-*"))[0]

    def flip(path: Path) -> None:
        content = bytearray(data(path).read_bytes())
        content[-100] ^= 1
        data(path).write_bytes(content)

    def rewrite(path: Path, **changes: object) -> None:
        told = json.loads(manifest(path).read_bytes())
        del told["blake2b"]
        manifest(path).write_bytes(compose_manifest({**told, **changes}))

    damaged(flip, r"00000.safetensors is damaged: bytes \d+ to \d+, of .* the checksum")
    damaged(lambda p: data(p).unlink(), "00000.safetensors is missing")
    damaged(lambda p: data(p).write_bytes(data(p).read_bytes()[:-1]), "truncated: it has")
    damaged(lambda p: manifest(p).unlink(), "no checkpoint at")
    damaged(lambda p: manifest(p).write_text("{"), "no JSON .* ends too early")
    damaged(lambda p: manifest(p).write_text("[]"), "no manifest")
    damaged(lambda p: rewrite(p, version=2), "version 2 of the format")
    damaged(
        lambda p: manifest(p).write_text(manifest(p).read_text().replace('"step"', '"spet"')),
        "digest",
    )
    damaged(lambda p: rewrite(p, files=[["../x", 3]] * 2), "must be in the same directory")
    damaged(lambda p: rewrite(p, files=[]), "the 0 bytes stored")
    damaged(lambda p: rewrite(p, arrays={}), "must be one of 'arrays'")


def test_manifests_whose_chunks_do_not_make_up_the_array_are_refused(whole, tmp_path):
    copy = tmp_path / "x"
    shutil.copytree(whole, copy)
    told = json.loads((copy / "manifest.json").read_bytes())
    del told["blake2b"]
    chunks = told["arrays"]["x"]["chunks"]
    chunks[1] = chunks[0]
    (copy / "manifest.json").write_bytes(compose_manifest(told))
    with pytest.raises(da.errors.CheckpointError, match="do not make up"):
        da.checkpoint.load(copy)


EDITS = {
    "no files": lambda m: m.update(files=None),
    "a file of no size": lambda m: m["files"][0].__setitem__(1, None),
    "a file of text": lambda m: m["files"].__setitem__(0, "x"),
    "no arrays": lambda m: m.update(arrays=[]),
    "no world": lambda m: m.update(world_size="4"),
    "blocks of nothing": lambda m: m.update(block_bytes=0),
    "no date": lambda m: m.pop("saved"),
    "no tree": lambda m: m.pop("tree"),
    "a tree of a list": lambda m: m.update(tree=[]),
    "a dtype of nothing": lambda m: m["arrays"]["x"].update(dtype=None),
    "no shape": lambda m: m["arrays"]["x"].update(shape=None),
    "a shape of text": lambda m: m["arrays"]["x"].update(shape=["60", 40]),
    "a huge shape": lambda m: m["arrays"]["x"].update(shape=[10**30, 40]),
    "a huge empty shape": lambda m: m["arrays"]["x"].update(shape=[2**62, 0, 2**62]),
    "a layout of numbers": lambda m: m["arrays"]["x"].update(layout=5),
    "no array": lambda m: m["arrays"].update(x=None),
    "no chunks": lambda m: m["arrays"]["x"].update(chunks=None),
    "a chunk of nothing": lambda m: m["arrays"]["x"]["chunks"].__setitem__(0, None),
    "a chunk of little": lambda m: m["arrays"]["x"]["chunks"][0].pop(),
    "a chunk of no file": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(0, -1),
    "a chunk of another file": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(0, 99),
    "an offset below 0": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(1, -8),
    "an offset of parts": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(1, 1.5),
    "a corner of text": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(2, "ab"),
    "few axes": lambda m: m["arrays"]["x"]["chunks"][0][3].pop(),
    "checksums of numbers": lambda m: m["arrays"]["x"]["chunks"][0].__setitem__(4, 5),
    "an unknown array": lambda m: m["tree"]["dict"][0][1].update(array="other"),
    "an array of a list": lambda m: m["tree"]["dict"][0][1].update(array=[]),
    "no pair": lambda m: m["tree"]["dict"].__setitem__(0, 5),
    "a key of a list": lambda m: m["tree"]["dict"][0].__setitem__(0, {"list": []}),
    "an empty object": lambda m: m["tree"]["dict"][0].__setitem__(1, {}),
    "values of nothing": lambda m: m["tree"]["dict"][0].__setitem__(1, {"values": "float64"}),
    "pairs of nothing": lambda m: m["tree"].update(dict=None),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("wants", [False, True])
def test_manifests_of_another_structure_are_named(whole, tmp_path, edit, wants):
    shutil.copytree(whole, tmp_path / "x")
    file = tmp_path / "x" / "manifest.json"
    told = json.loads(file.read_text())
    del told["blake2b"]
    EDITS[edit](told)
    file.write_bytes(compose_manifest(told))
    here = np.full((60, 40), 7.0)
    state = {"x": here, "n": None, "step": None, "name": None} if wants else None
    with pytest.raises(CheckpointError, match=r"x.manifest\.json( is damaged)?: "):
        da.checkpoint.load(tmp_path / "x", state)
    assert (here == 7).all()
