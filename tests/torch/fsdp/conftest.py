"""Tests that take ``after`` run with every way to reshard after forward."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[True, False, 1, 2], ids=lambda after: f"after={after}")
def after(request):
    return request.param
