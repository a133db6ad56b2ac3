"""Reproducible products have the same bits on any layout, and the error that is stated."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import simulate
from distarray.errors import ArgumentTypeError, ShapeError
from distarray.ops.linear_algebra import _contraction, _reproducible
from tests.on_device import DEVICE, host

RNG = np.random.default_rng(7)
LEFT = RNG.standard_normal((9, 37)) * 10.0 ** RNG.integers(-6, 6, (9, 37))
RIGHT = RNG.standard_normal((37, 5))
LEFT[3], LEFT[4] = 0, LEFT[4] * 1e300
RIGHT[:, 2] *= 1e-300
PLACES = (da.Shard(0), da.Shard(1), da.Replicate())


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let products of few terms be made of slices as well."""
    monkeypatch.setattr(_reproducible, "_FEW_TERMS", {})


@pytest.fixture(params=["few", "slices"])
def either(request: pytest.FixtureRequest) -> None:
    if request.param == "slices":
        request.getfixturevalue("slices")


def of_all_layouts(function: Any, *operands: np.ndarray) -> np.ndarray:
    """Return what a function gives on 1 rank and 3, and all layouts, with the same bits."""
    found: list[tuple[bytes, np.ndarray]] = []

    def program() -> None:
        places_of_one = PLACES if da.default_mesh().size > 1 else PLACES[-1:]
        every = [*product(places_of_one, repeat=len(operands))]
        if DEVICE != "cpu" and len(operands) > 1:  # every second has each place of each operand
            every = every[::2]
        for places in every:
            if any(
                place == da.Shard(1) and x.ndim < 2
                for place, x in zip(places, operands, strict=True)
            ):
                continue
            given = [
                da.distribute_array(x, placements=[place], src=None)
                for x, place in zip(operands, places, strict=True)
            ]
            result = host(function(*given).full_array())
            found.append((result.tobytes(), result))

    for size in (1, 3):
        simulate(size, program)
    assert len({bits for bits, _ in found}) == 1
    return found[0][1]


