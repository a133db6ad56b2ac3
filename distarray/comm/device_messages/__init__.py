"""Messages between GPUs: collectives of their buffers, by host memory or straight from MPI."""
