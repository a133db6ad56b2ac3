"""Losses of logits that are cut along their classes."""

from distarray.torch.loss._cross_entropy import vocab_parallel_cross_entropy
from distarray.torch.loss._loss_parallel import loss_parallel
