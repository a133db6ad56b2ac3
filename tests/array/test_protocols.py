"""NumPy's functions and ufuncs, Python's numbers, copying and pickling."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distarray as da
from distarray import fft, linalg, random  # noqa: F401 - whose functions are registered then
from distarray.array._array import DistArray, distribute_array
from distarray.comm import CommLog, DeviceMesh, _memory, init_device_mesh
from distarray.core.engine import _policy
from distarray.core.families._registry import functions
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DistArrayError,
    ImplicitCommunicationError,
    MeshError,
)
from distarray.layout import Partial, Replicate, Shard
from tests.array.strategies import agrees, cases, on_ranks, pairs
from tests.on_device import host

R = Replicate()


@settings(max_examples=30)
@given(data=st.data())
def test_asarray_is_the_global_array_on_every_rank(data: st.DataObject) -> None:
    case = data.draw(cases((np.float64, np.int32, np.bool_), ("sum", "max")))

    def program() -> None:
        x = case.build()
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError):
                np.asarray(x)
            return
        np.testing.assert_array_equal(np.asarray(x), case.value)
        assert np.asarray(x, dtype=np.complex128).dtype == np.complex128
        assert x.tolist() == case.value.tolist()
        with pytest.raises(ArgumentError, match="to_local"):
            np.asarray(x, copy=False)

    on_ranks(program)


def test_asarray_of_a_replicated_array_is_a_copy() -> None:
    def program() -> None:
        x = distribute_array(np.zeros(4), init_device_mesh((4,)), [R])
        assert not np.shares_memory(np.asarray(x), x.to_local())
        x.full_array()[...] = 1
        agrees(x, np.zeros(4))

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_numpy_functions_call_ours(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64,), ("sum",)))
    calls: list[Any] = [
        lambda a, b: np.add(a, b),
        lambda a, b: np.multiply(a, b, dtype=np.float32),
        lambda a, b: np.subtract(a, b, casting="same_kind"),
        lambda a, b: np.maximum(a, b),
        lambda a, b: np.sum(a),
        lambda a, b: np.add.reduce(a) if a.ndim else np.sum(a),
        lambda a, b: np.multiply.reduce(b, axis=None, keepdims=True),
        lambda a, b: np.any(a > b),
        lambda a, b: np.round(b, 1),
        lambda a, b: np.clip(a, -1, 1),
        lambda a, b: np.isclose(a, b),
        lambda a, b: np.nan_to_num(a),
        lambda a, b: np.mean(a) if a.size else np.sum(a),
    ]
    for call in calls:

        def program(call: Any = call) -> None:
            with np.errstate(all="ignore"):
                agrees(call(x.build(), y.build()), call(x.value, y.value), rtol=1e-6, atol=1e-6)

        on_ranks(program)


@settings(max_examples=15)
@given(data=st.data())
def test_functions_with_two_results_agree_with_numpy(data: st.DataObject) -> None:
    x, y = data.draw(pairs((np.float64, np.int32), ("sum",)))
    with np.errstate(all="ignore"):

        def program() -> None:
            with np.errstate(all="ignore"):
                a, b = x.build(), y.build()
                for results, wanted in (
                    (np.divmod(a, b), np.divmod(x.value, y.value)),
                    (divmod(a, 2), divmod(x.value, 2)),
                    (np.modf(a), np.modf(x.value)),
                    (np.frexp(a), np.frexp(x.value)),
                ):
                    for result, expected in zip(results, wanted, strict=True):
                        agrees(result, expected)

        on_ranks(program)


@pytest.mark.host_only
def test_unknown_ufuncs_item_by_item_work_without_a_row() -> None:
    twice = np.frompyfunc(lambda v: 2 * v, 1, 1)

    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        assert x.to_local().dtype == np.float64
        assert list(twice(x).to_local()) == [2 * v for v in x.to_local()]

    on_ranks(program)


def test_unsupported_numpy_functions_raise_and_name_the_remedy() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        with CommLog() as log:
            for call in (
                lambda: np.is_busday(x),
                lambda: np.subtract.accumulate(x),
                lambda: np.subtract.reduce(x),
                lambda: np.add(np.ones(6), x, out=np.ones(6)),
                lambda: np.ones(6).__iadd__(x),
                lambda: np.add(x, x, order="F"),
            ):
                with pytest.raises(ArgumentTypeError) as caught:
                    call()
                assert len(str(caught.value)) > 30
            with pytest.raises(ArgumentTypeError, match=r"map_blocks\(np\.is_busday, x\)"):
                np.is_busday(x)
            with pytest.raises(ArgumentTypeError, match="full_array"):
                np.savetxt("x.txt", x)
        assert log.count() == 0

    on_ranks(program)


@settings(max_examples=20)
@given(data=st.data())
def test_numbers_are_the_global_value_on_every_rank(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((np.float64, np.int32, np.bool_, np.complex128)))
    case = data.draw(cases((dtype,), ("sum", "max") if dtype != np.complex128 else (), shape=()))

    def program() -> None:
        x = case.build()
        value = case.value
        if x.mesh.coordinate is None:
            with pytest.raises(MeshError, match="coordinate"):
                x.item()
            return
        assert x.item() == value.item()
        assert type(x.item()) is type(value.item())
        assert complex(x) == complex(value)
        assert bool(x) == bool(value)
        if dtype == np.int32:
            assert range(100)[abs(int(x))] == abs(int(value))
            assert [0, 1, 2][x * 0] == 0
        else:
            with pytest.raises(TypeError):
                [0][x]
        if dtype != np.complex128:
            assert float(x) == float(value)
            assert int(x) == int(value)
            assert round(x) == round(value.item())
            assert type(round(x)) is int
            assert round(x, 1) == round(value.item(), 1)
        assert f"{x:>8}" == f"{x.item():>8}"

    on_ranks(program)


def test_items_by_index_come_from_their_owner() -> None:
    value = np.arange(24.0).reshape(4, 6)

    def program() -> None:
        x = distribute_array(value, init_device_mesh((2, 2)), [Shard(0), Shard(1)])
        assert x.item(2, 3) == value.item(2, 3)
        assert x.item((3, 5)) == 23
        assert x.item(7) == 7
        assert x.item(-1) == 23
        assert 17.0 in x
        assert -1.0 not in x
        with pytest.raises(ArgumentError):
            x.item()
        with pytest.raises(IndexError):
            x.item(24)
        for ambiguous in (lambda: bool(x), lambda: bool(x[:0])):
            with pytest.raises(ArgumentError, match="any"):
                ambiguous()
        for call in (float, int, complex):
            with pytest.raises(TypeError, match="0-d"):
                call(x)
        with pytest.raises(TypeError, match=r"x\.round"):
            round(x)
        assert float(x[1, 1]) == 7

    on_ranks(program)


def test_len_and_iteration_are_those_of_the_first_axis() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6).reshape(3, 2), init_device_mesh((4,)), [Shard(0)])
        assert len(x) == 3
        assert [row.tolist() for row in x] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(TypeError):
            len(x.sum())

    on_ranks(program)


def test_copies_are_apart_and_pickling_is_refused() -> None:
    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        for twin in (copy.copy(x), copy.deepcopy(x), x.copy(), np.copy(x)):
            twin += 1
            agrees(x, np.arange(6.0))
            agrees(twin, np.arange(6.0) + 1)
        with pytest.raises(ArgumentTypeError, match="full_array"):
            pickle.dumps(x)
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)

    on_ranks(program)


def test_processes_outside_the_mesh_hold_empty_results_of_the_right_dtype() -> None:
    def program() -> None:
        mesh = DeviceMesh([1, 2])
        block = (
            np.ones((2, 3), np.float32) if mesh.coordinate is not None else np.ones((0, 3), "f4")
        )
        x = DistArray.from_local(block, mesh, [Shard(0)], shape=(4, 3))
        y = DistArray.from_local(
            np.ones(3 if mesh.coordinate is not None else 0), mesh, [R], shape=(3,)
        )
        for result, dtype, shape in (
            (x + y, np.float64, (4, 3)),
            (x * 2, np.float32, (4, 3)),
            (x > y, np.bool_, (4, 3)),
            (x.sum(), np.float32, ()),
            (x.sum(0), np.float32, (3,)),
            (x.argmax(1), np.int64, (4,)),
            (x.std(0), np.float32, (3,)),
            (x.astype(np.int8), np.int8, (4, 3)),
            (np.add(x, 1, where=y > 0), np.float32, (4, 3)),
        ):
            assert result.dtype == dtype
            assert result.shape == shape
            if mesh.coordinate is None:
                assert result.to_local().size == 0
                assert result.full_array().size == 0
            else:
                assert result.full_array().shape == shape

    on_ranks(program)


def test_an_operator_leaves_unknown_classes_to_speak_for_themselves() -> None:
    class Stranger:
        __array_ufunc__ = None

        def __radd__(self, other: Any) -> str:
            return "stranger"

    def program() -> None:
        x = distribute_array(np.arange(6.0), init_device_mesh((4,)), [Shard(0)])
        assert x + Stranger() == "stranger"
        agrees(x + [1] * 6, np.arange(6.0) + 1)

    on_ranks(program)


def test_every_registered_function_takes_numpys_own_arguments() -> None:
    import inspect

    for theirs, ours in functions.items():
        try:
            wanted = inspect.signature(theirs).parameters
            have = inspect.signature(ours).parameters
        except (TypeError, ValueError):
            continue
        kinds = {p.kind for p in have.values()}
        if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
            continue
        positional = [p for p in wanted.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        required = [p for p in positional if p.default is inspect.Parameter.empty]
        ours_positional = [p for p in have.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert len(ours_positional) >= len(required), theirs.__name__


def test_partial_operands_of_numpy_functions_are_reduced() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = DistArray.from_local(np.ones(3), mesh, [Partial("sum")])
        agrees(np.sqrt(x), np.full(3, 2.0))
        agrees(np.exp(x), np.exp(np.full(3, 4.0)))

    on_ranks(program)


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (np.mean, {"a": 0}),
        (np.sum, {"a": 0, "axis": 1}),
        (np.clip, {"a": 0, "a_min": -1, "a_max": 1}),
        (np.real, {"val": 0}),
        (np.moveaxis, {"a": 0, "source": 0, "destination": 1}),
        (np.allclose, {"a": 0, "b": 0}),
        (np.zeros_like, {"a": 0, "dtype": np.int8}),
        (np.zeros_like, {"a": 0, "dtype": None, "order": "K", "subok": True, "shape": (3,)}),
        (np.concatenate, {"axis": 1}),
    ],
)
def test_numpy_functions_take_their_arguments_by_numpys_names(
    function: Any, names: dict[str, Any]
) -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        local = np.random.default_rng(mesh.rank).integers(-3, 4, (1, 5)).astype(float)
        x = DistArray.from_local(local, mesh, [Shard(0)])
        whole = host(x.full_array())

        def called(array: Any) -> Any:
            given = {k: array if k in ("a", "b", "val") else v for k, v in names.items()}
            return function(*([[array, array]] if function is np.concatenate else []), **given)

        result, expected = called(x), called(whole)
        if isinstance(result, DistArray):
            agrees(result, expected)
        else:
            assert result == expected

    on_ranks(program)


@pytest.mark.host_only
def test_dlpack_copies_where_it_must_and_says_so() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = distribute_array(np.arange(8.0), mesh, [Shard(0)], src=None)
        y = x.redistribute([R])
        for asked in (None, True):
            z = np.from_dlpack(x, copy=asked)
            assert z.tolist() == list(range(8))
            assert not np.shares_memory(z, x.to_local())
        with pytest.raises(BufferError, match=r"x\.to_local\(\)") as caught:
            np.from_dlpack(x, copy=False)
        assert isinstance(caught.value, DistArrayError)
        for asked in (None, False):
            assert np.shares_memory(np.from_dlpack(y, copy=asked), y.to_local())
        assert not np.shares_memory(np.from_dlpack(y, copy=True), y.to_local())
        fixed = distribute_array(np.arange(8.0).reshape(4, 2), mesh, [Shard(0)], src=None)[1]
        assert not np.from_dlpack(fixed, copy=False).flags.writeable
        assert fixed.__dlpack__() is not None  # an old consumer gets a copy
        with pytest.raises(BufferError, match="readonly") as caught:
            fixed.__dlpack__(copy=False)
        assert isinstance(caught.value, DistArrayError)
        with pytest.raises(BufferError):
            distribute_array(np.array(["a", "b"]), mesh, [R], src=None).__dlpack__()

    on_ranks(program)


def test_implicit_gathers_that_fill_the_memory_warn_once_per_line(monkeypatch: Any) -> None:
    monkeypatch.setattr(_memory, "available", lambda: 40_000)
    monkeypatch.setattr(_policy, "_LOOKED_AT_BYTES", 0)
    x = distribute_array(np.zeros(2000), init_device_mesh((1,)), [Shard(0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (1999, 2000, 2000):
            np.asarray(x[:n])  # another size, and so another message
        x.full_array()
        np.asarray(x[:1000])
        x.__dlpack__(copy=True)
        np.array(x)
    assert [one.filename for one in caught] == [__file__] * 3
    assert "np.asarray(x) gathers 15.6 KiB" in str(caught[0].message)
    assert "x.full_array(dst=0)" in str(caught[2].message)


def test_functions_of_numpys_that_are_not_there_name_what_is_instead() -> None:
    x = distribute_array(np.zeros(4), init_device_mesh((1,)), [R])
    with pytest.raises(ArgumentTypeError, match=r"numpy.savez .*da.checkpoint.save"):
        np.savez("never.npz", x)


@pytest.mark.host_only
@pytest.mark.parametrize("name", ["r_", "c_"])
def test_builders_of_numpys_gather_and_the_policy_knows(name: str) -> None:
    builder = getattr(np, name)
    values = np.arange(8.0)

    def program() -> None:
        x = da.distribute_array(values, init_device_mesh((4,)), [Shard(0)], src=None)
        np.testing.assert_array_equal(builder[x, 2 * x], builder[values, 2 * values])
        with da.communication("raise"), pytest.raises(ImplicitCommunicationError, match="asarray"):
            _ = builder[x, x]
        join = da.concat if name == "r_" else da.column_stack
        with CommLog() as log:
            joined = join([x, 2 * x])
        assert log.count("all_gather") == 0
        agrees(joined, builder[values, 2 * values])

    on_ranks(program)
