"""Policies: in which dtypes sharded modules compute and reduce, and where shards are kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Dtypes of a sharded module; parameters, their gradients and optimizers keep their own.

    Attributes
    ----------
    param_dtype
        In which floating-point parameters are gathered and used; None: their own.
    reduce_dtype
        In which gradients are accumulated and reduced; None: that in which they are computed.
    output_dtype
        To which floating-point outputs are converted; None: they stay.
    cast_forward_inputs
        Whether floating-point inputs are converted to ``param_dtype``.

    Examples
    --------
    >>> policy = dt.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    >>> model = dt.fully_shard(nn.Linear(4, 6), da.default_mesh(), mp_policy=policy)
    >>> model(torch.ones(2, 4)).dtype, model.weight.dtype
    (torch.bfloat16, torch.float32)
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True

    def dtype_of(self, own: torch.dtype) -> torch.dtype:
        """Return in which dtype a parameter is gathered."""
        if self.param_dtype is None or not own.is_floating_point:
            return own
        return self.param_dtype


@dataclass(frozen=True)
class OffloadPolicy:
    """Keep shards on the device where the module computes.

    Examples
    --------
    >>> policy = dt.OffloadPolicy()
    >>> model = dt.fully_shard(nn.Linear(4, 6), da.default_mesh(), offload_policy=policy)
    >>> isinstance(dt.CPUOffloadPolicy(), dt.OffloadPolicy)
    True
    """


@dataclass(frozen=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Keep shards, gradients and so the optimizer's state in host memory.

    Attributes
    ----------
    pin_memory
        Whether that memory is page-locked, so that copies to and from a GPU are fast.

    Examples
    --------
    >>> policy = dt.CPUOffloadPolicy(pin_memory=False)
    >>> model = dt.fully_shard(nn.Linear(4, 6), da.default_mesh(), offload_policy=policy)
    >>> model.weight.device
    device(type='cpu')
    """

    pin_memory: bool = True
