"""The engine: rules, families of operations, results; the floors above import from here.

`_replicas`, which compares the arguments of public calls, is used as a namespace.
"""

from distarray.core import _replicas
from distarray.core._arguments import (
    check_device,
    check_travels,
    checked_casting,
    checked_device,
    checked_flag,
    checked_index,
    checked_order,
    checked_position,
    chosen_mesh,
    chosen_placements,
    integers,
    plain_buffer,
    plain_source,
    read_box,
    shown,
)
from distarray.core._base import BaseArray, new_array, set_array_class
from distarray.core._cache import cache, remember
from distarray.core._cache import clear as clear_cache
from distarray.core._dispatch import as_block, move
from distarray.core._dtypes import checked_dtype, floating, numeric, real
from distarray.core._elementwise import elementwise, into, run_row
from distarray.core._engine import Step, run, run_once, run_one, step_for, step_of
from distarray.core._families import binary, equality, unary
from distarray.core._float_errors import CALM, converted, state, strict
from distarray.core._folding import in_unit, reduce_block
from distarray.core._meshes import common_mesh, device_of, lift, replicated
from distarray.core._moments import Moments, merge, moments, state_dtype
from distarray.core._op import Call, Op, State, States
from distarray.core._operands import (
    LARGE,
    beside,
    broadcast_shape,
    cast,
    checked,
    normalised,
    plain,
    reduced,
)
from distarray.core._paths import inplace_path
from distarray.core._policy import communication, permit
from distarray.core._read_only import ITEM, PendingWrite, check_writable, in_place
from distarray.core._reduce import (
    ABSENT,
    axis_key,
    check_fits,
    check_out,
    local_dtype,
    loop_dtype,
    normalised_axes,
    reduce,
    reduced_count,
    reduced_shape,
    reduction,
    result_dtype,
    written,
)
from distarray.core._registry import functions, methods, register, row_of, ufuncs
from distarray.core._replicas import apart, digest
from distarray.core._ruled import register_rule
from distarray.core._spec import (
    ADDITIVE,
    LINEAR,
    MULTIPLICATIVE,
    POINTWISE,
    Layouts,
    Letters,
    Spec,
    joining,
    reduction_spec,
)

__all__ = [
    "ABSENT",
    "ADDITIVE",
    "CALM",
    "ITEM",
    "LARGE",
    "LINEAR",
    "MULTIPLICATIVE",
    "POINTWISE",
    "BaseArray",
    "Call",
    "Layouts",
    "Letters",
    "Moments",
    "Op",
    "PendingWrite",
    "Spec",
    "State",
    "States",
    "Step",
    "_replicas",
    "apart",
    "as_block",
    "axis_key",
    "beside",
    "binary",
    "broadcast_shape",
    "cache",
    "cast",
    "check_device",
    "check_fits",
    "check_out",
    "check_travels",
    "check_writable",
    "checked",
    "checked_casting",
    "checked_device",
    "checked_dtype",
    "checked_flag",
    "checked_index",
    "checked_order",
    "checked_position",
    "chosen_mesh",
    "chosen_placements",
    "clear_cache",
    "common_mesh",
    "communication",
    "converted",
    "device_of",
    "digest",
    "elementwise",
    "equality",
    "floating",
    "functions",
    "in_place",
    "in_unit",
    "inplace_path",
    "integers",
    "into",
    "joining",
    "lift",
    "local_dtype",
    "loop_dtype",
    "merge",
    "methods",
    "moments",
    "move",
    "new_array",
    "normalised",
    "normalised_axes",
    "numeric",
    "permit",
    "plain",
    "plain_buffer",
    "plain_source",
    "read_box",
    "real",
    "reduce",
    "reduce_block",
    "reduced",
    "reduced_count",
    "reduced_shape",
    "reduction",
    "reduction_spec",
    "register",
    "register_rule",
    "remember",
    "replicated",
    "result_dtype",
    "row_of",
    "run",
    "run_once",
    "run_one",
    "run_row",
    "set_array_class",
    "shown",
    "state",
    "state_dtype",
    "step_for",
    "step_of",
    "strict",
    "ufuncs",
    "unary",
    "written",
]
