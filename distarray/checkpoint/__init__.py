"""Checkpoints that any number of ranks load in any layout, whole at every moment.

``__all__`` has what programs use; the other names are for adapters in the floors above.
"""

from distarray.checkpoint._adapters import Adapter as Adapter
from distarray.checkpoint._adapters import Finish as Finish
from distarray.checkpoint._adapters import Placing
from distarray.checkpoint._adapters import StateAdapter as StateAdapter
from distarray.checkpoint._adapters import register as register
from distarray.checkpoint._adapters import register_maker as register_maker
from distarray.checkpoint._background import Handle
from distarray.checkpoint._inspect import open
from distarray.checkpoint._load import load
from distarray.checkpoint._load_plan import LoadPlan as LoadPlan
from distarray.checkpoint._save import save
from distarray.checkpoint._save_plan import PerRank
from distarray.checkpoint._save_plan import SavePlan as SavePlan
from distarray.checkpoint._save_plan import encode_key as encode_key
from distarray.checkpoint.safetensors._load import load_safetensors
from distarray.checkpoint.safetensors._save import save_safetensors
from distarray.checkpoint.storage._blocks import Block as Block
from distarray.checkpoint.storage._blocks import Piece as Piece
from distarray.checkpoint.storage._blocks import box_view as box_view
from distarray.checkpoint.storage._directory import latest, steps
from distarray.checkpoint.storage._dtypes import dtype_of_spec as dtype_of_spec
from distarray.checkpoint.storage._manifest import Entry as Entry
from distarray.checkpoint.storage._values import Node as Node
from distarray.checkpoint.storage._values import join_name as join_name

__all__ = [
    "Handle",
    "PerRank",
    "Placing",
    "latest",
    "load",
    "load_safetensors",
    "open",
    "save",
    "save_safetensors",
    "steps",
]
