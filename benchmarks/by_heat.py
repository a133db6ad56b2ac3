"""Heat: arrays of torch tensors over MPI, split along one axis."""

from __future__ import annotations

import itertools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.cases import LINE_SIZE, Move, bins
from benchmarks.measure import Work

NAME = "Heat"

SPLITS = {"S0": 0, "S1": 1, "R": None}


def start() -> str | None:
    """Get ready; say why not, if not."""
    try:
        import torch
    except ImportError as missing:
        return str(missing)
    try:
        import torchvision  # noqa: F401 - Heat's image loaders want it at import
    except ImportError:
        _stand_in_for_torchvision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import heat  # noqa: F401 - is it there
    except ImportError as missing:
        return str(missing)
    torch.set_num_threads(1)
    return None


def _stand_in_for_torchvision() -> None:
    """Let Heat be imported without the image loaders, which nothing here uses."""
    package = types.ModuleType("torchvision")
    for name, member in (("datasets", "MNIST"), ("transforms", "Compose")):
        module = types.ModuleType(f"torchvision.{name}")
        setattr(module, member, object)
        setattr(package, name, module)
        sys.modules[module.__name__] = module
    sys.modules["torchvision"] = package


def _array(block: np.ndarray, split: int | None):
    import heat
    import torch

    if split is None:
        return heat.array(torch.from_numpy(block))
    return heat.array(torch.from_numpy(block), is_split=split)


def move(case: Move, block: np.ndarray) -> Work | None:
    """Redistribute, where Heat has both layouts."""
    import heat

    if len(case.mesh) > 1 or case.source[0] not in SPLITS or case.target[0] not in SPLITS:
        return None
    x = _array(block, SPLITS[case.source[0]])
    target = SPLITS[case.target[0]]
    return lambda: heat.resplit(x, target)


def local(result) -> np.ndarray:
    """Take the block out of a result."""
    return result.larray.numpy()


def operation(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> Work | None:
    """Perform one operation on arrays that are split over their rows; `r` is on every rank."""
    import heat

    hx, hy, hr = _array(x, 0), _array(y, 0), _array(r, None)
    line = heat.arange(LINE_SIZE, dtype=heat.float64, split=0)
    turns = itertools.cycle(range(LINE_SIZE))
    works: dict[str, Work] = {
        "x + y": lambda: hx + hy,
        "x * 2 + y": lambda: hx * 2 + hy,
        "x.T": lambda: hx.T,
        "x[:, 3]": lambda: hx[:, 3],
        "x @ R": lambda: hx @ hr,
        "float(x.sum())": lambda: float(hx.sum()),
        "S0 -> S1": lambda: heat.resplit(hx, 1),
        "x.std()": lambda: float(hx.std()),
        "x.mean(0)": lambda: hx.mean(0),
        "sqrt(x) * y + 1": lambda: heat.sqrt(hx) * hy + 1,
        "((x - 0.5) ** 2).sum()": lambda: float(((hx - 0.5) ** 2).sum()),
        "S0 @ R": lambda: hx @ hr,
        "S0 @ S0": lambda: hx @ hy,
        "x[i]": lambda: line[next(turns)],
        "x[i:]": lambda: line[next(turns) :],
    }
    return works.get(name)


def selection(name: str, x: np.ndarray, y: np.ndarray) -> Work | None:
    """Select, sort or count items of arrays that are split over their first axis."""
    import heat

    hx, hy = _array(x, 0), _array(y, 0)
    mask = hy > 0.5 if "mask" in name else hy
    works: dict[str, Work] = {
        "x[mask]": lambda: hx[mask],
        "x[mask] = 0": lambda: (hx.__setitem__(mask, 0), hx)[1],
        "sort": lambda: heat.sort(hx, 0)[0],  # of axis -1 it sorts each block alone
        "argsort": lambda: heat.sort(hx, 0)[1],
        "bincount": lambda: heat.bincount(hx, minlength=bins(name)),
    }
    return works.get(name.partition(",")[0])


def transform(name: str, shape: tuple[int, ...], block: np.ndarray) -> Work | None:  # noqa: ARG001
    """Transform all axes of an array that is cut along the first."""
    import heat

    if name.startswith("rfft"):  # 1.8.0 halves the first axis, where NumPy halves the last
        return None
    x = _array(block, 0)
    return lambda: heat.fft.fftn(x)


def factorization(name: str, x, right) -> tuple[Work, Callable[[Any], float]] | None:  # noqa: ARG001
    """Factorize a matrix whose rows are cut, or solve with it; see `by_distarray`."""
    import heat

    hx = _array(x.to_local(), 0)
    # 1.8.0 has no Cholesky, solves with batches alone, and takes minutes for a square qr of 4096.
    works: dict[str, Work] = {
        "qr": lambda: heat.linalg.qr(hx),
        "svd": lambda: heat.linalg.svd(hx, full_matrices=False),
    }
    if name not in works:
        return None

    def told(result: Any) -> float:
        return float(heat.abs(result[1]).sum())

    return works[name], told
