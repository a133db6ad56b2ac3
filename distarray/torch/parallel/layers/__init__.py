"""Layers as the styles compute them: attention, convolutions, embeddings, norms."""

from distarray.torch.parallel.layers._embedding import local_padding

__all__ = ["local_padding"]
