"""A distributed array over MPI: NumPy's interface, blocks on the processes of a mesh."""

from importlib import import_module
from typing import TYPE_CHECKING

from numpy import (
    bool,
    bool_,
    byte,
    bytes_,
    cdouble,
    character,
    clongdouble,
    complex64,
    complex128,
    complexfloating,
    csingle,
    datetime64,
    double,
    dtype,
    e,
    errstate,
    euler_gamma,
    flexible,
    float16,
    float32,
    float64,
    floating,
    generic,
    get_printoptions,
    half,
    iinfo,
    index_exp,
    inexact,
    inf,
    int8,
    int16,
    int32,
    int64,
    int_,
    intc,
    integer,
    intp,
    isdtype,
    isscalar,
    issubdtype,
    iterable,
    long,
    longdouble,
    longlong,
    mintypecode,
    nan,
    ndindex,
    newaxis,
    number,
    object_,
    pi,
    printoptions,
    promote_types,
    s_,
    set_printoptions,
    short,
    signedinteger,
    single,
    str_,
    timedelta64,
    typecodes,
    ubyte,
    uint,
    uint8,
    uint16,
    uint32,
    uint64,
    uintc,
    uintp,
    ulong,
    ulonglong,
    unsignedinteger,
    ushort,
    void,
)

from distarray import errors, io, memory, ops, special, testing
from distarray._missing_names import missing_name_error
from distarray._namespace_info import __array_namespace_info__, finfo
from distarray.array import (
    DistArray,
    array2string,
    array_repr,
    array_str,
    distribute_array,
    from_petsc,
    fuse,
    halo,
    local_rows,
    map_blocks,
    map_overlap,
    print0,
    redistribute,
    visualize,
)
from distarray.comm import (
    CommLog,
    DeviceMesh,
    default_mesh,
    init_device_mesh,
    use_mesh,
    warn_of_misspelt_settings,
)
from distarray.core import _replicas, communication, register_rule
from distarray.io import load, save, store
from distarray.layout import (
    AbstractMesh,
    Layout,
    Partial,
    Placement,
    Replicate,
    Shard,
)
from distarray.ops import *  # noqa: F403 (its __all__ has the functions of the namespace)
from distarray.redistribute import (
    Plan,
    plan,
)

__version__ = "0.1.0"
__array_api_version__ = "2025.12"

__all__ = [
    "AbstractMesh", "CommLog", "DeviceMesh", "DistArray", "Layout", "Partial", "Placement", "Plan",
    "Replicate", "Shard", "__array_api_version__", "__array_namespace_info__", "array2string",
    "array_repr", "array_str", "bool", "bool_", "byte", "bytes_", "cdouble", "character",
    "checkpoint", "clongdouble", "communication", "complex64", "complex128", "complexfloating",
    "csingle", "datetime64", "default_mesh", "distribute_array", "double", "dtype", "e", "errors",
    "errstate", "euler_gamma", "fft", "finfo", "flexible", "float16", "float32", "float64",
    "floating", "from_petsc", "fuse", "generic", "get_printoptions", "half", "halo", "iinfo",
    "index_exp", "inexact", "inf", "init_device_mesh", "int8", "int16", "int32", "int64", "int_",
    "intc", "integer", "intp", "io", "isdtype", "isscalar", "issubdtype", "iterable", "linalg",
    "load", "local_rows", "long", "longdouble", "longlong", "map_blocks", "map_overlap", "memory",
    "mintypecode", "nan", "ndindex", "newaxis", "number", "object_", "pi", "plan", "print0",
    "printoptions", "promote_types", "random", "redistribute", "register_rule", "s_", "save",
    "set_printoptions", "short", "signedinteger", "single", "special", "store", "str_", "testing",
    "timedelta64", "typecodes", "ubyte", "uint", "uint8", "uint16", "uint32", "uint64", "uintc",
    "uintp", "ulong", "ulonglong", "unsignedinteger", "use_mesh", "ushort", "visualize", "void",
]  # fmt: skip
__all__ += ops.__all__

warn_of_misspelt_settings()
if _replicas.checked:
    for _name in ("fft", "linalg"):
        _replicas.compare_public_calls(vars(import_module(f"distarray.{_name}")))
    _generator = import_module("distarray.random").Generator
    _replicas.compare_public_calls(globals(), DistArray, _generator)


if TYPE_CHECKING:
    from distarray import checkpoint as checkpoint
    from distarray import fft as fft
    from distarray import linalg as linalg
    from distarray import random as random
else:

    def __getattr__(name):
        if name in ("checkpoint", "fft", "linalg", "random"):  # many programs need none of them
            return import_module(f"distarray.{name}")
        places = []
        if not name.startswith("_"):  # those tools probe, and nothing need be imported for them
            rooms = ("fft", "linalg")
            places = [(f"da.{room}", import_module(f"distarray.{room}")) for room in rooms]
            places.append(("x", DistArray))
        found = [f"{home}.{name}" for home, place in places if hasattr(place, name)]
        raise missing_name_error(name, __all__, found)

    def __dir__():
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
