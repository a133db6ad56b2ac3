"""Layers as the styles compute them: attention, convolutions, embeddings, norms."""
