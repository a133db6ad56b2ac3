"""Principal components of all patches of a photograph, by the SVD of a tall matrix.

Run it as ``mpiexec -n 4 python examples/photograph_pca.py --check``. It writes
``photograph_pca.png``. A photograph that comes with scikit-learn is cut by rows; a halo gives each
rank the rows below its own that the patches at its edge reach into. Each patch is a row of a matrix
of 265,860 x 64, which no rank has: the ranks factorize their rows, and tell each other triangles of
64 x 64 (TSQR: Demmel, Grigori, Hoemmen and Langou, 2012).

What comes out are waves, from slow to fast: nearly those of the cosine transform in JPEG, which
Ahmed, Natarajan and Rao (1974) proposed for this reason. `components` is NumPy's code: given NumPy
arrays it is its own twin. See docs/examples.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from arguments import at_least
from numpy.lib.stride_tricks import sliding_window_view

import distarray as da


def photograph(name: str) -> np.ndarray:
    """Return the brightness of a photograph: 427 x 640 numbers from 0 to 1."""
    from sklearn.datasets import load_sample_image

    return load_sample_image(name) @ np.array([0.299, 0.587, 0.114]) / 255  # ITU-R BT.601


def patches(image: np.ndarray, size: int) -> np.ndarray:
    """Return all patches of size x size as rows."""
    rows = max(len(image) - size + 1, 0)
    found = sliding_window_view(image, (size, size)) if rows else image[:0]
    return found.reshape(-1, size * size)


def distributed_patches(image: da.DistArray, size: int) -> da.DistArray:
    """Return the patches of a distributed image, each on the rank that has its upper edge."""
    seen = da.halo(image, {0: (0, size - 1)}).block
    return da.DistArray.from_local(patches(seen, size), image.mesh, image.placements)


def components(rows: Any) -> tuple[Any, Any, Any]:
    """Return the share of the variance of each component, the components and all scores."""
    centred = rows - rows.mean(axis=0)
    u, s, vh = np.linalg.svd(centred, full_matrices=False)
    variances = s**2
    return variances / variances.sum(), vh, u * s


def draw(path: Path, shares: np.ndarray, waves: np.ndarray) -> None:
    """Draw the first components as patches, and the variance that they leave."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    size = int(len(waves) ** 0.5)
    for axes, wave in zip(left.subplots(4, 6).flat, waves, strict=False):
        axes.imshow(wave.reshape(size, size), cmap="gray")
        axes.set_axis_off()
    left.suptitle("the first components")
    axes = right.subplots()
    axes.semilogy(np.arange(1, len(shares)), 1 - shares.cumsum()[:-1])
    axes.set(xlabel="components that are kept", ylabel="share of the variance that is lost")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Factorize, and compare and draw on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--photograph", choices=["china.jpg", "flower.jpg"], default="flower.jpg")
    parser.add_argument(
        "--size", type=at_least(1), default=8, help="points along a side of a patch"
    )
    parser.add_argument("--check", action="store_true", help="compare with the twin in NumPy")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    options = parser.parse_args(arguments)

    image = photograph(options.photograph)
    if options.size > min(image.shape):
        parser.error(f"no patch of {options.size} points lies in a photograph of {image.shape}")
    rows = distributed_patches(da.distribute_array(image), options.size)
    with da.communication("raise", min_bytes=rows.nbytes // 100):  # nothing large moves
        shares, waves, scores = (*components(rows),)
    shares, waves = np.asarray(shares), np.asarray(waves)
    if da.default_mesh().rank != 0:
        return
    print(f"{rows.layout}: rank 0 has {scores.to_local().shape[0]} of the patches")
    for count in (1, 4, 16):
        print(f"{count:2d} of {len(shares)} components: {shares[:count].sum():.4%} of the variance")
    if options.check:
        expected, others, _ = components(patches(image, options.size))
        waves = waves * np.sign((waves * others).sum(axis=1, keepdims=True))  # the sign is free
        print(f"largest difference from NumPy: {np.abs(shares - expected).max():.1e} of shares,")
        print(f"{np.abs(waves - others).max():.1e} of components")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(options.out / "photograph_pca.png", shares, waves)
    except ImportError:
        print("no picture without matplotlib")


if __name__ == "__main__":
    main()
