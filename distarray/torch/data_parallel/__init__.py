"""Data parallelism: gradients averaged in buckets while the backward pass goes on."""
