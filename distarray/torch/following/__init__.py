"""Layouts followed through torch functions: one mode, and the rules that it applies."""

from distarray.torch.following._mode import Following, check_layouts, watch_checkpoints
from distarray.torch.following._operands import (
    OwnWeights,
    hidden,
    known_layout,
    own_weights,
    tensors_in,
)
