"""The page of all functions, and what the port report knows of them, are current."""

from __future__ import annotations

import json
from unittest import mock

import numpy as np
import pytest

import distarray as da
from distarray import _port, fft, linalg, random  # noqa: F401 - whose functions are registered then
from distarray.core.families._registry import public
from distarray.errors import CommunicationError, ShapeError
from distarray.ops.statistical._quantiles import GATHERED_BYTES
from tests import function_pages, peak_memory
from tests.ops.test_every_row import TOLD

pytestmark = pytest.mark.host_only

TOLD_NOW = json.loads(function_pages.DATA.read_text())


@pytest.fixture(scope="module")
def contents():
    return function_pages.contents(TOLD_NOW)


@pytest.mark.parametrize("path", [function_pages.DATA, function_pages.PAGE], ids=lambda p: p.name)
def test_file_is_what_is_measured_now(path, contents):
    stale = "python -m tests.function_pages makes it anew"
    assert path.read_text() == contents[path], stale


def test_every_function_of_arrays_is_measured():
    assert public.keys() - TOLD - _port.costs().keys() == set()
    assert set(_port.costs().values()) <= set(_port.KINDS)


@pytest.mark.parametrize(
    ("refusal", "told"), [(CommunicationError, CommunicationError), (ShapeError, RuntimeError)]
)
def test_a_function_that_was_not_measured_makes_no_empty_row(refusal, told, monkeypatch):
    monkeypatch.setattr(function_pages, "run", mock.Mock(side_effect=refusal("of some kind")))
    with pytest.raises(told, match="of some kind"):
        function_pages.measure("linalg.eig")


def test_what_is_measured_is_right_where_it_is_known():
    costs = _port.costs()
    assert {costs[name] for name in ("add", "sqrt", "sum", "max", "where", "astype")} == {"nothing"}
    assert {costs[name] for name in ("var", "argmax", "cumulative_sum")} == {"states"}
    assert costs["matmul"] == "gathers"


@pytest.mark.parametrize("name", ["median", "percentile", "quantile"])
def test_quantiles_send_states_and_gather_what_is_small_alone(name):
    call = next(function_pages.calls(name))
    few, more = (np.arange(items * 1.0) for items in (GATHERED_BYTES // 8, 1 << 20))
    assert function_pages.run(call, few)["sends"] == "gathers"
    for one in (name, f"nan{name}"):
        assert _port.costs()[one] == function_pages.run(call, more)["sends"] == "states"
        assert f"{GATHERED_BYTES // 1024} KiB" in _port._note(one)


@pytest.mark.parametrize(
    "name",
    [
        *("add", "matmul", "sort", "sum", "take"),
        pytest.param(
            "linalg.qr",
            marks=pytest.mark.skipif(
                peak_memory.COUNTS_LAPACK, reason="the page leaves work space of LAPACK out"
            ),
        ),
    ],
)
def test_scratch_memory_is_what_is_measured_now(name):
    assert function_pages.measure(name)["scratch"] == TOLD_NOW[name]["scratch"]


NOT_REPLICATED = {
    "insert": lambda x: da.insert(x, slice(None), x),
    "insert many": lambda x: da.insert(x, 1, x),
    "linalg.pinv": lambda x: da.linalg.pinv(x.reshape(-1, 4)),
    "put_along_axis": lambda x: da.put_along_axis(x, [3], 0, 0),
    "repeat": lambda x: da.repeat(x, np.broadcast_to(1, x.shape)),
    "take_along_axis": lambda x: da.take_along_axis(x, [3], 0),
}


@pytest.mark.parametrize("name", NOT_REPLICATED)
def test_scratch_memory_does_not_grow_with_the_number_of_ranks(name):
    call = NOT_REPLICATED[name]
    few, many = (peak_memory.scratch(call, np.arange(ranks * 8192.0), ranks) for ranks in (2, 8))
    assert many < 1.3 * few + 0.5