def check_error(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Check every item against exact arithmetic: the error of an ordinary product at most."""
    unit, least = np.finfo(result.dtype).eps, np.finfo(result.dtype).smallest_subnormal
    for i, j in np.ndindex(result.shape):
        pairs = [
            Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True)
        ]
        magnitude = sum(map(abs, pairs))
        bound = len(pairs) * (Fraction(float(unit)) * magnitude + Fraction(float(least)))
        if math.isinf(result[i, j]):
            assert abs(sum(pairs)) + bound > Fraction(float(np.finfo(result.dtype).max))
        else:
            assert abs(Fraction(float(result[i, j])) - sum(pairs)) <= bound
            assert magnitude or result[i, j] == 0


def pair_of(kind: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return matrices of which some items of the product are far below the largest ones."""
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((9, 37)), rng.standard_normal((37, 7))
    far = 30 if dtype == "f4" else 300
    if kind == "rows and columns scaled":
        a, b = a * 10.0 ** rng.integers(-far, far, (9, 1)), b * 10.0 ** rng.integers(-9, 9, 7)
    elif kind == "an item far above":
        a[2, 5], b[8, 3] = 10.0 ** (far - 2), 10.0**9
        b[5] = 0
    elif kind == "the axis summed over is scaled":
        scale = 10.0 ** rng.integers(-15, 15, 37)
        a, b = a * scale, b / scale[:, None]
    elif kind == "wide":
        a *= 10.0 ** rng.integers(-far // 2, far // 2, a.shape)
        b *= 10.0 ** rng.integers(-far // 2, far // 2, b.shape)
    elif kind == "sparse":
        a *= rng.random(a.shape) < 0.1
        b *= (rng.random(b.shape) < 0.2) * 10.0 ** rng.integers(-12, 12, b.shape)
        a[4], b[:, 2] = 0, 0
    elif kind == "cancelling":
        a[:, 18:36] = a[:, :18]
        b[18:36] = -b[:18] * (1 + 2.0**-20)
    elif kind == "subnormal":
        a, b = rng.integers(-99, 99, a.shape) * 5e-324, b * 1e10
        a[3, 3], b[3] = 1e-308, 0
    elif kind == "huge":
        a, b = a * (1e37 if dtype == "f4" else 1e307), np.sign(b) / 99
        b[:, 4] *= 9999
    elif kind == "one pair":
        a, b = a[:, :1], b[:1]
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(
    "kind",
    [
        "plain", "rows and columns scaled", "an item far above", "the axis summed over is scaled",
        "wide", "sparse", "cancelling", "subnormal", "huge", "one pair",
    ],
)  # fmt: skip
def test_every_item_has_the_error_of_an_ordinary_product(kind: str, dtype: str) -> None:
    a, b = pair_of(kind, dtype)

    def multiply(x: Any, y: Any) -> Any:
        with np.errstate(over="ignore"):
            return da.matmul(x, y, reproducible=True)

    result = of_all_layouts(multiply, a, b)
    assert result.dtype == a.dtype
    check_error(result, a, b)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize(("depth", "factor"), [(300, 0.1), (500, 0.01)])
def test_long_products_in_parts_have_the_same_bits_and_error(
    depth: int, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random((9, depth)) + 0.01, rng.random((depth, 5)) + 0.01
    a[:, : depth // 2] *= factor  # so that half of the terms have most of the sum
    parts = []

    def count_parts(*given: Any) -> int:
        parts.append(original(*given))
        return parts[-1]

    original = _reproducible._count_parts
    monkeypatch.setattr(_reproducible, "_count_parts", count_parts)
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b)
    assert max(parts) == (4 if DEVICE == "cpu" else 2)  # runs of terms, or every second one
    check_error(result, a, b)
    places = rng.permutation(depth)
    some = a[:, places].copy(), b[places].copy()
    found = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), *some)
    assert min(parts) == 2
    assert found.tobytes() == result.tobytes()


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("depth", [64, 100, 1000, 1024])
def test_the_order_of_terms_does_not_matter(depth: int, dtype: str) -> None:
    rng = np.random.default_rng(depth)
    a, b = rng.exponential(size=(7, depth)), rng.exponential(size=(depth, 5))
    if dtype == "c16":
        a, b = a + 1j * a[::-1], b * (1 - 0.5j)
    a, b = a.astype(dtype), b.astype(dtype)
    expected = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b)
    for places in (rng.permutation(depth), np.argsort(abs(a).sum(0)), np.arange(depth)[::-1]):
        some = a[:, places].copy(), b[places].copy()
        found = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), *some)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.host_only
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "c8"])
@pytest.mark.parametrize("kind", ["plain", "zeros", "far", "too far", "inf", "nan", "tiny"])
def test_few_terms_are_exact_sums_whoever_multiplies(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_kernel(_job: str, _n: int, one: Any, run: Any, _plain: Any, _dear: int) -> None:
        run(one.load())

    def run_numpy(_job: str, _n: int, _one: Any, _run: Any, plain: Any, _dear: int) -> None:
        plain()

    def agree(values: list[float]) -> list[float]:
        facts.extend(values)
        return values

    facts: list[float] = []
    rng = np.random.default_rng(2)
    special = {"far": 1e-4, "too far": 1e-13, "inf": np.inf, "nan": np.nan, "tiny": 1e-40}
    for one, other in (((5, 40), (40, 37)), ((70, 9), (9, 2)), ((1, 300), (300, 270))):
        for batch in ((), (3,)):
            a, b = rng.standard_normal((*batch, *one)), rng.standard_normal(other)
            a, b = (1j * x + x[..., ::-1] if "c" in dtype else x for x in (a, b))
            a, b = a.astype(dtype), b.astype(dtype)
            if kind == "zeros":
                a[..., 0, :], b[1] = 0, 0
            elif kind != "plain":
                a[..., 0, :2] *= special[kind]
                b[0, :] *= special[kind] if kind.endswith("far") else 1
            found = []
            for way in (run_kernel, run_numpy):
                monkeypatch.setattr(_reproducible, "run_faster", way)
                monkeypatch.setattr("distarray.core.families._exact_sums.run_faster", way)
                facts.clear()
                with np.errstate(invalid="ignore"):
                    result = _reproducible._multiply_few(a, b, a.dtype, agree)
                found.append((facts[:2] if result is not None else [], result))
            assert (found[0][1] is None) == (kind in ("too far", "inf", "nan", "tiny"))
            assert found[0][0] == found[1][0]
            if found[0][1] is None:
                assert found[1][1] is None
                continue
            assert found[0][1].shape == (*batch, one[0], other[1])
            assert found[0][1].dtype == a.dtype
            assert found[0][1].tobytes() == found[1][1].tobytes()
            if not batch and "c" not in dtype:
                products = a.astype("d")[:, :, None] * b.astype("d")
                expected = [[math.fsum(x) for x in rows.T.tolist()] for rows in products]
                if dtype == "f8":
                    assert found[0][1].tolist() == expected


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kind", ["C", "F", "backwards", "apart", "zeros", "far", "tiny", "inf"])
def test_kernels_find_and_cut_as_numpy_does(
    kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_kernel(_job: str, _n: int, one: Any, run: Any, _plain: Any, _dear: int) -> None:
        run(one.load())

    def run_numpy(_job: str, _n: int, _one: Any, _run: Any, plain: Any, _dear: int) -> None:
        plain()

    rng = np.random.default_rng(9)
    for shape in ((1, 1), (5, 1), (1, 7), (9, 1037), (64, 70)):
        x = rng.standard_normal(shape).astype(dtype)
        if kind in ("F", "backwards", "apart"):
            x = {"F": np.asfortranarray(x), "backwards": x[::-1], "apart": x[:, ::2]}[kind]
        elif kind == "zeros":
            x[shape[0] // 2] = x[:, shape[1] // 2] = 0
        elif kind != "C":
            x[0] *= {"far": 1e30, "tiny": 1e-40, "inf": np.inf}[kind]
        for axis in (-1, -2):
            found = []
            for way in (run_kernel, run_numpy):
                monkeypatch.setattr(_reproducible, "run_faster", way)
                heads = _reproducible._find_heads(x, axis, 9, np.float32)
                found.append([np.asarray(one, np.float32) for one in heads])
                exponents = _reproducible._exponents_of(heads[0])
                for chains in () if kind == "inf" else (((24,),), ((22, 44), (23,), (20, 30, 40))):
                    cut = _reproducible._cut(x, exponents, chains)
                    found[-1] += cut if isinstance(cut, tuple) else (cut,)
            for one, other in zip(*found, strict=True):
                np.testing.assert_array_equal(one, other)


def test_parts_of_a_term_are_added_up_as_if_at_once() -> None:
    rng = np.random.default_rng(3)
    parts = rng.integers(-(1 << 53), 1 << 53, (9, 999))
    parts[:, 0] = 0
    total = _reproducible._add_parts([*parts.astype(np.float64)])
    np.testing.assert_array_equal(total, [float(sum(column)) for column in parts.T.tolist()])


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
def test_blocks_and_distributed_arrays_have_the_same_bits(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((7, 300)), rng.random((300, 5))
    a[2:5] *= 1.9
    a[:, 7] = 3.5
    a, b = ((x * (1 + 0.5j) if dtype == "c16" else x).astype(dtype) for x in (a, b))
    found = []
    for fits in (_contraction._layout_of_blocks, lambda *_: None):
        monkeypatch.setattr(_contraction, "_layout_of_blocks", fits)
        found.append(of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b))
    assert found[0].tobytes() == found[1].tobytes()
    if dtype != "c16":
        check_error(found[0], a, b)


@pytest.mark.usefixtures("slices")
def test_rows_on_both_sides_of_a_power_of_two_are_scaled_alike() -> None:
    a = np.random.default_rng(4).uniform(0.6, 0.99, (12, 300))
    a[::2, 5] = 1.01
    look = _reproducible._look(np.matmul, a, a.T, np.float64)
    sums = [np.ldexp(a.sum(1), -exponents.reshape(-1)) for exponents in look.exponents()]
    assert max(x.max() / x.min() for x in sums) < 1.5
    assert _reproducible.count_products(look.slices) == 3
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, a.T.copy())
    check_error(result, a, a.T)


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize("left", [0.0, 1e-9])
def test_rows_of_which_some_items_are_small_are_seen(left: float) -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((6, 96)), rng.standard_normal((96, 4))
    a[:, ::8] *= left
    a, b = a.astype("f4"), b.astype("f4")
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b)
    check_error(result, a, b)


@pytest.mark.usefixtures("either")
def test_operands_move_once() -> None:
    def program() -> None:
        rng = da.random.default_rng(1)
        x, y = (rng.random((64, 64), placements=[da.Shard(0)]) for _ in range(2))
        sent = []
        for same in (False, True):
            with da.CommLog() as log:
                da.matmul(x, y, reproducible=same)
            sent.append(log.bytes())
        assert sent[1] < sent[0] + 500

    simulate(2, program)


@pytest.mark.usefixtures("either")
def test_bits_do_not_depend_on_ranks_or_meshes() -> None:
    a, b = (np.stack([x, x[::-1, ::-1]]) for x in pair_of("sparse", "f8"))
    a = a + 1j * a[:, ::-1] * 1e-9
    found: list[bytes] = []

    def program(*shape: int) -> None:
        mesh = da.init_device_mesh(shape)
        every = (da.Shard(0), da.Shard(1), da.Shard(2), da.Replicate())
        for at, places in enumerate(product(every, repeat=2 * len(shape))):
            if at % (17 if len(shape) > 1 else 3):
                continue
            left, right = (
                da.distribute_array(x, mesh, some, src=None)
                for x, some in ((a, places[: len(shape)]), (b, places[len(shape) :]))
            )
            result = da.matmul(left, right, reproducible=True)
            found.append(host(result.full_array()).tobytes())

    many = ((1,), (2,), (4,), (8,), (2, 2), (2, 3))  # of which a device shows the same by few
    for shape in many if DEVICE == "cpu" else ((1,), (3,), (2, 2)):
        simulate(math.prod(shape), program, *shape)
    assert len(set(found)) == 1


def test_partial_operands_and_cut_sums_are_added_up_first() -> None:
    def program() -> None:
        mesh = da.default_mesh()
        own = LEFT * (1, 1, 2)[mesh.coordinate[0]]
        x = da.DistArray.from_local(own, mesh, [da.Partial()])
        result = da.matmul(x, RIGHT, reproducible=True)
        whole = host(da.matmul(da.asarray(LEFT * 4), RIGHT, reproducible=True).full_array())
        np.testing.assert_array_equal(host(result.full_array()), whole)
        long = np.random.default_rng(5).standard_normal((4, 3000)) + 1j
        y = da.distribute_array(long, mesh, [da.Shard(1)], src=None)
        with da.CommLog() as log:
            result = da.matmul(y, y.conj().T, reproducible=True)
        assert log.bytes() < long.nbytes / 3  # no process has all of it
        everywhere = da.matmul(da.asarray(long), long.conj().T, reproducible=True)
        assert result.full_array().tobytes() == everywhere.full_array().tobytes()

    simulate(3, program)


def test_an_item_far_below_its_row_and_column_is_not_lost() -> None:
    a, b = np.array([[1e40, 1.0]]), np.array([[0.0], [1.0]])
    assert of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b) == 1
    a, b = np.array([[2.0**900, 2.0**-900, 3.0]]), np.array([[0.0], [2.0**900], [0.0]])
    assert of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b) == 1


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("dtype", ["f2", "f4", "c8", "c16", "i4"])
def test_products_of_other_dtypes_agree_with_numpy(dtype: str) -> None:
    a, b = np.clip(LEFT, -9, 9), RIGHT[:, :2]
    if "c" in dtype:
        a, b = a + 1j * a[::-1], b - 2j * b[:, ::-1]
    a, b = a.astype(dtype), b.astype(dtype)
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), a, b)
    assert result.dtype == a.dtype
    wide = "D" if "c" in dtype else "d"
    close = {"f2": 1e-3, "f4": 1e-6, "c8": 1e-6}.get(dtype, 1e-13)
    np.testing.assert_allclose(result, a.astype(wide) @ b.astype(wide), close, 9 * close)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(
    "special",
    [{(0, 0): np.inf, (0, 1): 1e300, (1, 1): np.nan}, {(2, 5): -np.inf}],  # float32 lacks 1e300
    ids=str,
)
def test_items_that_are_not_finite_are_where_numpy_has_them(special: dict[Any, float]) -> None:
    a = LEFT.copy()
    for place, item in special.items():
        a[place] = item

    def multiply(x: Any, y: Any) -> Any:
        with np.errstate(invalid="ignore"):  # the BLAS of some processors tells of inf - inf
            return da.matmul(x, y, reproducible=True)

    result = of_all_layouts(multiply, a, RIGHT)
    with np.errstate(invalid="ignore"):
        expected = a @ RIGHT
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(result[~finite], expected[~finite])
    clean = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), LEFT, RIGHT)
    np.testing.assert_array_equal(result[finite], clean[finite])


