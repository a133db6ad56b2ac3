"""The page of all functions, measured: ``python -m tests.function_pages [--check]``.

Each function is called, as `tests/ops/test_every_row.py` calls it, on four simulated ranks with an
array of 32 KiB (or what a note says) in each placement, and with one of 2 MiB that is cut. What its
result's placements are, what the ranks send, and what memory they need goes into
`distarray/_functions.json`, which ``python -m distarray port`` reads, and from there into
`docs/functions.md`.
`tests/test_function_pages.py` says when they are to be made anew.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import distarray as da
from distarray import _port, fft, linalg, random  # noqa: F401 - whose functions are registered then
from distarray.comm.kernels import _jit
from distarray.core import method_of
from distarray.core.families._registry import functions, public
from distarray.errors import ArgumentError, CommunicationError, DistArrayError
from distarray.layout import Partial, Replicate, Shard
from distarray.testing import simulate
from tests import peak_memory
from tests.ops.test_every_row import BY_ITEM, CHOICES, COMPUTED, TOLD

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "distarray" / "_functions.json"
PAGE = ROOT / "docs" / "functions.md"

RANKS = 4
SIDE = 64
LARGE_SIDES = 512, 256
"""Of the array of which memory is measured; the second where a function refuses the first."""
PATIENCE_SECONDS = 1800.0
"""For ranks in turn, on a busy machine: `linalg.eig` takes a minute or two of it there."""
SLACK = 0.1
"""Of a block, that counts as none: plans, logs and Python's own objects."""
PLACEMENTS = {"R": Replicate(), "S(0)": Shard(0), "S(1)": Shard(1), "P(sum)": Partial()}
_STANDARD = """
abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2
atanh bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
broadcast_arrays broadcast_shapes broadcast_to can_cast ceil clip concat conj copysign cos cosh
count_nonzero cumulative_prod cumulative_sum diff divide empty empty_like equal exp expand_dims
expm1 eye finfo flip floor floor_divide from_dlpack full full_like greater greater_equal hypot
iinfo imag isdtype isfinite isin isinf isnan less less_equal linspace log log10 log1p log2
logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max maximum
mean meshgrid min minimum moveaxis multiply negative nextafter nonzero not_equal ones ones_like
permute_dims positive pow prod real reciprocal remainder repeat reshape result_type roll round
searchsorted sign signbit sin sinh sort sqrt square squeeze stack std subtract sum take
take_along_axis tan tanh tensordot tile tril triu trunc unique_all unique_counts unique_inverse
unique_values unstack var vecdot where zeros zeros_like __array_namespace_info__
linalg.cholesky linalg.cross linalg.det linalg.diagonal linalg.eig linalg.eigh linalg.eigvals
linalg.eigvalsh linalg.inv linalg.matmul linalg.matrix_norm linalg.matrix_power
linalg.matrix_rank linalg.matrix_transpose linalg.outer linalg.pinv linalg.qr linalg.slogdet
linalg.solve linalg.svd linalg.svdvals linalg.tensordot linalg.trace linalg.vecdot
linalg.vector_norm fft.fft fft.ifft fft.fftn fft.ifftn fft.rfft fft.irfft fft.rfftn fft.irfftn
fft.hfft fft.ihfft fft.fftfreq fft.rfftfreq fft.fftshift fft.ifftshift
"""
STANDARD = frozenset(_STANDARD.split())
"""The functions of the array API standard, revision 2025.12."""


# --- measuring -----------------------------------------------------------------------------------


def values(dtype: str, shape: tuple[int, ...], side: int = SIDE) -> np.ndarray:
    """Return a matrix that has an inverse and a Cholesky factor, or its items in another shape."""
    found = np.random.default_rng(0).integers(0, 9, (side, side))
    found = found + found.T + 1000 * np.eye(side, dtype=int)
    return found.reshape(shape or found.shape).astype(dtype)


