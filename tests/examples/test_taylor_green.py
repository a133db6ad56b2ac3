"""The flow: its equations in another form, on slabs and pencils, and from a checkpoint on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import taylor_green
from numpy.fft import fftfreq, fftn, ifftn
from taylor_green import Flow, to_points, to_spectrum, vortices

import distarray as da
from distarray.testing import simulate

POINTS = 12
VISCOSITY = 0.05


def convective_tendency(u: np.ndarray) -> np.ndarray:
    """Return du/dt = P(-(u . grad) u) - viscosity k^2 u, of all waves, from and to points."""
    k = np.stack(np.meshgrid(*3 * [fftfreq(POINTS, 1 / POINTS)], indexing="ij"))
    spectrum = fftn(u, axes=(1, 2, 3))
    gradients = ifftn(1j * k[:, None] * spectrum, axes=(2, 3, 4)).real
    slope = -fftn(np.einsum("jxyz,jixyz->ixyz", u, gradients), axes=(1, 2, 3))
    slope *= (abs(k) < POINTS / 3).all(axis=0)
    k2 = (k**2).sum(axis=0)
    slope -= k * (k * slope).sum(axis=0) / np.where(k2 == 0, 1, k2)
    return ifftn(slope - VISCOSITY * k2 * spectrum, axes=(1, 2, 3)).real


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2), (8,)])
def test_tendency_is_that_of_the_convective_form(shape: tuple[int, ...]) -> None:
    alone = Flow(to_spectrum(vortices(POINTS)), VISCOSITY)
    u = to_spectrum(vortices(POINTS))
    for _ in range(2):  # all components of the velocity are there
        u = alone.advance(u, 0.2)
    expected = convective_tendency(to_points(u))

    def program() -> None:
        mesh = da.init_device_mesh(shape)
        cuts = [da.Shard(1 + i) for i in range(mesh.ndim)]
        spread = to_spectrum(da.distribute_array(to_points(u), mesh, cuts))
        flow = Flow(spread, VISCOSITY)
        with da.CommLog() as log:
            slope = flow.tendency(spread)
        assert log.count() == 3 * sum(ranks > 1 for ranks in shape)  # of three transforms
        np.testing.assert_allclose(to_points(slope).full_array(), expected, atol=1e-13)

    simulate(int(np.prod(shape)), program)


def test_energy_and_enstrophy_start_as_the_integrals_say() -> None:
    def program() -> None:
        u = to_spectrum(vortices(POINTS, da, placements=[da.Shard(1)]))
        np.testing.assert_allclose(Flow(u, VISCOSITY).measure(u), (1 / 8, 2 * VISCOSITY * 3 / 8))

    simulate(3, program)


def test_run_goes_on_with_other_ranks_to_the_same_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(ranks: int, folder: str, *arguments: str) -> str:
        given = ["--points", str(POINTS), "--out", str(tmp_path / folder), *arguments]
        (tmp_path / folder).mkdir(exist_ok=True)
        simulate(ranks, taylor_green.main, given)
        return capsys.readouterr().out

    run(3, "parts", "--steps", "2", "--save-every", "2")
    told = run(
        4, "parts", "--mesh", "2,2", "--resume", "--steps", "5", "--save-every", "5", "--check"
    )
    run(1, "whole", "--steps", "5", "--save-every", "5")
    parts, whole = (
        da.checkpoint.open(tmp_path / folder / "taylor_green") for folder in ("parts", "whole")
    )
    np.testing.assert_allclose(parts["u"][...], whole["u"][...], rtol=0, atol=1e-15 * POINTS**3)
    np.testing.assert_allclose(parts["history"], whole["history"], rtol=1e-13)
    assert [time for time, *_ in whole["history"]] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert float(told.split("from NumPy ")[1].split()[0]) < 1e-15
    lost, dissipated = (
        float(told.split(word)[1].split()[0].strip(",")) for word in ("lost", "dissipated")
    )
    assert lost == pytest.approx(dissipated, rel=1e-3)


def test_checkpoints_of_another_run_are_seen_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--points", "4", "--save-every", "1", "--out", str(tmp_path)]
    simulate(2, taylor_green.main, [*given, "--steps", "2"])
    with pytest.raises(SystemExit):
        taylor_green.main([*given, "--steps", "1"])
    assert "pass --resume, or another --out" in capsys.readouterr().err
    taylor_green.main([*given, "--steps", "3", "--resume"])
    assert da.checkpoint.latest(tmp_path / "taylor_green") == 3
