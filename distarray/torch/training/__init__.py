"""Training: norms and clipping, loss scaling, dropout, initialisers, and what optimizers may do.

``__all__`` has what programs use; the other names are for the rooms beside.
"""

from distarray.torch.training._dropout import drop as drop
from distarray.torch.training._dropout import drop_as as drop_as
from distarray.torch.training._dropout import dropout
from distarray.torch.training._grad_scaler import GradScaler
from distarray.torch.training._initialisers import ORIGINALS as ORIGINALS
from distarray.torch.training._initialisers import watch_initialisers as watch_initialisers
from distarray.torch.training._norms import clip_grad_norm_, get_total_norm
from distarray.torch.training._norms import list_names as list_names
from distarray.torch.training._optimizers import check_optimizers as check_optimizers

__all__ = ["GradScaler", "clip_grad_norm_", "dropout", "get_total_norm"]
