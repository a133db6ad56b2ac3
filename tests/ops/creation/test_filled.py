"""Creation functions give NumPy's values, bit for bit, whatever the split, and send nothing."""

from __future__ import annotations

import inspect
import re
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distarray.array._array import distribute_array
from distarray.comm import CommLog, DeviceMesh, init_device_mesh, use_mesh
from distarray.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    PlacementError,
    ShapeError,
)
from distarray.layout import Partial, Replicate, Shard
from distarray.ops.creation import _filled as creation
from distarray.ops.creation._asarray import asarray
from distarray.ops.creation._ranges import arange, eye, linspace
from tests.array.strategies import KIND, Case, agrees, cases, on_ranks

FILLED = {"zeros": np.zeros, "ones": np.ones}
LIKE = {"zeros_like": np.zeros_like, "ones_like": np.ones_like}
COUNTING = (
    None, np.float64, np.float32, np.float16, np.int8, np.uint8, np.int64, np.uint64, np.complex64,
    np.complex128,
)  # fmt: skip
finite = st.floats(-1e6, 1e6, allow_subnormal=False)


def places(case: Case) -> dict[str, Any]:
    """Return the mesh= and placements= of a case on this rank."""
    layout = case.layout()
    return {"mesh": layout.mesh, "placements": layout.placements}


def bitwise(result: Any, expected: np.ndarray) -> None:
    """Check a result against NumPy's down to the bits."""
    agrees(result, expected)
    if result.mesh.coordinate is not None:
        full = result.full_array()
        assert full.tobytes() == expected.tobytes()


@given(case=cases((np.float64, np.int8, np.bool_), ("sum", "prod", "min")))
def test_filled_array_agrees_with_numpy(case: Case) -> None:
    dtype = case.values.dtype
    if dtype.kind == "b" and case.op is not None:
        return

    def program() -> None:
        with CommLog() as log:
            made = {
                name: getattr(creation, name)(case.shape, dtype=dtype, **places(case))
                for name in FILLED
            }
            seven = creation.full(case.shape, 7, dtype=dtype, **places(case))
            empty = creation.empty(case.shape, dtype=dtype, **places(case))
        assert log.count() == 0
        for name, x in made.items():
            agrees(x, FILLED[name](case.shape, dtype))
        agrees(seven, np.full(case.shape, 7, dtype))
        assert (empty.shape, empty.dtype) == (case.shape, dtype)
        assert empty.to_local().shape == empty.layout.local_shape()

    on_ranks(program)


@given(case=cases((np.float64, np.int8), ("sum", "max")))
def test_like_takes_shape_dtype_and_layout_of_its_model(case: Case) -> None:
    def program() -> None:
        x = case.build()
        for name, theirs in LIKE.items():
            made = getattr(creation, name)(x)
            agrees(made, theirs(case.value.astype(case.values.dtype)))
            assert made.layout is x.layout.without_partial()
        agrees(creation.full_like(x, 3, dtype=np.float32), np.full(case.shape, 3, np.float32))
        assert creation.empty_like(x).layout is x.layout.without_partial()
        agrees(np.zeros_like(x), np.zeros(case.shape, case.values.dtype))
        agrees(np.full_like(x, 2), np.full(case.shape, 2, case.values.dtype))

    on_ranks(program)


@settings(max_examples=75)
@given(
    start=finite | st.integers(-300, 300),
    count=st.integers(0, 40),
    step=(finite | st.integers(-9, 9)).filter(lambda step: abs(step) > 1e-3),
    dtype=st.sampled_from(COUNTING),
    parts=st.integers(1, 4),
)
def test_arange_is_bitwise_numpys_for_every_split(
    start: float, count: int, step: float, dtype: Any, parts: int
) -> None:
    stop = start + count * step
    try:
        with np.errstate(all="ignore"):
            expected = np.arange(start, stop, step, dtype=dtype)
    except (OverflowError, ValueError):
        return

    def program() -> None:
        with np.errstate(all="ignore"):
            x = arange(start, stop, step, dtype=dtype, mesh=init_device_mesh((parts,)))
        bitwise(x, expected)

    on_ranks(program)


