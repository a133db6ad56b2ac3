"""What every transport must do, as functions of a communicator: run on threads and under MPI."""

from __future__ import annotations

import numpy as np

from distarray.comm import BFLOAT16, CommLog, Communicator

MOVED = [
    np.dtype(d)
    for d in (
        "?", "i1", "u2", "i4", "i8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", "M8[s]", "S3", "V5",
    )
] + [np.dtype([("a", "i4"), ("b", "f8")])]  # fmt: skip

REDUCED = {
    "sum": "?bhilBHILefdgFDG",
    "prod": "?bilBfdFDgG",
    "avg": "?bilBefdgFD",
    "min": "?bilHefdgFDG",
    "max": "?bilHefdgFDG",
    "any": "?",
    "all": "?",
    "band": "?biLH",
    "bor": "?biLH",
    "bxor": "?biLH",
}
NUMPY = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "any": np.logical_or,
    "all": np.logical_and,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
LARGE = 1500  # elements: past the size that takes the quick way


def values(dtype: np.dtype, size: int, seed: int) -> np.ndarray:
    """Return values that differ by rank; sums and products of a few of them are exact."""
    rng = np.random.default_rng(seed)
    if dtype.kind in "biuf":
        return rng.integers(0, 4, size).astype(dtype)
    if dtype.kind == "c":
        return (rng.integers(-2, 3, size) + 1j * rng.integers(-2, 3, size)).astype(dtype)
    return np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).copy()


def expected_reduction(arrays: list[np.ndarray], op: str) -> np.ndarray:
    """Return NumPy's reduction of arrays in order."""
    if op == "avg":
        return np.mean(arrays, axis=0)
    result = arrays[0]
    for array in arrays[1:]:
        result = NUMPY[op](result, array)
    return result


def compare_reduction(result: np.ndarray, wanted: np.ndarray, op: str) -> None:
    """Compare exactly, but for the last bits of averages, which NumPy forms otherwise."""
    wanted = wanted.astype(result.dtype)
    if op == "avg":
        np.testing.assert_allclose(result, wanted, rtol=4 * np.finfo(result.dtype).eps)
    else:
        np.testing.assert_array_equal(result, wanted)


def bits(array: np.ndarray) -> bytes:
    """Return what an array holds, without the padding of long doubles."""
    if array.dtype.kind in "fc" and array.dtype.itemsize in (16, 32) and array.dtype != "c16":
        return array.reshape(-1).view(np.uint8).reshape(-1, 16)[:, :10].tobytes()
    return array.tobytes()


def same_bytes(c: Communicator, array: np.ndarray) -> bool:
    """Tell whether every rank holds the same bits."""
    return len(set(c.all_gather_object(bits(array)))) == 1


def check_all_gather(c: Communicator, dtype: np.dtype) -> None:
    """Gather even and uneven parts, some of them empty, at once and in the background."""
    uneven = [(2 * r) % 5 for r in range(c.size)]
    for counts in ([3] * c.size, uneven, [LARGE + r for r in range(c.size)]):
        everyone = [values(dtype, n, r) for r, n in enumerate(counts)]
        given = None if len(set(counts)) == 1 else counts
        out, later = np.empty(sum(counts), dtype), np.empty(sum(counts), dtype)
        c.all_gather(everyone[c.rank], out, given)
        request = c.start_all_gather(everyone[c.rank], later, given)
        request.wait()
        assert request.test()
        assert bits(out) == bits(later) == bits(np.concatenate(everyone, dtype=dtype))


def check_all_reduce(c: Communicator, op: str, dtype: np.dtype) -> None:
    """Reduce small and larger arrays, and compare with NumPy's reduction in rank order."""
    for shape in ((), (0,), (2, 3), (LARGE,)):
        everyone = [values(dtype, int(np.prod(shape)), r).reshape(shape) for r in range(c.size)]
        array = everyone[c.rank].copy()
        result = c.all_reduce(array, op)
        wanted = np.asarray(expected_reduction(everyone, op))
        assert result.dtype == (wanted.dtype if dtype.itemsize > 2 or op != "avg" else result.dtype)
        assert result.shape == shape
        compare_reduction(result, wanted, op)
        np.testing.assert_array_equal(array, everyone[c.rank])
        assert same_bytes(c, result)