def backwards(x: Any) -> Any:
    """Return an index array of an array's shape: the places along its first axis, reversed."""
    places = da.arange(x.shape[0])[::-1].reshape((-1,) + (1,) * (x.ndim - 1))
    return places + da.zeros_like(x, dtype=int)


USES: dict[str, Callable[[Any], Any]] = {
    "allclose": lambda x: da.allclose(x, x),
    "argpartition": lambda x: da.argpartition(x, 5, axis=0),
    "corrcoef": lambda x: da.corrcoef(x, rowvar=False),
    "cov": lambda x: da.cov(x, rowvar=False),
    "delete": lambda x: da.delete(x, slice(None, None, 2), axis=0),
    "diff": lambda x: da.diff(x, axis=0),
    "insert": lambda x: da.insert(x, slice(None), x, axis=0),
    "isclose": lambda x: da.isclose(x, x),
    "meshgrid": lambda x: da.meshgrid(x[0], x[1]),
    "partition": lambda x: da.partition(x, 5, axis=0),
    "polydiv": lambda x: da.polydiv(x[0, :8], [1, 2]),
    "put": lambda x: [da.put(x, da.arange(x.size), x), x],
    "put_along_axis": lambda x: [da.put_along_axis(x, backwards(x), x, 0), x],
    "repeat": lambda x: da.repeat(x, 2, axis=0),
    "sliding_window_view": lambda x: da.sliding_window_view(x, 3, axis=0),
    "take": lambda x: da.take(x, da.arange(x.shape[0])[::-1], axis=0),
    "take_along_axis": lambda x: da.take_along_axis(x, backwards(x), 0),
    "cross": lambda x: da.cross(x[:, :3], x[:, :3]),
    "linalg.cross": lambda x: da.linalg.cross(x[:, :3], x[:, :3]),
    "dsplit": lambda x: da.dsplit(da.expand_dims(x, 2), 1),
    "unpackbits": lambda x: da.unpackbits(x.astype(np.uint8)),
    "roots": lambda x: da.roots(x[:8, 0]),
    "kron": lambda x: da.kron(x, x[:2, :2]),
    "outer": lambda x: da.outer(x[0], x[1]),
    "linalg.cho_solve": lambda x: da.linalg.cho_solve((x, True), x),
    "linalg.lu_solve": lambda x: da.linalg.lu_solve((x, da.arange(x.shape[0])), x),
    "linalg.outer": lambda x: da.linalg.outer(x[0], x[1]),
    "linalg.matrix_power": lambda x: da.linalg.matrix_power(x, 2),
    "linalg.multi_dot": lambda x: da.linalg.multi_dot([x, x, x]),
    "linalg.svd": lambda x: da.linalg.svd(x, full_matrices=False),
    "linalg.tensorinv": lambda x: da.linalg.tensorinv(x, ind=1),
    "linalg.tensorsolve": lambda x: da.linalg.tensorsolve(x, x[0]),
}
"""Calls that say more than the first of `tests/ops/test_every_row.py`, or of what that lacks."""

TALL = (-1, 4)
_FACTORIZED = (
    "of tall matrices, 1024 x 4, svd with full_matrices=False; others that are cut are gathered, "
    "up to 128 MiB, and by qr up to 8 MiB"
)
_SAMPLES = "of 1024 samples of 4 variables, rowvar=False; where variables are cut, items travel"
_POINTS = "among points that every process has; where these are cut, about a block is sent"
_SELECTED = "of 1024 x 1024 numbers, 8 MiB; those of 128 KiB at most are gathered"
NOTES = {
    **{
        f"linalg.{name}": _FACTORIZED
        for name in ("cond", "lstsq", "matrix_rank", "pinv", "qr", "svd", "svdvals")
    },
    **dict.fromkeys(("corrcoef", "cov"), _SAMPLES),
    **dict.fromkeys(("interp", "searchsorted"), _POINTS),
    **dict.fromkeys(
        ("median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"), _SELECTED
    ),
}
"""Of what functions were measured, where that makes a difference."""


