"""Principal components and k-means of 327,346 flights, each rank holding its part only.

Run it as ``mpiexec -n 4 python examples/flights_pca_kmeans.py``. It writes ``flights.npz`` and
``flights.png``; `flights_numpy` is its twin on one process, with the same answer to 1e-10.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import flights_data
import numpy as np
from arguments import at_least
from tqdm import tqdm

import distarray as da


def fit(
    rows: da.DistArray, components: int, clusters: int, *, progress: bool = False
) -> dict[str, np.ndarray | da.DistArray]:
    """Standardise, find the principal components, and cluster the scores to convergence.

    Parameters
    ----------
    rows
        Flights by features, split over the flights in whatever way.
    components, clusters
        How many to find.
    progress
        Show a bar.

    Returns
    -------
    dict
        ``mean``, ``std``, ``variances``, ``components`` (features, components), ``centres``
        (clusters, components), ``sizes`` (clusters,), ``iterations`` and ``inertia``, the same on
        every rank, and ``scores`` (rows, components) and ``labels`` (rows,), split as the rows are.
    """
    count = rows.shape[0]
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    standard = (rows - mean) / std
    # The inner axis is split: each rank has a part of the sum, and np.asarray adds the parts up.
    covariance = np.asarray(standard.T @ standard) / count
    variances, vectors = _leading(covariance, components)
    scores = standard @ vectors

    centres = np.stack(
        [np.asarray(scores[(2 * i + 1) * count // (2 * clusters)]) for i in range(clusters)]
    )
    labels = da.full_like(scores[:, 0], -1)
    rounds = tqdm(itertools.count(1), "clustering", unit=" rounds", disable=not progress)
    for iterations in rounds:  # noqa: B007 - told in the result
        # |s - c|^2 without |s|^2, which is the same for every centre
        distances = (centres**2).sum(axis=1) - 2 * (scores @ centres.T)
        nearest = distances.argmin(axis=1)
        if not da.any(nearest != labels):
            break
        labels = nearest
        member = da.astype(labels[:, None] == np.arange(clusters), np.float64)
        sizes, sums = np.asarray(member.sum(axis=0)), np.asarray(member.T @ scores)
        filled = sizes > 0
        centres[filled] = sums[filled] / sizes[filled, None]
    inertia = float((scores**2).sum()) + float(distances.min(axis=1).sum())
    return {
        "mean": np.asarray(mean),
        "std": np.asarray(std),
        "variances": variances,
        "components": vectors,
        "centres": centres,
        "sizes": sizes.astype(np.int64),
        "iterations": np.asarray(iterations),
        "inertia": np.asarray(inertia),
        "scores": scores,
        "labels": labels,
    }


def _leading(covariance: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Take the leading eigenpairs, each vector with its largest entry positive."""
    variances, vectors = np.linalg.eigh(covariance)
    variances, vectors = variances[::-1][:components], vectors[:, ::-1][:, :components]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(components)]
    return variances, vectors * np.sign(largest)


def draw(path: Path, points: np.ndarray, labels: np.ndarray, result: dict[str, np.ndarray]) -> None:
    """Draw some of the scores by cluster, and what the components are made of."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.scatter(points[:, 0], points[:, 1], c=labels, s=5, cmap="tab10", vmin=0, vmax=9)
    left.scatter(*result["centres"][:, :2].T, marker="x", c="black", s=60)
    left.set(xlabel="component 1", ylabel="component 2", title="Flights by cluster")
    bound = np.abs(result["components"]).max()
    image = right.imshow(result["components"], cmap="RdBu", vmin=-bound, vmax=bound, aspect="auto")
    right.set_yticks(range(len(flights_data.FEATURES)), flights_data.FEATURES)
    right.set_xticks(
        range(len(result["variances"])),
        [f"{i + 1} ({v:.2f})" for i, v in enumerate(result["variances"])],
    )
    right.set(xlabel="component (variance)", title="What they are made of")
    figure.colorbar(image)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    """Read, fit, and write the result from rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clusters", type=at_least(1), default=5)
    parser.add_argument(
        "--components", type=at_least(1, most=len(flights_data.FEATURES)), default=3
    )
    parser.add_argument(
        "--share",
        type=at_least(1e-4, float, 1),
        default=1.0,
        help="leading share of the table to read",
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the result and plot")
    options = parser.parse_args(arguments)

    mesh = da.default_mesh()
    first = mesh.rank == 0
    part = flights_data.read_part(mesh.rank, mesh.size, share=options.share, progress=first)
    rows = da.DistArray.from_local(
        part, mesh, [da.Shard(0)]
    )  # blocks are uneven: gaps were left out
    result = fit(rows, options.components, options.clusters, progress=first)

    scores, labels = result.pop("scores"), result.pop("labels")
    step = max(1, rows.shape[0] // 4000)
    points, colours = np.asarray(scores[::step]), np.asarray(labels[::step])
    labels = np.asarray(labels)
    if first:
        options.out.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(options.out / "flights.npz", labels=labels.astype(np.int8), **result)
        draw(options.out / "flights.png", points, colours, result)
        print(f"{rows.shape[0]} flights on {mesh.size} ranks, {int(result['iterations'])} rounds")
        for size, centre in zip(result["sizes"], result["centres"], strict=True):
            print(f"  {size:7d} around {np.array2string(centre, precision=3)}")
        print(f"written to {options.out.resolve()}: flights.npz, flights.png")


if __name__ == "__main__":
    main()
