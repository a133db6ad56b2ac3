"""Iterative solvers, under the names and signatures of `scipy.sparse.linalg`.

They need of a matrix what it does to a vector: a distributed matrix, a function of distributed
arrays of any shape, or an object with `matvec`. `_vectors` combines blocks and adds up products,
`_operators` reads what users pass, `_basis` keeps orthonormal vectors; the others are the methods.
"""

from distarray.linalg.iterative._block_gradients import lobpcg
from distarray.linalg.iterative._conjugate_gradients import bicgstab, cg
from distarray.linalg.iterative._lanczos import eigsh, power_iteration, svds
from distarray.linalg.iterative._least_squares import lsqr
from distarray.linalg.iterative._minimal_residuals import gmres, minres

__all__ = [
    "bicgstab",
    "cg",
    "eigsh",
    "gmres",
    "lobpcg",
    "lsqr",
    "minres",
    "power_iteration",
    "svds",
]
