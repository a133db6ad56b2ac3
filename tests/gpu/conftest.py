"""These run where blocks are on GPUs, or on the stand-in: with ``DISTARRAY_TEST_DEVICE=cuda``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import on_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder elsewhere."""
    if on_device.DEVICE == "cpu":
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs DISTARRAY_TEST_DEVICE=cuda"))
