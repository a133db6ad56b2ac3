"""Mutants of the library, each of which the suite must kill: ``python -m tests.mutants [names]``.

A mutant is one replacement in one file, of the kind of mistake that gives a wrong value or a wait
without a word: a rank left out, a box shifted, a token that nobody compares. The tests that should
notice are named with it, as few as take seconds. Each mutant is applied to a copy of the package in
a temporary folder, never to the working tree, and its tests run against the copy. Before the first
one they all run against the copy as it is.

The table says of each mutant which test killed it, and in how many seconds. The exit status is 0
only if every mutant is killed. One whose text is not found exactly once in its file is stale: the
code has changed, and the mutant is to be written anew. `tests/test_mutants.py` says so as well.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import processes
from tests.run import mpiexec, prepared

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("distarray", "tests", "pyproject.toml", "setup.cfg")
"""What is copied."""
SECONDS = 240.0
TEST_SECONDS = 60


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes
    ----------
    name
        Says what is wrong.
    file
        Inside of the package.
    old, new
        What is replaced, found exactly once, and by what.
    tests
        Files below ``tests``, or tests in them, that should kill it.
    ranks
        How many ranks of MPI run the tests; 0 for none, where they simulate their ranks.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    ranks: int = 0

    def stale(self, root: Path = ROOT) -> str:
        """Return why the mutant does not fit the code, or nothing."""
        path = root / "distarray" / self.file
        if not path.exists():
            return f"there is no distarray/{self.file}"
        found = path.read_text().count(self.old)
        return "" if found == 1 else f"{self.old!r} is {found} times in distarray/{self.file}"

    def unknown(self, root: Path = ROOT) -> list[str]:
        """Return those of its tests that do not exist."""
        missing = []
        for test in self.tests:
            file, _, function = test.partition("::")
            path = root / "tests" / file
            if not path.exists() or (function and function not in _functions(path)):
                missing.append(test)
        return missing


@functools.cache
def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


_INDEX_ARRAYS = "ops/indexing/test_index_arrays.py::"

MUTANTS = (
    # --- layout: who holds what ------------------------------------------------------------------
    Mutant(
        "blocks of uneven splits are rounded down",
        "layout/_partition.py",
        "step = -(-(stop - start) // count)\n",
        "step = max((stop - start) // count, 1)\n",
        ("layout/test_partition.py",),
    ),
    Mutant(
        "the last block of an uneven split is not cut at the end",
        "layout/_partition.py",
        "            stop = min(start + step, stop)",
        "            stop = start + step",
        ("layout/test_partition.py",),
    ),
    Mutant(
        "an interval that ends with a block meets the next one, too",
        "layout/_partition.py",
        "return range(start // step, (stop - 1) // step + 1)",
        "return range(start // step, stop // step + 1)",
        ("layout/test_partition.py",),
    ),
    Mutant(
        "mesh axes that cut one array axis count in the wrong order",
        "layout/_canonical.py",
        "    for mesh_axis in axes:\n        index =",
        "    for mesh_axis in reversed(axes):\n        index =",
        ("layout/test_layout.py",),
    ),
    Mutant(
        "coordinates along the outer mesh axis do not end",
        "layout/_mesh.py",
        "position // stride % extent",
        "position // stride",
        ("layout/test_mesh.py",),
    ),
    Mutant(
        "the identity of products is zero",
        "layout/_reduction.py",
        "return _number(1, kind)",
        "return _number(0, kind)",
        ("layout/test_reduction.py",),
    ),
    Mutant(
        "the identity of the largest signed integer is zero",
        "layout/_reduction.py",
        "return int(-(2 ** (8 * itemsize - 1)))",
        "return 0",
        ("layout/test_reduction.py",),
    ),
    Mutant(
        "the identity of sums loses the sign of zero",
        "layout/_reduction.py",
        "return -0.0 if kind",
        "return 0.0 if kind",
        ("layout/test_reduction.py", "array/test_convert.py"),
    ),
    Mutant(
        "one step for all lengths serves empty blocks, too",
        "layout/_layout.py",
        "found = 0 in [split.smallest for split in self._partitions]",
        "found = 0 in [split.size for split in self._partitions]",
        (
            "core/families/test_reductions.py",
            "layout/test_layout.py",
        ),
    ),
    Mutant(
        "uneven rows move when their axes are merged with others that are not cut",
        "layout/_propagate.py",
        "enumerate(partitions) if p.count > 1), default=-1)",
        "enumerate(partitions) if p.count > 0), default=-1)",
        (
            "ops/manipulation/test_shape.py::test_uneven_rows_stay_where_they_are_when_axes_are_merged",
        ),
    ),
    # --- redistribute: from layout to layout -----------------------------------------------------
    Mutant(
        "a box is taken from where it goes to, and not from where it lies",
        "redistribute/_schedule.py",
        "Transfer(peers, _relative(piece, block_origin), _relative(piece, origin))",
        "Transfer(peers, _relative(piece, origin), _relative(piece, origin))",
        ("redistribute/test_plan.py", "array/test_convert.py"),
    ),
    Mutant(
        "contributions are reduced in the wrong order of ranks",
        "redistribute/_replica_choice.py",
        "rank_at(block))\n        return tuple(found)",
        "rank_at(block))\n        return tuple(found[::-1])",
        ("redistribute/test_exchange.py",),
    ),
    Mutant(
        "a contribution is left out of every reduction",
        "redistribute/_replica_choice.py",
        "            found.append(rank_at(block))",
        "            found[:] = [*found[-2:], rank_at(block)]",
        ("redistribute/test_exchange.py", "redistribute/test_plan.py"),
    ),
    Mutant(
        "gathers between nodes are never staged",
        "redistribute/_search.py",
        "len(changed) > 1 and self._model.ranks_per_node is not None",
        "len(changed) > 1 and self._model.ranks_per_node is None",
        (
            "redistribute/test_plan.py::test_gathers_between_nodes_go_across_with_few_bytes_and_then_within",
        ),
    ),
    Mutant(
        "rounds of a redistribution leave out one value",
        "redistribute/_schedule.py",
        "index * size // count, (index + 1)",
        "index * size // count + (index > 0), (index + 1)",
        ("redistribute/test_rounds.py",),
    ),
    Mutant(
        "what other nodes sent is unpacked with two senders swapped",
        "redistribute/_messages.py",
        "packed = _parts(recv, arriving, recv_counts)",
        "packed = _parts(recv, [(size - 1 - peer, view) for peer, view in arriving], recv_counts)",
        ("mpi/comm/test_envelopes.py::test_blocks_arrive_where_they_belong",),
        3,
    ),
    Mutant(
        "a forked process joins the rounds of its rank",
        "comm/shared_memory/_channel.py",
        "        self._mine = self._others = FORKED\n",
        "        return\n",
        ("mpi/test_forks.py::test_pools_say_that_they_do_not_send",),
        2,
    ),
    Mutant(
        "a forked process calls MPI as its rank",
        "comm/mpi/_groups.py",
        "self._own = self._exported = self._envelopes = FORKED",
        "self._exported = FORKED",
        ("mpi/test_forks.py::test_a_forked_process_does_not_send",),
        2,
    ),
    Mutant(
        "a forked process finalizes MPI",
        "comm/failures/_forks.py",
        "    if not ending:\n",
        "    if True:\n",
        ("test_abort.py::test_forked_process_ends_by_itself",),
    ),
    Mutant(
        "a forked process writes over the blocks of its rank",
        "comm/shared_memory/_arena.py",
        "        _arena.map.make_private()\n",
        "        pass\n",
        ("mpi/test_forks.py::test_a_forked_process_computes_on_its_block",),
        2,
    ),
    Mutant(
        "blocks gathered between nodes are set in the wrong place",
        "redistribute/_messages.py",
        "_parts(recv, places, counts)",
        "_parts(recv, [(-peer, place) for peer, place in places], counts)",
        ("redistribute/test_messages.py",),
    ),
    Mutant(
        "what one rank contributes is gathered as if it were reduced nowhere",
        "redistribute/_messages.py",
        "            and step.reduce is None  # along an axis of one rank, besides\n",
        "",
        (
            "redistribute/test_messages.py::test_blocks_that_one_rank_contributes_to_are_gathered_between_nodes",
        ),
    ),
    Mutant(
        "operands of a join are given back before all have read them",
        "redistribute/_joined.py",
        "closing=one.is_last",
        "closing=False",
        ("mpi/test_shapes.py::test_operands_change_once_a_join_is_done",),
        2,
    ),
    Mutant(
        "parts of a join are sent from where the operand begins",
        "redistribute/_joined.py",
        "_shift(source, axis, offset)) for peer",
        "_shift(source, axis, 0)) for peer",
        ("mpi/test_shapes.py::test_joins_of_blocks_of_all_sizes_agree_with_numpy",),
        3,
    ),
    Mutant(
        "every piece of a long reduction is the first",
        "comm/mpi/_transport.py",
        "target, source = recv[start : start + most], send[start : start + most]",
        "target, source = recv[start : start + most], send[: min(most, send.size - start)]",
        ("mpi/comm/test_collectives.py::test_long_reductions_are_given_to_the_library_in_pieces",),
        2,
    ),
    Mutant(
        "rows that all ranks know are sent as if they lay in the first block",
        "comm/_rows.py",
        "asked.append(here - start)",
        "asked.append(here - here.min(initial=0))",
        ("mpi/comm/test_envelopes.py::test_rows_that_all_ranks_know_are_not_asked_for",),
        2,
    ),
    Mutant(
        "parts of a join are read where they begin in the own block",
        "redistribute/_joined.py",
        "_offset(part, operands, axis, coordinate))\n                target",
        "_offset(part, operands, axis, mesh.coordinate))\n                target",
        (
            "ops/manipulation/test_joining.py::test_rolls_and_tiles_along_a_cut_axis_are_one_exchange",
        ),
    ),
    Mutant(
        "large all-reduces leave out the last rank",
        "redistribute/_execute.py",
        "pieces = [view[start:stop] for view in views]",
        "pieces = [view[start:stop] for view in views[: max(1, len(views) - 1)]]",
        ("mpi/test_redistribute.py",),
        2,
    ),
    Mutant(
        "large all-reduces copy the part of another rank from the own block",
        "redistribute/_execute.py",
        "part, theirs = target[start:stop], view[start:stop]",
        "part, theirs = target[start:stop], source[start:stop]",
        ("mpi/test_redistribute.py",),
        2,
    ),
    Mutant(
        "a block that others have read is made anew after a part of it was written",
        "redistribute/_execute.py",
        "lent = _memory.take_lent(out) if takes is self.takes else None",
        "lent = _memory.take_lent(out)",
        ("mpi/test_redistribute.py",),
        2,
    ),
    Mutant(
        "others read a private block where the new one has another part",
        "redistribute/_execute.py",
        "offered = out[target]",
        "offered = out[source]",
        ("mpi/test_redistribute.py",),
        2,
    ),
    Mutant(
        "a small item of a cut axis is taken of the first rank",
        "redistribute/_execute.py",
        "bytes(told[self.takes[0][0][0]])",
        "bytes(told[0]).ljust(self._dtype.itemsize * prod(shape))",
        ("array/test_index.py::test_integer_on_a_cut_axis_comes_from_its_owner_to_every_rank",),
    ),
    Mutant(
        "ranks that take other items of a block do not hear of it",
        "ops/families/_selection.py",
        "return hash(tuple(words)) & _TOKENS",
        "return 1",
        ("array/test_index.py::test_ranks_that_take_other_items_are_told_which",),
    ),
    Mutant(
        "ranks that redistribute between other layouts do not hear of it",
        "redistribute/_execute.py",
        "step.src.fingerprint, step.dst.fingerprint, step.dtype.str, step.rounds",
        "step.dtype.str, step.rounds",
        ("array/test_convert.py", "redistribute/test_packed.py"),
    ),
    Mutant(
        "what one rank scatters goes to the ranks in the wrong order",
        "redistribute/_root.py",
        "for rank in comm.ranks]",
        "for rank in comm.ranks[::-1]]",
        ("redistribute/test_root.py",),
    ),
    Mutant(
        "a packed reduce-scatter ignores all other ranks",
        "redistribute/_packed.py",
        "contributions = [self.wholes(full) for full in fulls]",
        "contributions = [self.wholes(fulls[self.rank % len(fulls)]) for _ in fulls]",
        ("torch/fsdp/gradients/test_autograd.py::test_two_forwards_before_one_backward",),
    ),
    Mutant(
        "a packed reduce-scatter leaves out the last rank",
        "redistribute/_packed.py",
        "(block, [wholes[piece.tensor][piece.region] for wholes in contributions])",
        "(block, [wholes[piece.tensor][piece.region] for wholes in contributions[:2]])",
        ("redistribute/test_packed.py",),
    ),
    Mutant(
        "a packed all-gather sets the blocks of two ranks in each other's place",
        "redistribute/_packed.py",
        "enumerate(zip(self._pieces, flats, strict=False))",
        "enumerate(zip(self._pieces, flats[::-1], strict=False))",
        ("redistribute/test_packed.py",),
    ),
    Mutant(
        "packed blocks that travel between nodes are set beside their place",
        "redistribute/_packed.py",
        "            at += count",
        "            at += len(pieces)",
        ("redistribute/test_packed.py",),
    ),
    Mutant(
        "small blocks begin where the one before them ends, unaligned",
        "redistribute/_small_blocks.py",
        "start += _padded(prod(shape) * dtype.itemsize)",
        "start += prod(shape) * dtype.itemsize",
        ("redistribute/test_small_blocks.py",),
    ),
    Mutant(
        "of several small blocks the largest alone has room",
        "redistribute/_small_blocks.py",
        "self._most = sum(",
        "self._most = max(",
        ("redistribute/test_small_blocks.py",),
    ),
    Mutant(
        "a part of a block is fetched as the whole",
        "redistribute/_execute.py",
        "return not others and source == target == ",
        "return not others or source == target == ",
        ("redistribute/test_small_blocks.py",),
    ),
    Mutant(
        "small parts of more than two ranks are reduced without the last",
        "redistribute/_execute.py",
        "            for other in others:\n                total = unheard",
        "            for other in others[:1]:\n                total = unheard",
        ("redistribute/test_small_blocks.py",),
    ),
    # --- comm: bytes among ranks -----------------------------------------------------------------
    Mutant(
        "readers of blocks in place are not waited for",
        "comm/shared_memory/_channel.py",
        "self._open = lent and self._closing",
        "self._open = False",
        ("mpi/comm/test_node_local.py",),
        2,
    ),
    Mutant(
        "tokens in the slots are not compared",
        "comm/shared_memory/_channel.py",
        "            if other.words[TOKEN] != token:",
        "            if False:",
        ("mpi/comm/test_node_local.py",),
        2,
    ),
    Mutant(
        "envelopes that MPI keeps are a byte shorter than what they are chosen for",
        "comm/mpi/_envelopes.py",
        "mpi.Send_init([self._out[self._rank][:nbytes], MPI.BYTE]",
        "mpi.Send_init([self._out[self._rank][: nbytes - 1], MPI.BYTE]",
        (
            "mpi/comm/test_envelopes.py::test_envelopes_bring_their_own_bytes_whatever_was_in_them_before",
        ),
        2,
    ),
    Mutant(
        "tokens in envelopes are not compared",
        "comm/mpi/_envelopes.py",
        "if not self._agree(token):\n            self._drain(follow, what)\n"
        "            return None",
        "if False:\n            return None",
        ("mpi/comm/test_envelopes.py::test_nothing_is_written_where_ranks_disagree",),
        2,
    ),
    Mutant(
        "what follows envelopes of another step stays for the next one",
        "comm/mpi/_envelopes.py",
        "            if -_large_counts.LIMIT <= size < 0:",
        "            if False:",
        ("mpi/comm/test_envelopes.py::test_nothing_is_written_where_ranks_disagree",),
        2,
    ),
    Mutant(
        "few rows that are wanted are read although a rank has failed",
        "comm/_rows.py",
        "if told is not None and any(map(itemgetter(0), told)):",
        "if False:",
        ("mpi/comm/test_envelopes.py::test_which_few_rows_are_wanted_is_told_to_all_ranks",),
        2,
    ),
    Mutant(
        "tokens of parts that are sent between nodes are not compared",
        "comm/mpi/_envelopes.py",
        "if not self._agree(token):\n            self._drain(follow, what)\n"
        "            return False",
        "if False:\n            return False",
        ("mpi/comm/test_envelopes.py::test_nothing_is_written_where_ranks_disagree",),
        2,
    ),
    Mutant(
        "blocks that are sent as they lie are read in the wrong direction",
        "comm/mpi/_datatypes.py",
        "made.Create_hvector(n, 1, step)",
        "made.Create_hvector(n, 1, abs(step))",
        ("mpi/comm/test_envelopes.py::test_blocks_arrive_where_they_belong",),
        2,
    ),
    Mutant(
        "ranks do not wait for the round of the others",
        "comm/shared_memory/_channel.py",
        "            if theirs[ROUND] != number:",
        "            if False:",
        ("mpi/comm/test_node_local.py",),
        2,
    ),
    Mutant(
        "a staged copy is given back before it has been read",
        "comm/shared_memory/_channel.py",
        "self._channel._unread = self._lent",
        "self._channel._unread = None",
        ("mpi/comm/test_node_local.py",),
        2,
    ),
    Mutant(
        "blocks that others read have one item's strides",
        "comm/shared_memory/_slots.py",
        "return np.ndarray(shape, dtype, buffer, offset, strides)",
        "return np.ndarray(shape, dtype, buffer, offset)",
        ("mpi/comm/test_node_local.py",),
        2,
    ),
    Mutant(
        "simulated ranks do not wait for the readers of their blocks",
        "comm/simulated/_ranks.py",
        "if closing and self._program.failure is None:",
        "if False:",
        ("comm/test_collectives.py",),
    ),
    Mutant(
        "a simulated message is the sender's own memory",
        "comm/simulated/_ranks.py",
        "message = array.copy()",
        "message = array",
        ("comm/test_collectives.py", "comm/simulated/test_simulated.py"),
    ),
    Mutant(
        "simulated ranks do not compare what they are about to do",
        "comm/simulated/_rendezvous.py",
        "if entered.agreed.count(agree) != len(self.ranks):",
        "if False:",
        ("comm/test_collectives.py", "comm/simulated/test_simulated.py"),
    ),
    Mutant(
        "a reduction in order of ranks leaves one out",
        "comm/_block_reduction.py",
        "        for source in sources[2:]:\n",
        "        for source in sources[3:]:\n",
        ("comm/test_collectives.py",),
    ),
    Mutant(
        "averages are not divided",
        "comm/_reductions.py",
        "            values /= n\n",
        "            values /= 1\n",
        ("comm/test_collectives.py",),
    ),
    Mutant(
        "averages of integers stay integers",
        "comm/_reductions.py",
        'result = np.dtype(np.float64) if kind in "biu" else dtype',
        "result = dtype",
        ("comm/test_collectives.py", "array/test_convert.py"),
    ),
    Mutant(
        "sums of half precision add up in half precision",
        "comm/_reductions.py",
        "return Reduction(flat.astype(np.float32), op, dtype, lambda sums: _narrow(sums, dtype))",
        "return Reduction(flat, op, dtype, None)",
        ("comm/test_reductions.py", "comm/test_collectives.py"),
    ),
    Mutant(
        "ties go up when values are rounded to bfloat16",
        "comm/_reductions.py",
        "0x7FFF + ((bits >> 16) & 1)",
        "0x8000",
        ("comm/test_reductions.py",),
    ),
    Mutant(
        "a copy shared by threads leaves out the last part",
        "comm/kernels/_threads.py",
        "cuts = [shape[axis] * i // parts for i in range(parts + 1)]",
        "cuts = [shape[axis] * i // parts for i in range(parts)]",
        ("comm/test_packing.py",),
    ),
    Mutant(
        "what was faster with other versions is believed",
        "comm/kernels/_choice.py",
        'content.get("of") != _jit.versions() or ',
        "",
        ("comm/kernels/test_choice.py",),
    ),
    Mutant(
        "a kernel is compiled as early as one that is kept is loaded",
        "comm/kernels/_jit.py",
        "return self._is_kept or self._seen > _BYTES_BEFORE_COMPILING",
        "return True",
        ("comm/kernels/test_jit.py",),
    ),
    Mutant(
        "machine code is run that was not written whole",
        "comm/kernels/_jit.py",
        "if content is None or _checksum(content[_CHECKSUM_BYTES:]) != content[:_CHECKSUM_BYTES]:",
        "if content is None:",
        ("comm/kernels/test_jit.py",),
    ),
    Mutant(
        "idle memory is handed out twice",
        "comm/shared_memory/_arena.py",
        "            self._idle.setdefault(size, []).append(offset)",
        "            self._idle.setdefault(size, []).extend([offset, offset])",
        ("comm/shared_memory/test_memory.py",),
    ),
    Mutant(
        "lengths have 32 bits",
        "comm/_states.py",
        'length.to_bytes(8, "little")',
        '(length % 2**32).to_bytes(8, "little")',
        ("comm/test_states.py",),
    ),
    Mutant(
        "blocks that need another way are joined in the reverse order",
        "comm/_states.py",
        "found = [everything[a:b].data for a, b in pairwise(offsets(sizes))]",
        "found = [everything[a:b].data for a, b in pairwise(offsets(sizes))][::-1]",
        ("comm/test_states.py",),
    ),
    Mutant(
        "a scan of small states counts ranks that do not",
        "comm/_states.py",
        "places = [rank * n for rank in before]",
        "places = [rank * n for rank in range(len(before))]",
        ("comm/test_states.py",),
    ),
    # --- core and ops: arrays --------------------------------------------------------------------
    Mutant(
        "the place of an extreme is counted from the block's own start",
        "ops/_searching.py",
        "index + start if start else index",
        "index",
        (
            "core/families/test_reductions.py::test_byte_order_is_that_of_no_rank_where_some_have_no_item",
            "core/families/test_reductions.py::test_place_is_the_first_in_global_order_on_random_layouts",
        ),
    ),
    Mutant(
        "of equal extremes the last one is found",
        "ops/_searching.py",
        "return np.where(ties, places, np.iinfo(_INDEX).max).min(axis=0)",
        "return np.where(ties, places, -1).max(axis=0)",
        (
            "core/families/test_reductions.py::test_place_is_the_first_in_global_order_on_random_layouts",
            "core/families/test_reductions.py::test_ties_and_nans_go_to_the_lowest_index_across_columns",
        ),
    ),
    Mutant(
        "of equal extremes that of the first rank is found, wherever it lies",
        "ops/_searching.py",
        "in_order = bool((last[:-1] < first[1:]).all())",
        "in_order = True",
        (
            "core/families/test_reductions.py::test_place_is_the_first_in_global_order_on_random_layouts",
            "core/families/test_reductions.py::test_ties_and_nans_go_to_the_lowest_index_across_columns",
        ),
    ),
    Mutant(
        "rows that do not fill a folded one are not reduced",
        "core/families/_folding.py",
        "result = ufunc(result, ufunc.reduce(rest, 0, dtype, None, False, **options))",
        "pass",
        ("core/families/test_reductions.py::test_large_blocks_reduce_as_accurately_as_numpy",),
    ),
    Mutant(
        "sums of long rows leave out what fills no line",
        "core/families/_folding.py",
        "total += np.add.reduce(rows[:, lines * _LINE_ITEMS :], 1)",
        "pass",
        ("core/families/test_folding.py::test_large_sums_are_as_accurate_as_numpys",),
    ),
    Mutant(
        "the variance between blocks is forgotten",
        "core/families/_moments.py",
        "m2 = self.m2 + _product(shift, moved + self.rest + self.rest)",
        "m2 = self.m2",
        ("core/families/test_reductions.py::test_moment_agrees_with_numpy_on_random_layouts",),
    ),
    Mutant(
        "what the means of blocks lack is forgotten",
        "core/families/_moments.py",
        " + self.rest + self.rest",
        "",
        ("core/families/test_reductions.py::test_variance_far_from_0_is_as_accurate_as_numpys",),
    ),
    Mutant(
        "states of blocks are merged with the wrong ranks",
        "core/engine/_pipeline.py",
        "self.boxes = [everyone[i] for i in self._filled]",
        "self.boxes = [everyone[0] for i in self._filled]",
        ("core/families/test_reductions.py::test_moment_agrees_with_numpy_on_random_layouts",),
    ),
    Mutant(
        "lengths of blocks are numbered by mesh axes, not by cuts",
        "core/engine/_pipeline.py",
        "several_ranks(step.output.mesh, step.output.sharding_axes(axis))",
        "several_ranks(step.output.mesh, tuple(sorted(step.output.sharding_axes(axis))))",
        ("ops/indexing/test_masks.py::test_blocks_are_numbered_in_the_order_of_the_cuts",),
    ),
    Mutant(
        "every block takes repeated values from the first on",
        "ops/indexing/_masks.py",
        "start = sum(lengths[:index])",
        "start = 0",
        ("ops/test_extraction.py::test_repeated_values_go_on_from_block_to_block",),
    ),
    Mutant(
        "values for tiles are written where the mask is false, too",
        "ops/indexing/_masks.py",
        "    _put(x, axis, bits, take_by_mask(moved, bits, axis))\n",
        "    x._local[...] = moved\n",
        ("ops/indexing/test_masks.py::test_tiles_take_values_for_the_masked_items_alone",),
    ),
    Mutant(
        "more values than a mask selects are taken",
        "ops/indexing/_masks.py",
        "if sum(lengths) != width:",
        "if sum(lengths) > width:",
        ("ops/indexing/test_masks.py::test_values_are_written_as_numpy_writes_them",),
    ),
    Mutant(
        "rows of places are counted from the block",
        "ops/indexing/_places.py",
        "rows[:, 0] += start",
        "rows[:, 0] += 0",
        ("ops/indexing/test_places.py",),
    ),
    Mutant(
        "an index out of range on one rank is not told to the others",
        "ops/indexing/_gather.py",
        "gather_words(self._telling, (), self.token, self._step, error)",
        "gather_words(self._telling, (), self.token, self._step, None)",
        (_INDEX_ARRAYS + "test_an_index_out_of_range_raises_on_every_rank_and_writes_nothing",),
    ),
    Mutant(
        "rows before a boundary are looked for in the block after it",
        "comm/_grouping.py",
        'np.searchsorted(self.offsets, number, "right") - 1',
        'np.searchsorted(self.offsets, number, "left")',
        (_INDEX_ARRAYS + "test_items_are_those_of_numpy_for_all_layouts",),
    ),
    Mutant(
        "values for repeated indices are written in the order of ranks",
        "ops/indexing/_scatter.py",
        'first = np.argsort(given[0], kind="stable")',
        "first = np.arange(given[0].size)",
        (_INDEX_ARRAYS + "test_the_last_of_an_index_that_is_cut_along_its_second_axis_is_written",),
    ),
    Mutant(
        "an index is cut along an axis that replicates the array being written",
        "ops/indexing/_scatter.py",
        "allowed = () if few else cutting",
        "allowed = () if few else (*cutting, *layout.replicated_axes)",
        (_INDEX_ARRAYS + "test_all_replicas_change_alike_where_the_index_is_cut_along_them",),
    ),
    Mutant(
        "selections that take items of different blocks are taken for one",
        "ops/families/_selection.py",
        "taken.append((len(shape), split.owner(item), split.count))",
        "taken.append((len(shape), 0, split.count))",
        ("array/test_index.py::test_getitem_agrees_with_numpy",),
    ),
    Mutant(
        "values are read by others while they are being overwritten",
        "ops/indexing/_scatter.py",
        "rows = copy_block(rows) if np.may_share_memory(target, rows) else rows",
        "pass",
        (_INDEX_ARRAYS + "test_values_that_others_read_are_not_those_being_written",),
    ),
    Mutant(
        "what a mask leaves out takes a value with it",
        "comm/kernels/_rows.py",
        "src += size * chosen",
        "src += size",
        ("comm/test_rows.py::test_rows_are_expanded_to_where_the_mask_is_true",),
    ),
    Mutant(
        "boundaries are taken for the default split by their first block",
        "layout/_partition.py",
        "return len(offsets) <= 3 or chunk(offsets[-1], counts).offsets == tuple(offsets)",
        "return True",
        ("layout/test_carrying.py",),
    ),
    Mutant(
        "what is derived from counted layouts is kept for good",
        "layout/_layout.py",
        "        if self.is_counted:\n            mark_counted(made)\n        return made",
        "        return made",
        ("layout/test_counted.py", "core/engine/test_cache.py"),
    ),
    Mutant(
        "states are sent in the byte order of the block, which not all ranks read",
        "core/engine/_pipeline.py",
        "if part.__class__ is not np.ndarray or part.dtype is not dtype:",
        "if part.__class__ is not np.ndarray:",
        (
            "core/families/test_reductions.py::test_byte_order_is_that_of_no_rank_where_some_have_no_item",
        ),
    ),
    Mutant(
        "a product beside NaN leaves none out",
        "ops/statistical/_reductions.py",
        'if block.dtype.kind not in "fc":\n            return reduced',
        'if block.dtype.kind not in "":\n            return reduced',
        ("ops/test_every_row.py::test_row_that_computes_with_items",),
    ),
    Mutant(
        "a mean beside NaN counts NaN",
        "ops/statistical/_moments.py",
        "count = reductions.nonzero(~np.isnan(tile), axes, None, True)",
        "count = reductions.nonzero(np.ones_like(tile), axes, None, True)",
        ("core/families/test_reductions.py::test_mean_beside_nan_exchanges_sums_and_counts_once",),
    ),
    Mutant(
        "a result that the ranks exchange is that of the first block",
        "core/families/_reductions.py",
        "result = functools.reduce(combine, states[0])",
        "result = states[0][0]",
        (
            "core/families/test_reductions.py::test_results_that_no_partial_combines_are_exchanged_at_once",
        ),
    ),
    Mutant(
        "an extreme beside NaN of nothing is 0",
        "core/families/_reductions.py",
        "if source.size == 0 and op.identity is not None:",
        "if False:",
        ("core/families/test_reductions.py::test_extremes_beside_nan_of_nothing_are_initial",),
    ),
    Mutant(
        "out= of another shape than the result is written",
        "core/families/_reductions.py",
        "if out.shape != shape:",
        "if False:",
        (
            "core/families/test_reductions.py::test_out_of_another_shape_or_kind_is_refused_before_anything_is_sent",
            "ops/statistical/test_scans.py::test_out_that_no_scan_fits_into_is_refused_before_anything_is_sent",
        ),
    ),
    Mutant(
        "rows are pushed though a rank has failed",
        "comm/_rows.py",
        "failed = any(theirs[0] for theirs in heads)",
        "failed = False",
        ("comm/test_rows.py::test_error_of_one_rank_is_raised_on_all",),
    ),
    Mutant(
        "rows are pulled by small messages though a rank has failed",
        "comm/_rows.py",
        "if told is not None and any(map(itemgetter(0), told)):",
        "if False:",
        ("comm/test_rows.py::test_error_of_one_rank_is_raised_on_all",),
    ),
    Mutant(
        "rows that their sender has put in order are taken by their numbers",
        "comm/_rows.py",
        "which = cuts[sender] if packs[i] or numbered is None else numbered",
        "which = cuts[sender] if numbered is None else numbered",
        ("comm/test_rows.py::test_pushed_rows_are_those_of_numpy",),
    ),
    Mutant(
        "numbers of rows that lie in the order of the parcels are put in order again",
        "comm/_rows.py",
        "if packs[i] and i >= packed:",
        "if packs[i]:",
        ("comm/test_rows.py::test_blocks_that_lie_in_order_are_pushed_as_they_are",),
    ),
    Mutant(
        "a row where a block begins is taken for one of the block before",
        "comm/kernels/_rows.py",
        "to[k] += types.uint64(given[k]) >= start",
        "to[k] += types.uint64(given[k]) > start",
        ("comm/test_rows.py::test_rows_of_any_number_of_blocks_are_found",),
    ),
    Mutant(
        "NumPy groups all rows at once",
        "comm/_grouping.py",
        "most = max(1, min(_PIECE, _PIECE_BYTES // max(row, 1))) if on_host else n",
        "most = n",
        ("comm/test_rows.py::test_numpy_takes_rows_of_several_blocks_in_little_memory",),
    ),
    Mutant(
        "a row that is wanted several times travels as often",
        "comm/_rows.py",
        "if not (numbers[1:] > numbers[:-1]).all():",
        "if False:",
        ("comm/test_rows.py::test_between_nodes_a_row_travels_once",),
    ),
    Mutant(
        "a scan takes in the rank's own state",
        "comm/_states.py",
        "before = [rank for rank in filled if rank < comm.rank]",
        "before = [rank for rank in filled if rank <= comm.rank]",
        ("comm/test_states.py::test_scan_is_the_fold_of_the_states_before",),
    ),
    Mutant(
        "a scan leaves out what the block before its own has come to",
        "comm/_states.py",
        "return functools.reduce(self.pair, states)",
        "return states[0].copy()",
        (
            "comm/test_states.py::test_scan_is_the_fold_of_the_states_before",
            "ops/statistical/test_scans.py::test_scan_agrees_with_numpy_on_random_layouts",
        ),
    ),
    Mutant(
        "the initial item of a scan comes before every block",
        "ops/statistical/_scans.py",
        "leads = all(mesh.coordinate[m] == 0 for m in source.sharding_axes(axis))",
        "leads = True",
        ("ops/statistical/test_scans.py::test_scan_agrees_with_numpy_on_random_layouts",),
    ),
    Mutant(
        "results of blocks combine along a cut axis whatever the ufunc",
        "core/families/_reductions.py",
        "cut = [axis for axis in axes if layout.partition(axis).count > 1]",
        "cut = []",
        (
            "ops/statistical/test_ufunc_methods.py::test_other_ufunc_works_along_whole_axes_and_refuses_cut_ones",
        ),
    ),
    Mutant(
        "a slice that goes on over several blocks takes pieces of the next alone",
        "ops/statistical/_ufunc_methods.py",
        "if high <= box[axis][0] < end",
        "if high == box[axis][0] < end",
        (
            "ops/statistical/test_ufunc_methods.py::test_slices_stay_where_they_begin_and_send_one_item_of_each_line",
        ),
    ),
    Mutant(
        "a slice that ends with its block takes a piece of the next",
        "ops/statistical/_ufunc_methods.py",
        "if high <= box[axis][0] < end",
        "if high <= box[axis][0] <= end",
        ("ops/statistical/test_ufunc_methods.py::test_slices_are_reduced_as_in_numpy",),
    ),
    Mutant(
        "a variance beside NaN leaves out how far the means of blocks lie apart",
        "core/families/_moments.py",
        "m2, rest = np.add.reduce(m2), np.add.reduce(rest)",
        "m2, rest = np.add.reduce(state.m2), np.add.reduce(rest)",
        ("ops/statistical/test_beside_nan.py::test_variance_beside_nan_takes_numpys_arguments",),
    ),
    Mutant(
        "only the rank of a slice that is all NaN raises",
        "ops/_searching.py",
        "call_on_all(step.output.mesh, step.op.name, check)",
        "check()",
        (
            "ops/statistical/test_beside_nan.py::test_a_slice_of_one_rank_that_is_all_nan_raises_on_all",
        ),
    ),
    Mutant(
        "dates are gathered to be reduced",
        "core/engine/_pipeline.py",
        "if op.combine and op.instead and dtypes",
        "if not op.combine and op.instead and dtypes",
        ("core/families/test_reductions.py::test_reductions_of_dates_send_results_only",),
    ),
    Mutant(
        "the smallest date of all blocks leaves out missing ones",
        "ops/statistical/_reductions.py",
        "    dates=np.minimum,",
        "    dates=np.fmin,",
        ("core/families/test_reductions.py::test_reductions_of_dates_agree_with_numpy",),
    ),
    Mutant(
        "every rank gets the whole of many states",
        "core/engine/_pipeline.py",
        "and nbytes > FOLDED_BY_ALL",
        "and False",
        (
            "core/families/test_reductions.py::test_of_many_states_a_rank_gets_a_part_and_the_results",
            "core/families/test_reductions.py::test_memory_for_states_does_not_grow_with_ranks",
        ),
    ),
    Mutant(
        "ranks read the part of the states that is the next rank's",
        "comm/_states.py",
        "start = sum(counts[: comm.rank])",
        "start = sum(counts[: comm.rank + 1]) % (mine.size or 1)",
        (
            "core/families/test_reductions.py::test_of_many_states_a_rank_gets_a_part_and_the_results",
        ),
    ),
    Mutant(
        "an error in a rank's part of the states is not told to the others",
        "core/engine/_pipeline.py",
        "if raises or exchange.shares:",
        "if raises:",
        ("core/families/test_reductions.py::test_parts_of_states_raise_and_warn_on_every_rank",),
    ),
    Mutant(
        "states of however many lines are gathered on every rank",
        "core/engine/_pipeline.py",
        "return blocks > 1 and got > items and blocks * state * lines > _MANY_STATES",
        "return False",
        (
            "core/families/test_reductions.py::test_states_of_many_lines_are_not_gathered_where_the_block_is_less",
        ),
    ),
    Mutant(
        "an empty block takes part in a reduction without an identity",
        "core/engine/_pipeline.py",
        "if _has_empty_block(source, spec):",
        "if False:",
        (
            "core/families/test_reductions.py::test_product_of_complex_infinities_is_numpys_where_blocks_are_empty",
        ),
    ),
    Mutant(
        "ranks that make different calls do not hear of it",
        "comm/_agreement.py",
        "    if calls.count(what) < len(calls):",
        "    if False:",
        ("array/test_convert.py", "torch/parallel/test_parallelize_agreement.py"),
    ),
    Mutant(
        "floating point values are computed with before they are added up",
        "core/_dtypes.py",
        "return bool(before == after and (REDUCTIONS[op].idempotent or before.kind in integer))",
        "return bool(before == after)",
        ("array/test_operators_layouts.py",),
    ),
    Mutant(
        "means are not divided by the number of items",
        "ops/statistical/_moments.py",
        'np.true_divide(total, divisor, out=total, casting="unsafe")',
        "pass",
        ("core/families/test_reductions.py::test_mean_of_an_integer_dtype_divides_the_whole_sum",),
    ),
    Mutant(
        "the mirror image of a block comes from the rank itself",
        "ops/families/_windows.py",
        "size - 1 - c if m in cutting else c",
        "c if m in cutting else c",
        (
            "ops/manipulation/test_shape.py::test_flip_and_triangles_agree_with_numpy",
            "ops/manipulation/test_shape.py::test_flat_order_of_views_is_written_through_alike_on_all_ranks_and_as_numpys",
        ),
    ),
    Mutant(
        "a stretch of the flat order is shifted by one",
        "ops/families/_windows.py",
        "slice(at, end),",
        "slice(max(at - 1, 0), max(at - 1, 0) + end - at),",
        (
            "ops/manipulation/test_shape.py::test_reshape_agrees_with_numpy",
            "ops/manipulation/test_shape.py::test_reshape_that_fits_no_axis_moves_each_rank_its_own_part",
        ),
    ),
    Mutant(
        "a process keeps all of a result that is cut as the operand was",
        "ops/linear_algebra/_whole_axes.py",
        "if key is None else result[key].copy()",
        "if key is None else result",
        ("linalg/test_matrices.py::test_results_are_cut_as_the_axes_that_were_collected",),
    ),
    Mutant(
        "each rank keeps what it finds of a matrix that others have too",
        "ops/linear_algebra/_whole_axes.py",
        "        if told.count(mine) == len(told):",
        "        if True:",
        ("ops/linear_algebra/test_whole_axes.py::test_eigenvectors_are_those_of_one_process",),
    ),
    Mutant(
        "a singular matrix is an error on its rank alone",
        "ops/linear_algebra/_whole_axes.py",
        "    if layout.is_replicated:  #",
        "    if True:  #",
        ("linalg/test_matrices.py::test_a_matrix_that_fails_on_one_rank_fails_on_all",),
    ),
    Mutant(
        "tiles of a panel are taken in the order of their rows, not of the ranks",
        "linalg/_blocked_cholesky.py",
        "order = [i for tiles in by_row for i in tiles]",
        "order = [*wanted]",
        ("linalg/test_tiles.py::test_ill_conditioned_and_growing_matrices_have_small_residuals",),
    ),
    Mutant(
        "rows that were exchanged are not found again",
        "linalg/_elimination.py",
        "* width + names % width] = targets",
        "* width + names % width]",
        ("linalg/test_tiles.py::test_ill_conditioned_and_growing_matrices_have_small_residuals",),
    ),
    Mutant(
        "products of columns that nearly vanish are trusted",
        "linalg/_tall.py",
        "squares.min() > terms * finfo.tiny / finfo.eps",
        "squares.min() > 0",
        ("linalg/test_tall.py::test_products_that_overflow_or_vanish_are_not_trusted",),
    ),
    Mutant(
        "a triangle of shifted products is taken for the last",
        "linalg/_tall.py",
        "conj().T / scales, 1",
        "conj().T / scales, 0",
        ("linalg/test_tall.py::test_long_matrices_of_any_condition_are_factorized_by_products",),
    ),
    Mutant(
        "the lengths of columns count as a condition",
        "linalg/_tall.py",
        "scales = np.exp2(-np.round(np.log2(squares) / 2))",
        "scales = np.ones(columns)",
        ("linalg/test_tall.py::test_columns_of_any_length_are_no_condition",),
    ),
    Mutant(
        "a process that joins triangles keeps the rows of the other",
        "linalg/_tall.py",
        "inner = above @ inner",
        "inner = below @ inner",
        ("linalg/test_tall.py::test_blocks_of_few_or_no_rows",),
    ),
    Mutant(
        "rows of pivots are taken in the order of the ranks, not of the pivots",
        "linalg/_elimination.py",
        "block[rows] = part",
        "block[: len(rows)] = part",
        ("linalg/test_tiles.py::test_ill_conditioned_and_growing_matrices_have_small_residuals",),
    ),
    Mutant(
        "pivots of a strip are not eliminated from the rest of their panel",
        "linalg/_elimination.py",
        "solve_triangle(triangles[:width], told[strip, strip.stop :], lower=True, unit=True)",
        "pass",
        ("linalg/test_tiles.py::test_ill_conditioned_and_growing_matrices_have_small_residuals",),
    ),
    Mutant(
        "one process without a zero on its diagonal is enough",
        "linalg/_triangles.py",
        'np.array([is_regular]), "all"',
        'np.array([is_regular]), "any"',
        ("linalg/test_triangles.py::test_zero_on_the_diagonal_is_an_error_on_every_rank",),
    ),
    Mutant(
        "products count each copy of a block",
        "linalg/iterative/_vectors.py",
        "not any(mesh.coordinate[axis] for axis in copied)",
        "True",
        ("linalg/test_iterative.py::test_replicas_that_round_otherwise_end_alike",),
    ),
    Mutant(
        "solvers write into what an operator returned",
        "linalg/iterative/_operators.py",
        "if _backend.may_share_memory(image, block) else",
        "if image is block else",
        ("linalg/test_iterative.py::test_images_may_be_the_argument_or_the_same_memory",),
    ),
    Mutant(
        "bases lose digits where most of a vector is subtracted",
        "linalg/iterative/_basis.py",
        "if rest >= _REPEATED_BELOW * square.real:",
        "if True:",
        ("linalg/test_iterative.py::test_eigenvalues_of_a_stencil_near_a_number_and_many_times",),
    ),
    Mutant(
        "processes of other kinds find eigenvectors of their own",
        "linalg/iterative/_vectors.py",
        "        self._communicator.broadcast(sent)\n",
        "",
        ("linalg/test_iterative.py::test_bases_make_a_reduction_for_each_vector_or_two",),
    ),
    Mutant(
        "reflected columns are not turned back to the triangle",
        "linalg/_blocked_qr.py",
        "rest[:count] = turn.conj().T @ rest[:count]",
        "rest[:count] = turn @ rest[:count]",
        ("linalg/test_blocked_qr.py::test_both_factors_are_cut_as_the_matrix_is",),
    ),
    Mutant(
        "a division that leaves much is taken",
        "linalg/_spectral.py",
        "if _size(block[count:, :count]) <= tolerance:",
        "if True:",
        ("linalg/test_spectral.py::test_a_division_that_leaves_too_much_is_an_error",),
    ),
    Mutant(
        "large matrices are collected",
        "ops/linear_algebra/_whole_axes.py",
        "if have is not get and nbytes > allowed:",
        "if have is get and nbytes > allowed:",
        ("linalg/test_matrices.py::test_no_large_matrix_is_collected",),
    ),
    Mutant(
        "every other panel of a product is left out",
        "ops/linear_algebra/_panels.py",
        "            at += 1\n",
        "            at += 2\n",
        ("ops/linear_algebra/test_panels.py::test_products_by_panels_agree_with_numpy",),
    ),
    Mutant(
        "stretches of a panel go to each other's places in the result",
        "ops/linear_algebra/_panels.py",
        "for start, stop in own:",
        "for start, stop in reversed(own):",
        (
            "ops/linear_algebra/test_panels.py::test_products_by_panels_agree_with_numpy",
            "ops/linear_algebra/test_panels.py::test_panels_send_as_much_as_the_whole_and_need_no_more_than_two",
        ),
    ),
    Mutant(
        "the last panel takes the place of the sum of all",
        "ops/linear_algebra/_panels.py",
        "out += piece",
        "out[...] = piece",
        ("ops/linear_algebra/test_panels.py::test_products_by_panels_agree_with_numpy",),
    ),
    Mutant(
        "a rank that cannot multiply leaves the others without its part of later panels",
        "ops/linear_algebra/_panels.py",
        "                failed = error",
        "                raise error",
        ("ops/linear_algebra/test_panels.py::test_an_error_of_one_rank_reaches_all",),
    ),
    Mutant(
        "a piece that is read in place takes the place of the sum of all",
        "ops/linear_algebra/_panels.py",
        "if where in begun:",
        "if not where:",
        ("ops/linear_algebra/test_panels.py::test_products_by_panels_agree_with_numpy",),
    ),
    Mutant(
        "ranks with one result add up pieces in orders of their own",
        "ops/linear_algebra/_panels.py",
        "for chosen in product(*pieces):",
        "for chosen in [*product(*pieces)][:: (-1) ** self._step.partial.mesh.rank]:",
        ("ops/linear_algebra/test_panels.py::test_replicas_of_a_product_have_the_same_bits",),
    ),
    Mutant(
        "large operands become whole at once",
        "ops/linear_algebra/_panels.py",
        "return grown if sum(grown.values()) > allowed else {}",
        "return {}",
        ("ops/linear_algebra/test_panels.py::test_scratch_memory_is_few_blocks_or_none",),
    ),
    Mutant(
        "diagonals of blocks are shifted the wrong way",
        "ops/linear_algebra/_products.py",
        "shift = offset + box[rows][0] - box[columns][0]",
        "shift = offset - box[rows][0] + box[columns][0]",
        ("ops/linear_algebra/test_products.py::test_diagonal_agrees_with_numpy",),
    ),
    Mutant(
        "columns of a cut line are multiplied with roots of those of the first process",
        "fft/_line.py",
        "index * (first + start), order, forward, dtype",
        "index * start, order, forward, dtype",
        ("fft/test_lines.py::test_cut_lines_of_batches_agree_with_numpy",),
    ),
    Mutant(
        "images of the frequencies of real lines are not conjugates",
        "fft/_six_steps.py",
        "images[...] = found[(*lead, own, slice(columns - there, None))].conj()",
        "images[...] = found[(*lead, own, slice(columns - there, None))]",
        ("fft/test_lines.py::test_cut_line_takes_three_exchanges_of_a_block",),
    ),
    Mutant(
        "the middle row of frequencies of real lines lacks its images",
        "fft/_six_steps.py",
        "found[(*lead, middle, slice(columns - count, None))] = back.conj()",
        "found[(*lead, middle, slice(columns - count, None))] = 0",
        ("fft/test_lines.py::test_real_lines_are_cut_off_and_continued_in_tiles_of_all_axes",),
    ),
    Mutant(
        "a chirp knows distances of one sign",
        "fft/_chirp.py",
        "(sides[: self.passes] for",
        "(sides[self.before_zero :] for",
        ("fft/test_lines.py::test_cut_lines_of_batches_agree_with_numpy",),
    ),
    Mutant(
        "rows of a chirp have no phase of their pass",
        "fft/_chirp.py",
        "self._left = self._rows * self._phases(self._at * number, order)",
        "self._left = self._rows",
        ("fft/test_lines.py::test_cut_lines_of_batches_agree_with_numpy",),
    ),
    Mutant(
        "passes of a chirp after the first are not added up",
        "fft/_chirp.py",
        "                    if number:\n                        found +=",
        "                    if number > 1:\n                        found +=",
        ("fft/test_lines.py::test_cut_lines_of_batches_agree_with_numpy",),
    ),
    Mutant(
        "the last frequency of real items counts twice",
        "fft/_line.py",
        "return (0, n // 2) if n % 2 == 0 else (0,)",
        "return (0,)",
        (
            "fft/test_lines.py::test_imaginary_parts_of_frequencies_that_are_their_own_images_do_not_count",
        ),
    ),
    Mutant(
        "a transform keeps what it has turned",
        "fft/_transforms.py",
        "        for function in functions:\n"
        "            block = function(block)\n"
        "        return block\n",
        "        blocks = [block]\n"
        "        for function in functions:\n"
        "            blocks.append(function(blocks[-1]))\n"
        "        return blocks[-1]\n",
        ("fft/test_peak.py::test_peak_memory_is_three_blocks",),
    ),
    Mutant(
        "axes that wait for an exchange are transformed in parts",
        "fft/_plan.py",
        "if layout.partition(axis).count == 1)",
        "if layout.partition(axis).count >= 1)",
        ("fft/test_transforms.py::test_an_axis_that_is_cut_takes_one_exchange_and_others_none",),
    ),
    Mutant(
        "what blocks fetch of their neighbours goes to the wrong place",
        "ops/families/_neighbours.py",
        "slice(to, to + there - here)",
        "slice(to - 1 if to else to, to + there - here - (1 if to else 0))",
        ("array/test_halo.py::test_halo_is_the_block_of_the_padded_array",),
    ),
    Mutant(
        "the widths of a halo before and after blocks are exchanged",
        "ops/families/_halos.py",
        "return start - before, stop + after",
        "return start - after, stop + before",
        ("array/test_halo.py::test_halo_is_the_block_of_the_padded_array",),
    ),
    Mutant(
        "the corners of a halo are left out when it is renewed",
        "ops/families/_neighbours.py",
        "any(p.source != p.target for p in parts)",
        "sum(p.source != p.target for p in parts) == 1",
        ("array/test_halo.py::test_halo_is_the_block_of_the_padded_array",),
    ),
    Mutant(
        "processes do not exchange edges where some of them need none",
        "ops/families/_neighbours.py",
        "any(part.block != block for block, parts in enumerate(needs) for part in parts)",
        "all(any(p.block != i for p in parts) for i, parts in enumerate(needs))",
        ("array/test_halo.py::test_halo_is_the_block_of_the_padded_array",),
    ),
    Mutant(
        "slabs around the interior lack the items behind them",
        "array/_overlap.py",
        "low = min(start + after, n) if start else 0",
        "low = min(start, n) if start else 0",
        ("array/test_overlap.py::test_the_interior_comes_first_and_slabs_around_it",),
    ),
    Mutant(
        "the interior is taken to need no neighbours",
        "array/_overlap.py",
        "(before if first else 0, after if last else 0)",
        "(0, after if last else 0)",
        ("array/test_overlap.py::test_map_overlap_is_the_function_of_the_padded_array",),
    ),
    Mutant(
        "differences of any order get one item of the next block",
        "ops/statistical/_differences.py",
        "min(max(before.bounds(index)[1] - n, start), stop), stop",
        "min(max(before.bounds(index)[1] - 1, start), stop), stop",
        (
            "ops/statistical/test_differences.py::test_differences_of_any_order_are_one_exchange",
            "ops/statistical/test_differences.py::test_differences_along_an_axis_agree_with_numpy",
        ),
    ),
    Mutant(
        "every block of a padded array is longer",
        "ops/_padding.py",
        "before = widths[0] if index == 0 else 0",
        "before = widths[0]",
        ("ops/test_padding.py::test_pad_agrees_with_numpy",),
    ),
    Mutant(
        "a reflected edge repeats the outermost item when it turns",
        "ops/families/_neighbours.py",
        "2 * size - 1 - skipped - turn",
        "2 * size - 1 - turn",
        ("array/test_halo.py::test_halo_is_the_block_of_the_padded_array",),
    ),
    Mutant(
        "the gradient of a halo's edge does not go to the items that it repeats",
        "torch/_halo.py",
        "gradient[(*key, source)] += total",
        "gradient[(*key, source)] += 0 * total",
        ("torch/test_halo.py::test_halo_and_its_gradients_agree_with_one_process",),
    ),
    Mutant(
        "the gradient of a reflected edge arrives the wrong way round",
        "torch/_halo.py",
        ".of(arrived).flip(flipped)",
        ".of(arrived)",
        ("torch/test_halo.py::test_halo_and_its_gradients_agree_with_one_process",),
    ),
    Mutant(
        "a diagonal is put into the first rows of a block",
        "ops/_diagonals.py",
        "start + max(-k, 0) - first)",
        "max(-k, 0))",
        ("ops/test_diagonals.py",),
    ),
    Mutant(
        "a convolution begins one item late",
        "ops/linear_algebra/_convolution.py",
        "low = max(start + shift - width + 1, 0)",
        "low = max(start + shift - width + 2, 0)",
        ("ops/linear_algebra/test_convolution.py",),
    ),
    Mutant(
        "padding takes the first item for the last",
        "ops/_padding.py",
        "_slice(x, axis, x.shape[axis] - 1, x.shape[axis])",
        "_slice(x, axis, 0, 1)",
        ("ops/test_padding.py",),
    ),
    Mutant(
        "what surrounds the part that a rank keeps is not set",
        "redistribute/_execute.py",
        "boxes.shape(kept[1]) == shape",
        "True",
        ("mpi/test_redistribute.py",),
        2,
    ),
    Mutant(
        "all parts of a state are looked for at the places of the first",
        "core/engine/_pipeline.py",
        "accumulate([part.nbytes for part in state], initial=0)",
        "accumulate([state[0].nbytes for part in state], initial=0)",
        ("core/families/test_reductions.py",),
    ),
    Mutant(
        "rows above a panel are counted as in the first row of the grid",
        "linalg/_tiles.py",
        "max(0, -(-(k - self.row) // self.rows))",
        "max(0, -(-k // self.rows))",
        (
            "linalg/test_tiles.py",
            "linalg/test_blocked_qr.py",
        ),
    ),
    Mutant(
        "ones that fill up a diagonal begin at the first row of a tile",
        "linalg/_tiles.py",
        "kept = max(start - first, 0)",
        "kept = 0 if start < first + self.width else self.width",
        (
            "linalg/test_tiles.py",
            "linalg/test_matrices.py",
        ),
    ),
    # --- fused functions -------------------------------------------------------------------------
    Mutant(
        "who writes does not compute what waits for the old values",
        "core/_read_only.py",
        "        trace.flush()\n",
        "        pass\n",
        ("array/test_fusing.py::test_what_is_written_meanwhile_does_not_change_what_waits",),
    ),
    Mutant(
        "a plain operand of what waits is not copied",
        "core/families/_elementwise.py",
        "inputs.append(x.copy())",
        "inputs.append(x)",
        ("array/test_fusing.py::test_what_is_written_meanwhile_does_not_change_what_waits",),
    ),
    Mutant(
        "a step takes the memory of a result that is computed already",
        "core/engine/_fusion.py",
        "until.get(register, needed) >= needed",
        "needed >= 0",
        ("array/test_fusing.py::test_what_is_needed_again_is_not_overwritten",),
    ),
    Mutant(
        "what several steps need is overwritten after the first",
        "core/engine/_fusion.py",
        "if _waits(x) and last[x] == i}",
        "if _waits(x)}",
        ("array/test_fusing.py::test_what_is_needed_again_is_not_overwritten",),
    ),
    Mutant(
        "what waits is computed in the errstate of whoever asks",
        "core/engine/_fusion.py",
        "return np.errstate(**self._errors)",
        "return contextlib.nullcontext()",
        (
            "array/test_fusing.py::test_warnings_are_those_of_the_errstate_in_which_an_operation_stands",
        ),
    ),
    Mutant(
        "a reduction takes the first tile alone",
        "core/families/_reductions.py",
        "out[tuple([box[i] for i in kept])] = merge_pairwise(parts, combine)",
        "out[tuple([box[i] for i in kept])] = next(parts)",
        ("array/test_fusing.py::test_reductions_of_expressions_are_those_that_are_not_fused",),
    ),
    # --- what is kept of Partial arrays ----------------------------------------------------------
    Mutant(
        "writing leaves what a Partial array was reduced to",
        "core/_read_only.py",
        "            array._reduced = False",
        "            pass",
        ("array/test_reduced.py",),
    ),
    Mutant(
        "a view does not know whose memory it looks at",
        "core/_base.py",
        "array._source = self._computed_source()",
        "array._source = None",
        ("array/test_reduced.py",),
    ),
    Mutant(
        "functions of users write into what is kept",
        "core/engine/_pipeline.py",
        "blocks if functions else operands",
        "operands",
        ("array/test_reduced.py",),
    ),
    # --- random ----------------------------------------------------------------------------------
    Mutant(
        "random numbers ignore where the block lies",
        "random/_blocks.py",
        "corner += start * stride",
        "corner += 0",
        ("random/test_blocks.py",),
    ),
    Mutant(
        "the second call draws what the first one drew",
        "random/_blocks.py",
        "return *key, call, 0",
        "return *key, 0, 0",
        ("random/test_blocks.py",),
    ),
    Mutant(
        "every turn of an item's stream is the first",
        "random/_blocks.py",
        "words[3] + turn & _LOWER",
        "words[3]",
        ("random/test_streams.py",),
    ),
    Mutant(
        "numbers begin with the first of their counter block",
        "random/_blocks.py",
        "        if before := index & 3:",
        "        if before := 0:",
        ("random/test_blocks.py",),
    ),
    Mutant(
        "a row that begins with the second of a pair has the pair before",
        "random/_blocks.py",
        "        begin = place + (start & 1)",
        "        begin = place",
        ("random/test_blocks.py",),
    ),
    Mutant(
        "items behind a gap are those before it",
        "random/_blocks.py",
        "found[part - part[0]]",
        "found[: part.size]",
        ("random/test_blocks.py",),
    ),
    Mutant(
        "items that are refused take the streams of the first ones",
        "random/_streams.py",
        "indices_of(self._geometry, self._first + places)",
        "indices_of(self._geometry, self._first + np.arange(places.size))",
        ("random/test_streams.py",),
    ),
    Mutant(
        "gamma numbers take what is below the squeeze alone",
        "random/_continuous.py",
        "accepted[open_] = logarithm",
        "accepted[open_] = False & logarithm",
        ("random/test_samplers.py",),
    ),
    Mutant(
        "a permutation walks its cycles once",
        "random/_bijection.py",
        "again = again[found >= _u64(n)]",
        "again = again[:0]",
        ("random/test_bijection.py",),
    ),
    Mutant(
        "values of distributed parameters are not looked at",
        "random/_generator.py",
        "            check(parameters, blocks, condition)\n",
        "",
        ("random/test_parameters.py",),
    ),
    Mutant(
        "dropout ignores where the block lies",
        "torch/training/_dropout.py",
        "else layout.local_box()\n",
        "else tuple((0, n) for n in x.shape)\n",
        ("torch/test_random.py",),
    ),
    # --- checkpoint ------------------------------------------------------------------------------
    Mutant(
        "a file in Fortran order is read as one in C order",
        "io/_npy.py",
        "    if not told.is_fortran:\n",
        "    if True:\n",
        ("io/test_npy.py",),
    ),
    Mutant(
        "a file is written under its own name from the start",
        "checkpoint/_whole_arrays.py",
        'hidden = os.path.join(directory, f".{name}.tmp-{id}")',
        "hidden = path",
        ("io/test_npy.py",),
    ),
    Mutant(
        "ranks write to chunks that other ranks write to as well",
        "io/_stored.py",
        "(at + step // 2) // step * step",
        "at",
        ("io/test_stored.py",),
    ),
    Mutant(
        "each rank gathers on the one that it names",
        "array/_convert.py",
        'token("full_array", position, layout.fingerprint)',
        'token("full_array", layout.fingerprint)',
        ("array/test_full_array.py",),
    ),
    Mutant(
        "checksums are not compared",
        "checkpoint/storage/_chunks.py",
        "    if told.startswith(found):",
        "    if True:",
        ("checkpoint/storage/test_damage.py",),
    ),
    Mutant(
        "values that differ between ranks are saved as one",
        "checkpoint/_save_plan.py",
        "if one[:2] != first[:2] or one.checksum != first.checksum:",
        "if one[:2] != first[:2]:",
        ("checkpoint/torch/test_tensors.py",),
    ),
    Mutant(
        "the end of a stretch of a file is taken for its beginning",
        "layout/_box.py",
        "yield ((last, last + 1), *rest)",
        "yield ((first, first + 1), *rest)",
        ("layout/test_box.py", "checkpoint/test_round_trip.py"),
    ),
    Mutant(
        "a rank does not write its part of what all ranks hold",
        "checkpoint/_save_plan.py",
        "                if writer == rank:",
        "                if writer == rank or rank:",
        ("checkpoint/test_tied_memory.py", "checkpoint/test_round_trip.py"),
    ),
    Mutant(
        "a save removes what a save of another name has under way beside it",
        "checkpoint/storage/_directory.py",
        "(self._numbered and _STEP.fullmatch(name))",
        "self._numbered",
        ("checkpoint/test_crashes.py::test_what_saves_of_other_names_have_left_stays",),
    ),
    Mutant(
        "files that another rank has made are not waited for",
        "checkpoint/storage/_files.py",
        "time.monotonic() + _SECONDS_TO_APPEAR",
        "time.monotonic() - _SECONDS_TO_APPEAR",
        (
            "checkpoint/test_crashes.py::test_files_that_another_rank_has_made_may_be_slow_to_appear",
        ),
    ),
    Mutant(
        "a block that is loaded without a template is taken for a whole tensor",
        "torch/state/_checkpoint.py",
        "    place(tensor, *placed)\n    plan.fill_entry",
        "    plan.fill_entry",
        (
            "checkpoint/torch/test_tensors.py::test_blocks_are_placed_where_they_are_loaded_without_a_template",
        ),
    ),
    # --- torch -----------------------------------------------------------------------------------
    Mutant(
        "a bias is added once per rank",
        "torch/parallel/_feature_parallel.py",
        "sum_output(y, mesh, target, bias_of(m), cut.features)",
        "sum_output(y if bias_of(m) is None else y + bias_of(m), mesh, target)",
        ("torch/parallel/layers/test_linear.py",),
    ),
    Mutant(
        "outputs of row-parallel layers are not added up",
        "torch/parallel/layers/_features.py",
        "ways = routes_between(_layout(mesh, _P, shape), _layout(mesh, target, shape))",
        "ways = routes_between(_layout(mesh, _R, shape), _layout(mesh, target, shape))",
        ("torch/parallel/layers/test_linear.py",),
    ),
    Mutant(
        "gradients of what all ranks use are not added up",
        "torch/parallel/layers/_features.py",
        "gradients: Sequence[Placement] | None = (_P,),",
        "gradients: Sequence[Placement] | None = (_R,),",
        ("torch/parallel/layers/test_linear.py",),
    ),
    Mutant(
        "inputs are gathered again of shards that have been changed",
        "torch/parallel/_slices.py",
        "part = self.part()",
        "part = self.part.tensor",
        ("torch/parallel/test_slices.py",),
    ),
    Mutant(
        "input gradients of layers are those of the last rows alone",
        "torch/parallel/layers/_linear.py",
        "return torch.mm(rows, matrix, out=out).view(*x.shape[:-1], columns)",
        "return torch.mm(rows[-1:], matrix).expand(out.shape).reshape(*x.shape[:-1], columns)",
        ("torch/parallel/layers/test_products.py",),
    ),
    Mutant(
        "fused weights come in the order of ranks",
        "torch/parallel/layers/_features.py",
        "y = _shards.order_by_parts(y, self.parts, self.units, self.mesh.size, axis)",
        "y = y + 0",
        ("torch/parallel/layers/test_fused.py",),
    ),
    Mutant(
        "gradients of averages are not divided",
        "torch/_routes.py",
        "Route(arriving, returning, _averaged_over(dst) / _averaged_over(src))",
        "Route(arriving, returning, 1.0)",
        ("torch/test_moves.py", "torch/test_moves_autograd.py"),
    ),
    Mutant(
        "gradients of parameters that work on shards of a sequence are not added up",
        "torch/parallel/_gradient_sums.py",
        "        total = move(packed, *ways)",
        "        total = packed",
        ("torch/parallel/layers/test_sequence.py",),
    ),
    Mutant(
        "gradients of layers that other ranks have left out are added to others",
        "torch/parallel/_gradient_sums.py",
        'with moving_for(f"gradients {there} of {len(gradients)} replicated parameters"):',
        'with moving_for(""):',
        ("torch/parallel/test_gradient_sums.py",),
    ),
    Mutant(
        "words of the next rank are looked up, too",
        "torch/parallel/layers/_embedding.py",
        "here = (words >= start) & (words < stop)\n        vectors",
        "here = (words >= start - (start > 0)) & (words < stop)\n        vectors",
        ("torch/parallel/layers/test_vocabulary.py",),
    ),
    Mutant(
        "the largest logit is that of this rank",
        "torch/loss/_row_losses.py",
        'largest = _reduce(peaks, "max", terms)',
        "largest = peaks",
        ("torch/loss/test_cross_entropy.py", "torch/loss/test_loss_parallel.py"),
    ),
    Mutant(
        "norms count what several ranks hold several times",
        "torch/training/_norms.py",
        "if all(mesh.coordinate[axis] == 0 for axis in axes - cut)",
        "if True",
        ("torch/training/test_norms.py",),
    ),
    Mutant(
        "gradients of replicas are not averaged",
        "torch/data_parallel/_reducer.py",
        'src = Layout(self._mesh, [Partial("avg")] * self._mesh.ndim, buffer.shape)',
        "src = Layout(self._mesh, [Replicate()] * self._mesh.ndim, buffer.shape)",
        ("torch/data_parallel/test_replicate.py",),
    ),
    Mutant(
        "gradients of replicas that are to be added are averaged",
        "torch/data_parallel/_reducer.py",
        "return tuple(g if g is None else g * self.mesh.size for g in gradients)",
        "return gradients",
        ("torch/data_parallel/test_replicate.py",),
    ),
    Mutant(
        "sums of shards' gradients are not divided by the factor",
        "torch/fsdp/_gradients.py",
        "            own = own.mul_(1 / self.factor)",
        "            pass",
        ("torch/fsdp/gradients/test_accumulation.py::test_replicas_that_are_reduced_later",),
    ),
    Mutant(
        "gradients of earlier passes are forgotten",
        "torch/fsdp/_gradients.py",
        "            block.add_(left.to(block.device, block.dtype))",
        "            pass",
        ("torch/fsdp/gradients/test_accumulation.py::test_replicas_that_are_reduced_later",),
    ),
    Mutant(
        "a replicated tensor beside shards keeps a part of its gradient",
        "torch/following/_gradients.py",
        "    lines, replicated = lines_of(source.layout)\n    return [i",
        "    lines, replicated = lines_of(source.layout)\n    return [] and [i",
        ("torch/following/test_partial_gradients.py",),
    ),
    Mutant(
        "parts of a gradient are added up a second time further back",
        "torch/_moves.py",
        "            back = to_parts(there.src, back, source.layout, source.partial_grad)",
        "            pass",
        ("torch/following/test_partial_gradients.py",),
    ),
    Mutant(
        "what is placed over one mesh forgets what is known over another",
        "torch/_layouts.py",
        "            derived_over.set(tensor, tuple(more))",
        "            pass",
        ("torch/following/test_partial_gradients.py",),
    ),
    Mutant(
        "a styled module forgets how other meshes cut its input",
        "torch/parallel/_other_cuts.py",
        "        keep_cuts(x, y, layout)",
        "        pass",
        ("torch/following/test_other_meshes.py",),
    ),
    Mutant(
        "an unknown tensor keeps a part of its gradient beside a shard",
        "torch/following/_gradients.py",
        "    _check_unknown(call)\n    moved",
        "    moved",
        ("torch/following/test_partial_gradients.py",),
    ),
    Mutant(
        "gradients of shards are not averaged among replicas",
        "torch/fsdp/_gradients.py",
        "return redistribute_local(own, src, dst, purpose=purpose, background=behind)",
        "return own",
        ("torch/fsdp/gradients/test_accumulation.py::test_accumulation",),
    ),
    Mutant(
        "gradients of later passes take the place of earlier ones",
        "torch/fsdp/_gradients.py",
        "        parameter.grad.add_(gradient)",
        "        parameter.grad.copy_(gradient)",
        ("torch/fsdp/gradients/test_accumulation.py::test_gradients_add_up",),
    ),
    Mutant(
        "reading a generator lets collected garbage run",
        "torch/_random.py",
        "        gc.disable()\n",
        "        pass\n",
        ("torch/test_random.py::test_threads_read_generators_while_garbage_is_collected",),
    ),
    Mutant(
        "reading a generator switches garbage collection",
        "torch/_random.py",
        "            if collects:\n",
        "            if not collects:\n",
        ("torch/test_random.py",),
    ),
    Mutant(
        "regions of other places draw alike",
        "torch/_random.py",
        "spelled = repr((seed, list(zip(names, _place(mesh, names), strict=True))))",
        "spelled = repr((seed, list(names)))",
        ("mpi/torch/test_sequence.py::test_random_state_differs_along_chosen_axes",),
        3,
    ),
    Mutant(
        "one state is kept of ranks that differ",
        "torch/_random.py",
        "_place(mesh, [name for name in mesh.axis_names if name not in names])",
        "_place(mesh, mesh.axis_names)",
        ("mpi/torch/test_sequence.py::test_random_state_differs_along_chosen_axes",),
        2,
    ),
    Mutant(
        "gradients that are added up in one go back to the wrong parameters",
        "torch/parallel/_gradient_sums.py",
        "for i, piece in zip(chosen, total.split(",
        "for i, piece in zip(chosen[::-1], total.split(",
        ("torch/parallel/test_gradient_sums.py",),
    ),
    # --- ops: keys, selections and methods that distributed operations are made of ---------------
    Mutant(
        "NaNs that have a sign come before -inf when a search looks for them",
        "ops/sorting/_keys.py",
        "else _clamped(words, low, None)",
        "else words.copy()",
        ("ops/sorting/test_keys.py::test_decode_ascends_over_all_words_of_short_dtypes",),
    ),
    Mutant(
        "what follows words that stand for another item is left as it is",
        "ops/sorting/_keys.py",
        "    rest[_precedes(words[..., :size], leading)] = 0\n",
        "",
        ("ops/sorting/test_keys.py::test_decode_ascends_with_any_words",),
    ),
    Mutant(
        "equal items are cut on every rank alike",
        "ops/sorting/_multiselection.py",
        "within - (ends[rank] - sizes[rank])",
        "within - ends[rank] * 0",
        ("ops/sorting/test_multiselection.py",),
    ),
    Mutant(
        "few open items are cut without those of lower ranks",
        "ops/sorting/_multiselection.py",
        "np.count_nonzero(origin[:within] == ranks.rank)",
        "np.count_nonzero(origin[: within + 1] == ranks.rank)",
        ("ops/sorting/test_multiselection.py",),
    ),
    Mutant(
        "words whose lowest bits do not fit beside positions are not sorted to the end",
        "ops/sorting/_block_sort.py",
        "        if same.any():",
        "        if same.all():",
        ("ops/sorting/test_block_sort.py",),
    ),
    Mutant(
        "zeros of both signs stay as the fastest sort leaves them",
        "ops/sorting/_block_sort.py",
        "    if stop - start > 1:",
        "    if stop - start > len(line):",
        ("ops/sorting/test_block_sort.py",),
    ),
    Mutant(
        "descending lines leave equal items to the last ranks",
        "ops/sorting/_exchange.py",
        "Ranks(last - comm.rank, ranks.add",
        "Ranks(comm.rank, ranks.add",
        ("ops/sorting/test_sort.py",),
    ),
    Mutant(
        "pieces of several lines stay as their senders lie",
        "ops/sorting/_exchange.py",
        "_join_spans((ends - pieces).T, pieces.T)",
        "_join_spans(ends - pieces, pieces)",
        ("ops/sorting/test_sort.py",),
    ),
    Mutant(
        "places of items are counted from the block",
        "ops/sorting/_exchange.py",
        "np.add(first, order, out",
        "np.add(0, order, out",
        ("ops/sorting/test_sort.py",),
    ),
    Mutant(
        "of items that equal the last of the greatest none is among these",
        "ops/sorting/_sort.py",
        "~((line < bound) if largest",
        "~((line <= bound) if largest",
        ("ops/sorting/test_sort.py",),
    ),
    Mutant(
        "a run that has no other to be merged with is left behind",
        "ops/sorting/_block_sort.py",
        "if len(cuts) % 2 else [*cuts[::2], cuts[-1]]",
        "",
        ("ops/sorting/test_sort.py", "ops/sorting/test_block_sort.py"),
    ),
    Mutant(
        "lines are selected from in the order of all of them",
        "ops/sorting/_multiselection.py",
        "reshape(counts.shape) + base[:, None]",
        "reshape(counts.shape)",
        ("ops/sorting/test_multiselection.py",),
    ),
    Mutant(
        "index arrays with a slice between them stay where the first is",
        "ops/indexing/_keys.py",
        "places[-1] - places[0] == len(places) - 1",
        "places[-1] - places[0] >= len(places) - 1",
        ("ops/indexing/test_keys.py::test_keys_select_and_write_what_numpy_does",),
    ),
    Mutant(
        "quantiles are always reckoned from the lower item",
        "ops/statistical/_quantile_methods.py",
        "where=weight >= 0.5",
        "where=weight > 1.5",
        ("ops/statistical/test_quantile_methods.py::test_quantile_has_numpys_bits",),
    ),
    Mutant(
        "items without weight before all others are quantiles",
        "ops/statistical/_quantile_methods.py",
        'np.searchsorted(parts, 0, "right")',
        'np.searchsorted(parts, 0, "left")',
        ("ops/statistical/test_quantile_methods.py::test_weighted_places_add_up_over_blocks",),
    ),
    Mutant(
        "equal items at the end of a block are sought in the next one",
        "ops/searching/_searchsorted.py",
        "np.searchsorted(last, sought, side)",
        'np.searchsorted(last, sought, "right")',
        ("ops/searching/test_searchsorted.py::test_places_are_those_of_numpy",),
    ),
    Mutant(
        "equal items are divided between processes",
        "ops/sets/_unique.py",
        'cuts[1:-1] = np.searchsorted(run, splitters, "left")',
        "cuts[1:-1] = select_cuts(run, places, keys, ranks)",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "a different item is where some process has it",
        "ops/sets/_unique.py",
        "_reduced(np.minimum,",
        "_reduced(np.maximum,",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "bounds that miss an item are believed",
        "ops/statistical/_quantiles.py",
        "if ((within < 0) | (within >= width)).any():",
        "if (within >= width).any():",
        ("ops/statistical/test_quantiles.py::test_every_place_is_found_although_samples_mislead",),
    ),
    Mutant(
        "items without weight are quantiles where blocks are searched together",
        "ops/statistical/_quantiles.py",
        "reached = (below > 0) & (parts",
        "reached = (below >= 0) & (parts",
        ("ops/statistical/test_quantiles.py::test_items_without_weight_are_no_quantiles",),
    ),
    Mutant(
        "all items equal make bins without width",
        "ops/searching/_bins.py",
        "return (first - 0.5, last + 0.5) if first == last",
        "return (first, last + 1) if first == last",
        ("ops/searching/test_bins.py",),
    ),
    Mutant(
        "an exact sum ends with its second level",
        "core/families/_exact_sums.py",
        "            largest = max(float(tile.max()), -float(tile.min()))\n            exponent",
        "            largest = 0.0\n            exponent",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "what is below the first digits of an exact sum is forgotten in a tie",
        "core/families/_exact_sums.py",
        "+ digit(3)) << 1) + sticky",
        "+ digit(3)) << 1)",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "the kernel drops what two levels of rows leave",
        "comm/kernels/_exact_sum.py",
        "    _add_further_levels(scratch, rows, lanes)",
        "    _left_of(scratch, lanes)",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "the kernel drops what two levels of a line leave",
        "comm/kernels/_exact_sum.py",
        "                while left:\n",
        "                while False:\n",
        (
            "ops/statistical/test_reproducible.py::test_exact_sums_agree_with_fsum_whoever_adds_up_and_in_any_order",
        ),
    ),
    Mutant(
        "the kernel keeps units when a larger item comes",
        "comm/kernels/_exact_sum.py",
        "    if grows or is_huge or count > MOST_ITEMS:",
        "    if is_huge or count > MOST_ITEMS:",
        (
            "ops/statistical/test_reproducible.py::test_sums_of_blocks_that_lie_in_any_way_are_exact",
        ),
    ),
    Mutant(
        "an exact sum is rounded twice to a narrow dtype",
        "comm/kernels/_exact_digits.py",
        "    return double_of(bits + (1 | away) if rest != 0.0 and not bits & 1 else bits)",
        "    return total",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "products of items that are too far apart are added up by two levels",
        "ops/linear_algebra/_reproducible.py",
        "    if of_rows + of_columns + longer > _APART or",
        "    if",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "a line keeps levels when a larger item comes",
        "comm/kernels/_exact_sum.py",
        "                if not left and largest <= level:\n",
        "                if not left:\n",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "the parts of a complex number's products are not negated",
        "comm/kernels/_exact_sum.py",
        "            sign = ((j | are_parts) & negates) << 63\n",
        "            sign = np.int64(0)\n",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "ranks of one mesh fall back on words of exact sums each by itself",
        "core/engine/_pipeline.py",
        "        return lambda lacks: any(gather_lengths(everyone, int(lacks), number, self))",
        "        return lambda lacks: lacks",
        (
            "ops/statistical/test_reproducible.py::test_sums_that_no_short_state_holds_are_exchanged_as_words",
        ),
    ),
    Mutant(
        "short states lose what does not fit when they are added up",
        "comm/kernels/_exact_sum.py",
        "            left |= high >> room - by ^ high >> 63\n",
        "",
        (
            "ops/statistical/test_reproducible.py::test_states_far_apart_or_of_one_sign_are_added_up_exactly",
        ),
    ),
    Mutant(
        "slices of matrices have a bit too much",
        "ops/linear_algebra/_reproducible.py",
        "min(50, 53 - exponent",
        "min(54, 57 - exponent",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "a long block's convolution lacks what lies before it",
        "ops/linear_algebra/_convolution.py",
        "        if len(before):\n",
        "        if len(before) > 1000:\n",
        ("ops/linear_algebra/test_convolution.py",),
    ),
    Mutant(
        "the second part of long products is lost",
        "ops/linear_algebra/_reproducible.py",
        "            term += parts[0]\n",
        "            pass\n",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "parts of a term are rounded one after another",
        "ops/linear_algebra/_reproducible.py",
        "    return total + left\n",
        "    return total\n",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "a kernel cuts what a slice has left no further",
        "comm/kernels/_slices.py",
        "        out[left + j] = item - part\n",
        "        out[left + j] = item\n",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "the smaller slices of blocks are not multiplied",
        "ops/linear_algebra/_reproducible.py",
        "total = term if total is None else np.add(total, term, out=total)",
        "total = term",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "one sum that is rounded to odd is cut off",
        "core/families/_exact_sums.py",
        "        cut |= cut << beyond != magnitude\n",
        "",
        ("ops/statistical/test_reproducible.py",),
    ),
    Mutant(
        "items of products far below the largest ones are lost",
        "ops/linear_algebra/_reproducible.py",
        "    if some:\n",
        "    if some < 0:\n",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "slices reach no further where items of a product are small",
        "ops/linear_algebra/_reproducible.py",
        "-_round_up(-allowed * seen * unit**2), 1",
        "allowed, 1",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "small rows along a later axis are taken as they lie",
        "ops/indexing/_gather.py",
        "rows = np.moveaxis(block, along, 0) if along else block",
        "rows = block",
        (
            "ops/indexing/test_index_arrays.py::test_index_that_every_rank_has_takes_small_items_along_any_cut_axis",
        ),
    ),
    Mutant(
        "indices that come to nothing are looked at",
        "ops/indexing/_gather.py",
        "                if self._is_empty:  # where",
        "                if False:  # where",
        ("ops/indexing/test_index_arrays.py::test_indices_that_come_to_nothing_are_not_looked_at",),
    ),
    Mutant(
        "each process cuts its blocks by what it has seen alone",
        "ops/linear_algebra/_reproducible.py",
        'found: list[float] = read_values("matmul", x._new(np.array(values), layout)).tolist()',
        "found = [float(one) for one in values] if layout else []",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "heads of rows with NaN are numbers",
        "ops/linear_algebra/_reproducible.py",
        "is_special = (largest == 0) | ~library.isfinite(largest)",
        "is_special = largest == 0",
        ("ops/linear_algebra/test_reproducible.py",),
    ),
    Mutant(
        "different items of a block are numbered with those of its own rank",
        "ops/sets/_unique.py",
        "sum(lengths[: comm.rank])",
        "sum(lengths[1 : comm.rank + 1])",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "of gathered different items each process numbers those of the first",
        "ops/sets/_unique.py",
        "slice(*offsets[comm.rank :][:2])",
        "slice(*offsets[:2])",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "negative integers are counted as unsigned ones",
        "ops/statistical/_histograms.py",
        "if high <= np.iinfo(x.dtype).max:",
        "if high >= 0:",
        ("ops/statistical/test_histograms.py",),
    ),
    Mutant(
        "a block that is lent from where it is surrounded is copied there later",
        "ops/families/_windows.py",
        "        copy_boxes([(offered, block)], total=out.nbytes)\n",
        "",
        ("mpi/test_neighbours.py",),
        2,
    ),
    Mutant(
        "gathered items divide others in the order in which they came",
        "ops/sets/_unique.py",
        "splitters = sort_block(runs[0])[places]",
        "splitters = np.sort(runs[0][places])",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "places of different items are those in their block",
        "ops/sets/_unique.py",
        "            along += start\n",
        "",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "the first of two complex NaN is any of them",
        "ops/sets/_unique.py",
        "(words != words[0]).any(axis=1)",
        "(words != words[0]).all(axis=1)",
        ("ops/sets/test_unique.py",),
    ),
    Mutant(
        "of NaN on several ranks only equal ones tie",
        "ops/_searching.py",
        " | ((values != values) & (best != best))",
        "",
        (
            "ops/test_extraction.py",
            "core/families/test_reductions.py",
        ),
    ),
    Mutant(
        "the axes of dots are taken from the left",
        "ops/linear_algebra/_einsum.py",
        "spare[len(spare) - n :]",
        "spare[:n]",
        ("ops/linear_algebra/test_contraction.py",),
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Apply the mutants that were asked for, one by one, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants (default: all)")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--now", action="store_true", help="without a run that has no mutant")
    options = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    if options.list or not chosen:
        print("\n".join(f"{m.file}: {m.name}" for m in chosen) or "no such mutant")
        return 0 if chosen else 2
    with tempfile.TemporaryDirectory(prefix="distarray-mutants-") as folder:
        copy = Path(folder) / "copy"
        copy.mkdir()
        _copy(copy)
        if not options.now and not _all_pass(chosen, copy):
            return 2
        return _run(chosen, copy)


def _all_pass(chosen: Sequence[Mutant], copy: Path) -> bool:
    """Run the tests of some mutants against the copy as it is."""
    for ranks in sorted({mutant.ranks for mutant in chosen}):
        tests = dict.fromkeys(t for m in chosen if m.ranks == ranks for t in m.tests)
        whole = [t for t in tests if t.partition("::")[0] == t or t.partition("::")[0] not in tests]
        killer, seconds = tried(copy, whole, ranks, SECONDS * len(whole))
        if killer:
            print(f"without any mutant {killer} fails: mend that first")
            return False
        print(f"{'(none)':78} {'all pass':70} {seconds:5.0f} s", flush=True)
    return True


def _run(chosen: Sequence[Mutant], copy: Path) -> int:
    survivors = stale = 0
    for number, mutant in enumerate(chosen):
        reason = mutant.stale(copy)
        if reason:
            stale += 1
            print(f"{mutant.name:78} STALE: {reason}", flush=True)
            continue
        path = copy / "distarray" / mutant.file
        text = path.read_text()
        try:
            _write(path, text.replace(mutant.old, mutant.new), 2 * number + 1)
            killer, seconds = tried(copy, mutant.tests, mutant.ranks)
        finally:
            _write(path, text, 2 * number + 2)
        survivors += not killer
        print(f"{mutant.name:78} {killer or 'SURVIVES':70} {seconds:5.0f} s", flush=True)
    killed = len(chosen) - survivors - stale
    print(f"{len(chosen)} mutants: {killed} killed, {survivors} survive, {stale} stale")
    return 1 if survivors or stale else 0


def _copy(target: Path) -> None:
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def _write(path: Path, text: str, number: int) -> None:
    """Write a file such that what is compiled of another content of it is not taken for its own."""
    path.write_text(text)
    stamp = time.time() + 10 * number  # Python compares whole seconds, and the size
    os.utime(path, (stamp, stamp))


def tried(
    copy: Path, tests: Sequence[str], ranks: int, limit: float = SECONDS
) -> tuple[str, float]:
    """Return the first test that fails against a copy, or nothing, and how long that took."""
    inside = [str(copy / "tests" / test) for test in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rf", "-p", "no:cacheprovider"]
    command += ["--no-header", f"--timeout={TEST_SECONDS}"]
    if ranks:
        command = [mpiexec(), "-n", str(ranks), *command, "--with-mpi"]
    # The profile of tests under MPI draws the same each time, and shrinks nothing.
    environment = dict(os.environ, PYTHONPATH=str(copy), DISTARRAY_TEST_PROFILE="mpi")
    environment = prepared(environment)
    environment.setdefault("NUMBA_CACHE_DIR", str(ROOT / "distarray/comm/__pycache__/mutants"))
    started = time.monotonic()
    with (copy.parent / "log").open("w+") as log:
        process = subprocess.Popen(
            [*command, *inside],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            processes.end(process)
        log.seek(0)
        output = log.read()
    seconds = time.monotonic() - started
    if status == 0:
        return "", seconds
    return _first_failure(output, status), seconds


def _first_failure(output: str, status: int | None) -> str:
    """Return which test failed, as far as the output of a run tells it."""
    found = re.search(r"^(?:FAILED|ERROR) (?:\S*tests/)?(\S+)", output, re.MULTILINE)
    if found:
        return found[1]
    # A hang ends the process, and the job: its stack names the test, or the ranks do.
    found = re.search(r"tests/(\S+?\.py)\", line \d+, in (test_\w+)", output)
    if found:
        return f"{found[1]}::{found[2]} (did not end)"
    if status is None:
        return "none ended in time"
    if status in (4, 5):
        raise SystemExit(f"no test was run:\n{output[-2000:]}")
    return f"exit status {status}"


if __name__ == "__main__":
    sys.exit(main())
