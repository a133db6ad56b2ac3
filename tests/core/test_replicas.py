"""With `DISTARRAY_CHECK=1` arguments that ranks should pass alike, and do not, are found.

All ranks raise one MismatchError, which names the value and the ranks of the world.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.core import _replicas
from distarray.errors import DistArrayError, MismatchError
from distarray.testing import simulate

RANKS = 4


@pytest.fixture
def checked(monkeypatch):
    """Do what an import under the variable does."""
    monkeypatch.setattr(_replicas, "checked", True)
    owners = (da, *da.DistArray.__mro__[:-1], da.random.Generator)
    before = [(owner, dict(vars(owner))) for owner in owners]
    _replicas.compare_public_calls(vars(da), da.DistArray, da.random.Generator)
    yield
    for owner, names in before:
        for name, value in names.items():
            if vars(owner)[name] is not value:
                setattr(owner, name, value)


def raised(call: Callable[[int], Any], count: int = RANKS) -> list[DistArrayError | None]:
    """Return what a call raises on each of some simulated ranks; the next operation is right."""

    def program() -> DistArrayError | None:
        found = None
        try:
            call(da.comm.world().rank)
        except DistArrayError as error:
            found = error
        assert float(da.arange(5.0).sum()) == 10
        return found

    return simulate(count, program)


def array(rank: int, odd: int = 2, n: int = 6) -> np.ndarray:
    """Return an array that one rank has differently."""
    values = np.random.default_rng(3).normal(size=n)
    values[n // 2] += rank == odd
    return values


def x(*placements: Any) -> Any:
    mesh = da.init_device_mesh((2, 2), ("a", "b"))
    return da.distribute_array(np.arange(6.0), mesh, placements or (Shard(0), Replicate()))


def setting(target: Any, value: Any) -> None:
    target[1:4] = value


CALLS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "x + array": ("add .* other", lambda r: x() + array(r)),
    "array - x": (r"subtract .* inputs\[0\]", lambda r: array(r) - x()),
    "x + number": ("add .* other", lambda r: x() + (3.0 if r == 2 else 4.0)),
    "x + NumPy's number": ("add .* other", lambda r: x() + np.float32(r == 2)),
    "number + x": ("radd .* other", lambda r: (r == 2) + x()),
    "x ** number": ("pow.* other", lambda r: x() ** (2 if r == 2 else 3)),
    "x += number": ("iadd .* other", lambda r: x().__iadd__(float(r == 2))),
    "x *= array": ("imul .* other", lambda r: x().__imul__(array(r))),
    "x < array": ("lt .* other", lambda r: x() < array(r)),
    "-0.0": ("mul .* other", lambda r: x() * (-0.0 if r == 2 else 0.0)),
    "another type": ("mul .* other", lambda r: x() * (1 if r == 2 else 1.0)),
    "another dtype": ("add .* other", lambda r: x() + np.ones(6, "f4" if r == 2 else "f8")),
    "another shape": ("add .* other", lambda r: x() + np.ones(5 if r == 2 else 6)),
    "of Partial": ("add .* other", lambda r: x(Partial(), Partial()) + array(r)),
    "function": ("hypot .* x2", lambda r: da.hypot(x(), array(r))),
    "ufunc": (r"hypot .* inputs\[1\]", lambda r: np.hypot(x(), array(r))),
    "out": (r"add .* inputs\[1\]", lambda r: np.add(x(), array(r), out=x())),
    "reduce": ("add .* dtype", lambda r: np.add.reduce(x(), dtype="f4" if r == 2 else "f8")),
    "function of NumPy": ("round .* args", lambda r: np.round(x(), int(r == 2))),
    "where": ("where .* x2", lambda r: da.where(x() > 1, x(), array(r))),
    "matmul": ("matmul .* other", lambda r: x() @ array(r)),
    "concat": ("concat .* arrays", lambda r: da.concat([x(), array(r)])),
    "sum of some": ("sum .* where", lambda r: da.sum(x(), where=array(r) > array(0))),
    "method": ("var .* ddof", lambda r: x().var(ddof=int(r == 2))),
    "rounding": ("round .* decimals", lambda r: da.round(x(), int(r == 2))),
    "reading": ("getitem .* key", lambda r: x()[2:5] if r == 2 else x()[3:6]),
    "redistribute": (
        "redistribute .* placements",
        lambda r: x().redistribute([Shard(0), Shard(0)] if r == 2 else [Shard(0), Replicate()]),
    ),
    "assignment": ("setitem .* value", lambda r: setting(x(), array(r, n=3))),
    "assigned number": ("setitem .* value", lambda r: setting(x(), 1.0 * (r == 2))),
    "assigned where": ("setitem .* key", lambda r: x().__setitem__(int(r == 2), 5.0)),
    "asarray": ("asarray .* obj", lambda r: da.asarray(array(r))),
    "asarray of a list": ("asarray .* obj", lambda r: da.asarray([1.0, float(r == 2)])),
    "distribute_array": (
        "distribute_array .* value",
        lambda r: da.distribute_array(array(r), placements=[Shard(0)], src=None),
    ),
    "zeros": ("zeros .* shape", lambda r: da.zeros(4 + (r == 2))),
    "full": ("full .* fill_value", lambda r: da.full((4,), r == 2)),
    "full_like": ("full_like .* fill_value", lambda r: da.full_like(x(), float(r == 2))),
    "arange": ("arange .* start", lambda r: da.arange(1 + (r == 2), 7 + (r == 2))),
    "linspace": ("linspace .* stop", lambda r: da.linspace(0, 1 + (r == 2), 5)),
    "seed": ("normal .* self", lambda r: da.random.default_rng(int(r == 2)).normal(size=4)),
    "normal": ("normal .* loc", lambda r: da.random.default_rng(0).normal(int(r == 2))),
    "registered": (
        "<lambda> .* y",
        lambda r: da.register_rule(lambda x, y: x + y, "i,i->i")(x(), array(r)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_plain_value_that_one_rank_has_differently_raises_on_all(name, checked):
    pattern, call = CALLS[name]
    found = raised(call)
    assert {type(error) for error in found} == {MismatchError}, found
    assert len({str(error) for error in found}) == 1
    (said,) = {str(error) for error in found}
    with pytest.raises(MismatchError, match=rf"^{pattern} differs .*: ranks 0, 1, 3: .*; rank 2: "):
        raise MismatchError(said)


@pytest.mark.parametrize("name", CALLS)
def test_values_that_all_have_alike_pass(name, checked):
    _, call = CALLS[name]
    if name != "another shape":
        assert raised(lambda _: call(2)) == [None] * RANKS
    assert raised(lambda _: call(1)) == [None] * RANKS


def test_statement_in_place_on_a_copied_item_writes_it(checked):
    def program() -> None:
        mesh = da.init_device_mesh((RANKS,))
        there = da.distribute_array(np.arange(12.0).reshape(6, 2), mesh, [Shard(0)])
        there[3] += 1
        there[1] *= np.array([2.0, 4.0])
        expected = np.arange(12.0).reshape(6, 2)
        expected[3] += 1
        expected[1] *= [2, 4]
        np.testing.assert_array_equal(there.full_array(), expected)

    simulate(RANKS, program)


def test_what_the_check_sends_is_in_no_log(checked):
    def program() -> int:
        there = x()
        with da.CommLog() as log:
            there += array(1)
            there[1:4] = 5.0
            da.full((4,), 2)
            da.DistArray.from_local(np.ones(3), there.mesh, [Replicate(), Replicate()], check=False)
        return log.count()

    assert simulate(RANKS, program) == [0] * RANKS


def test_nothing_is_compared_where_the_check_is_off(monkeypatch):
    monkeypatch.setattr(_replicas, "checked", False)

    def program() -> int:
        there = x()
        with da.CommLog() as log:
            there + array(da.comm.world().rank)
            da.full((4,), da.comm.world().rank)
        return len(log.records)

    assert simulate(RANKS, program) == [0] * RANKS


@pytest.mark.parametrize("check", [True, False])
def test_blocks_of_from_local_are_compared_where_they_are_the_same_one(check, checked):
    def adopt(rank: int, placements: list[Any]) -> Any:
        mesh = da.init_device_mesh((2, 2), ("a", "b"))
        block = np.full(3, rank // 2) + 10.0 * (rank == 3)
        return da.DistArray.from_local(block, mesh, placements, check=check)

    found = raised(lambda rank: adopt(rank, [Shard(0), Replicate()]))
    assert {type(error) for error in found} == {MismatchError}
    assert "the block differs between ranks that should have the same: rank 2: " in str(found[0])
    assert "rank 0" not in str(found[0])
    for other in (Shard(0), Partial()):
        assert raised(lambda rank, other=other: adopt(rank, [Shard(0), other])) == [None] * RANKS
        placements = [other, Shard(0)]
        assert raised(lambda rank, p=placements: adopt(rank, p)) == [None] * RANKS
    assert raised(lambda rank: adopt(2 * (rank // 2), [Partial(), Replicate()])) == [None] * RANKS


def test_results_of_map_blocks_are_compared_where_they_are_replicas(checked):
    def total(rank: int, placements: list[Any], size: int = 7) -> Any:
        mesh = da.init_device_mesh((2, 2), ("a", "b"))
        numbers = da.arange(float(size), mesh=mesh, placements=[Shard(0), Replicate()])
        return da.map_blocks(lambda block: block.sum(), numbers, out_placements=placements)

    found = raised(lambda rank: total(rank, [Replicate(), Replicate()]))
    assert {type(error) for error in found} == {MismatchError}
    message = str(found[0])
    assert message.startswith("map_blocks on [a=2, b=2]: the result differs between ranks")
    assert message.endswith('for parts of a sum pass out_placements=[Partial("sum")]')
    assert raised(lambda rank: total(rank, [Partial(), Replicate()])) == [None] * RANKS
    assert raised(lambda rank: total(rank, [Replicate(), Replicate()], 0)) == [None] * RANKS


def test_ranks_of_the_world_are_named_on_a_mesh_of_some(checked):
    def add(rank: int) -> Any:
        mesh = da.DeviceMesh([3, 1])
        there = da.asarray(np.arange(6.0), mesh=mesh)
        return there + array(rank, odd=3)

    found = raised(add)
    assert found[0] is None
    assert found[2] is None
    for rank in (1, 3):
        assert "rank 3: " in str(found[rank])
        assert "; rank 1: " in str(found[rank])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([0.0]), np.array([-0.0])),
        (np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 2]), np.array([1, 2], "i4")),
        (np.array([[1, 2]]), np.array([[1], [2]])),
        (np.array([0x7FF8000000000001]).view("f8"), np.array([0x7FF8000000000002]).view("f8")),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
        (np.array([1, "a"], object), np.array([1, "b"], object)),
        (np.array([1], "g"), np.array([1], "g") + np.finfo("g").eps),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (np.float64(1), np.float32(1)),
    ],
    ids=str,
)
def test_what_is_said_tells_values_apart(one, other):
    assert _replicas.summarize(one) != _replicas.summarize(other)
    for value in (one, other):
        assert _replicas.summarize(value) == _replicas.summarize(value)


def test_what_is_said_does_not_depend_on_how_values_lie():
    values = np.arange(24.0).reshape(4, 6)
    assert _replicas.summarize(values) == _replicas.summarize(np.asfortranarray(values))
    assert _replicas.summarize(values[::2, 1::3]) == _replicas.summarize(values[::2, 1::3].copy())
    padded = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8]})
    one = np.frombuffer(bytes(range(32)), padded).copy()
    other = np.frombuffer(b"\x01" * 32, padded).copy()
    for name in padded.names:
        other[name] = one[name]
    assert one.tobytes() != other.tobytes()
    assert _replicas.summarize(one) == _replicas.summarize(other)
    assert _replicas.summarize(np.empty((0, 3))) != _replicas.summarize(np.empty((3, 0)))
    _replicas.summarize(np.empty(3, "U0"))

    class Local:
        pass

    assert _replicas.summarize(np.array([Local()])) == _replicas.summarize(np.array([Local()]))


class Numbered:
    """A value whose representation has an address in capitals, as that of NumPy's generators."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Numbered({self.number}) at 0X{id(self):X}"