@settings(max_examples=75)
@given(
    start=finite | st.integers(-300, 300) | st.complex_numbers(max_magnitude=1e3),
    stop=finite | st.integers(-300, 300),
    num=st.integers(0, 40),
    dtype=st.sampled_from(COUNTING),
    endpoint=st.booleans(),
    parts=st.integers(1, 4),
)
@pytest.mark.filterwarnings("ignore")
def test_linspace_is_bitwise_numpys_for_every_split(
    start: Any, stop: float, num: int, dtype: Any, endpoint: bool, parts: int
) -> None:
    if isinstance(start, complex) and dtype is not None and np.dtype(dtype).kind in "iu":
        return
    with np.errstate(all="ignore"):
        expected, step = np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint, retstep=True)

    def program() -> None:
        with np.errstate(all="ignore"):
            x, own = linspace(
                start,
                stop,
                num,
                dtype=dtype,
                endpoint=endpoint,
                retstep=True,
                mesh=init_device_mesh((parts,)),
            )
        bitwise(x, expected)
        np.testing.assert_equal(own, step)

    on_ranks(program)


@pytest.mark.parametrize(
    "numbers", [(5,), (3, 9), (0, 1, 0.1), (True,), (np.float32(4),), (np.int8(5),)]
)
def test_arange_finds_numpys_dtype_and_length(numbers: tuple[Any, ...]) -> None:
    on_ranks(lambda: bitwise(arange(*numbers), np.arange(*numbers)))


@pytest.mark.parametrize(
    "numbers",
    [
        (np.int8(-100), np.int8(100)),
        (-1, np.uint8(200)),
        (np.int8(5), 70_000, 7),
        (np.uint8(200), np.uint8(100), -7),
        (0, np.uint8(250), np.uint8(100)),
    ],
)
def test_arange_between_narrow_integers_takes_their_difference_as_it_is(
    numbers: tuple[Any, ...],
) -> None:
    expected = np.arange(*map(int, numbers))
    on_ranks(lambda: bitwise(arange(*numbers), expected))


DATE, TIME = np.datetime64, np.timedelta64


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ((DATE("2020-02-27"), DATE("2020-03-05")), None),
        ((DATE("2020-02-27"), 5), None),
        ((DATE("2020-03-05"), -7, -2), None),
        ((DATE("2020-02-27"), TIME(30, "h"), 7), None),
        ((DATE("2020-01"), DATE("2020-03-01"), TIME(1, "D")), None),
        ((DATE("2019-01"), DATE("2024-06"), TIME(1, "Y")), None),
        ((DATE("2020-01-01T00:00:00.000000000"), 10**9 + 1, 10**8), None),
        ((date(2020, 1, 1), datetime(2020, 1, 2), timedelta(hours=5)), None),
        (("2020-02-27", "2020-03-05"), "M8[D]"),
        ((DATE("2020-02-27"), DATE("2020-02-28")), "M8[h]"),
        ((3, 9), "M8[s]"),
        ((TIME(7, "s"),), None),
        ((1, TIME(1, "m"), TIME(7, "s")), None),
        ((7,), "m8[ms]"),
        ((DATE("2020"), DATE("2020")), None),
    ],
)
@pytest.mark.parametrize("parts", [1, 3])
def test_arange_of_dates_is_numpys(numbers: tuple[Any, ...], dtype: Any, parts: int) -> None:
    expected = np.arange(*numbers, dtype=dtype)

    def program() -> None:
        with CommLog() as log:
            x = arange(*numbers, dtype=dtype, mesh=init_device_mesh((parts,)))
        assert log.count() == 0
        bitwise(x, expected)

    on_ranks(program)


@pytest.mark.host_only
@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ((np.float32(1.5), 5), "M8[s]"),
        ((0, np.float64(4)), "m8[h]"),
        ((DATE("2020-02-27"), np.float32(2.5)), None),
        ((TIME(1, "D"), TIME(9, "D"), np.float64(2)), None),
    ],
)
def test_arange_of_dates_refuses_floating_point_numbers(
    numbers: tuple[Any, ...], dtype: Any
) -> None:
    with pytest.raises(ValueError, match="Could not convert"):
        np.arange(*numbers, dtype=dtype)
    with pytest.raises(ArgumentTypeError, match=r"arange\(.* takes no np\.float"):
        arange(*numbers, dtype=dtype)


