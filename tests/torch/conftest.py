"""Ranks that are threads read torch's generator one at a time, also in checkpoints.

Torch wraps the state while it holds the generator's lock. On Python 3.11 that may collect garbage,
which lets another thread in that waits for the generator with Python's own lock: for ever.
"""

from __future__ import annotations

import importlib.util
import sys

if sys.version_info < (3, 12) and importlib.util.find_spec("torch"):
    import torch

    from distarray.torch._random import read_state

    torch.get_rng_state = torch.random.get_rng_state = lambda: read_state(torch.default_generator)