def calls(name: str) -> Iterator[Callable[[Any], Any]]:
    """Yield ways to call a function with one array, the most likely first."""
    function = public[name]
    if name in USES:
        yield USES[name]
    use = CHOICES.get(name) or COMPUTED.get(name)
    if use is not None:
        for i in range(4):
            yield lambda x, i=i: use(function, x, i)
    elif name in BY_ITEM:
        yield lambda x: function(*[x] * BY_ITEM[name].nin)
    yield function
    yield lambda x: function(x, x)


def measure(name: str, known: str | None = None) -> dict[str, Any]:
    """Return where results lie, what ranks send, and what they need, by the placement of the array.

    A `known` scratch memory is believed.
    """
    note = NOTES.get(name, "")
    side = 1024 if note == _SELECTED else SIDE
    refusals = {}
    for dtype in ("f8", "i8", "?", "M8[s]"):
        for shape in [TALL] if note in {_FACTORIZED, _SAMPLES} else [(), (-1,)]:
            for call in calls(name):
                try:
                    told = run(call, values(dtype, shape, side))
                    if known is None:
                        known = scratch(call, dtype, shape)
                except CommunicationError:  # of ranks that were late: the call may be the right one
                    raise
                except (DistArrayError, TypeError, ValueError, IndexError) as error:
                    refusals[repr(error)] = None
                else:
                    return {**told, "scratch": known} | ({"note": note} if note else {})
    raise RuntimeError("\n".join([f"{name} took none of the calls that were tried:", *refusals]))


def run(call: Callable[[Any], Any], value: np.ndarray) -> dict[str, Any]:
    def program() -> dict[str, tuple[str, dict[str, int]]]:
        mesh = da.init_device_mesh((RANKS,))
        told = {}
        for name, placement in PLACEMENTS.items():
            if placement is Shard(1) and value.ndim == 1:
                continue
            if placement is Partial() and value.dtype.kind not in "fi":
                continue
            x = da.distribute_array(value, mesh, [placement], src=None)
            with da.CommLog() as log:
                result = call(x)
            told[name] = shown(result), collectives(log)
        return told

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        of_ranks = simulate(RANKS, program, timeout=PATIENCE_SECONDS)
    results = {name: told for name, (told, _) in of_ranks[0].items()}
    sent = {
        name: {
            one: max(rank[name][1].get(one, 0) for rank in of_ranks)
            for one in sorted({key for rank in of_ranks for key in rank[name][1]})
        }
        for name in results
    }
    nbytes = 8 * value.size
    most = max(sum(rank["S(0)"][1].values()) for rank in of_ranks)
    if sent["S(0)"].get("all_gather", 0) >= nbytes * (RANKS - 1) // RANKS:
        kind = "gathers"
    elif most > nbytes // RANKS // 2:
        kind = "items"
    else:
        kind = "states" if most else "nothing"
    return {"sends": kind, "results": results, "received": sent}


def scratch(call: Callable[[Any], Any], dtype: str, shape: tuple[int, ...]) -> str:
    """Return the blocks of scratch memory that a rank needs, rounded up to halves.

    What NumPy needs: kernels, which serve once they pay, need less.
    """
    large, smaller = (values(dtype, shape, side) for side in LARGE_SIDES)
    numpy_alone = mock.patch.object(_jit, "forced", return_value=dict.fromkeys(_jit.JOBS, "numpy"))
    with numpy_alone, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            blocks = peak_memory.scratch(call, large, RANKS, timeout=PATIENCE_SECONDS)
        except ArgumentError:
            blocks = peak_memory.scratch(call, smaller, RANKS, timeout=PATIENCE_SECONDS)
    return f"{max(0, math.ceil(2 * (blocks - SLACK))) / 2:g}"