@pytest.mark.host_only
def test_arange_goes_between_items_of_arrays_of_dates() -> None:
    dates = np.arange(DATE("2020-02-27"), 9)

    def program() -> None:
        x = asarray(dates)
        bitwise(arange(x[1], x[7], np.array(2)), dates[1:7:2])

    on_ranks(program)


@given(
    rows=st.integers(0, 9),
    columns=st.none() | st.integers(0, 9),
    k=st.integers(-10, 10),
    case=cases(shape=(1, 1)),
)
def test_eye_agrees_with_numpy(rows: int, columns: int | None, k: int, case: Case) -> None:
    on_ranks(
        lambda: agrees(
            eye(rows, columns, k=k, dtype=np.int32, **places(case)),
            np.eye(rows, columns, k, np.int32),
        )
    )


@settings(max_examples=30)
@given(
    case=cases((np.float64, np.int32, np.bool_), ("sum", "max")),
    dtype=st.none() | st.just(np.float32),
)
def test_asarray_takes_the_own_block_of_a_value_without_communication(
    case: Case, dtype: Any
) -> None:
    value = np.array(case.values[0])
    if value.dtype == bool and case.op is not None and dtype is None:
        return

    def program() -> None:
        with CommLog() as log:
            x = asarray(value, dtype=dtype, **places(case))
        assert log.count() == 0
        assert not np.shares_memory(x.to_local(), value)
        agrees(x, value if dtype is None else value.astype(dtype))

    on_ranks(program)


