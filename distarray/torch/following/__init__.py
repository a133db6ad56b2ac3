"""Layouts followed through torch functions: one mode, and the rules that it applies."""

from distarray.torch.following._mode import Following, check_layouts
from distarray.torch.following._operands import known_layout, relabel, tensors_in
from distarray.torch.following._recompute import watch_checkpoints
