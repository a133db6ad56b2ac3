"""Every public name of `distarray.torch` has an example, which gives what it says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from tests.on_device import DEVICE  # noqa: E402
from tests.test_docstrings import documented, failures_of, lack_examples  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="what is printed is that of the host")

DOCUMENTED = documented(dt)


def test_every_public_name_has_one_section_of_examples() -> None:
    assert len(DOCUMENTED) == len(dt.__all__)
    assert lack_examples(DOCUMENTED) == []


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_example_gives_what_it_says(name: str) -> None:
    assert (
        failures_of(name, DOCUMENTED[name], da=da, dt=dt, F=nn.functional, nn=nn, torch=torch) == ""
    )
