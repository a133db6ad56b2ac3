"""scikit-learn, unmodified, gives with distributed arrays what it gives with NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from tests.mpi.rank_counts import only_on

only_on(3)
sklearn = pytest.importorskip("sklearn", minversion="1.9")

from sklearn import datasets, metrics  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # noqa: E402
from sklearn.kernel_approximation import Nystroem  # noqa: E402
from sklearn.linear_model import (  # noqa: E402
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    RidgeClassifierCV,
    RidgeCV,
)
from sklearn.mixture import GaussianMixture  # noqa: E402
from sklearn.model_selection import cross_val_predict, train_test_split  # noqa: E402
from sklearn.naive_bayes import GaussianNB  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    LabelEncoder,
    MinMaxScaler,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

CELLS, IS_BENIGN = datasets.load_breast_cancer(return_X_y=True)
SCALED = (CELLS - CELLS.mean(0)) / CELLS.std(0)
PATIENTS, PROGRESS = datasets.load_diabetes(return_X_y=True)
TOLERANCE = 1e-10

ESTIMATORS: dict[str, tuple[Callable[[], Any], np.ndarray, Any, tuple[str, ...]]] = {
    "StandardScaler": (StandardScaler, CELLS, None, ("transform", "mean_", "var_")),
    "MinMaxScaler": (MinMaxScaler, CELLS, None, ("transform",)),
    "Normalizer": (Normalizer, CELLS, None, ("transform",)),
    "PolynomialFeatures": (PolynomialFeatures, CELLS[:, :4], None, ("transform",)),
    "Nystroem": (lambda: Nystroem(n_components=9, random_state=0), SCALED, None, ("transform",)),
    "LabelEncoder": (LabelEncoder, IS_BENIGN, None, ("transform", "classes_")),
    "PCA": (lambda: PCA(3, svd_solver="full"), SCALED, None, ("transform", "components_")),
    "PCA by eigenvalues": (
        lambda: PCA(3, svd_solver="covariance_eigh"),
        SCALED,
        None,
        ("transform", "explained_variance_"),
    ),
    "PCA randomized": (
        lambda: PCA(3, svd_solver="randomized", random_state=0, power_iteration_normalizer="QR"),
        SCALED,
        None,
        ("explained_variance_",),
    ),
    "Ridge": (lambda: Ridge(solver="svd"), PATIENTS, PROGRESS, ("predict", "coef_")),
    "RidgeCV": (RidgeCV, PATIENTS, PROGRESS, ("predict", "coef_")),
    "RidgeClassifierCV": (RidgeClassifierCV, SCALED, IS_BENIGN, ("predict", "coef_")),
    "PoissonRegressor": (
        lambda: PoissonRegressor(max_iter=300, tol=1e-10),
        PATIENTS,
        PROGRESS,
        ("predict", "coef_"),
    ),
    "LinearDiscriminantAnalysis": (
        LinearDiscriminantAnalysis,
        SCALED,
        IS_BENIGN,
        ("predict", "predict_proba", "coef_"),
    ),
    "GaussianNB": (GaussianNB, CELLS, IS_BENIGN, ("predict", "predict_proba", "theta_")),
    "GaussianMixture": (
        lambda: GaussianMixture(2, init_params="random_from_data", random_state=0, max_iter=20),
        SCALED[:, :4],
        None,
        ("predict", "means_"),
    ),
    "LogisticRegression": (
        lambda: LogisticRegression(max_iter=300),
        SCALED,
        IS_BENIGN,
        ("predict", "predict_proba", "coef_"),
    ),
}
"""An estimator, what it is fitted to, and what is compared."""

CLASSES = np.random.default_rng(0).permutation(IS_BENIGN)
MINUTES = PROGRESS + np.random.default_rng(1).normal(size=PROGRESS.size)
SCORES = {
    "accuracy_score": (IS_BENIGN, CLASSES),
    "confusion_matrix": (IS_BENIGN, CLASSES),
    "f1_score": (IS_BENIGN, CLASSES),
    "jaccard_score": (IS_BENIGN, CLASSES),
    "brier_score_loss": (IS_BENIGN, np.random.default_rng(2).random(IS_BENIGN.size)),
    "log_loss": (IS_BENIGN, np.random.default_rng(2).random(IS_BENIGN.size)),
    "mean_absolute_error": (PROGRESS, MINUTES),
    "mean_poisson_deviance": (PROGRESS, np.abs(MINUTES)),
    "mean_squared_error": (PROGRESS, MINUTES),
    "median_absolute_error": (PROGRESS, MINUTES),
    "r2_score": (PROGRESS, MINUTES),
    "roc_auc_score": (IS_BENIGN, np.random.default_rng(3).random(IS_BENIGN.size)),
}

GATHERS = {"confusion_matrix", "log_loss", "roc_auc_score"}
"""Scores of which scikit-learn brings the labels to NumPy."""


@pytest.fixture(autouse=True)
def _dispatch() -> Iterator[None]:
    with (
        sklearn.config_context(array_api_dispatch=True),
        da.use_mesh(da.default_mesh(), min_items=200),
        da.communication("raise", min_bytes=2**20),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        yield


def _rows(x: Any) -> Any:
    return x if x is None else da.distribute_array(x, da.default_mesh(), [da.Shard(0)], src=None)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_agree_with_one_process(name: str) -> None:
    make, x, y, asked = ESTIMATORS[name]

    def fit(convert: Callable[[Any], Any]) -> dict[str, Any]:
        given = [convert(one) for one in (x, y) if one is not None]
        estimator = make().fit(*given)
        found = {}
        for what in asked:
            value = getattr(estimator, what)
            found[what] = value(given[0]) if callable(value) else value
        return found

    expected = fit(lambda array: array)
    with da.communication("raise", min_bytes=x.nbytes // 5):  # less than a block on four ranks
        found = fit(_rows)
    for what, value in found.items():
        assert isinstance(value, da.DistArray)
        if value.shape[0] == len(x):
            assert value.to_local().shape[0] < len(x) or da.default_mesh().size == 1
        scale = 1 + np.abs(np.asarray(expected[what], float)).max()
        np.testing.assert_allclose(
            np.asarray(value.full_array(), float), expected[what], atol=TOLERANCE * scale
        )


@pytest.mark.parametrize("name", SCORES)
def test_scores_agree_with_one_process(name: str) -> None:
    score, most = getattr(metrics, name), SCORES[name][0].nbytes // 5
    with da.communication("raise", min_bytes=2**20 if name in GATHERS else most):
        found = score(*map(_rows, SCORES[name]))
    np.testing.assert_allclose(np.asarray(found), score(*SCORES[name]), atol=TOLERANCE)


def test_a_split_for_training_is_the_same() -> None:
    found = train_test_split(_rows(CELLS), _rows(IS_BENIGN), random_state=0)
    for part, expected in zip(
        found, train_test_split(CELLS, IS_BENIGN, random_state=0), strict=True
    ):
        np.testing.assert_array_equal(part.full_array(), expected)


def test_predictions_of_a_cross_validation_are_the_same() -> None:
    def predict(x: Any, y: Any) -> Any:
        return cross_val_predict(Ridge(solver="svd"), x, y, cv=3)

    found = predict(_rows(PATIENTS), _rows(PROGRESS)).full_array()
    np.testing.assert_allclose(found, predict(PATIENTS, PROGRESS), atol=300 * TOLERANCE)