class Wordless:
    def __repr__(self) -> str:
        raise RuntimeError("has no words")


def test_what_is_said_depends_on_no_address_no_order_and_no_seed_of_hashes():
    names = [f"name{i}" for i in range(50)]
    for make in (set, frozenset, lambda x: dict.fromkeys(x, 1), lambda x: dict.fromkeys(x).keys()):
        assert _replicas.summarize(make(names)) == _replicas.summarize(make(names[::-1]))
        assert _replicas.summarize([make(names)]) == _replicas.summarize([make(names[::-1])])
        assert _replicas.summarize(make(names)) != _replicas.summarize(make(names[1:]))
    items = np.array([set(names), Numbered(1)], object)
    names.reverse()
    others = np.array([set(names), Numbered(1)], object)
    assert _replicas.summarize(items) == _replicas.summarize(others)
    for one, other in ((Numbered(1), Numbered(1)), map(np.random.default_rng, (1, 1))):
        assert _replicas.summarize(one) == _replicas.summarize(other)
        assert _replicas.summarize(slice(one)) == _replicas.summarize(slice(other))
    assert _replicas.summarize(Numbered(1)) != _replicas.summarize(Numbered(2))
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, Wordless(), {Wordless(): 1}, [Wordless()]):
        assert _replicas.summarize(value) == _replicas.summarize(value)


