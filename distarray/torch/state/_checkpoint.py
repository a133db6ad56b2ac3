"""Tell checkpoints of tensors, generators, modules and optimizers."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

from distarray.checkpoint import register, register_maker
from distarray.torch.state._checkpoint_modules import Modules
from distarray.torch.state._checkpoint_optimizers import Optimizers
from distarray.torch.state._checkpoint_tensors import Generators, Tensors, make_block, make_whole


def register_all() -> None:
    """Let `da.checkpoint` take what torch has; done when the adapters are imported."""
    register(torch.Tensor, Tensors())
    register(torch.Generator, Generators())
    register(nn.Module, Modules())
    register(Optimizer, Optimizers())
    register_maker("tensor", make_whole)
    register_maker("tensor block", make_block)
