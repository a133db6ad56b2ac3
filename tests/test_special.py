"""SciPy's ufuncs work on blocks, by their names in `distarray.special`."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import distarray as da

special = pytest.importorskip("scipy.special")

pytestmark = pytest.mark.host_only

X = np.linspace(0.1, 0.9, 7)


@pytest.mark.parametrize("name", ["erf", "xlogy", "betainc", "sici"])
def test_a_ufunc_gives_what_scipy_does_and_moves_nothing(name: str) -> None:
    ufunc = getattr(da.special, name)
    expected = np.asarray(ufunc(*[X] * ufunc.nin))

    def program() -> None:
        x = da.distribute_array(X, src=None)
        with da.CommLog() as log:
            found = ufunc(*[x] * ufunc.nin)
        assert log.count() == 0
        for one, other in zip(
            found if ufunc.nout > 1 else [found], np.atleast_2d(expected), strict=True
        ):
            assert one.layout is x.layout
            np.testing.assert_array_equal(one.full_array(), other)

    da.testing.simulate(3, program)


def test_names_that_are_no_ufuncs_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hasattr(da.special, "multigammaln")
    assert not hasattr(da.special, "no_such_name")
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(AttributeError, match="install scipy"):
        _ = da.special.erf


def test_dir_shows_what_is_there() -> None:
    names = dir(da.special)
    assert {"erf", "expit", "gammaln"} <= set(names)
    assert not {"np", "Any", "sinc", "zeta"} & set(names)
    assert all(isinstance(getattr(da.special, name), np.ufunc) for name in names)
    assert dir(da.typing) == ["Axes", "AxisName", "Box", "Buffer", "Coordinate", "Shape"]
