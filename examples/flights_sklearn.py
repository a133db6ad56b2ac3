"""scikit-learn, unmodified, on 327,346 flights of which each rank holds its part only.

Run it as ``mpiexec -n 4 python examples/flights_sklearn.py``. It scales the flights, finds their
principal components, predicts by how many minutes they arrive late, and which are late at all.
`fit` does the same with NumPy arrays: ``--one`` runs it so, on each rank alone, to compare. Needs
the extra ``examples``.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn asks for it, before SciPy's import

import flights_data
import numpy as np
import sklearn
from arguments import at_least
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, r2_score
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import StandardScaler

import distarray as da

MINUTES = 15.0
"""Flights that arrive later than this are late, as the US Department of Transportation counts."""


def fit(flights: Any) -> dict[str, Any]:
    """Fit scikit-learn's estimators to flights.

    Parameters
    ----------
    flights : array, shape (rows, features)
        NumPy's, or distributed by rows.

    Returns
    -------
    dict
        ``mean`` and ``scale`` of each feature, ``components`` and ``variance`` (2 of them),
        ``weights`` of the features that are known before landing, ``r2`` of the minutes of delay,
        and the share of flights that naive Bayes tells rightly to be late or not, ``accuracy``.
    """
    delay = flights_data.FEATURES.index("arr_delay")
    known = [i for i in range(len(flights_data.FEATURES)) if i != delay]
    with sklearn.config_context(array_api_dispatch=True):
        scaler = StandardScaler().fit(flights)
        standard = scaler.transform(flights)
        pca = PCA(n_components=2, svd_solver="covariance_eigh").fit(standard)
        features, minutes = standard[:, known], flights[:, delay]
        ridge = Ridge(solver="svd").fit(features, minutes)
        late = (minutes > MINUTES) * 1
        bayes = GaussianNB().fit(features, late)
        return {
            "mean": np.asarray(scaler.mean_),
            "scale": np.asarray(scaler.scale_),
            "components": np.asarray(pca.components_),
            "variance": np.asarray(pca.explained_variance_ratio_),
            "weights": np.asarray(ridge.coef_),
            "r2": float(r2_score(minutes, ridge.predict(features))),
            "accuracy": float(accuracy_score(late, bayes.predict(features))),
        }


def main(arguments: list[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=at_least(1e-4, float, 1), default=1.0, help="of the flights (1)"
    )
    parser.add_argument("--one", action="store_true", help="with NumPy, all of it on each rank")
    options = parser.parse_args(arguments)
    mesh = da.default_mesh()
    if options.one:
        flights = flights_data.read_part(0, 1, share=options.share)
        found = fit(flights)
    else:
        part = flights_data.read_part(mesh.rank, mesh.size, share=options.share)
        flights = da.DistArray.from_local(part, mesh, [da.Shard(0)])
        # The small arrays that scikit-learn makes it writes into by pieces: every rank has them.
        # Without this, where axes are cut, estimators such as GaussianMixture raise ReadOnlyError.
        defaults = da.use_mesh(mesh, min_items=10_000)
        with defaults, da.communication("raise", min_bytes=2**20), np.errstate(invalid="ignore"):
            found = fit(flights)
    if mesh.rank == 0:
        held = flights.nbytes if options.one else flights.to_local().nbytes
        print(f"{flights.shape[0]} flights, {held / 2**20:.1f} MiB of them on a rank")
        print(f"two components explain {found['variance'].sum():.1%} of the variance")
        print(f"minutes of delay: R2 {found['r2']:.3f}")
        print(f"late or not: {found['accuracy']:.1%} told rightly by naive Bayes")


if __name__ == "__main__":
    main()
