"""Plans of transforms: exchanges, where the cuts of results are, and what is even."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.fft import _blocks
from distarray.fft._chirp import Chirp
from distarray.fft._plan import plan
from distarray.fft._stages import Task
from distarray.layout import AbstractMesh, Layout, Partial, Replicate, Shard
from tests import peak_memory
from tests.array.strategies import on_ranks

S0, S1, S2, R = Shard(0), Shard(1), Shard(2), Replicate()


def planned(
    mesh: tuple[int, ...], placements: list[Any], shape: tuple[int, ...], real: str = ""
) -> tuple[tuple[Any, ...], int]:
    """Return the placements of a transform of all axes, and how many exchanges lead there."""
    if real == "out":
        lengths = (*enumerate(shape[:-1]), (len(shape) - 1, 2 * (shape[-1] - 1)))
    else:
        lengths = (*enumerate(shape),)
    task = Task(lengths, real != "out", real, None, None, np.dtype(complex))
    stages = plan(Layout(AbstractMesh(mesh), placements, shape), task)
    return stages[-1].after.placements, sum(len(stage.sends) for stage in stages)


@pytest.mark.parametrize(
    ("mesh", "before", "after"),
    [
        ((4,), [S0], [S1]),
        ((4,), [S1], [S0]),
        ((4096,), [S0], [S1]),
        ((16, 8), [S0, S1], [S1, S2]),
        ((16, 8), [S1, S0], [S0, S2]),
        ((16, 8), [S0, R], [S1, R]),
        ((64, 128), [S0, S1], [S1, S2]),
    ],
)
@pytest.mark.parametrize("real", [False, True])
def test_result_stays_turned_and_the_inverse_leads_back(
    mesh: tuple[int, ...], before: list[Any], after: list[Any], real: bool
) -> None:
    """With an exchange for each axis that was cut, there and back."""
    n = 8192
    exchanges = len({p for p in before if p is not R})
    last = n // 2 + 1 if real else n
    placements, count = planned(mesh, before, (n, n, n), "in" if real else "")
    assert (list(placements), count) == (after, exchanges)
    placements, count = planned(mesh, after, (n, n, last), "out" if real else "")
    assert (list(placements), count) == (before, exchanges)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_components_of_a_field_stay_together_whatever_divides_their_number(size: int) -> None:
    """Three of them would make even blocks on three processes, and then products need exchanges."""
    task = Task(((1, 32), (2, 32), (3, 32)), True, "in", None, None, np.dtype(complex))
    for components in (3, 8):
        source = Layout(AbstractMesh((size,)), [S1], (components, 32, 32, 32))
        stages = plan(source, task)
        assert stages[-1].after.placements == (S2,)
        assert sum(len(stage.sends) for stage in stages) == 1


def test_real_items_of_a_last_axis_that_is_cut_take_one_exchange_more() -> None:
    assert planned((4,), [S2], (64, 64, 64), "in")[1] == 2
    assert planned((4,), [S2], (64, 64, 64), "out")[1] == 1


def test_lines_that_are_too_few_are_cut_themselves() -> None:
    n = 1 << 20
    task = Task(((1, n),), True, "", None, None, np.dtype(complex))
    for lines, exchanges, cut in ((1, 3, S1), (2, 3, S1), (3, 1, S0), (5, 3, S1), (8, 1, S0)):
        stages = plan(Layout(AbstractMesh((4,)), [S1], (lines, n)), task)
        assert sum(len(stage.sends) for stage in stages) == exchanges
        assert stages[-1].after.placements == (cut,)


@pytest.mark.parametrize("size", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("n", [1 << 20, 3**12, 11188, 1584098, 10**6, 999 * 1001])
def test_real_lines_take_six_steps_where_complex_ones_do(size: int, n: int) -> None:
    layout = Layout(AbstractMesh((size,)), [S0], (n // 2 + 1,))
    methods = set()
    for real, shape in ("", (n,)), ("in", (n,)), ("out", (n // 2 + 1,)):
        task = Task(((0, n),), True, real, None, None, np.dtype(complex))
        stages = plan(layout.replace(shape=shape), task)
        methods.add(any(isinstance(stage, Chirp) for stage in stages))
    assert len(methods) == 1


def test_cropped_items_do_not_travel() -> None:
    value = np.random.default_rng(0).normal(size=(64, 16)) + 0j

    def program() -> None:
        x = da.asarray(value, mesh=da.init_device_mesh((4,)))
        with CommLog() as log:
            result = da.fft.fft(x, 8, axis=0)
        assert log.bytes("all_to_all") <= 8 * 4 * 16
        assert np.allclose(result.full_array(), np.fft.fft(value, 8, axis=0))
        with CommLog() as log:
            result = da.fft.fft(x, 80, axis=0)
        assert log.bytes() == 48 * 4 * 16  # zeros are appended where they are needed
        assert np.allclose(result.full_array(), np.fft.fft(value, 80, axis=0))

    on_ranks(program)


@pytest.mark.parametrize(
    ("mesh", "placements"), [((4,), [S0]), ((2, 2), [S0, S1]), ((2, 2), [S1, S1])]
)
def test_memory_beside_operand_and_result_is_a_block(
    mesh: tuple[int, ...], placements: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated ranks that run in turns keep what others have read until all have gone on."""
    monkeypatch.setattr(_blocks, "TILE_BYTES", 1 << 12)
    value = np.random.default_rng(0).normal(size=(32, 32, 32)) + 0j
    exchanges = len({*placements})
    assert peak_memory.scratch(da.fft.fftn, value, 4, mesh, placements) <= exchanges + 0.2


