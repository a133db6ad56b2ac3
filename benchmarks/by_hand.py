"""What a good engineer writes with mpi4py for exactly one case: no generality, memory reused.

Send and receive buffers and the results are allocated once and written again by every call, which
no library that returns new arrays can count on. Blocks that stay on their rank never enter MPI.
"""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI

from benchmarks.cases import Move, bins, cube, heat_step, seven_points, shuffled_rows
from benchmarks.measure import Work

NAME = "by hand"

PIECE = 1 << 15
"""Items of a piece that stays in a core's own cache."""


def start() -> str | None:
    """Get ready; say why not, if not."""
    return None


def move(case: Move, block: np.ndarray) -> Work | None:
    """Redistribute."""
    comm = MPI.COMM_WORLD
    block = block.copy()
    rows, columns = case.box(case.target, comm.rank)
    out = np.empty((rows.stop - rows.start, columns.stop - columns.start))
    out.fill(0.0)
    if case.mesh == (2, 2):
        return _grid_move(case, block, out)
    match case.source[0], case.target[0]:
        case "S0", "S1":
            return _rows_to_columns(comm, block, out)
        case "S0", "R":
            return lambda: (comm.Allgather(block, out), out)[1]
        case "P", "R":
            return lambda: (comm.Allreduce(block, out), out)[1]
        case "P", "S0":
            return lambda: (comm.Reduce_scatter_block(block, out), out)[1]
        case "R", "S0":
            mine = block[rows]
            return lambda: (np.copyto(out, mine), out)[1]
    return None


def _rows_to_columns(comm: MPI.Comm, block: np.ndarray, out: np.ndarray) -> Work:
    """Pack for every other rank, receive straight into place, copy the own part directly."""
    ranks, me = comm.size, comm.rank
    height, width = block.shape[0], out.shape[1]
    piece = height * width
    send = np.zeros((ranks, height, width))
    counts = [piece * (other != me) for other in range(ranks)]
    offsets = [piece * other for other in range(ranks)]
    others = [other for other in range(ranks) if other != me]

    def work() -> np.ndarray:
        for other in others:
            np.copyto(send[other], block[:, other * width : (other + 1) * width])
        comm.Alltoallv([send, counts, offsets, MPI.DOUBLE], [out, counts, offsets, MPI.DOUBLE])
        np.copyto(out[me * height : (me + 1) * height], block[:, me * width : (me + 1) * width])
        return out

    return work


def _grid_move(case: Move, block: np.ndarray, out: np.ndarray) -> Work | None:
    """Move on a mesh of 2 x 2."""
    comm = MPI.COMM_WORLD
    i, j = case.coordinate(comm.rank)
    if case.target == ("S1", "S0"):
        partner = 2 * j + i
        if partner == comm.rank:
            return lambda: (np.copyto(out, block), out)[1]
        return lambda: (comm.Sendrecv(block, partner, 0, out, partner), out)[1]
    if case.target == ("S0", "R"):
        line = comm.Split(i, j)
        both = np.zeros((2, *block.shape))
        width = block.shape[1]

        def gather() -> np.ndarray:
            line.Allgather(block, both)
            np.copyto(out[:, :width], both[0])
            np.copyto(out[:, width:], both[1])
            return out

        return gather
    return _rows_to_columns(comm.Split(j, i), block, out)


def local(result: np.ndarray) -> np.ndarray:
    """Take the block out of a result."""
    return result


