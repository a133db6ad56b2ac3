"""Calls that one rank makes wrongly, or differently, raise on every rank, at once."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.errors import ArgumentError, ArgumentTypeError, DistArrayError, MismatchError
from distarray.testing import simulate
from tests.test_abort import launch

CALLS = {
    "save": lambda path, **options: da.checkpoint.save(path, {"x": np.ones(3)}, **options),
    "load": lambda path, **options: da.checkpoint.load(path, **options),
    "save_safetensors": lambda path, **options: da.checkpoint.save_safetensors(
        path, {"x": np.ones(3)}, **options
    ),
    "load_safetensors": lambda path, **options: da.checkpoint.load_safetensors(path, **options),
}


class Unsaid:
    """An argument that cannot be sent to other ranks."""

    def __init__(self) -> None:
        self.what = lambda: 0


@pytest.fixture
def place(tmp_path):
    """A path at which every call finds what it wants."""
    da.checkpoint.save(tmp_path / "x", {"x": np.ones(3)})
    da.checkpoint.save_safetensors(tmp_path / "x", {"x": np.ones(3)})
    return tmp_path / "x"


def raised_by(call, here, elsewhere) -> list[tuple[type[DistArrayError], str]]:
    """Return what each of two ranks raises, which pass different arguments."""

    def run():
        path, options = elsewhere if da.default_mesh().rank else here
        with pytest.raises(DistArrayError) as raised:
            CALLS[call](path, **options)
        return type(raised.value), str(raised.value)

    return simulate(2, run, timeout=20)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("alone", [0, 1])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (None, ArgumentTypeError),
        (7, ArgumentTypeError),
        (b"x", ArgumentTypeError),
        ("", ArgumentError),
        ("a\x00b", ArgumentError),
    ],
)
def test_bad_paths(place, call, alone, path, kind):
    asked = [(str(place), {}), (path, {})]
    found = raised_by(call, asked[1 - alone], asked[alone])
    assert [one[0] for one in found] == [kind, kind]
    assert all("path=" in one[1] for one in found)


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("save", {"check": "no"}),
        ("save", {"async_op": Unsaid()}),
        ("save", {"step": "latest"}),
        ("load", {"step": "latest"}),
        ("load", {"step": -1}),
        ("load", {"step": True}),
        ("load", {"strict": "no"}),
        ("load", {"cast": 3}),
        ("load", {"verify": None}),
        ("save_safetensors", {"check": 1}),
        ("save_safetensors", {"max_shard_size": "infGB"}),
        ("save_safetensors", {"max_shard_size": Unsaid()}),
        ("save_safetensors", {"metadata": 5}),
        ("save_safetensors", {"metadata": {"a": 5}}),
        ("save_safetensors", {"metadata": {5: "a"}}),
        ("load_safetensors", {"strict": 0}),
        ("load_safetensors", {"cast": "yes"}),
    ],
)
def test_bad_options(place, call, options):
    found = raised_by(call, (place, {}), (place, options))
    kind = ArgumentTypeError if "metadata" in options else ArgumentError
    assert [one[0] for one in found] == [kind, kind]
    assert all(next(iter(options)) in one[1] for one in found)


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("load", {"step": 1}),
        ("load", {"cast": True}),
        ("load", {"verify": False}),
        ("load_safetensors", {"strict": False}),
        ("load_safetensors", {"placements": [da.Replicate()]}),
        ("load_safetensors", {"names": {"x": "y"}}),
        ("load_safetensors", {"names": lambda name: None}),
        ("save_safetensors", {"metadata": {"a": "b"}}),
    ],
)
def test_ranks_that_ask_for_different_things(place, call, options):
    found = raised_by(call, (place, {}), (place, options))
    assert [one[0] for one in found] == [MismatchError, MismatchError]
    assert all("differ between ranks" in one[1] for one in found)
    said = {"placements": "names or placements", "names": "names or placements"}
    key = next(iter(options))
    assert all(said.get(key, f"rank 1: {key}=") in one[1] for one in found)


@pytest.mark.parametrize("call", CALLS)
def test_ranks_that_pass_different_paths(place, call):
    found = raised_by(call, (place, {}), (place.parent, {}))
    assert [one[0] for one in found] == [MismatchError, MismatchError]
    assert all(str(place) in one[1] for one in found)


@pytest.mark.parametrize("call", [da.checkpoint.open, da.checkpoint.steps, da.checkpoint.latest])
def test_bad_paths_of_calls_of_one_process(call):
    with pytest.raises(ArgumentTypeError, match="path=None"):
        call(None)


def test_a_bad_step_to_look_into(place):
    with pytest.raises(ArgumentError, match="step='latest': must be an integer"):
        da.checkpoint.open(place, step="latest")


SLOW = """
import time
import distarray as da

class Slow:
    def state_dict(self):
        time.sleep(60 * da.default_mesh().rank)
        return {{}}
    def load_state_dict(self, state):
        time.sleep(60 * da.default_mesh().rank)

slow = Slow()
da.checkpoint.save({path!r}, {{"s": {{}}}})
da.checkpoint.{call}({path!r}, {{"s": slow}})
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["save", "load"])
def test_long_waits_are_told_of_and_ended(tmp_path, monkeypatch, call):
    monkeypatch.setenv("DISTARRAY_TIMEOUT", "2")
    ended = launch(SLOW.format(path=str(tmp_path / "x"), call=call))
    assert ended.status != 0
    assert "has waited" in ended.said
    assert "more than DISTARRAY_TIMEOUT=2 allows" in ended.said
    assert "at <string>, line 14 (da.checkpoint: other ranks" in ended.said
