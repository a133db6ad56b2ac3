"""GPUs: devices, kernels, and messages between device memories."""