def test_argument_that_some_ranks_leave_out_is_found(checked):
    found = raised(lambda r: da.sum(x(), **({"axis": 0} if r == 2 else {"axis": None})))
    assert {type(error) for error in found} == {MismatchError}
    assert "axis differs" in str(found[0])
    found = raised(lambda r: da.sum(x(), axis=0, **({"keepdims": True} if r == 2 else {})))
    assert {type(error) for error in found} == {MismatchError}
    assert "keepdims differs between ranks that should have the same: ranks 0, 1, 3: left out" in (
        str(found[0])
    )


BRANCHES = {
    "functions": lambda r: da.sin(x()) if r == 2 else da.cos(x()),
    "operators": lambda r: -x() if r == 2 else abs(x()),
    "methods": lambda r: x().conj() if r == 2 else x().rebalance(),
    "one call more": lambda r: float((da.sin(x()) if r == 2 else x()).sum()),
    "one turn more": lambda r: [x() + 1 for _ in range(1 + (r == 2))] + [x().sum()],
}


@pytest.mark.parametrize("name", BRANCHES)
def test_ranks_that_call_different_functions_find_out(name, checked):
    found = raised(BRANCHES[name])
    assert {type(error) for error in found} == {MismatchError}
    assert "ranks are about to do different things together" in str(found[0])