def shown(result: Any) -> str:
    """Return where the arrays of a result lie."""
    found = result if isinstance(result, (tuple, list)) else [result]
    texts = [
        str(one.placements[0]) + "*" * (one.layout.boundaries is not None)
        for one in found
        if isinstance(one, da.DistArray)
    ]
    return ", ".join(dict.fromkeys(texts)) or "value"


def collectives(log: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in log.records:
        found[one.collective] = found.get(one.collective, 0) + one.nbytes
    return found


def measured(known: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of all functions that arrays have."""
    names = sorted(public.keys() - TOLD)
    return {name: measure(name, known.get(name, {}).get("scratch")) for name in names}


# --- the page ------------------------------------------------------------------------------------

HEAD = """# All functions

Made by `python -m tests.function_pages`. What it says was measured, on four ranks, with an array of
64 x 64 numbers (32 KiB) that is replicated (R), cut along its first or second axis (S(0), S(1)), or
a sum still to be made (P(sum)). Of functions with more arguments one call is told, mostly with the
defaults: reductions are over all axes.

- **R**, **S(0)**, **S(1)**, **P(sum)**: the result's placement, for the array's. `*`: with
  boundaries of its own, which follow from values or arguments (`x.rebalance()` gives the default
  ones). *value*: no array.
- **sends**: what an array cut along its first axis makes the ranks send: *nothing*, small *states*,
  *items* (about a block of each rank), or it *gathers* the array on every rank. In brackets the
  bytes that the busiest rank receives, by collective.
- **scratch**: the memory that a rank needs meanwhile beside the array, cut along its first axis,
  and the result. In blocks of the array, or of the result where that is larger, rounded up to
  halves; the whole array has 4. Buffers of messages count, work space inside of LAPACK does not. Of
  512 x 512 numbers on simulated ranks; processes of a node read each other's blocks in place, and
  may need less. `linalg` has whole matrices of up to 128 MiB on every rank, where it gathers (up to
  8 MiB those that it factorizes in tiles: `cholesky`, `qr`, `solve`, `inv`, `det`, `slogdet`);
  products have the smaller operand up to 16 MiB, and of more two panels at most, of a block or
  16 MiB each. Functions of polynomials have up to 65,536 coefficients, or points to fit, on every
  rank. `put` and `put_along_axis` have the index, here made by the call, and the numbers and
  values of items as they are sent and as they come. `histogram` and others that work in pieces need
  no more for larger blocks.
- **names**: N stands in NumPy, A in the array API standard (2025.12).
"""

OF_RANDOM = """\
Of `np.random` there is `rng = da.random.default_rng(seed)`, whose methods take the place of
functions as `seed`, `rand` and `normal`.
"""


def page(told: dict[str, Any]) -> str:
    """Return the page on what was measured, and on what is not there."""
    rows = [
        [
            f"`{name}`",
            names(name),
            *(one["results"].get(key, "") for key in PLACEMENTS),
            sends(one),
            one["scratch"],
        ]
        for name, one in sorted(told.items())
    ]
    header = ["function", "names", *PLACEMENTS, "sends", "scratch"]
    rooms = {"": da, "fft.": da.fft, "linalg.": da.linalg, "io.": da.io}
    callables = {
        f"{room}{name}": function
        for room, module in rooms.items()
        for name in module.__all__
        if callable(function := getattr(module, name)) and not isinstance(function, type)
    }
    others = sorted(callables.keys() - told.keys())
    aliases = {name: own for name in others if (own := callables[name].__name__) in told}
    plain = [name for name in others if name not in aliases]
    undotted = {name for name in _port.INSTEAD if "." not in name and hasattr(np, name)}
    missing = sorted(name for name in {*numpys(), *STANDARD, *undotted} if not is_there(name))
    dotted = sorted(
        name
        for name in _port.INSTEAD
        if "." in name and name.rpartition(".")[0] != "random"  # told together
    )
    parts = [
        HEAD,
        table(header, rows),
        "\nMeasured with other arrays:\n",
        table(
            ["functions", "what is told"],
            [
                [", ".join(f"`{name}`" for name in sorted(NOTES) if NOTES[name] == note), note]
                for note in sorted(set(NOTES.values()))
            ],
        ),
        "\n## Other names of these\n",
        ", ".join(f"`{name}` ({own})" for name, own in aliases.items()),
        "\n## Functions that make arrays or take none, and [iterative solvers](iterative.md)\n",
        ", ".join(f"`{name}`" for name in plain),
        "\n## Methods and attributes\n",
        table(
            ["of", "there", "not there"],
            [
                [
                    title,
                    *(", ".join(f"`{name}`" for name in names) for names in members(ours, theirs)),
                ]
                for title, ours, theirs in (
                    ("arrays", da.DistArray, np.ndarray),
                    ("`da.random.Generator`", da.random.Generator, np.random.Generator),
                )
            ],
        ),
        f"\nOf ufuncs, as `np.add` is one: {ufunc_methods()}.\n",
        "\n## NumPy's names that are not there\n",
        f"Without a remedy: {_port.GENERAL}.\n",
        OF_RANDOM,
        table(["name", "remedy"], [[f"`{name}`", remedy(name)] for name in missing + dotted]),
    ]
    return "\n".join(parts) + "\n"


def members(ours: type, theirs: type) -> tuple[list[str], list[str]]:
    """Return the public names of our class, and those that NumPy's has beside them."""
    there = [name for name in dir(ours) if not name.startswith("_") and hasattr(ours, name)]
    named = [name for name in dir(theirs) if not name.startswith("_")]
    return there, [name for name in named if name not in there]


def ufunc_methods() -> str:
    """Return for how many of NumPy's ufuncs each of their methods is there."""
    found = {one for one in vars(np).values() if isinstance(one, np.ufunc)}
    binary = {one for one in found if one.nin == 2 and one.nout == 1 and one.signature is None}
    told = []
    for method in ("accumulate", "at", "outer", "reduce", "reduceat"):
        kinds = found if method == "at" else binary
        lack = sorted(one.__name__ for one in kinds if method_of(one, method) is None)
        told.append(f"`{method}`" + (f" (not of {', '.join(lack)})" if lack else ""))
    return ", ".join(told)


def is_there(name: str) -> bool:
    """Tell whether we have a function, or NumPy's takes distributed arrays."""
    return _port._find_ours(name) is not None or getattr(np, name, None) in functions


def numpys() -> list[str]:
    """Return the names of NumPy's functions of arrays."""
    found = []
    for room in ("", "linalg", "fft"):
        module = getattr(np, room) if room else np
        for name in module.__all__:
            one = getattr(module, name)
            if callable(one) and not isinstance(one, type) and not inspect.ismodule(one):
                found.append(f"{room}.{name}" if room else name)
    return [name for name in found if name not in _port._SETTINGS]


def names(name: str) -> str:
    return "N" * (name in numpys()) + "A" * (name in STANDARD)


def sends(one: dict[str, Any]) -> str:
    bytes_of = one["received"]["S(0)"]
    if one["sends"] == "nothing":
        return "nothing"
    listed = ", ".join(f"{name} {count}" for name, count in bytes_of.items() if count)
    return f"{one['sends']} ({listed})"


def remedy(name: str) -> str:
    return _port.instead(name) or ""


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def contents(known: dict[str, Any] | None = None) -> dict[Path, str]:
    """Return what the files should have; scratch memory is not measured again where it is known."""
    told = measured(known or {})
    return {DATA: json.dumps(told, indent=0, sort_keys=True) + "\n", PAGE: page(told)}


def main(arguments: list[str]) -> int:
    changed = {
        path: text
        for path, text in contents().items()
        if not path.exists() or path.read_text() != text
    }
    for path, text in changed.items():
        if arguments == ["--check"]:
            print(f"{path.relative_to(ROOT)} is not current; run python -m tests.function_pages")
        else:
            path.write_text(text)
    return 1 if changed and arguments == ["--check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