def test_asarray_of_scalars_and_lists_uses_numpys_dtype_and_the_defaults() -> None:
    def program() -> None:
        agrees(asarray(3), np.asarray(3))
        agrees(asarray([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
        agrees(asarray([1, 2], dtype=np.uint8), np.array([1, 2], np.uint8))
        assert asarray(3).placements == (Replicate(),)
        assert asarray([1, 2]).placements == (Shard(0),)

    on_ranks(program)


@pytest.mark.host_only
def test_asarray_copy_decides_whether_memory_is_shared() -> None:
    def program() -> None:
        value = np.arange(8.0)
        assert np.shares_memory(asarray(value, copy=False).to_local(), value)
        with pytest.raises(ArgumentError, match="copy=False"):
            asarray(value, dtype=np.int32, copy=False)
        with pytest.raises(ArgumentError, match="copy=False"):
            asarray([1.0, 2.0], copy=False)
        x = asarray(value)
        assert asarray(x) is x
        assert not np.shares_memory(asarray(x, copy=True).to_local(), x.to_local())

    on_ranks(program)


@settings(max_examples=30)
@given(data=st.data())
def test_asarray_redistributes_a_distributed_array(data: st.DataObject) -> None:
    case: Case = data.draw(cases((np.float64, np.uint8), ("sum", "max")))
    other: Case = data.draw(cases(shape=case.shape))
    dtype = data.draw(st.sampled_from((None, np.float32)))

    def program() -> None:
        x = asarray(case.build(), dtype=dtype, **places(other))
        assert x.placements == other.layout().placements
        agrees(x, case.value if dtype is None else case.value.astype(dtype))

    on_ranks(program)


def test_defaults_come_from_the_mesh_in_use() -> None:
    def program() -> None:
        assert creation.zeros((4, 3)).placements == (Shard(0),)
        assert creation.zeros(()).placements == (Replicate(),)
        mesh = init_device_mesh((2, 2), ("dp", "tp"))
        with use_mesh(mesh):
            assert creation.ones((4, 3)).placements == (Shard(0), Replicate())
        with use_mesh(mesh, [Replicate(), Shard(1)]):
            assert creation.ones((4, 3)).layout.local_shape()[0] == 4

    on_ranks(program)


def test_process_outside_the_mesh_holds_an_empty_block() -> None:
    def program() -> None:
        mesh = DeviceMesh([2, 0])
        for x in (
            creation.zeros((4, 3), mesh=mesh),
            arange(5, mesh=mesh),
            eye(3, mesh=mesh),
            asarray(2.0, mesh=mesh),
        ):
            assert (x.to_local().size == 0) == (mesh.coordinate is None)

    on_ranks(program)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: creation.zeros((-1,)), ShapeError),
        (lambda: creation.zeros((2.5,)), ArgumentTypeError),
        (lambda: creation.zeros("23"), ArgumentTypeError),
        (lambda: creation.zeros(3, dtype=object), DTypeError),
        (lambda: creation.zeros(3, dtype="no such"), ArgumentTypeError),
        (lambda: creation.zeros(3, placements=["S0"]), (PlacementError, ArgumentTypeError)),
        (lambda: creation.zeros(3, placements=[Shard(1)]), ValueError),
        (lambda: creation.zeros(3, placements=[Shard(0), Shard(0)]), PlacementError),
        pytest.param(
            lambda: creation.zeros(3, device="cuda"), DeviceError, marks=pytest.mark.host_only
        ),
        (lambda: creation.zeros(3, device="tpu"), DeviceError),
        (lambda: creation.full(3, [1, 2, 3]), ArgumentError),
        (lambda: arange(0, 5, 0), ArgumentError),
        (lambda: arange(0, float("inf")), ArgumentError),
        (lambda: arange("a"), ArgumentTypeError),
        (lambda: arange(5, dtype=bool), DTypeError),
        (lambda: arange(DATE("2020")), ArgumentTypeError),
        (lambda: arange(DATE("2020"), DATE("NaT")), ArgumentError),
        (lambda: arange(DATE("2020"), DATE("2024"), 0), ArgumentError),
        (lambda: arange(DATE("2020"), DATE("2024"), 0.5), ArgumentTypeError),
        (lambda: arange(DATE("2020-01-01"), 9, TIME(1, "M")), ArgumentTypeError),
        (lambda: arange(TIME(3, "D"), DATE("2020-01-01")), ArgumentTypeError),
        (lambda: arange(0, TIME(3, "D"), dtype=int), ArgumentTypeError),
        (lambda: arange(1, 5, dtype="M8"), ArgumentError),
        (lambda: linspace(0, 1, -1), ArgumentError),
        (lambda: linspace([0, 1], 1), ArgumentTypeError),
        (lambda: linspace(0, 1, 2.5), ArgumentTypeError),
        (lambda: linspace(1j, 1, 3, dtype=int), DTypeError),
        (lambda: linspace(np.zeros(2), 1, 3), ArgumentTypeError),
        (lambda: eye(-1), ShapeError),
        (lambda: eye(2.0), ArgumentTypeError),
        (lambda: asarray([object()]), DTypeError),
        (lambda: asarray([[1], [1, 2]]), ArgumentError),
    ],
)
def test_bad_argument_raises_on_every_rank(make: Any, error: Any) -> None:
    def program() -> None:
        with pytest.raises(error):
            make()
        agrees(creation.ones(3), np.ones(3))

    on_ranks(program)


def test_partial_result_lies_as_after_redistribution() -> None:
    def program() -> None:
        mesh = init_device_mesh((4,))
        x = creation.full((2,), 5.0, mesh=mesh, placements=[Partial("sum")])
        y = distribute_array(np.full(2, 5.0), mesh, [Replicate()], src=None).redistribute(
            [Partial("sum")]
        )
        np.testing.assert_array_equal(x.to_local(), y.to_local())

    on_ranks(program)


def test_a_distributed_scalar_fills_an_array() -> None:
    def program() -> None:
        total = creation.ones(5).sum()
        assert total.layout.has_partial
        agrees(creation.full(3, total), np.full(3, 5.0))
        agrees(creation.full_like(creation.zeros(4, dtype=np.int8), total), np.full(4, 5, np.int8))
        with pytest.raises(ArgumentTypeError):
            creation.full(3, creation.ones(3))

    on_ranks(program)


ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
NESTED = np.dtype(
    [(("title", "n"), [("t", "U3"), ("d", "M8[s]")]), ("v", "f4", (2,)), ("p", ALIGNED)]
)
numpys_dtypes = pytest.mark.skipif(KIND != "cpu", reason="CuPy has numbers and truth values only")
KINDS = ("U3", "U1", "S5", "M8[s]", "m8[D]", "?", "f2", "c8", ALIGNED, NESTED, [("x", "S3")])


