"""Taylor-Green vortices that break up: a pseudo-spectral flow in a box, on slabs or pencils.

Run it as ``mpiexec -n 4 python examples/taylor_green.py --check``. It writes ``taylor_green.png``.
With ``--save-every 50`` it writes checkpoints, from which ``--resume`` goes on with any other
number of ranks and on another mesh. ``--viscosity 1/1600`` is the flow that others compare with
(Brachet et al. 1983).

The solver is NumPy's: it calls ``np.fft`` and knows nothing of ranks. Given a NumPy array it is its
own twin on one process; given a distributed one, each transform turns the array in one exchange,
and the inverse turns it back. See docs/examples.md.
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from arguments import at_least, mesh_shape

import distarray as da


def vortices(n: int, xp: Any = np, **options: Any) -> Any:
    """Make the starting velocity, (3, n, n, n), on the box from 0 to 2 pi."""
    s, c = (f(2 * np.pi / n * np.arange(n)) for f in (np.sin, np.cos))
    u = xp.zeros((3, n, n, n), **options)
    u[0] = s[:, None, None]
    u[0] *= c[:, None] * c
    u[1] = -c[:, None, None]
    u[1] *= s[:, None] * c
    return u


def to_spectrum(u: Any) -> Any:
    """Transform a vector field."""
    return np.fft.rfftn(u, axes=(1, 2, 3))


def to_points(spectrum: Any) -> Any:
    """Transform a vector field back."""
    n = spectrum.shape[1]
    return np.fft.irfftn(spectrum, s=(n, n, n), axes=(1, 2, 3))


class Flow:
    """Navier-Stokes for the Fourier coefficients `u` of a velocity without divergence.

    In rotational form, du/dt = P(u x curl u) - viscosity k^2 u, where P takes away the part along
    the wave vector k, and with it the pressure.
    """

    def __init__(self, u: Any, viscosity: float) -> None:
        n = u.shape[1]
        full, half = np.fft.fftfreq(n, 1 / n), np.fft.rfftfreq(n, 1 / n)
        self.k = full[:, None, None], full[:, None], half
        self.k2 = np.zeros_like(u[0], dtype=float)  # laid out as u is, and so is what follows
        for k in self.k:
            self.k2 += k**2
        cut = [np.abs(k) < n / 3 for k in self.k]  # products of two waves alias into the rest
        self.kept = np.logical_and(np.logical_and(self.k2 > 0, cut[0]), cut[1] & cut[2])
        self.inverse = self.kept / np.maximum(self.k2, 1)
        self.weight = np.where(half > 0, 1.0, 0.5) / n**6  # of a wave and its conjugate
        self.viscosity = viscosity

    def curl(self, u: Any) -> Any:
        """Return the coefficients of the vorticity."""
        (kx, ky, kz), (ux, uy, uz) = self.k, u
        w = np.stack([ky * uz - kz * uy, kz * ux - kx * uz, kx * uy - ky * ux])
        w *= 1j
        return w

    def tendency(self, u: Any) -> Any:
        """Return du/dt."""
        slope = to_spectrum(np.cross(to_points(u), to_points(self.curl(u)), axis=0))
        slope *= self.kept
        along = sum(k * s for k, s in zip(self.k, slope, strict=True)) * self.inverse
        for i, k in enumerate(self.k):
            slope[i] -= k * along
        slope -= self.viscosity * self.k2 * u
        return slope

    def advance(self, u: Any, dt: float) -> Any:
        """Take a step of the classical Runge-Kutta method."""
        ahead, after = u, u.copy()
        for share, reach in ((1 / 6, 1 / 2), (1 / 3, 1 / 2), (1 / 3, 1), (1 / 6, 0)):
            slope = self.tendency(ahead)
            after += share * dt * slope
            slope *= reach * dt
            slope += u
            ahead = slope
        return after

    def measure(self, u: Any) -> tuple[float, float]:
        """Return the kinetic energy and its dissipation, per volume, by Parseval's theorem."""
        energy = (u.real**2 + u.imag**2).sum(axis=0) * self.weight
        return float(energy.sum()), 2 * self.viscosity * float((self.k2 * energy).sum())


