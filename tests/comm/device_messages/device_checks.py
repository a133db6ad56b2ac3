"""What every transport must do with buffers on GPUs: run on threads and under MPI."""

from __future__ import annotations

from typing import Any

import numpy as np

from distarray.comm import BFLOAT16, CommLog, Communicator
from tests.comm.collective_checks import REDUCED, bits, expected_reduction, values

MOVED = ("?", "i1", "u2", "f2", "f4", "f8", "c16")
SIZES = (0, 3, 5000)


def check_moves(c: Communicator, xp: Any, dtype: str, size: int) -> None:
    """Move uneven parts in every collective, some of them empty."""
    kind = np.dtype(dtype)
    counts = [(size * (r % 3)) // 2 for r in range(c.size)]
    everyone = [values(kind, n, r) for r, n in enumerate(counts)]
    whole = np.concatenate(everyone, dtype=kind)
    mine = xp.asarray(everyone[c.rank])
    out = xp.zeros(sum(counts), kind)
    c.all_gather(mine, out, counts)
    assert bits(out.get()) == bits(whole)

    table = [[size * ((s + 2 * d) % 3) for d in range(c.size)] for s in range(c.size)]
    pieces = {
        (s, d): values(kind, table[s][d], 100 * s + d) for s in range(c.size) for d in range(c.size)
    }
    send = np.concatenate([pieces[c.rank, d] for d in range(c.size)], dtype=kind)
    wanted = np.concatenate([pieces[s, c.rank] for s in range(c.size)], dtype=kind)
    got = xp.zeros(wanted.size, kind)
    receives = [row[c.rank] for row in table]
    c.all_to_all(xp.asarray(send), got, table[c.rank], receives)
    assert bits(got.get()) == bits(wanted)

    for root in {0, c.size - 1}:
        is_root = c.rank == root
        part = xp.zeros(counts[c.rank], kind)
        source = xp.asarray(whole) if is_root else None
        c.scatter(source, part, counts, root)
        assert bits(part.get()) == bits(everyone[c.rank])
        target = xp.zeros(whole.size, kind) if is_root else None
        c.gather(part, target, counts, root)
        assert target is None or bits(target.get()) == bits(whole)
        array = xp.asarray(whole) if is_root else xp.zeros(whole.size, kind)
        c.broadcast(array, root)
        assert bits(array.get()) == bits(whole)

    if c.size == 1:
        return
    after, before = (c.rank + 1) % c.size, (c.rank - 1) % c.size
    mail = xp.zeros(size + before, kind)
    if c.rank:
        c.recv(mail, before, 7)
    c.send(xp.asarray(values(kind, size + c.rank, c.rank)), after, 7)
    if not c.rank:
        c.recv(mail, before, 7)
    assert bits(mail.get()) == bits(values(kind, size + before, before))


def check_reductions(c: Communicator, xp: Any, op: str, size: int) -> None:
    """Reduce into new arrays, and in place; the same bits on every rank."""
    for char in REDUCED[op]:
        kind = np.dtype(char)
        if kind.itemsize > 16 or kind.char in "gG":  # no device has them
            continue
        everyone = [values(kind, size, r) for r in range(c.size)]
        wanted = np.asarray(expected_reduction(everyone, op))
        array = xp.asarray(everyone[c.rank])
        result = c.all_reduce(array, op)
        compare(result, wanted, op)
        assert bits(array.get()) == bits(everyone[c.rank])
        assert len(set(c.all_gather_object(bits(result.get())))) == 1
        if result.dtype == kind:
            assert c.all_reduce(array, op, array) is array
            assert bits(array.get()) == bits(result.get())


def compare(result: Any, wanted: np.ndarray, op: str) -> None:
    """Compare exactly, but for the last bits of averages."""
    found = result.get()
    if op == "avg":
        eps = 4 * np.finfo(found.dtype).eps
        np.testing.assert_allclose(found, wanted.astype(found.dtype), rtol=eps)
    else:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))


def check_low_precision(c: Communicator, xp: Any, size: int) -> None:
    """Sum float16 and bfloat16 in float32, and round once."""
    for op in ("sum", "avg"):
        halves = xp.asarray(np.full(size, 60000.0 if op == "avg" else 2.0**-11 + 1, np.float16))
        total = np.float32(halves.get()[0]) * np.float32(1 if op == "avg" else c.size)
        np.testing.assert_array_equal(
            c.all_reduce(halves, op).get(), np.full(size, total, np.float16)
        )
    one, tiny = np.uint16(0x3F80), np.uint16(0x3B80)  # 1 and 2**-8, half a unit of 1
    brain = xp.asarray(np.full(size, one if c.rank == 0 else tiny, np.uint16))
    rounded = {1: 0x3F80, 2: 0x3F80, 3: 0x3F81, 4: 0x3F82}[c.size]  # ties to even
    np.testing.assert_array_equal(
        c.all_reduce(brain.view(BFLOAT16), "sum").get().view(np.uint16),
        np.full(size, rounded, np.uint16),
    )


def check_order_of_sums(c: Communicator, xp: Any, size: int) -> None:
    """Sum in rank order: the bits are those of the host's kernel."""
    everyone = [np.random.default_rng(r).standard_normal(size) for r in range(c.size)]
    wanted = everyone[0].copy()
    for other in everyone[1:]:
        wanted += other
    assert bits(c.all_reduce(xp.asarray(everyone[c.rank])).get()) == bits(wanted)


def check_log(c: Communicator, xp: Any, size: int) -> None:
    """Record each call once, whatever it consists of."""
    array = xp.zeros(size * c.size, np.float64)
    part = xp.zeros(size, np.float64)
    with CommLog() as log:
        c.all_gather(part, array)
        c.all_reduce(array)
        c.broadcast(array)
        c.all_to_all(array, xp.zeros(size * c.size, np.float64))
    n, whole = c.size, array.nbytes
    assert log.count() == 4
    assert log.bytes("all_gather") == whole - part.nbytes
    assert log.bytes("all_reduce") == 2 * (n - 1) * whole // n
    assert log.bytes("broadcast") == (0 if c.rank == 0 else whole)
    assert log.bytes("all_to_all") == whole - part.nbytes
