"""Data parallelism: replicated modules whose gradients are averaged in buckets."""

from distarray.torch.data_parallel._check_replicas import check_replicas
from distarray.torch.data_parallel._reducer import NAME as REPLICA
from distarray.torch.data_parallel._reducer import check_step
from distarray.torch.data_parallel._replicate import no_sync, replicate