def check_all_reduce_in_place(c: Communicator) -> None:
    """Reduce into the array itself, and into another one."""
    for size in (4, LARGE):
        for op, dtype in (("sum", "f8"), ("max", "f8"), ("sum", "f2"), ("avg", "f8"), ("any", "?")):
            everyone = [values(np.dtype(dtype), size, r) for r in range(c.size)]
            wanted = np.asarray(expected_reduction(everyone, op)).astype(dtype)
            array = everyone[c.rank].copy()
            assert c.all_reduce(array, op, out=array) is array
            np.testing.assert_array_equal(array, wanted)
            other = np.empty_like(array)
            assert c.all_reduce(everyone[c.rank], op, out=other) is other
            np.testing.assert_array_equal(other, wanted)


def check_nan_and_infinity(c: Communicator) -> None:
    """Find NaN in min and max wherever it is, as NumPy does, and on every rank the same bits."""
    for size in (6, LARGE):
        for dtype in ("f2", "f4", "f8", "c16"):
            for owner in range(c.size):
                everyone = [values(np.dtype(dtype), size, r) for r in range(c.size)]
                everyone[owner][0] = np.nan
                everyone[owner][1] = np.inf
                everyone[owner][2] = -np.inf
                for op in ("min", "max"):
                    result = c.all_reduce(everyone[c.rank], op)
                    np.testing.assert_array_equal(result, expected_reduction(everyone, op))
                    assert same_bytes(c, result)


def check_roundoff_is_the_same_on_every_rank(c: Communicator) -> None:
    """Reduce values whose sums and products depend on the order, at sizes with other algorithms."""
    for size in (3, LARGE, 40 * LARGE):
        for dtype in ("f4", "f8", "c16", "e"):
            array = np.random.default_rng(c.rank).standard_normal(size).astype(dtype)
            for op in ("sum", "prod", "avg"):
                assert same_bytes(c, c.all_reduce(array, op))


def check_low_precision_sums(c: Communicator) -> None:
    """Sum float16 and bfloat16 in float32, and round once."""
    for size in (3, LARGE):
        everyone = [np.full(size, 2048.0 if r == 0 else 1.0, np.float16) for r in range(c.size)]
        result = c.all_reduce(everyone[c.rank], "sum")
        wanted = np.float16(np.float32(2048 + c.size - 1))
        np.testing.assert_array_equal(result, np.full(size, wanted))
        halves = np.full(size, 60000.0, np.float16)  # the sum overflows, the average does not
        np.testing.assert_array_equal(c.all_reduce(halves, "avg"), halves)
        one, tiny = np.uint16(0x3F80), np.uint16(0x3B80)  # 1 and 2**-8, half a unit of 1
        bits = np.full(size, one if c.rank == 0 else tiny, np.uint16)
        result = c.all_reduce(bits.view(BFLOAT16), "sum").view(np.uint16)
        exact = np.float32(1 + (c.size - 1) * 2.0**-8)
        rounded = {1: 0x3F80, 2: 0x3F80, 3: 0x3F81, 4: 0x3F82}  # ties to even
        assert c.size not in rounded or set(result.tolist()) == {rounded[c.size]}, exact


def check_all_to_all(c: Communicator, dtype: np.dtype) -> None:
    """Exchange parts whose size depends on both ends, some of them empty."""
    for scale in (0, 1, LARGE):
        table = [[scale * ((s + 2 * d) % 3) for d in range(c.size)] for s in range(c.size)]
        pieces = {
            (s, d): values(dtype, table[s][d], 100 * s + d)
            for s in range(c.size)
            for d in range(c.size)
        }
        send = np.concatenate([pieces[c.rank, d] for d in range(c.size)], dtype=dtype)
        recv_counts = [table[s][c.rank] for s in range(c.size)]
        out = np.empty(sum(recv_counts), dtype)
        c.all_to_all(send, out, table[c.rank], recv_counts)
        wanted = np.concatenate([pieces[s, c.rank] for s in range(c.size)], dtype=dtype)
        assert bits(out) == bits(wanted)
    send = np.arange(2 * c.size) + 100 * c.rank
    out = np.empty_like(send)
    c.all_to_all(send, out)
    wanted = [100 * s + 2 * c.rank + i for s in range(c.size) for i in range(2)]
    np.testing.assert_array_equal(out, wanted)


