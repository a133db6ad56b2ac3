"""Fully sharded parameters: a rank keeps its shard of each, and the whole while it is used."""

from distarray.torch.fsdp._fully_shard import fully_shard, register_fsdp_forward_method
from distarray.torch.fsdp._module import FSDPModule, UnshardHandle
from distarray.torch.fsdp._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
