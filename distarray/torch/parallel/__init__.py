"""Parallel styles: parameters cut over a mesh axis, and what moves in and out of a module."""

from distarray.torch.parallel._feature_parallel import ColwiseParallel, RowwiseParallel
from distarray.torch.parallel._input_reshard import input_reshard
from distarray.torch.parallel._lora import LowRankParallel
from distarray.torch.parallel._model_plan import plan_of
from distarray.torch.parallel._parallelize import parallelize_module
from distarray.torch.parallel._parameters import distribute_parameter, forget_graphs
from distarray.torch.parallel._prepare import (
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
)
from distarray.torch.parallel._sequence import SequenceParallel
from distarray.torch.parallel._style import ParallelStyle, check_one_axis
from distarray.torch.parallel._transformer import TransformerLayerParallel
from distarray.torch.parallel.layers._embedding import local_padding