@pytest.mark.usefixtures("either")
def test_every_nan_of_a_product_is_the_same() -> None:
    a = LEFT.copy()
    a[0, 0], a[1, 1], a[2] = -np.nan, np.nan, np.inf  # times items of both signs

    def multiply(x: Any, y: Any) -> Any:
        with np.errstate(invalid="ignore"):
            return da.matmul(x, y, reproducible=True)

    found = of_all_layouts(multiply, a, RIGHT)[:3]
    assert found.tobytes() == np.full(found.shape, np.nan).tobytes()


def test_items_that_float32_cannot_hold_raise_nothing() -> None:
    a = LEFT.copy()
    a[0, 0] = 1e-60

    def multiply(x: Any, y: Any) -> Any:
        with np.errstate(all="raise"):
            return da.matmul(x, y, reproducible=True)

    found = of_all_layouts(multiply, a, RIGHT)
    assert (abs(found - a @ RIGHT) <= 1e-14 * (abs(a) @ abs(RIGHT))).all()  # as exact as NumPy's


def test_stacks_and_vectors_are_multiplied() -> None:
    stack = RNG.standard_normal((3, 4, 6))
    result = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), stack, stack[0].T)
    np.testing.assert_allclose(result, stack @ stack[0].T, 1e-13, 1e-13)
    column = of_all_layouts(lambda x, y: da.matmul(x, y, reproducible=True), RIGHT.T, RIGHT[:, 0])
    np.testing.assert_allclose(column, RIGHT.T @ RIGHT[:, 0], 1e-13, 1e-13)
    row = of_all_layouts(lambda x, y: da.dot(x, y, reproducible=True), RIGHT[:, 1], RIGHT)
    np.testing.assert_allclose(row, RIGHT[:, 1] @ RIGHT, 1e-13, 1e-13)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_plain_operands_give_the_bits_of_distributed_ones(dtype: str) -> None:
    left, right = (x.astype(dtype) for x in pair_of("plain", "f4"))
    expected = of_all_layouts(lambda a, b: da.matmul(a, b, reproducible=True), left, right)
    for found in (
        of_all_layouts(lambda a: da.matmul(a, right, reproducible=True), left),
        of_all_layouts(lambda b: da.matmul(left, b, reproducible=True), right),
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["?", "f2", "f4"])
def test_long_products_of_short_and_complex_items_are_exact(dtype: str) -> None:
    left, right = np.ones(16385, dtype), np.full(16385, 1 + 2j, "c8")
    for pair in ((left, right), (right, left)):
        found = of_all_layouts(lambda a, b: da.vecdot(a, b, reproducible=True), *pair)
        assert found == np.vdot(*pair)


