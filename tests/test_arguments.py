"""Wrong arguments of every public function: the same refusal on all ranks, or NumPy's result.

One argument at a time of a right call is replaced by values of all kinds. The ranks must come to
the same end, whatever it is, without a hang, and go on in step; what is raised is one of our own
errors, or Python's for a call that does not fit the signature. With `DISTARRAY_CHECK=1` the call
ends in the same way.
"""

from __future__ import annotations

import inspect
import os
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import distarray as da
from distarray import Partial, Replicate, Shard
from distarray.core import _replicas
from distarray.core._op import Op
from distarray.testing import simulate

RANKS = 3
SIZE = 4  # of two blocks with items, and one without


class Odd:
    def __repr__(self) -> str:
        return "<odd>"


class On(NamedTuple):
    """A distributed array, made on each rank."""

    name: str


PLAIN: list[Any] = [
    None, "a", "1", b"x", 1.5, -1, 0, 2, 7, -9, 10**30, 2**63, float("nan"), 1j, True, np.True_,
    np.array(1), np.array(1.0), np.array([0, 1]), np.array([True, False]), np.ones((5, 5)),
    np.ones((0, 3)), np.array(["a"]), np.array([Odd()]), np.datetime64("2020"), np.float32(2),
    [0], [0, 1], (0, 1), (0, 0), (), [], [1, [2]], (None,), ("a",), (1.5,), {}, {1}, {"a": 1},
    Odd(), int, "float32", "C", slice(None), Ellipsis, range(2), len, Shard(0), [Shard(0)],
]  # fmt: skip
MADE = [On(name) for name in ("0-d", "1-d", "booleans", "integers", "partial", "elsewhere", "mesh")]
VALUES = [*PLAIN, *MADE]
EVERY = 1 if os.environ.get("DISTARRAY_TEST_ALL") else 16
"""Of an argument every sixteenth value is tried, each time from another one on, or all."""

OPERATIONS = {op.__name__: op for name in da.__all__ if isinstance(op := getattr(da, name), Op)}
SIGNATURES = {inspect.signature(op): name for name, op in reversed(OPERATIONS.items())}
FAMILIES = {*SIGNATURES.values(), "add", "equal", "max", "nanmax", "nanprod", "pow", "sum"}
"""Operations, one of each signature at least: the others differ in their rows alone."""
ALONE = {"bool", "communication", "default_mesh", "fuse", "init_device_mesh", "map_blocks", "plan"}
ALONE |= {"map_overlap"}
ALONE |= {"isdtype", "register_rule", "use_mesh", "visualize"}
ALONE |= {"__array_namespace_info__", "broadcast_shapes", "issubdtype", "isscalar", "iterable"}
ALONE |= {"may_share_memory", "mintypecode", "shares_memory"}
ALONE |= {"load", "local_rows", "print0", "save", "store"}
ALONE |= {"get_printoptions", "printoptions", "set_printoptions"}
ALONE |= {"array2string", "array_repr", "array_str", "fromfunction"}
"""Not functions of arrays."""
ALIKE = {"asfortranarray", "atleast_2d", "atleast_3d", "blackman", "bartlett", "column_stack"}
ALIKE |= {"dsplit", "dstack", "fliplr", "hamming", "hanning", "hsplit", "polyadd", "polydiv"}
ALIKE |= {"polyfit", "polyint", "polymul", "polysub", "poly", "roots", "vsplit"}
"""Functions whose arguments another one of the same kind has as well."""
FUNCTIONS = sorted(
    {
        function.__name__
        for name in da.__all__
        if inspect.isfunction(function := getattr(da, name)) and name not in ALONE | ALIKE
    }
    | FAMILIES
)

OF_ROOMS = sorted(
    f"{room}.{name}"
    for room in ("fft", "linalg")
    for name in set(getattr(da, room).__all__) - {*da.__all__, "LinAlgError"}
)
"""Functions of the namespaces inside of ours."""

