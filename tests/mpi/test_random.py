"""Random numbers under real MPI: the same for any number of ranks, one seed where none is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.comm import DeviceMesh
from distarray.errors import ArgumentError
from distarray.layout import Replicate, Shard
from distarray.random import default_rng
from distarray.random._blocks import fill_floats
from distarray.random._seeding import derive_key
from distarray.testing import simulate

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

PARAMETERS: dict[str, tuple[Any, ...]] = {
    "beta": (0.3, 2.0),
    "binomial": (50, 0.4),
    "chisquare": (2.5,),
    "dirichlet": ([0.5, 2.0, 1.0],),
    "exponential": (2.0,),
    "f": (3.0, 5.0),
    "gamma": (0.7, 2.0),
    "geometric": (0.1,),
    "gumbel": (1.0, 2.0),
    "hypergeometric": (40, 60, 30),
    "integers": (-5, 1000),
    "laplace": (),
    "logistic": (),
    "lognormal": (),
    "logseries": (0.8,),
    "multinomial": (30, [0.2, 0.3, 0.5]),
    "multivariate_hypergeometric": ([10, 20, 30], 15),
    "multivariate_normal": ([1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]]),
    "negative_binomial": (3.5, 0.3),
    "noncentral_chisquare": (3.0, 2.0),
    "noncentral_f": (3.0, 5.0, 1.0),
    "normal": (1.0, 3.0),
    "pareto": (3.0,),
    "poisson": (12.5,),
    "power": (0.7,),
    "random": (),
    "rayleigh": (),
    "standard_cauchy": (),
    "standard_exponential": (),
    "standard_gamma": (4.5,),
    "standard_normal": (),
    "standard_t": (2.5,),
    "triangular": (-1.0, 0.5, 2.0),
    "uniform": (-1.0, 2.0),
    "vonmises": (0.5, 3.0),
    "wald": (1.0, 2.0),
    "weibull": (0.8,),
    "zipf": (2.5,),
}
"""Of the methods that take a size."""


@pytest.fixture(scope="module")
def mesh() -> DeviceMesh:
    from mpi4py import MPI

    return DeviceMesh(range(MPI.COMM_WORLD.size))


@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_block_is_its_part_of_what_one_process_makes(
    mesh: DeviceMesh, placement: Shard | Replicate
) -> None:
    shape = (150, 203)  # large enough for a kernel on two ranks and on three not
    whole = np.empty(shape)
    fill_floats(whole, "normal", derive_key((2026,)), 1, shape, ((0, 150), (0, 203)))
    rng = default_rng(2026)
    rng.random()
    block = rng.standard_normal(shape, mesh=mesh, placements=[placement])
    box = block.layout.local_box()
    expected = whole[tuple(slice(*interval) for interval in box)]
    np.testing.assert_array_equal(block.to_local(), expected)


def test_seed_that_nobody_gave_is_the_first_process_s(mesh: DeviceMesh) -> None:
    rng = default_rng()
    numbers = rng.integers(2**62, size=4, mesh=mesh, placements=[Replicate()]).to_local()
    everyone = mesh.communicator().all_gather_object((numbers.tolist(), rng.random()))
    assert everyone == [everyone[0]] * mesh.size


def test_rows_change_places_and_parameters_meet(mesh: DeviceMesh) -> None:
    """Rows move between processes, and values that make no sense raise on all of them."""
    x = da.arange(220, mesh=mesh).reshape(55, 4)
    rng = default_rng(11)
    rows = rng.permutation(x)
    assert rows.layout is x.layout
    lam = da.asarray(np.linspace(0.0, 40.0, 55), mesh=mesh)
    counts = rng.poisson(lam)
    few = rng.choice(x, 6, replace=False)
    assert rows.full_array()[:5, 0].tolist() == [156, 176, 136, 132, 56]
    assert counts.full_array()[-5:].tolist() == [40, 34, 45, 43, 42]
    assert few.full_array()[:, 0].tolist() == [36, 16, 128, 104, 44, 12]
    with pytest.raises(ArgumentError, match="lam=-"):
        rng.poisson(-lam)
    assert "draws=3" in repr(rng)


def draws(mesh: DeviceMesh, placement: Shard | Replicate) -> dict[str, np.ndarray]:
    """Return what each method of a generator draws."""
    rng, where = default_rng(31), {"mesh": mesh, "placements": [placement]}
    found = {
        name: getattr(rng, name)(*args, size=(13, 5), **where) for name, args in PARAMETERS.items()
    }
    items = da.asarray(np.arange(39.0).reshape(13, 3), **where)
    found["permutation"] = rng.permutation(items)
    found["permuted"] = rng.permuted(items, axis=0)
    found["choice"] = rng.choice(items, 7, replace=False)
    found["shuffle"] = items.copy()
    rng.shuffle(found["shuffle"])
    found["spawn"] = rng.spawn(2)[1].random((13, 5), **where)
    found = {name: x.full_array() for name, x in found.items()}
    return found | {"bytes": np.frombuffer(rng.bytes(11), np.uint8)}


@pytest.mark.eight_ranks
@pytest.mark.parametrize("placement", [Shard(0), Shard(1), Replicate()], ids=str)
def test_every_method_draws_what_one_process_draws(
    mesh: DeviceMesh, placement: Shard | Replicate
) -> None:
    alone = simulate(1, lambda: draws(DeviceMesh([0]), Replicate()))[0]
    assert {name for name in dir(np.random.Generator) if name[0] != "_"} - {"bit_generator"} == {
        *alone
    }
    for name, values in draws(mesh, placement).items():
        assert values.dtype == alone[name].dtype
        np.testing.assert_array_equal(values, alone[name], err_msg=name)
