"""The NumPy twin of `flights_pca_kmeans`: the same question on one process, without distarray.

It shares nothing with the other program but the reader, and prefers other formulas where there is a
choice, so that agreement to 1e-10 means something.
"""

from __future__ import annotations

import flights_data
import numpy as np


def fit(rows: np.ndarray, components: int, clusters: int) -> dict[str, np.ndarray]:
    """Standardise, find the principal components, and cluster the scores to convergence.

    Returns
    -------
    dict
        ``mean``, ``std``, ``variances``, ``components`` (features, components), ``centres``
        (clusters, components), ``sizes`` (clusters,), ``labels`` (rows,), ``iterations`` and
        ``inertia``.
    """
    mean = np.average(rows, axis=0)
    std = np.sqrt(np.average((rows - mean) ** 2, axis=0))
    standard = (rows - mean) / std
    variances, vectors = np.linalg.eigh(np.cov(standard, rowvar=False, bias=True))
    variances, vectors = variances[::-1][:components], vectors[:, ::-1][:, :components].copy()
    for column in vectors.T:
        column *= np.sign(max(column, key=abs))
    scores = np.dot(standard, vectors)

    centres = scores[[(2 * i + 1) * len(rows) // (2 * clusters) for i in range(clusters)]]
    labels = np.full(len(rows), -1)
    iterations = 0
    while True:
        iterations += 1
        squares = np.stack([((scores - centre) ** 2).sum(axis=1) for centre in centres])
        nearest = squares.argmin(axis=0)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for cluster in np.unique(labels):
            centres[cluster] = np.average(scores[labels == cluster], axis=0)
    return {
        "mean": mean,
        "std": std,
        "variances": variances,
        "components": vectors,
        "centres": centres,
        "sizes": np.bincount(labels, minlength=clusters),
        "labels": labels,
        "iterations": np.asarray(iterations),
        "inertia": np.asarray(squares.min(axis=0).sum()),
    }


if __name__ == "__main__":
    for name, value in fit(flights_data.read_part(0, 1), components=3, clusters=5).items():
        print(name, value, sep=":\n")