def draw(path: Path, history: np.ndarray, plane: np.ndarray) -> None:
    """Draw energy and dissipation over time, and the vorticity in a plane."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    time, energy, dissipation = history.T
    left.plot(time, energy / energy[0], label="energy / energy at the start")
    left.plot(time, dissipation / dissipation.max(), label="dissipation / its largest")
    left.set(xlabel="time", ylim=(0, 1.05))
    left.legend()
    image = right.imshow(plane.T, origin="lower", extent=(0, 2 * np.pi) * 2, cmap="magma")
    right.set(xlabel="x", ylabel="y", title=f"vorticity at z = pi / 4, time {time[-1]:.2f}")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Begin or resume, advance with checkpoints, and compare and draw on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=at_least(1), default=32, help="grid points along a side")
    parser.add_argument("--viscosity", type=at_least(0, Fraction), default=Fraction(1, 100))
    parser.add_argument("--dt", type=at_least(0, float), default=0.05, help="time step")
    parser.add_argument("--steps", type=at_least(0), default=120, help="from time 0")
    parser.add_argument("--mesh", type=mesh_shape, help="such as 2,2 for pencils; default: slabs")
    parser.add_argument(
        "--save-every", type=at_least(0), default=0, help="steps; default: no checkpoints"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    parser.add_argument("--check", action="store_true", help="compare with the twin in NumPy")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for what is written")
    options = parser.parse_args(arguments)
    n, viscosity = options.points, float(options.viscosity)
    checkpoints = options.out / "taylor_green"
    if options.save_every and not options.resume and da.checkpoint.latest(checkpoints) is not None:
        parser.error(
            f"{checkpoints} has checkpoints of another run: pass --resume, or another --out"
        )

    world = da.default_mesh()
    mesh = da.init_device_mesh(options.mesh or (world.size,))
    cuts = [da.Shard(1 + i) for i in range(mesh.ndim)]
    u = to_spectrum(vortices(n, da, mesh=mesh, placements=cuts))
    step, history = 0, []
    if options.resume:  # into the layout of this run, whatever that of the last one was
        found = da.checkpoint.load(checkpoints, {"u": u, "step": None, "history": None})
        step, history = found["step"], found["history"]
    flow = Flow(u, viscosity)
    history = history or [[0.0, *flow.measure(u)]]
    while step < options.steps:
        u = flow.advance(u, options.dt)
        step += 1
        history.append([step * options.dt, *flow.measure(u)])
        if options.save_every and step % options.save_every == 0:
            state = {"u": u, "step": step, "history": history}
            da.checkpoint.save(checkpoints, state, step=step, keep_last=2)

    plane = np.sqrt((to_points(flow.curl(u))[..., n // 8] ** 2).sum(axis=0)).full_array(dst=0)
    whole = u.full_array(dst=0) if options.check else None
    if mesh.rank != 0:
        return
    time, energy, dissipation = np.transpose(history)
    print(f"{u.layout}, viscosity {options.viscosity}, step {step}, time {time[-1]:.2f}")
    print(f"energy {energy[-1]:.12f}, dissipation {dissipation[-1]:.12f}")
    dissipated = np.trapezoid(dissipation, time)
    print(f"energy lost {energy[0] - energy[-1]:.8f}, dissipated {dissipated:.8f}")
    if options.check:
        alone = to_spectrum(vortices(n))
        flow = Flow(alone, viscosity)
        for _ in range(step):
            alone = flow.advance(alone, options.dt)
        print(f"largest difference from NumPy {np.abs(whole - alone).max() / n**3:.1e}")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / "taylor_green.png", np.asarray(history), plane)
    except ImportError:
        print("no picture without matplotlib")


if __name__ == "__main__":
    main()
