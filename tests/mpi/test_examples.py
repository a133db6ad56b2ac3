"""The example programs under MPI: the answers of their NumPy twins on any number of ranks."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from types import ModuleType

import diffusion
import flights_data
import flights_numpy
import flights_pca_kmeans
import gaussian_process
import heat_equation
import hello_layout
import numpy as np
import option_prices
import photograph_pca
import pytest
import taylor_green

import distarray as da

pytestmark = pytest.mark.mpi

README = Path(__file__).resolve().parents[2] / "README.md"
SHARE = 0.02
TOLERANCE = 1e-10


@pytest.mark.eight_ranks
def test_flights_agree_with_numpy() -> None:
    mesh = da.default_mesh()
    part = flights_data.read_part(mesh.rank, mesh.size, share=SHARE)
    rows = da.DistArray.from_local(part, mesh, [da.Shard(0)])
    found = flights_pca_kmeans.fit(rows, components=3, clusters=5)
    whole = flights_data.read_part(0, 1, share=SHARE)
    expected = flights_numpy.fit(whole, components=3, clusters=5)

    assert rows.shape == whole.shape
    assert found["iterations"] == expected["iterations"]
    np.testing.assert_array_equal(found["sizes"], expected["sizes"])
    np.testing.assert_array_equal(np.asarray(found["labels"]), expected["labels"])
    for name in ("mean", "std", "variances", "components", "centres"):
        np.testing.assert_allclose(found[name], expected[name], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_allclose(found["inertia"], expected["inertia"], rtol=TOLERANCE)


def test_scikit_learn_agrees_with_one_process() -> None:
    import flights_sklearn  # here, as eight ranks need no scikit-learn

    mesh = da.default_mesh()
    part = flights_data.read_part(mesh.rank, mesh.size, share=SHARE)
    rows = da.DistArray.from_local(part, mesh, [da.Shard(0)])
    with (
        da.use_mesh(mesh, min_items=1000),
        da.communication("raise", min_bytes=2**20),
        np.errstate(invalid="ignore"),
    ):
        found = flights_sklearn.fit(rows)
    expected = flights_sklearn.fit(flights_data.read_part(0, 1, share=SHARE))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=TOLERANCE, atol=TOLERANCE)


def test_flights_program_writes_result_and_plot(mpi_tmp_path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        flights_pca_kmeans.main(["--share", "0.002", "--clusters", "3", "--out", str(mpi_tmp_path)])
    if da.default_mesh().rank == 0:
        with np.load(mpi_tmp_path / "flights.npz") as result:
            assert len(result["labels"]) == result["sizes"].sum()
            assert result["centres"].shape == (3, 3)
        assert (mpi_tmp_path / "flights.png").read_bytes().startswith(b"\x89PNG")


def test_heat_equation_is_numpy_to_the_bit() -> None:
    world = da.default_mesh()
    mesh = da.init_device_mesh(heat_equation.mesh_shape(world.size))
    start = heat_equation.start(41)
    plate = da.distribute_array(start, mesh, [da.Shard(0), da.Shard(1)])
    result = heat_equation.diffuse(plate, 6)
    np.testing.assert_array_equal(np.asarray(result), heat_equation.diffuse_alone(start, 6))


@pytest.mark.parametrize(
    ("program", "arguments", "told"),
    [
        (diffusion, ["--points", "9", "--steps", "2"], "SciPy took"),
        (taylor_green, ["--points", "8", "--steps", "3", "--save-every", "2"], "energy lost"),
        (option_prices, ["--paths", "2000", "--days", "4", "--batch", "1100"], "the same bits"),
        (gaussian_process, ["--points", "90", "--grid", "5"], "is the likeliest"),
        (photograph_pca, ["--size", "2"], "of the variance"),
    ],
)
def test_program_agrees_with_its_twin_and_draws(
    program: ModuleType, arguments: list[str], told: str, mpi_tmp_path: Path
) -> None:
    output, folder = io.StringIO(), mpi_tmp_path / "not there yet"
    with contextlib.redirect_stdout(output):
        program.main([*arguments, "--check", "--out", str(folder)])
    if da.default_mesh().rank == 0:
        assert told in output.getvalue()
        differences = re.findall(r"\d\.\de[-+]\d\d", output.getvalue())
        assert all(float(one) < 1e-9 for one in differences)
        assert differences or "the same bits" in output.getvalue()
        picture = folder / f"{program.__name__}.png"
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_diffusion_is_scipys_with_as_many_iterations() -> None:
    world = da.default_mesh()
    mesh = da.init_device_mesh(diffusion.mesh_shape(world.size))
    start = diffusion.start(13)
    cube = da.distribute_array(start, mesh, [da.Shard(0), da.Shard(1), da.Shard(2)], src=None)
    result, iterations = diffusion.diffuse(cube, 2, 3.0, 1e-10)
    expected, alone = diffusion.diffuse_alone(start, 2, 3.0, 1e-10)
    assert iterations == alone
    np.testing.assert_allclose(np.asarray(result), expected, atol=1e-9)


def test_hello_layout_moves_a_real_array() -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        hello_layout.main()
    if da.default_mesh().rank == 0:
        assert "the values are the same" in output.getvalue()
    else:
        assert output.getvalue() == ""


@pytest.mark.mpi(min_size=4)
def test_readme_program_prints_what_the_readme_says() -> None:
    text = README.read_text()
    program, shown = re.findall(r"```(?:python|text)\n(.*?)```", text, re.DOTALL)[:2]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "the README program", "exec"), {"__name__": "__main__"})
    if da.default_mesh().rank == 0:
        assert output.getvalue() == shown
    else:
        assert output.getvalue() == ""