def test_dot_of_vectors_is_the_exact_sum_of_rounded_products() -> None:
    x, y = LEFT.reshape(-1) * 1e-150, np.resize(RIGHT, LEFT.size)
    for function in (da.dot, da.matmul, da.vdot, da.vecdot):
        result = of_all_layouts(lambda a, b, f=function: f(a, b, reproducible=True), x, y)
        assert result == math.fsum(x * y)
    z = x + 1j * y
    result = of_all_layouts(lambda a, b: da.vecdot(a, b, reproducible=True), z, z[::-1].copy())
    assert result.real == math.fsum([*(z.real * z.real[::-1]), *(z.imag * z.imag[::-1])])
    assert result.imag == math.fsum([*(z.real * z.imag[::-1]), *(-z.imag * z.real[::-1])])


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("function", [da.vdot, da.dot])
def test_complex_items_are_multiplied_however_they_lie(function: Any, dtype: str) -> None:
    z = (RNG.standard_normal(7999) + 1j * RNG.standard_normal(7999)).astype(dtype)
    for step in (1, 2, 4, 8, -1, -3):
        some = z[::step].copy()
        found = []
        for x in (da.asarray(some), da.asarray(z)[::step]):
            result = host(function(x * 1j, x, reproducible=True).full_array())
            found.append(result.tobytes())
            left, right = 1j * some.astype("c16"), some.astype("c16")
            expected = np.vdot(left, right) if function is da.vdot else np.dot(left, right)
            close = 1e-5 if dtype == "c8" else 1e-11
            np.testing.assert_allclose(result, expected, close, close)
        assert found[0] == found[1]


def test_wrong_operands_are_refused() -> None:
    def program() -> None:
        x = da.ones((4, 3))
        with pytest.raises(ShapeError, match="3 columns and 4 rows"):
            da.matmul(x, x, reproducible=True)
        with pytest.raises(ShapeError, match="lengths"):
            da.vecdot(x, x.T, reproducible=True)
        with pytest.raises(ArgumentTypeError, match="second operand may have two"):
            da.dot(x, da.ones((2, 3, 4)), reproducible=True)
        with da.CommLog() as log, da.communication("raise"):
            da.matmul(x, np.ones((3, 2)), reproducible=True)
        assert log.bytes() <= 24  # whether all items are finite, and how large sums are

    simulate(2, program)
