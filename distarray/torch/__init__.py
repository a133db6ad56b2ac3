"""Tensor parallelism for torch modules over MPI, with plain tensors at every seam.

In examples of docstrings `da` is `distarray`, `dt` this module, `nn` `torch.nn`, and `F` is
`torch.nn.functional`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

import torch.optim.optimizer as _optimizer

from distarray._missing_names import missing_name_error as _missing_name_error
from distarray.torch._full import distribute_tensor, from_torch, full_tensor, to_torch
from distarray.torch._halo import halo
from distarray.torch._layouts import layout_of, place_like
from distarray.torch._moves import PendingTensor, redistribute
from distarray.torch._random import get_random_state, manual_seed, random_state, set_random_state
from distarray.torch.data_parallel import check_replicas, no_sync, replicate
from distarray.torch.data_parallel import check_step as _check_step
from distarray.torch.following import check_layouts
from distarray.torch.following import watch_checkpoints as _watch_checkpoints
from distarray.torch.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
)
from distarray.torch.loss import loss_parallel, vocab_parallel_cross_entropy
from distarray.torch.parallel import (
    ColwiseParallel,
    LowRankParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    TransformerLayerParallel,
    distribute_parameter,
    input_reshard,
    parallelize_module,
    plan_of,
)
from distarray.torch.state import (
    load_optimizer_state_dict,
    load_state_dict,
    optimizer_state_dict,
    state_dict,
)
from distarray.torch.state import register_all as _register_all
from distarray.torch.training import GradScaler, clip_grad_norm_, dropout, get_total_norm
from distarray.torch.training import check_optimizer as _check_optimizer
from distarray.torch.training import watch_initialisers as _watch_initialisers

_register_all()
for _check in (_check_optimizer, _check_step):
    _optimizer.register_optimizer_step_pre_hook(_check)
_watch_initialisers()
_watch_checkpoints()

__all__ = [
    "CPUOffloadPolicy",
    "ColwiseParallel",
    "FSDPModule",
    "GradScaler",
    "LowRankParallel",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ParallelStyle",
    "PendingTensor",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "TransformerLayerParallel",
    "UnshardHandle",
    "check_layouts",
    "check_replicas",
    "clip_grad_norm_",
    "distribute_parameter",
    "distribute_tensor",
    "dropout",
    "from_torch",
    "full_tensor",
    "fully_shard",
    "get_random_state",
    "get_total_norm",
    "halo",
    "input_reshard",
    "layout_of",
    "load_optimizer_state_dict",
    "load_state_dict",
    "loss_parallel",
    "manual_seed",
    "no_sync",
    "optimizer_state_dict",
    "parallelize_module",
    "place_like",
    "plan_of",
    "random_state",
    "redistribute",
    "register_fsdp_forward_method",
    "replicate",
    "set_random_state",
    "state_dict",
    "to_torch",
    "vocab_parallel_cross_entropy",
]

if not _TYPE_CHECKING:

    def __getattr__(name):
        raise _missing_name_error(f"torch.{name}")