def operation(name: str, x: np.ndarray, y: np.ndarray, r: np.ndarray) -> Work | None:
    """Perform one operation on the blocks of arrays that are split over their rows."""
    comm = MPI.COMM_WORLD
    count = x.size * comm.size
    match name:
        case "x + y":
            out = np.zeros_like(x)
            return lambda: np.add(x, y, out=out)
        case "sqrt(x) * y + 1":
            return _in_pieces(x, y)
        case "((x - 0.5) ** 2).sum()":
            return lambda: _sum_of_squares(comm, x)
        case "float(x.sum())" | "x.sum(reproducible=True)":  # beside a plain sum
            return lambda: _sum(comm, x)
        case "S0 -> S1":
            out = np.zeros((x.shape[0] * comm.size, x.shape[1] // comm.size))
            return _rows_to_columns(comm, x.copy(), out)
        case "x.std()":
            return lambda: _std(comm, x, count)
        case "x.mean(0)":
            total = np.zeros(x.shape[1])
            rows = x.shape[0] * comm.size
            return lambda: (comm.Allreduce(x.sum(axis=0), total), total / rows)[1]
        case "rng.normal":
            rng, out = np.random.default_rng(comm.rank), np.zeros_like(x)
            return lambda: rng.standard_normal(out=out)
        case "rng.permutation":  # all ranks make all of it
            rng, part = np.random.default_rng(0), x.size // 8
            own = slice(part * comm.rank, part * (comm.rank + 1))
            return lambda: rng.permutation(part * comm.size)[own]
        case "halo" | "heat step":
            return _with_edges(comm, x, name == "heat step")
        case "7-point stencil":
            return _stencil(comm, cube(x))
        case "S0 @ R":
            out = np.zeros((x.shape[0], r.shape[1]))
            return lambda: np.matmul(x, r, out=out)
        case "S0 @ S0":
            out = np.zeros((x.shape[0], y.shape[1]))
            whole = np.zeros((y.shape[0] * comm.size, y.shape[1]))
            return lambda: (comm.Allgather(y, whole), np.matmul(x, whole, out=out))[1]
    return None


def selection(name: str, x: np.ndarray, y: np.ndarray) -> Work | None:
    """Select or count items of the blocks of arrays that are split over their first axis."""
    comm = MPI.COMM_WORLD
    flat, other = x.reshape(-1), y.reshape(-1)
    match name.partition(",")[0]:
        case "x[mask]":
            return _select(comm, flat, other > 0.5)
        case "x[mask] = 0":
            out, mask = x.copy(), y > 0.5
            return lambda: (np.copyto(out, 0, where=mask), out)[1]
        case "x[mask] = y":
            out, mask = x.copy(), y > 0.5
            values = y[mask]
            return lambda: (np.place(out, mask, values), out)[1]
        case "x[rows]":
            wanted, places = _rows_of_ranks(comm, len(x))
            return _exchange_rows(comm, x, np.zeros_like(x), wanted, places)
        case "x[rows] = y":
            wanted, places = _rows_of_ranks(comm, len(x))
            return _exchange_rows(comm, y, x.copy(), places, wanted)
        case "bincount":
            counts = np.zeros(bins(name) // comm.size, np.int64)
            return lambda: _count(comm, x, counts)
    return None


def _count(comm: MPI.Comm, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    comm.Reduce_scatter_block(np.bincount(x, minlength=counts.size * comm.size), counts)
    return counts


def _with_edges(comm: MPI.Comm, x: np.ndarray, step: bool) -> Work:
    """Exchange rows with the neighbours, and perhaps take a step; there is 0 around the whole."""
    u, scratch = np.zeros((x.shape[0] + 2, x.shape[1] + 2)), np.zeros_like(x)
    u[1:-1, 1:-1] = x
    up, down = (
        other if 0 <= other < comm.size else MPI.PROC_NULL
        for other in (comm.rank - 1, comm.rank + 1)
    )

    def work() -> np.ndarray:
        requests = [
            comm.Irecv(u[0, 1:-1], up, 0),
            comm.Irecv(u[-1, 1:-1], down, 1),
            comm.Isend(u[1, 1:-1], up, 1),
            comm.Isend(u[-2, 1:-1], down, 0),
        ]
        MPI.Request.Waitall(requests)
        return heat_step(u, scratch) if step else u[1:-1, 1:-1]

    return work


def _stencil(comm: MPI.Comm, u: np.ndarray) -> Work:
    """Exchange planes with the neighbours while the interior is computed, then the outer planes."""
    out, ends = np.zeros_like(u), np.zeros((2, 3, *u.shape[1:]))
    sides = [
        (other, end, place, giver, taker)
        for other, end, place, giver, taker in (
            (comm.rank - 1, ends[0], 0, 0, 0),
            (comm.rank + 1, ends[1], -1, -1, 2),
        )
        if 0 <= other < comm.size
    ]

    def work() -> np.ndarray:
        requests = [comm.Irecv(end[taker], other) for other, end, _, _, taker in sides]
        requests += [comm.Isend(u[giver], other) for other, _, _, giver, _ in sides]
        seven_points(u, out)
        MPI.Request.Waitall(requests)
        for _, end, place, _, taker in sides:
            if taker == 0:
                end[1:] = u[:2]
            else:
                end[:2] = u[-2:]
            out[place] = seven_points(end)[1]
        return out

    return work


def _in_pieces(x: np.ndarray, y: np.ndarray) -> Work:
    """Compute a piece of the result after the other, in place."""
    out = np.zeros_like(x)
    x, y, line = x.reshape(-1), y.reshape(-1), out.reshape(-1)

    def work() -> np.ndarray:
        for start in range(0, x.size, PIECE):
            piece = line[start : start + PIECE]
            np.sqrt(x[start : start + PIECE], out=piece)
            np.multiply(piece, y[start : start + PIECE], out=piece)
            np.add(piece, 1, out=piece)
        return out

    return work


def _sum_of_squares(comm: MPI.Comm, x: np.ndarray) -> float:
    """Add up a piece after the other."""
    x, scratch, part = x.reshape(-1), np.empty(PIECE), np.zeros(())
    for start in range(0, x.size, PIECE):
        piece = x[start : start + PIECE]
        difference = np.subtract(piece, 0.5, out=scratch[: piece.size])
        part += np.square(difference, out=difference).sum()
    comm.Allreduce(MPI.IN_PLACE, part)
    return float(part)


def _sum(comm: MPI.Comm, x: np.ndarray) -> float:
    part = np.array(x.sum())
    comm.Allreduce(MPI.IN_PLACE, part)
    return float(part)


def _select(comm: MPI.Comm, x: np.ndarray, mask: np.ndarray) -> Work:
    """Take what a mask selects of the block, and learn how many items every rank has."""
    out = np.zeros(np.count_nonzero(mask))
    counts = np.zeros(comm.size, np.int64)

    def work() -> np.ndarray:
        comm.Allgather(np.array(np.count_nonzero(mask)), counts)
        return np.take(x, np.flatnonzero(mask), out=out, mode="clip")

    return work


def _rows_of_ranks(comm: MPI.Comm, count: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """List which rows of this block every rank wants, and where those of each rank go here."""
    order = shuffled_rows(count * comm.size).reshape(comm.size, count)
    wanted = [theirs[theirs // count == comm.rank] % count for theirs in order]
    places = [np.flatnonzero(order[comm.rank] // count == other) for other in range(comm.size)]
    return wanted, places


def _exchange_rows(
    comm: MPI.Comm,
    block: np.ndarray,
    out: np.ndarray,
    taken: list[np.ndarray],
    placed: list[np.ndarray],
) -> Work:
    """Pack the rows for each rank, and put what comes from each in its place."""
    width = block[0].size
    sent, received = ([len(rows) * width for rows in part] for part in (taken, placed))
    order, target = np.concatenate(taken), np.concatenate(placed)
    send, receive = (np.zeros((len(rows), *block.shape[1:])) for rows in (order, target))

    def work() -> np.ndarray:
        np.take(block, order, axis=0, out=send, mode="clip")
        comm.Alltoallv([send, sent], [receive, received])
        out[target] = receive
        return out

    return work


def _std(comm: MPI.Comm, x: np.ndarray, count: int) -> float:
    """Pass twice over the block in pieces that stay in cache."""
    mean = _sum(comm, x) / count
    flat = x.reshape(-1)
    scratch = np.empty(PIECE)
    squares = 0.0
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE]
        centred = np.subtract(piece, mean, out=scratch[: piece.size])
        squares += float(centred @ centred)
    return (comm.allreduce(squares) / count) ** 0.5


def transform(name: str, shape: tuple[int, ...], block: np.ndarray) -> Work:
    """Transform a slab, or a line by six steps; what is exchanged is packed."""
    from scipy import fft

    comm = MPI.COMM_WORLD
    if len(shape) == 1:
        return _six_steps(comm, shape[0], block)
    first = fft.rfftn if name.startswith("rfft") else fft.fftn
    planes = first(block, axes=(1, 2))
    length, width = len(block), planes.shape[1] // comm.size
    send = np.zeros((comm.size, length, width, planes.shape[2]), complex)
    out = np.zeros((comm.size * length, width, planes.shape[2]), complex)
    counts = [send[0].size] * comm.size

    def work() -> np.ndarray:
        planes = first(block, axes=(1, 2))
        send[...] = planes.reshape(length, comm.size, width, -1).swapaxes(0, 1)
        comm.Alltoallv([send, counts], [out, counts])  # rows of one rank after another
        return fft.fft(out, axis=0, overwrite_x=True)

    return work


def _six_steps(comm: MPI.Comm, n: int, block: np.ndarray) -> Work:
    """Transform a line as a square matrix, with three transposes between the ranks."""
    from scipy import fft

    side = math.isqrt(n)
    part = side // comm.size
    send, out = np.zeros((2, comm.size, part, part), complex)
    result = np.zeros((part, side), complex)
    index = np.arange(side)
    roots = np.exp(-2j * np.pi / n * (comm.rank * part + index[:part, None]) * index)

    def transpose(matrix: np.ndarray) -> np.ndarray:
        send[...] = matrix.reshape(part, comm.size, part).transpose(1, 2, 0)
        comm.Alltoall(send, out)
        result.reshape(part, comm.size, part)[...] = out.swapaxes(0, 1)
        return result

    def work() -> np.ndarray:
        columns = fft.fft(transpose(block.reshape(part, side)), axis=1, overwrite_x=True)
        columns *= roots
        rows = fft.fft(transpose(columns), axis=1, overwrite_x=True)
        return transpose(rows).reshape(-1)

    return work