def test_partial_sums_are_reduced_once() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 8, 8))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.DistArray.from_local(values[mesh.coordinate[0]], mesh, [Partial()])
        with CommLog() as log:
            result = da.fft.fftn(x)
        assert log.count() == 1
        assert np.allclose(result.full_array(), np.fft.fftn(values.sum(0)))

    on_ranks(program)


@pytest.mark.parametrize("name", ["fft", "rfft", "fftn", "rfftn", "ifftn"])
def test_many_partial_sums_are_scattered(name: str) -> None:
    """To lines that are whole, or to an axis whose cut one exchange turns to another."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 96, 64))
    expected = getattr(np.fft, name)(values.sum(0))

    def program() -> None:
        mesh = da.init_device_mesh((4,))
        x = da.DistArray.from_local(values[mesh.coordinate[0]], mesh, [Partial()])
        with CommLog() as log:
            result = getattr(da.fft, name)(x)
        turned = 3 / 16 * expected.nbytes if name.endswith("n") else 0
        assert log.count() == 1 + bool(turned)
        assert log.bytes() <= 3 / 4 * x.nbytes + turned * 1.1
        assert result.placements == (S1 if turned else S0,)
        assert np.allclose(result.full_array(), expected)

    on_ranks(program)


def test_partial_sums_on_two_mesh_axes_and_of_one_line() -> None:
    """Of two mesh axes each scatters its sums; a line with no other axis stays whole."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 24, 30, 10))

    def program() -> None:
        mesh = da.init_device_mesh((2, 2))
        i, j = mesh.coordinate
        for placements, local in (
            ([Partial(), Partial()], values[2 * i + j]),
            ([S0, Partial()], values[2 * j : 2 * j + 2].sum(0)[12 * i : 12 * i + 12]),
            ([Partial(), S1], values[2 * i : 2 * i + 2].sum(0)[:, 15 * j : 15 * j + 15]),
        ):
            x = da.DistArray.from_local(local, mesh, placements, shape=(24, 30, 10))
            for axes in ((0, 1, 2), (2,), (1, 0), (0,)):
                result = da.fft.rfftn(x, axes=axes)
                assert not any(type(p) is Partial for p in result.placements)
                expected = np.fft.rfftn(values.sum(0), axes=axes)
                assert np.allclose(result.full_array(), expected)
        x = da.DistArray.from_local(values[2 * i + j].reshape(-1), mesh, [Partial(), Partial()])
        result = da.fft.fft(x)
        assert result.placements == (R, R)
        assert np.allclose(result.full_array(), np.fft.fft(values.sum(0).reshape(-1)))

    on_ranks(program)


def test_results_are_alike_with_and_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    value = np.random.default_rng(0).normal(size=(6, 10))
    x = da.asarray(value)
    with_scipy = da.fft.rfftn(x, workers=2)
    monkeypatch.setattr(_blocks, "_host", lambda: (np.fft, False))
    without = da.fft.rfftn(x, workers=2)
    assert np.allclose(with_scipy.full_array(), without.full_array())
    assert np.allclose(without.full_array(), np.fft.rfftn(value))
