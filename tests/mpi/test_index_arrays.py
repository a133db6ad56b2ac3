"""Index arrays under MPI: what ranks read and write is what NumPy does, also between nodes."""

from __future__ import annotations

import numpy as np
import pytest

import distarray as da
from distarray.comm import CommLog
from distarray.errors import IndexingError
from distarray.layout import Replicate, Shard

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

CUTS = [Shard(0), Shard(1), Replicate()]


def array(values: np.ndarray, placement: object) -> da.DistArray:
    return da.distribute_array(values, placements=[placement], src=None)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("width", [1, 8, 300])
def test_rows_are_read_and_written_as_by_numpy(cut, width):
    rng = np.random.default_rng(7)
    values = rng.random((501, width))
    index = rng.integers(-501, 501, 700)
    x, places = array(values, cut), array(index, Shard(0))
    y = x[places]
    assert np.array_equal(y.full_array(), values[index])
    written = rng.random((700, width))
    x[places] = array(written, cut)
    values[index] = written
    assert np.array_equal(x.full_array(), values)
    np.add.at(x, places, array(written * 0.1, Shard(0)))
    np.add.at(values, index, written * 0.1)
    assert x.full_array().tobytes() == values.tobytes()


def test_items_of_several_axes_and_lines():
    rng = np.random.default_rng(8)
    values = rng.random((30, 40, 3))
    first, second = rng.integers(0, 30, (20, 7)), rng.integers(-40, 0, (20, 1))
    for cut in (0, 1, 2):
        x = array(values, Shard(cut))
        own = array(first, Shard(1)), array(second, Shard(0))
        assert np.array_equal(x[own].full_array(), values[first, second])
        assert np.array_equal(x[:, ::-1][own].full_array(), values[:, ::-1][first, second])
        order = np.argsort(values, axis=1)
        taken = da.take_along_axis(x, array(order, Shard(0)), axis=1)
        assert np.array_equal(taken.full_array(), np.sort(values, axis=1))
        x[own] = [1, 2, 3]
        expected = values.copy()
        expected[first, second] = [1, 2, 3]
        assert np.array_equal(x.full_array(), expected)


def test_only_rows_that_a_rank_lacks_are_received():
    comm = da.default_mesh().communicator()
    n = 64 * comm.size
    places = np.random.default_rng(5).permutation(n)
    x, index = array(np.ones((n, 16)), Shard(0)), array(places, Shard(0))
    mine = places[comm.rank * 64 : comm.rank * 64 + 64]
    with CommLog() as log:
        x[index]
    assert log.bytes("rows") == 128 * np.count_nonzero(mine // 64 != comm.rank)


def test_an_index_out_of_range_on_one_rank_raises_on_all():
    comm = da.default_mesh().communicator()
    index = np.zeros(4 * comm.size, int)
    index[-1] = 10
    x = array(np.arange(10.0), Shard(0))
    for _ in range(3):
        with pytest.raises(IndexingError, match="index 10 is out of range"):
            x[array(index, Shard(0))]
        with pytest.raises(IndexingError, match="index 10 is out of range"):
            x[array(index, Shard(0))] = 3
    assert np.array_equal(x.full_array(), np.arange(10.0))
