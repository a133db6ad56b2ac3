"""A distributed array over MPI: NumPy's interface, blocks on the processes of a mesh."""

from numpy import (
    bool,
    complex64,
    complex128,
    e,
    finfo,
    float16,
    float32,
    float64,
    iinfo,
    inf,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    nan,
    newaxis,
    pi,
    uint8,
    uint16,
    uint32,
    uint64,
)

from distarray import checkpoint, errors, memory, ops, random, testing
from distarray.array import (
    DistArray,
    distribute_array,
    map_blocks,
    redistribute,
    visualize,
)
from distarray.comm import (
    CommLog,
    DeviceMesh,
    default_mesh,
    init_device_mesh,
    use_mesh,
)
from distarray.core import _replicas, communication, register_rule
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

__all__ = [
    "AbstractMesh",
    "CommLog",
    "DeviceMesh",
    "DistArray",
    "Layout",
    "Partial",
    "Placement",
    "Plan",
    "Replicate",
    "Shard",
    "bool",
    "checkpoint",
    "communication",
    "complex64",
    "complex128",
    "default_mesh",
    "distribute_array",
    "e",
    "errors",
    "finfo",
    "float16",
    "float32",
    "float64",
    "iinfo",
    "inf",
    "init_device_mesh",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "map_blocks",
    "memory",
    "nan",
    "newaxis",
    "pi",
    "plan",
    "random",
    "redistribute",
    "register_rule",
    "testing",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "use_mesh",
    "visualize",
]
__all__ += ops.__all__

if _replicas.checked:
    _replicas.compare_public_calls(globals(), DistArray, random.Generator)