RIGHT: dict[str, Any] = {
    "n": 2, "s": (2, 2),
    "axis1": 0, "axis2": 1, "source": 0, "destination": 1, "shape": (SIZE, SIZE), "repeats": 2,
    "reps": 2, "shift": 1, "axes": (1, 0), "fill_value": 3, "start": 1, "stop": 9, "n_rows": SIZE,
    "obj": [[1.0, 2.0]], "value": [[1.0, 2.0]], "dtype": "float64", "from_": "int32", "to": "int64",
    "subscripts": "ij,jk->ik", "arrays": [On("x"), On("integers")],
    "keys": [On("x"), On("integers")], "k": 2, "kth": 1,
    "condition": [True, False, True], "mask": On("booleans"), "vals": [1.0, 2.0],
    "values": [1.0, 2.0],
    "pad_width": 1, "width": 1, "indices_or_sections": 2, "func1d": np.sum, "func": np.sum,
    "function": np.hypot, "dimensions": (2, 3), "M": 4, "N": 4, "beta": 2.0,
    "condlist": [On("booleans")], "choicelist": [On("x")], "funclist": [1],
    "bins": [1.0, 5.0], "q": 0.5,
    "choices": [0, 1], "dims": (SIZE, SIZE), "ind": [0, 1], "indices": [[0, 1, 0, 1]],
    "multi_index": (On("integers"), 0), "new_shape": (2, 3), "mask_func": np.triu, "v": 1.0,
    "val": 1.0,
}  # fmt: skip

OURS = {
    "mesh", "placements", "device", "shard_order", "boundaries", "async_op", "max_bytes", "src",
    "workers",
}  # fmt: skip
"""Arguments that NumPy has not."""
STRICT = {
    "out": "what is distributed is written into distributed arrays",
    "out1": "as out",
    "out2": "as out",
    "obj": "no Python objects",
    "where": "a mask holds booleans",
    "condition": "nor are objects true or false",
    "axis": "True is no axis, and one axis is no list",
    "axis1": "True is no axis",
    "axis2": "nor there",
    "source": "nor there",
    "destination": "nor there",
    "keepdims": "true or false, or an integer",
    "copy": "as keepdims",
    "stable": "as keepdims",
    "descending": "as keepdims",
    "kth": "integers",
    "keys": "of them one is distributed",
    "deg": "as keepdims",
    "sparse": "as keepdims",
    "equal_nan": "as keepdims",
    "returned": "as keepdims",
    "rowvar": "as keepdims",
    "bias": "as keepdims",
    "p": "no Python objects",
    "y": "nor there",
    "discont": "one number",
    "period": "one number",
    "order": "K, A, C or F",
    "dtype": "no Python objects",
    "rtol": "one number",
    "atol": "one number",
    "nan": "one number",
    "posinf": "one number",
    "neginf": "one number",
    "repeats": "integers",
    "reps": "integers",
    "shift": "integers",
    "shape": "integers",
    "k": "an integer",
    "ddof": "a Python number",
    "correction": "a Python number",
    "fill_value": "one number",
    "ind": "integers",
    "m": "an integer",
    "indices": "integers",
    "mode": "a word, as NumPy documents it",
    "n": "an integer",
    "ndim": "an integer",
    "v": "no Python objects",
    "val": "no Python objects",
    "wrap": "as keepdims",
    "axes": "not negative",
    "step": "a real number",
    "stop": "a real number",
    "start": "a real number",
    "arrays": "of them one is distributed",
    "vals": "no Python objects",
    "values": "no Python objects",
    "mask": "nor are objects true or false",
    "indices_or_sections": "integers",
    "edge_order": "an integer",
    "M": "an integer",
    "N": "an integer",
    "base": "one number",
    "pad_width": "plain integers",
    "condlist": "of the shape of x, or of booleans",
    "funclist": "functions and numbers",
    "default": "no Python objects",
    "choicelist": "no Python objects",
    "assume_unique": "as keepdims",
    "invert": "as keepdims",
    "return_index": "as keepdims",
    "return_inverse": "as keepdims",
    "return_counts": "as keepdims",
    "return_indices": "as keepdims",
    "sorted": "as keepdims",
    "density": "as keepdims",
    "right": "as keepdims",
    "bins": "no Python objects",
    "ar1": "no Python objects",
    "ar2": "no Python objects",
    "sample": "points of one or two axes",
    "x": "distributed, where the layout decides",
    "x1": "no Python objects",
    "x2": "no Python objects",
}
"""Arguments of which NumPy takes more than we do, and why."""
CALLED = {"func", "func1d", "function", "mode"}
"""Arguments that may be functions, which raise what they like."""
OTHER_VALUES = {
    "ndim": "an integer, and no array",
    "mean": "found in the same pass",
    "where": "items elsewhere are 0",
}
"""Arguments with which NumPy's result is another."""


