"""Run tests of arrays with their blocks on GPUs: on a real one, or on the stand-in for CuPy.

``DISTARRAY_TEST_DEVICE=cuda`` makes that the device of meshes that name none. What tests compare is
taken to the host first, and plain NumPy operands are taken to the device, because a library that
moves nothing by itself refuses them (which `tests/gpu` checks).
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

DEVICE = os.environ.get("DISTARRAY_TEST_DEVICE", "cpu")
EXAMPLES = int(os.environ.get("DISTARRAY_TEST_EXAMPLES", "12"))
"""Of each property, on a device."""
BESIDE: list[Any] = []
"""What the library itself does with plain operands."""
STAND_IN = Path(__file__).parent / "cupy_stand_in"


def has_gpu() -> bool:
    """Tell whether a CuPy that is installed sees a GPU."""
    try:
        cupy = importlib.import_module("cupy")
        return not hasattr(cupy, "operations") and cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        for name in list(sys.modules):
            if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends"):
                del sys.modules[name]
        return False


def stand_in() -> Any:
    """Return the module that stands for CuPy: the real one where it sees a GPU."""
    if not has_gpu():
        path = str(STAND_IN)
        if path not in sys.path:
            sys.path.insert(0, path)
            importlib.invalidate_caches()
    return importlib.import_module("cupy")


def prepare() -> None:
    """Make the device of ``DISTARRAY_TEST_DEVICE`` the one of meshes that name none."""
    if DEVICE == "cpu":
        return
    from distarray.array import _convert
    from distarray.comm import _backend, _device_mesh
    from distarray.comm.cuda import _ipc
    from distarray.core.engine import _operands
    from distarray.ops.indexing import _masks, _values

    cupy = stand_in()
    if hasattr(cupy, "operations"):  # it has no driver
        allocation_of = importlib.import_module("cupy._device").allocation_of
        _ipc.allocation_of = lambda pointer: _ipc.Allocation(*allocation_of(pointer))
    _device_mesh.DEFAULT_DEVICE = DEVICE

    def match_device(name: str, value: Any, like: Any) -> Any:
        return _backend.asarray(value, _backend.device_of(like))

    def plain_buffer(value: Any, call: str, device: str = "cpu", **options: Any) -> Any:
        return _backend.asarray(taken(value, call, device, **options), device)

    BESIDE.append(_operands.match_device)
    taken = _convert.plain_buffer
    _operands.match_device = _masks.match_device = _values.match_device = match_device
    _convert.plain_buffer = plain_buffer
    for name in ("shares_memory", "may_share_memory"):
        setattr(np, name, _on_one_device(getattr(np, name)))
    for name in ("assert_array_equal", "assert_allclose", "assert_equal"):
        setattr(np.testing, name, _on_host(getattr(np.testing, name)))


def adapt(items: list[Any]) -> None:
    """Leave out what does not hold on this device, and let properties on a GPU try few examples.

    The same rules are tried on many in host memory.
    """
    if DEVICE != "cpu":
        items[:] = [item for item in items if not item.get_closest_marker("host_only")]
    for item in items:
        if item.get_closest_marker("gpu") and (DEVICE == "cpu" or not has_gpu()):
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and DISTARRAY_TEST_DEVICE=cuda"))
    if DEVICE == "cpu":
        return
    if "distarray.torch" in sys.modules and hasattr(stand_in(), "operations"):
        from tests import torch_on_device

        torch_on_device.prepare(stand_in())
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if own is not None:
            fewer = min(own.max_examples, EXAMPLES)
            test._hypothesis_internal_use_settings = hypothesis.settings(
                own, max_examples=fewer, phases=phases
            )


def host(value: Any) -> Any:
    """Return an array in host memory."""
    return value.get() if type(value).__module__ == "cupy" else value


def _on_one_device(share: Any) -> Any:
    @functools.wraps(share)
    def call(a: Any, b: Any, *args: Any, **options: Any) -> bool:
        return type(a) is type(b) and share(a, b, *args, **options)

    return call


def _on_host(compare: Any) -> Any:
    @functools.wraps(compare)
    def call(actual: Any, desired: Any, *args: Any, **options: Any) -> None:
        compare(host(actual), host(desired), *args, **options)

    return call
