"""Training: norms and clipping, loss scaling, dropout, initialisers, and what optimizers may do."""

from distarray.torch.training._dropout import drop, drop_as, dropout
from distarray.torch.training._grad_scaler import GradScaler
from distarray.torch.training._initialisers import ORIGINALS, watch_initialisers
from distarray.torch.training._norms import clip_grad_norm_, get_total_norm, list_names
from distarray.torch.training._optimizers import check_optimizer
