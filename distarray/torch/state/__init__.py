"""States of modules and optimizers: state dicts of one process, and adapters for checkpoints."""

from distarray.torch.state._checkpoint import register_all
from distarray.torch.state._optimizer_state import load_optimizer_state_dict, optimizer_state_dict
from distarray.torch.state._state_dict import load_state_dict, state_dict