METHODS = {
    name: method
    for base in da.DistArray.__mro__[:-1]
    for name, method in vars(base).items()
    if inspect.isfunction(method) and not name.startswith("_")
}


def made(value: Any, mesh: Any, elsewhere: Any) -> Any:
    if isinstance(value, list):
        return [made(one, mesh, elsewhere) for one in value]
    if isinstance(value, np.ndarray):  # as out= it is written into
        return value.copy()
    if not isinstance(value, On):
        return value
    items = np.arange(SIZE * SIZE, dtype=float).reshape(SIZE, SIZE) + 1
    if value.name == "mesh":
        return mesh
    if value.name == "elsewhere":
        return da.distribute_array(items, elsewhere, [Shard(0)])
    block, placement = {
        "x": (items, Shard(0)),
        "0-d": (np.array(1), Replicate()),
        "1-d": (np.arange(5.0), Shard(0)),
        "booleans": (items > 3, Shard(0)),
        "integers": (items.astype(int), Shard(1)),
        "partial": (items, Partial()),
    }[value.name]
    return da.distribute_array(block, mesh, [placement])


def calls(function: Any) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield calls with one wrong argument, and its name."""
    parameters = inspect.signature(function).parameters
    kind = inspect.Parameter
    right = {
        name: RIGHT.get(name, On("x"))
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD)
    }
    if function.__name__ == "where":
        right |= {"condition": On("x"), "x1": On("x"), "x2": 0}
    for name, one in parameters.items():
        first = zlib.crc32(f"{function.__name__} {name}".encode()) % EVERY
        values = VALUES[first::EVERY]
        for value in values if one.kind is not kind.VAR_KEYWORD and name != "self" else ():
            args: list[Any] = []
            options: dict[str, Any] = {}
            for key, given in (right | {name: value}).items():
                by_place = (kind.POSITIONAL_ONLY, kind.VAR_POSITIONAL)
                if parameters[key].kind in by_place or key == "self":
                    args.append(given)
                else:
                    options[key] = given
            if one.kind is kind.VAR_POSITIONAL and "self" not in parameters:
                args.append(On("x"))
            yield name, args, options


def shown(result: Any) -> Any:
    """Return what can be compared of a result."""
    if hasattr(result, "wait"):
        result = result.wait()
    if isinstance(result, (tuple, list)):
        return [shown(one) for one in result]
    result = result.full_array() if isinstance(result, da.DistArray) else result
    if isinstance(result, (np.ndarray, np.generic)):
        block = np.asarray(result)
        return block.shape, block.dtype.str, np.array_repr(block)
    return repr(result)


def end_of(function: Any, args: list[Any], options: dict[str, Any]) -> tuple[Any, ...]:
    """Return how a call ends: with what result, or which error."""
    try:
        return "result", shown(function(*args, **options))
    except Exception as error:
        return type(error), str(error).partition("\n")[0]


def distributed(_: str, args: list[Any], options: dict[str, Any]) -> list[str]:
    """Return the names of distributed arrays among the arguments of a call."""
    given = [*args, *options.values()]
    given += [one for value in given if isinstance(value, list) for one in value]
    return [one.name for one in given if isinstance(one, On) and one.name != "mesh"]


def in_words(function: Any, name: str, args: list[Any], options: dict[str, Any]) -> str:
    return f"{function.__name__} with {name} of {args} {options}"


def ends(function: Any) -> list[list[tuple[Any, ...]]]:
    """Return how all calls end on each rank, without and with the check."""
    checked = _replicas.compare_arguments(function, function.__name__)

    def program() -> list[tuple[Any, ...]]:
        mesh, elsewhere = da.init_device_mesh((RANKS,)), da.DeviceMesh([0, 1])
        found = []
        for _, args, options in calls(function):
            both = []
            for one in (function, checked):
                own = (
                    made(args, mesh, elsewhere),
                    {key: made(value, mesh, elsewhere) for key, value in options.items()},
                )
                both.append(end_of(one, *own))
            found.append(tuple(both))
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simulate(RANKS, program)


def without_seed(function: Any, end: Any) -> Any:
    """Return an end without values that are arbitrary, or those of one rank."""
    free = function.__name__.startswith("empty") or function.__name__ == "full_array"
    return end[:1] if free and end[0] == "result" else end


def named(name: str) -> Any:
    """Return a function, a method, or a function of a namespace inside of ours."""
    room, _, own = name.rpartition(".")
    return METHODS[own] if room == "DistArray" else getattr(getattr(da, room) if room else da, own)


@pytest.mark.parametrize(
    "name", [*FUNCTIONS, *OF_ROOMS, *(f"DistArray.{name}" for name in METHODS)]
)
def test_wrong_arguments_end_alike_on_all_ranks_and_with_the_check(name):
    function = named(name)
    for call, *on_ranks in zip(calls(function), *ends(function), strict=True):
        words = in_words(function, *call)
        given = distributed(*call)
        elsewhere = "elsewhere" in given
        plain, checked = zip(*on_ranks, strict=True)
        of_ranks = plain[:2] if elsewhere else plain  # the third has none of that array's values
        first = without_seed(function, plain[0])
        assert all(without_seed(function, end) == first for end in of_ranks), (words, plain)
        for end, other in zip(plain, checked, strict=True):
            assert without_seed(function, end) == without_seed(function, other), (words, end, other)
        if first[0] != "result":
            ours = issubclass(first[0], da.errors.DistArrayError)
            pythons = first[0] is TypeError and first[1].startswith(f"{function.__qualname__}()")
            of_numpy = not given  # whose own function answers, as where NumPy is called
            of_numpy = of_numpy or call[0] in CALLED
            inner = (AttributeError, LookupError, AssertionError, NameError)
            assert ours or pythons or (of_numpy and not issubclass(first[0], inner)), (words, first)


def of_numpy(function: Any) -> list[tuple[Any, ...]]:
    """Return how NumPy's function ends with the same values."""
    theirs = getattr(np, function.__name__)

    def program() -> list[tuple[Any, ...]]:
        mesh = da.init_device_mesh((1,))

        def plain(value: Any) -> Any:
            found = made(value, mesh, mesh)
            if isinstance(found, list):
                return [plain(one) for one in value]
            return found.full_array() if isinstance(found, da.DistArray) else found

        found = []
        for name, args, options in calls(function):
            own = [plain(one) for one in args], {k: plain(v) for k, v in options.items()}
            huge = any(isinstance(x, int) and x > 1e9 for x in [*args, *options.values()])
            ours = name in OURS or any(isinstance(x, On) and x.name == "mesh" for x in args)
            ours |= name == "out"  # scans of NumPy write past the end of an array without axes
            found.append(("not asked", "") if huge or ours else end_of(theirs, *own))
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simulate(1, program)[0]


SAME_ARGUMENTS = [
    name
    for name in FUNCTIONS
    if hasattr(np, name)
    and name not in ("cumulative_sum", "astype", "copyto", "einsum", "result_type", "can_cast")
    and name != "unique_values"  # whose order NumPy leaves open
    and not name.startswith("empty")
]


@pytest.mark.parametrize("name", SAME_ARGUMENTS)
def test_arguments_that_numpy_takes_give_its_result(name):
    function = getattr(da, name)

    def program() -> list[tuple[Any, ...]]:
        mesh = da.init_device_mesh((1,))
        return [
            end_of(function, made(args, mesh, mesh), {k: made(v, mesh, mesh) for k, v in o.items()})
            for _, args, o in calls(function)
        ]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (ours,) = simulate(1, program)
    for call, end, theirs in zip(calls(function), ours, of_numpy(function), strict=True):
        words = in_words(function, *call)
        if end[0] == "result" and theirs[0] == "result" and call[0] not in OTHER_VALUES:
            assert end == theirs, (words, end, theirs)
        if theirs[0] == "result" and call[0] not in STRICT:
            assert end[0] == "result", (words, end, theirs)
