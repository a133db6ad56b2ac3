"""The engine: rules, families of operations, results; the floors above import from here.

Its imports are its exports. `_replicas`, which compares the arguments of public calls, is used as a
namespace.
"""

from distarray.core import _replicas
from distarray.core._arguments import (
    as_integers,
    check_casting,
    check_choice,
    check_device,
    check_device_name,
    check_flag,
    check_integer,
    check_number,
    check_order,
    check_position,
    check_travels,
    choose_mesh,
    choose_placements,
    describe,
    is_stored,
    join_arrays,
    normalize_shape,
    parsing,
    plain_buffer,
    plain_source,
    read_box,
)
from distarray.core._base import BaseArray, new_array, set_array_class
from distarray.core._dtypes import (
    PLAIN_SCALARS,
    REFUSALS,
    floating,
    normalize_dtype,
    numeric,
    real,
    refusal,
    with_length,
)
from distarray.core._op import Call, Op, State, States
from distarray.core._read_only import ITEM, PendingWrite, check_writable, in_place, new_copied_view
from distarray.core._replicas import digest, group_by_answer
from distarray.core._spec import (
    ADDITIVE,
    LINEAR,
    MULTIPLICATIVE,
    POINTWISE,
    Layouts,
    Letters,
    Move,
    Panels,
    Spec,
    joining,
    pointwise,
    reduction_spec,
)
from distarray.core._warnings import warn
from distarray.core.engine._blocks import (
    as_block,
    copy_array,
    copy_block,
    empty_block,
    move,
    reduced_source,
    unshare,
)
from distarray.core.engine._cache import Resolutions, cache, remember
from distarray.core.engine._cache import clear as clear_cache
from distarray.core.engine._float_errors import (
    DEFAULT_ERROR_STATE,
    call_alike,
    call_on_all,
    caller,
    convert_on_all,
    error_state,
    errors_raise,
)
from distarray.core.engine._fusion import Deferred, Trace, compute
from distarray.core.engine._meshes import (
    common_mesh,
    device_of,
    lift,
    meet,
    replicated_layout,
    several_ranks,
)
from distarray.core.engine._operands import (
    LARGE,
    allocate,
    broadcast_shape,
    cast,
    check_distributed,
    check_target,
    match_device,
    normalize_arrays,
    normalize_operand,
    normalize_operands,
    pointwise_spec,
    reduce_partial,
)
from distarray.core.engine._pipeline import (
    Step,
    run,
    run_once,
    run_one,
    step_for,
    steps,
    unknown_shape,
)
from distarray.core.engine._policy import communication, permit, permit_bytes, warn_of_gather
from distarray.core.engine._tiles import reduce_tiles, tile_shape
from distarray.core.families._docstrings import documented, fill_arguments
from distarray.core.families._elementwise import (
    copied_row,
    dtypes_of,
    elementwise,
    in_pieces,
    refusal_error,
    run_into,
    run_row,
)
from distarray.core.families._exact_items import (
    Items,
    is_plain,
    items_of,
    products_of,
    squares_of,
)
from distarray.core.families._exact_sums import (
    WORDS,
    Finder,
    round_short,
    round_sums,
    scratch_of_thread,
    sum_exactly,
)
from distarray.core.families._examples import example
from distarray.core.families._fast_paths import inplace_path
from distarray.core.families._folding import ASSOCIATIVE, convert_to_unit, reduce_block
from distarray.core.families._instead import INSTEAD, instead_of
from distarray.core.families._moments import (
    Moments,
    merge,
    merge_all,
    moments,
    moments_beside_nan,
    state_dtype,
    sum_of_squares,
)
from distarray.core.families._reductions import (
    ABSENT,
    axis_key,
    beside_mask,
    check_fits,
    check_out,
    check_whole,
    count_reduced,
    local_dtype,
    loop_dtype,
    normalize_mask,
    reduce,
    reduction,
    result_dtype,
    run_and_write,
    write_out,
)
from distarray.core.families._registry import (
    functions,
    method_makers,
    method_of,
    methods,
    register,
    row_of,
    ufuncs,
)
from distarray.core.families._unary_binary import binary, equality, unary
from distarray.core.families._user_rules import register_rule
