"""Communication: who the ranks are, and moving bytes among them; nothing here knows arrays.

The floors above import from here, and from the rooms `kernels` and `cuda`, which have doors of
their own; `_memory` (blocks are allocated there) and `_backend` (which library a block belongs to)
are used as namespaces.
"""

from distarray.comm import _backend, _memory
from distarray.comm._agreement import (
    Purpose,
    all_gather_checked,
    attempt,
    by_answer,
    list_first,
    raise_alike,
    token,
)
from distarray.comm._block_reduction import reduce_boxes, reduce_into
from distarray.comm._collectives import split_parts
from distarray.comm._communicator import Communicator
from distarray.comm._device_mesh import (
    DeviceMesh,
    as_communicator,
    default_device,
    default_mesh,
    default_placements,
    init_device_mesh,
    name_meshes,
    use_mesh,
    world,
)
from distarray.comm._grouping import (
    Blocks,
    Parcels,
    compress,
    count_numbers,
    expand,
    group_numbers,
    group_rows,
    merge_runs,
    take_rows,
)
from distarray.comm._launcher import is_forked, own_place, warn_of_misspelt_settings
from distarray.comm._log import (
    CommLog,
    copy_log_context,
    pause_logs,
    recording,
    register_worker_test,
)
from distarray.comm._memory import POOLED_BYTES
from distarray.comm._packing import (
    copy_box,
    copy_boxes,
    goes_as_it_lies,
    packed_at_a_time,
)
from distarray.comm._reductions import (
    BFLOAT16,
    is_bfloat16,
    narrow_bfloat16,
    plain_ufunc,
    unheard,
    widen_bfloat16,
)
from distarray.comm._rows import ask_owners, pull_rows, push_rows
from distarray.comm._settings import setting
from distarray.comm._states import (
    FOLDED_BY_ALL,
    exclusive_scan,
    gather_blocks,
    gather_lengths,
    gather_parts,
    gather_words,
    join_blocks,
    join_states,
    scatter_states,
)
from distarray.comm.failures._waits import background_work, waiting
from distarray.comm.kernels._loop_nest import fill
from distarray.comm.kernels._machine import load as load_measured
from distarray.comm.kernels._machine import store as store_measured
from distarray.comm.simulated._ranks import simulate, simulated_world

__all__ = [
    "BFLOAT16",
    "FOLDED_BY_ALL",
    "POOLED_BYTES",
    "Blocks",
    "CommLog",
    "Communicator",
    "DeviceMesh",
    "Parcels",
    "Purpose",
    "_backend",
    "_memory",
    "all_gather_checked",
    "as_communicator",
    "ask_owners",
    "attempt",
    "background_work",
    "by_answer",
    "compress",
    "copy_box",
    "copy_boxes",
    "copy_log_context",
    "count_numbers",
    "default_device",
    "default_mesh",
    "default_placements",
    "exclusive_scan",
    "expand",
    "fill",
    "gather_blocks",
    "gather_lengths",
    "gather_parts",
    "gather_words",
    "goes_as_it_lies",
    "group_numbers",
    "group_rows",
    "init_device_mesh",
    "is_bfloat16",
    "is_forked",
    "join_blocks",
    "join_states",
    "list_first",
    "load_measured",
    "merge_runs",
    "name_meshes",
    "narrow_bfloat16",
    "packed_at_a_time",
    "pause_logs",
    "plain_ufunc",
    "pull_rows",
    "push_rows",
    "raise_alike",
    "recording",
    "reduce_boxes",
    "reduce_into",
    "register_worker_test",
    "scatter_states",
    "setting",
    "simulate",
    "simulated_world",
    "split_parts",
    "store_measured",
    "take_rows",
    "token",
    "unheard",
    "use_mesh",
    "waiting",
    "warn_of_misspelt_settings",
    "widen_bfloat16",
    "world",
]

if own_place() is not None:  # by its launcher a process is a rank before it makes a mesh
    from distarray.comm.failures._abort import install

    install()