@numpys_dtypes
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_filled_array_of_any_dtype_is_numpys_also_on_empty_ranks(name: str, dtype: Any) -> None:
    theirs, kind = getattr(np, name), np.dtype(dtype)

    def program() -> None:
        mesh = init_device_mesh((3,))  # one process is outside; of two rows, one block is empty
        for shape, placements in (((2, 3), [Shard(0)]), ((), [Replicate()]), ((0, 2), [Shard(1)])):
            expected = theirs(shape, kind)
            made = getattr(creation, name)(shape, dtype=kind, mesh=mesh, placements=placements)
            check = agrees if kind.fields else bitwise  # between fields lies anything
            check(made, expected)
            check(getattr(creation, f"{name}_like")(made), expected)
            check(
                getattr(creation, f"{name}_like")(
                    np.empty(shape), dtype=kind, mesh=mesh, placements=placements
                ),
                expected,
            )

    on_ranks(program)


@numpys_dtypes
@pytest.mark.parametrize("dtype", ["U4", "S1", "M8[s]", ALIGNED, "S3"], ids=str)
@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_large_filled_array_of_any_dtype_is_numpys(name: str, dtype: Any) -> None:
    kind = np.dtype(dtype)
    count = 17 * 2**20 // kind.itemsize

    def program() -> None:
        made = getattr(creation, name)(count, dtype=kind, mesh=DeviceMesh([0]))
        if made.mesh.coordinate is not None:
            expected = getattr(np, name)(count, kind)
            assert np.array_equal(made.to_local(), expected)
            assert name == "ones" or not made.to_local().view(np.uint8).any()

    on_ranks(program)


@numpys_dtypes
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("abc", None), ("abcd", "U2"), (b"ab", None), (np.datetime64("2020-01-02"), None),
        (np.datetime64("NaT"), None), (np.timedelta64(3, "s"), "m8[ms]"), (2.7, "u1"), ("7", "i4"),
        (np.array((1, 2.5), ALIGNED)[()], None), (np.int64(300), "u1"), (None, "f8"), (-0.0, "f2"),
        (2**63, "u8"), (2**63, None), (True, "U5"),
    ],
)  # fmt: skip
def test_full_array_takes_values_as_numpy_does(value: Any, dtype: Any) -> None:
    expected = np.full((2, 3), value, dtype)

    def program() -> None:
        mesh = init_device_mesh((3,))
        made = creation.full((2, 3), value, dtype=dtype, mesh=mesh, placements=[Shard(0)])
        check = agrees if expected.dtype.fields else bitwise
        check(made, expected)
        check(creation.full_like(made, value), expected)

    on_ranks(program)


@pytest.mark.parametrize(("value", "dtype"), [(300, "u1"), (-1, "u8"), ("x", "i4"), (None, "i4")])
def test_value_that_does_not_fit_the_dtype_raises_on_every_rank(value: Any, dtype: Any) -> None:
    def program() -> str:
        with pytest.raises((ArgumentError, ArgumentTypeError)) as caught:
            creation.full((2,), value, dtype=dtype, mesh=init_device_mesh((4,)))
        return str(caught.value)

    assert len(set(on_ranks(program))) == 1


@pytest.mark.parametrize("like", ["", "_like"])
@pytest.mark.parametrize("name", ["empty", "zeros", "ones", "full"])
def test_all_arguments_of_creation_are_documented(name: str, like: str) -> None:
    function = getattr(creation, name + like)
    head, _, rest = function.__doc__.partition("\n\nParameters\n----------\n")
    told = re.findall(r"^(\w+) : ", rest.partition("\n\n")[0], re.MULTILINE)
    assert head
    assert "{" not in function.__doc__
    assert {*told} == {*inspect.signature(function).parameters}