def test_questions_about_shape_and_dtype_are_for_one_rank_alone(checked):
    def program() -> None:
        there = x()
        if da.comm.world().rank == 1:
            assert (da.shape(there), np.shape(there), len(there)) == ((6,), (6,), 6)
            assert (da.size(there, 0), np.size(there, 0)) == (6, 6)
            assert (np.ndim(there), np.iscomplexobj(there)) == (1, False)
            assert da.can_cast(there, np.complex128)
            assert da.result_type(there, np.float32) == np.float64
            assert there.to_local().shape == (3,)
        assert float(there.sum()) == 15

    simulate(RANKS, program)


@pytest.mark.parametrize(("told", "fails"), [("1", True), ("0", False), ("", False)])
def test_the_variable_turns_the_check_on(told, fails):
    program = (
        "import distarray as da\n"
        "from distarray.comm import world\n"
        "from distarray.testing import simulate\n"
        "simulate(2, lambda: (da.ones(4) + world().rank) ** world().rank)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(root), "DISTARRAY_CHECK": told},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ("MismatchError: add on" in done.stderr) is fails, done.stderr
    assert bool(done.returncode) is fails


def test_a_variable_that_says_something_else_is_refused(monkeypatch):
    monkeypatch.setenv("DISTARRAY_CHECK", "yes")
    with pytest.raises(DistArrayError, match="DISTARRAY_CHECK='yes' is not known"):
        _replicas._read_setting()
