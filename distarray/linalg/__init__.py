"""Linear algebra, as in `numpy.linalg` and in the array API standard's extension `linalg`.

Products, diagonals and norms work on blocks and combine what these give. Factorizations, inverses,
eigenvalues and what is made of them need whole matrices: a mesh axis that cuts matrices cuts a
batch axis instead, for one exchange, and the result keeps that cut. A matrix that stands alone is
collected on every process, up to 128 MiB; all compute the same, and keep their part of it where the
result has axes that were cut. They compare checksums, as processors of other kinds, and numbers of
threads, round otherwise; where these differ, what the first has found is sent. `cholesky`, `qr`,
`solve`, `solve_triangular`, `inv`, `det`, `slogdet` and `expm` collect 8 MiB at most, and work on
larger matrices in tiles that are dealt out to all processes, or in products of blocks. `qr`, `svd`
and what follows from them work on rows of tall matrices. `svd`, `eigh` and what follows from them
divide matrices of more than 128 MiB until they are small. Under `communication("raise")` either is
an error. Blocks on GPUs are factorized on the host. Solvers in the room `iterative` need of a
matrix what it does to vectors.
"""

from typing import TYPE_CHECKING

from distarray._missing_names import missing_name_error
from distarray.linalg._exponential import expm
from distarray.linalg._factorizations import (
    cholesky,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    qr,
    svd,
    svdvals,
)
from distarray.linalg._low_rank import svd_lowrank
from distarray.linalg._lu import lu, lu_factor, lu_solve
from distarray.linalg._norms import cond, matrix_norm, matrix_rank, norm, vector_norm
from distarray.linalg._products import (
    cross,
    diagonal,
    matrix_power,
    multi_dot,
    outer,
    trace,
)
from distarray.linalg._solutions import (
    det,
    inv,
    lstsq,
    pinv,
    slogdet,
    solve,
    tensorinv,
    tensorsolve,
)
from distarray.linalg._triangles import cho_factor, cho_solve, solve_triangular
from distarray.linalg.iterative import (
    bicgstab,
    cg,
    eigsh,
    gmres,
    lobpcg,
    lsqr,
    minres,
    power_iteration,
    svds,
)
from distarray.ops import LinAlgError, matmul, matrix_transpose, tensordot, vecdot

__all__ = [
    "LinAlgError", "bicgstab", "cg", "cho_factor", "cho_solve", "cholesky", "cond", "cross", "det",
    "diagonal", "eig", "eigh", "eigsh", "eigvals", "eigvalsh", "expm", "gmres", "inv", "lobpcg",
    "lsqr", "lstsq", "lu", "lu_factor", "lu_solve", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "minres", "multi_dot", "norm", "outer", "pinv",
    "power_iteration", "qr", "slogdet", "solve", "solve_triangular", "svd", "svd_lowrank", "svds",
    "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name):
        raise missing_name_error(f"linalg.{name}")

    def __dir__():
        return __all__
