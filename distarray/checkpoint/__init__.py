"""Checkpoints that any number of ranks load in any layout, whole at every moment.

``__all__`` has what programs use; the other names are for the floors above.
"""

from distarray.checkpoint._adapters import Adapter as Adapter
from distarray.checkpoint._adapters import Finish as Finish
from distarray.checkpoint._adapters import Placing
from distarray.checkpoint._adapters import StateAdapter as StateAdapter
from distarray.checkpoint._adapters import register as register
from distarray.checkpoint._adapters import register_maker as register_maker
from distarray.checkpoint._agreement import begin as begin
from distarray.checkpoint._agreement import call_on_all as call_on_all
from distarray.checkpoint._agreement import call_on_first as call_on_first
from distarray.checkpoint._agreement import check_path as check_path
from distarray.checkpoint._background import Handle
from distarray.checkpoint._inspect import open
from distarray.checkpoint._load import load
from distarray.checkpoint._load_plan import LoadPlan as LoadPlan
from distarray.checkpoint._save import save
from distarray.checkpoint._save_plan import PerRank
from distarray.checkpoint._save_plan import SavePlan as SavePlan
from distarray.checkpoint._save_plan import encode_key as encode_key
from distarray.checkpoint._whole_arrays import read_array as read_array
from distarray.checkpoint._whole_arrays import write_array as write_array
from distarray.checkpoint._whole_arrays import writing_layout as writing_layout
from distarray.checkpoint.safetensors._load import load_safetensors
from distarray.checkpoint.safetensors._save import save_safetensors
from distarray.checkpoint.storage._blocks import Block as Block
from distarray.checkpoint.storage._blocks import Piece as Piece
from distarray.checkpoint.storage._blocks import box_view as box_view
from distarray.checkpoint.storage._blocks import split_box as split_box
from distarray.checkpoint.storage._directory import latest, steps
from distarray.checkpoint.storage._dtypes import dtype_of_spec as dtype_of_spec
from distarray.checkpoint.storage._manifest import Entry as Entry
from distarray.checkpoint.storage._values import Node as Node
from distarray.checkpoint.storage._values import join_name as join_name

__all__ = [
    "Handle", "PerRank", "Placing", "latest", "load", "load_safetensors", "open", "save",
    "save_safetensors", "steps",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