def check_rooted(c: Communicator, dtype: np.dtype) -> None:
    """Broadcast, scatter and gather from every root."""
    for root in range(c.size):
        whole = values(dtype, 5, root)
        array = whole.copy() if c.rank == root else np.empty(5, dtype)
        c.broadcast(array, root)
        assert bits(array) == bits(whole)
        for counts in ([4] * c.size, [(r + root) % 3 for r in range(c.size)]):
            given = None if len(set(counts)) == 1 else counts
            everyone = [values(dtype, n, r) for r, n in enumerate(counts)]
            full = np.concatenate(everyone, dtype=dtype)
            part = np.empty(counts[c.rank], dtype)
            source = full if c.rank == root else None
            c.scatter(source, part, given, root)
            assert bits(part) == bits(everyone[c.rank])
            out = np.empty(sum(counts), dtype) if c.rank == root else None
            c.gather(part, out, given, root)
            assert out is None or bits(out) == bits(full)


def check_point_to_point(c: Communicator) -> None:
    """Send around the ring, in the order of tags, and empty messages."""
    if c.size == 1:
        return  # a blocking message to itself need not end
    right, left = (c.rank + 1) % c.size, (c.rank - 1) % c.size

    def pass_on(sent: np.ndarray, out: np.ndarray, tag: int = 0) -> None:
        if c.rank:
            c.recv(out, left, tag)
        c.send(sent, right, tag)
        if not c.rank:
            c.recv(out, left, tag)

    for dtype in (np.dtype("f8"), np.dtype("?"), np.dtype("V5")):
        for size in (0, 4, 20 * LARGE):
            out = np.empty(size, dtype)
            pass_on(values(dtype, size, c.rank), out)
            assert bits(out) == bits(values(dtype, size, left))
    first, second = np.empty(1), np.empty(1)
    for tag, out in ((7, first), (8, second)):
        pass_on(np.array([float(tag)]), out, tag)
    assert (first[0], second[0]) == (7.0, 8.0)
    sent = np.array([float(c.rank)])
    pass_on(sent, first)
    sent[0] = -1.0  # a message that has been sent is no longer the sender's array
    assert first[0] == left


def check_objects(c: Communicator) -> None:
    """Gather and broadcast objects of sizes on both sides of every limit."""
    for size in (0, 10, 5000, 200_000):
        everyone = c.all_gather_object({"rank": c.rank, "text": "x" * (size if c.rank == 0 else 3)})
        assert [item["rank"] for item in everyone] == list(range(c.size))
        assert len(everyone[0]["text"]) == size
        root = c.size - 1
        told = c.broadcast_object(("y" * size, c.rank), root)
        assert told == ("y" * size, root)


def check_many_requests_in_flight(c: Communicator) -> None:
    """Complete overlapping collectives in another order than they began, by wait and by test."""
    outs = [np.empty(50 * c.size) for _ in range(8)]
    requests = [
        c.start_all_gather(np.full(50, float(c.rank + i)), out) for i, out in enumerate(outs)
    ]
    for i in reversed(range(8)):
        if i % 2:
            while not requests[i].test():
                pass
        requests[i].wait()
        np.testing.assert_array_equal(outs[i], np.repeat(np.arange(c.size) + float(i), 50))


def check_log(c: Communicator) -> None:
    """Record what ran, with the bytes taken from others."""
    n = c.size
    with CommLog() as log:
        c.all_gather(np.zeros(10), np.empty(10 * n))
        c.all_reduce(np.zeros(LARGE))
        c.all_reduce(np.zeros(2))
        c.start_all_gather(np.zeros(3), np.empty(3 * n)).wait()
        with CommLog() as inner:
            c.all_to_all(np.zeros(2 * n, np.int8), np.empty(2 * n, np.int8))
        c.broadcast(np.zeros(4))
    c.all_reduce(np.zeros(2))
    if n == 1:
        assert log.count() == 0
        return
    assert log.count() == 6
    assert log.count("all_reduce") == 2
    assert log.count("all_reduce", c.name) == 2
    assert log.count(mesh_axis="elsewhere") == 0
    assert log.bytes("all_gather") == 104 * (n - 1)
    assert log.bytes("all_reduce") == 2 * (n - 1) * LARGE * 8 // n + 2 * (n - 1) * 16 // n
    assert log.bytes("all_to_all") == inner.bytes("all_to_all") == 2 * (n - 1)
    assert log.bytes("broadcast") == (0 if c.rank == 0 else 32)
    assert inner.count() == 1
    assert log.seconds() >= inner.seconds() > 0
    assert "all_to_all" in inner.table()
