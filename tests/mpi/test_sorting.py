"""Selections among sorted runs under MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distarray.comm import world
from distarray.ops.sorting import _multiselection
from tests.ops.sorting.items import DTYPES, draw_items
from tests.ops.sorting.test_multiselection import select_on_rank, split


@pytest.mark.mpi
@pytest.mark.parametrize("few", [0, 32768])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cuts_and_values_are_those_of_a_stable_sort(
    dtype: Any, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_multiselection, "_FEW_BYTES", few)
    rng = np.random.default_rng(17)
    for trial in range(5):
        sizes = rng.integers(0, 30, world().size).tolist()
        native = np.dtype(dtype).newbyteorder("=")
        values = draw_items(rng, native, sum(sizes), bool(trial % 2))
        places = rng.integers(0, len(values) + 1, trial).tolist()
        select_on_rank(split(values, sizes), places)
