"""The transport over mpi4py."""
