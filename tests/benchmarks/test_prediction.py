"""Random plans whose times are compared with what is measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import prediction


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_plans_are_drawn_that_take_time(ranks):
    random = np.random.default_rng(7)
    plans = [prediction._draw(random, ranks, 1 << 16) for _ in range(20)]
    found = [plan for plan in plans if plan.steps]
    assert len(found) > 10
    assert all(plan.src.mesh.size == ranks and plan.seconds > 0 for plan in found)
