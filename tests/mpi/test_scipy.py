"""SciPy, unmodified, gives with distributed arrays what it gives with NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import distarray as da
from tests.mpi.rank_counts import only_on

only_on(3)
pytest.importorskip("scipy", minversion="1.17")
datasets = pytest.importorskip("sklearn.datasets")

from scipy import constants, fft, integrate, linalg, optimize, signal, special, stats  # noqa: E402
from scipy.cluster import vq  # noqa: E402
from scipy.optimize import elementwise  # noqa: E402
from scipy.spatial.transform import Rotation  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

CELLS = np.ascontiguousarray(datasets.load_breast_cancer().data[:, :4])
A, B = CELLS[:, 0].copy(), CELLS[:, 1].copy()
COUNTS = np.round(A)
PART = np.clip((A - A.min()) / np.ptp(A), 1e-3, 1 - 1e-3)
TOLERANCE = 1e-10

MOST_BYTES = A.nbytes // 5
"""A rank may receive so many at once: less than a block of a column on four ranks."""

Row = tuple[Callable[..., Any], tuple[Any, ...]]


def _rows_of(module: Any, arguments: tuple[Any, ...], names: str) -> dict[str, Row]:
    return {name: (getattr(module, name), arguments) for name in names.split()}


IN_PLACE: dict[str, Row] = {
    **_rows_of(
        stats, (A,), "gmean hmean skew kurtosis describe tvar tstd tsem skewtest kurtosistest"
    ),
    **_rows_of(stats, (A,), "normaltest kstat kstatvar circmean jarque_bera gstd sigmaclip"),
    **_rows_of(stats, (CELLS,), "zscore gzscore variation sem tmean tmin tmax circvar circstd"),
    **_rows_of(stats, (A, B), "bartlett pearsonr ttest_ind ttest_rel alexandergovern"),
    **_rows_of(stats, (COUNTS, COUNTS[::-1].copy()), "chisquare power_divergence"),
    **_rows_of(stats, (CELLS, CELLS), "zmap"),
    **_rows_of(stats, (CELLS + 1e-3,), "entropy"),
    **_rows_of(stats, (A, 2), "moment pmean"),
    **_rows_of(stats, (0.5, A), "boxcox_llf yeojohnson_llf"),
    **_rows_of(stats, (PART,), "combine_pvalues"),
    **_rows_of(stats, (A, B, A * B), "friedmanchisquare"),
    **_rows_of(stats, (A, 10.0), "ttest_1samp"),
    **_rows_of(special, (PART,), "erf expit gammaln ndtri y1"),
    **_rows_of(special, (PART, PART), "betaln stdtrit xlogy"),
    **_rows_of(special, (CELLS,), "logsumexp softmax"),
    **_rows_of(special, (PART, PART, PART), "betainc"),
    "whiten": (vq.whiten, (CELLS,)),
    "trapezoid": (integrate.trapezoid, (A, np.cumsum(B))),
    "cumulative_trapezoid": (integrate.cumulative_trapezoid, (A,)),
    "fft": (fft.fft, (CELLS,)),
    "orthogonal_procrustes": (linalg.orthogonal_procrustes, (CELLS, CELLS**2)),
    "convert_temperature": (lambda x: constants.convert_temperature(x, "C", "K"), (CELLS,)),
    "rosen": (optimize.rosen, (CELLS,)),
    "gauss_spline": (lambda x: signal.gauss_spline(x, 3), (CELLS,)),
    "Rotation": (lambda x: Rotation.from_quat(x).as_rotvec(), (CELLS,)),
}
"""What moves no more than some numbers, or a result along a column."""

ELSEWHERE: dict[str, Row] = {
    **_rows_of(stats, (A,), "mode iqr median_abs_deviation lmoment rankdata differential_entropy"),
    **_rows_of(
        stats, (A, B), "f_oneway levene fligner mannwhitneyu kruskal brunnermunzel mood ansari"
    ),
    **_rows_of(stats, (A, B), "chatterjeexi spearmanrho cramervonmises_2samp epps_singleton_2samp"),
    **_rows_of(stats, (A, 0.1), "trim_mean quantile"),
    **_rows_of(stats, (A - B,), "wilcoxon"),
    **_rows_of(stats, (CELLS,), "moment skew describe"),
    "cumulative_simpson": (integrate.cumulative_simpson, (A,)),
    "find_root": (
        lambda x: elementwise.find_root(lambda t, c: t**3 - c, (0 * x, 0 * x + 5e3), args=(x,)).x,
        (A,),
    ),
}
"""What sorts, joins or picks items, so that they change places, or lays all columns on one line."""


def _sharded(x: Any) -> Any:
    """Return an array of which each rank has its own rows."""
    if not isinstance(x, np.ndarray):
        return x
    return da.distribute_array(x, da.default_mesh(), [da.Shard(0)], src=None)


def _values(result: Any) -> Iterator[np.ndarray]:
    """Yield all arrays and numbers of a result, also of SciPy's named ones."""
    if isinstance(result, tuple):
        for one in result:
            yield from _values(one)
    elif isinstance(result, da.DistArray):
        yield result.full_array()
    elif hasattr(result, "statistic"):
        yield from _values((result.statistic, result.pvalue))
    else:
        yield np.asarray(result)


def _compare(row: Row, **policy: Any) -> None:
    function, arguments = row
    with (
        da.use_mesh(da.default_mesh(), min_items=200),
        da.communication(**policy),
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
    ):
        warnings.simplefilter("ignore")
        found = function(*map(_sharded, arguments))
        expected = function(*arguments)
    for one, other in zip(_values(found), _values(expected), strict=True):
        assert one.shape == other.shape
        scale = 1 + np.nanmax(np.abs(other), initial=0)
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale)


@pytest.mark.parametrize("name", IN_PLACE)
def test_functions_that_leave_items_in_place_agree_with_one_process(name: str) -> None:
    _compare(IN_PLACE[name], mode="raise", min_bytes=MOST_BYTES)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_functions_that_bring_items_elsewhere_agree_with_one_process(name: str) -> None:
    _compare(ELSEWHERE[name], mode="allow")
