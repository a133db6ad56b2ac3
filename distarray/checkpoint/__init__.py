"""Checkpoints that any number of ranks load in any layout, whole at every moment."""

from distarray.checkpoint._arrays import Placing
from distarray.checkpoint._background import Handle
from distarray.checkpoint._directory import latest, steps
from distarray.checkpoint._inspect import open
from distarray.checkpoint._load import load
from distarray.checkpoint._safetensors_load import load_safetensors
from distarray.checkpoint._safetensors_save import save_safetensors
from distarray.checkpoint._save import save
from distarray.checkpoint._saving import PerRank

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
