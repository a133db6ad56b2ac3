"""Halos of tensors, and their gradients, against one process that pads the whole tensor."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray import Partial, Replicate, Shard  # noqa: E402
from distarray.comm import CommLog, init_device_mesh, simulate  # noqa: E402
from distarray.errors import ArgumentError, LayoutError, MismatchError  # noqa: E402
from tests.array.test_halo import expected  # noqa: E402

R = Replicate()


def _index_of(shape, box, widths, modes):
    """Return which item of the whole tensor each of a block with edges is; -1 for a constant."""
    modes = [-1 if mode == 7 else mode for mode in modes]
    layout = da.Layout(da.AbstractMesh((1,)), [R], shape)

    class OfBox:
        shape = layout.shape

        def local_box(self):
            return box

    index = np.arange(np.prod(shape)).reshape(shape)
    return expected(index, OfBox(), widths, modes)[0]


@pytest.mark.parametrize("mode", [None, "periodic", "reflect", "symmetric", "edge", 7])
@pytest.mark.parametrize(
    ("mesh_shape", "placements", "widths", "boundaries"),
    [
        ((4,), [Shard(0)], [(1, 2), (0, 1), (0, 0)], None),
        ((2, 2), [Shard(0), Shard(1)], [(1, 1), (2, 1), (0, 0)], None),
        ((2, 2), [Shard(1), R], [(0, 3), (6, 6), (1, 0)], {1: (0, 1, 5)}),
        ((4,), [Shard(0)], [(3, 3), (0, 0), (0, 0)], {0: (0, 2, 2, 3, 7)}),
        ((2, 2), [Shard(1), Shard(0)], [(2, 3), (1, 0), (0, 0)], {1: (0, 0, 5)}),
        ((4,), [Shard(1)], [(2, 3), (0, 0), (1, 1)], {1: (0, 0, 5, 5, 5)}),
    ],
)
def test_halo_and_its_gradients_agree_with_one_process(
    mesh_shape, placements, widths, boundaries, mode
):
    shape = (7, 5, 2)
    modes = [mode] * 3
    rng = np.random.default_rng(3)
    value = rng.standard_normal(shape)

    def program():
        mesh = init_device_mesh(mesh_shape)
        layout = da.Layout(mesh, placements, shape, boundaries=boundaries)
        box = tuple(slice(*one) for one in layout.local_box())
        block = torch.tensor(value[box], requires_grad=True)
        found = dt.halo(block, mesh, placements, widths, mode)
        wanted, _ = expected(value, layout, widths, modes)
        np.testing.assert_array_equal(found.detach().numpy(), wanted)

        # Every rank weighs its edges with numbers of its own.
        def weights(coordinate):
            seed = sum(
                (10 * m + 1) * c for m, c in enumerate(coordinate) if type(placements[m]) is Shard
            )
            there = tuple(layout.local_box(coordinate))
            index = _index_of(shape, there, widths, modes)
            return index, np.random.default_rng(seed).standard_normal(index.shape)

        _, own = weights(mesh.coordinate)
        (found**3 * torch.tensor(own)).sum().backward()
        gradient = np.zeros(value.size)
        coordinates = np.ndindex(
            *(n if type(p) is Shard else 1 for n, p in zip(mesh_shape, placements, strict=True))
        )
        for coordinate in coordinates:
            index, weight = weights(coordinate)
            kept = index >= 0
            np.add.at(gradient, index[kept], (weight * 3 * value.reshape(-1)[index] ** 2)[kept])
        wanted = gradient.reshape(shape)[box]
        np.testing.assert_allclose(block.grad.numpy(), wanted, rtol=1e-12, atol=1e-12)

    simulate(4, program, ranks_per_node=1 if mode == "reflect" else None)


def test_second_derivatives_have_edges_again():
    def program():
        mesh = init_device_mesh((2,))
        block = torch.arange(3.0, dtype=torch.float64) + 3 * mesh.rank
        block.requires_grad_()
        found = dt.halo(block, mesh, [Shard(0)], 1, "periodic", shape=(6,))
        (first,) = torch.autograd.grad((found**3).sum(), block, create_graph=True)
        (second,) = torch.autograd.grad((first * block.detach()).sum(), block)
        # Items at the ends of blocks are there twice, and so are their derivatives.
        times = torch.tensor([2.0, 1.0, 2.0], dtype=torch.float64)
        assert torch.allclose(first.detach(), 3 * block.detach() ** 2 * times)
        assert torch.allclose(second, 6 * block.detach() ** 2 * times)

    simulate(2, program)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_convolution_of_a_cut_image_is_that_of_the_whole(dtype):
    torch.manual_seed(0)
    image, kernel = torch.randn(2, 3, 8, 9).to(dtype), torch.randn(4, 3, 3, 3).to(dtype)
    whole = image.clone().requires_grad_()
    result = torch.nn.functional.conv2d(whole, kernel, padding=1)
    result.square().sum().backward()
    tolerance = {"rtol": 0.05, "atol": 2.0} if dtype is torch.bfloat16 else {"rtol": 1e-4}

    def program():
        mesh = init_device_mesh((2, 2))
        layout = da.Layout(mesh, [Shard(2), Shard(3)], image.shape)
        box = tuple(slice(*one) for one in layout.local_box())
        block = image[box].clone().requires_grad_()
        with CommLog() as log:
            wide = dt.halo(block, mesh, [Shard(2), Shard(3)], {2: 1, 3: 1}, 0, shape=image.shape)
            found = torch.nn.functional.conv2d(wide, kernel)
            found.square().sum().backward()
        assert torch.allclose(found, result[:, :, box[2], box[3]], **tolerance)
        assert torch.allclose(block.grad, whole.grad[box], **tolerance)
        rows, columns = block.shape[2:]
        size = 2 * 3 * image.element_size()
        # A row, a column and the corner come, and the same goes back.
        assert log.count("exchange") == log.count() == 2
        assert log.bytes() == 2 * (rows + columns + 1) * size

    simulate(4, program)


def test_partial_tensors_are_reduced_and_errors_are_raised_on_every_rank():
    def program():
        mesh = init_device_mesh((2,))
        part = torch.arange(3.0) * (mesh.rank + 1)
        part.requires_grad_()
        wide = dt.halo(part, mesh, [Partial()], 1, "edge")
        assert wide.tolist() == [0, 0, 3, 6, 6]
        wide.sum().backward()
        assert part.grad.tolist() == [2, 1, 2]
        block = torch.arange(3)
        with pytest.raises(ArgumentError, match="boundary"):
            dt.halo(block, mesh, [Shard(0)], 1, 0.5)
        with pytest.raises(MismatchError, match="gradient"):
            dt.halo(torch.ones(3, requires_grad=mesh.rank == 0), mesh, [Shard(0)], 1)
        with pytest.raises(MismatchError, match="halo"):
            dt.halo(block, mesh, [Shard(0)], 1 + mesh.rank)

    simulate(2, program)


def test_partial_blocks_of_any_sizes_are_reduced():
    def program():
        mesh = init_device_mesh((2, 2))
        part = torch.ones(1 + 3 * mesh.coordinate[0], requires_grad=True)
        wide = dt.halo(part, mesh, [Shard(0), Partial()], 1, "periodic")
        assert wide.tolist() == [2] * (len(part) + 2)
        wide.sum().backward()
        assert part.grad.tolist() == ([3] if len(part) == 1 else [2, 1, 1, 2])

    simulate(4, program)


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("wrong", range(4))
def test_a_partial_block_that_does_not_fit_the_shape_raises_on_every_rank(needs, wrong):
    def program():
        mesh = init_device_mesh((2, 2))
        own = int(mesh.rank == wrong)
        block = torch.ones(3 + own, requires_grad=needs)
        with pytest.raises(LayoutError if own else MismatchError, match="leave shape= out"):
            dt.halo(block, mesh, [Shard(0), Partial()], 1, "periodic", shape=(6,))
        part = torch.full((3,), 1.0 + mesh.coordinate[0], requires_grad=needs)
        wide = dt.halo(part, mesh, [Shard(0), Partial()], 1, "periodic", shape=(6,))
        here, there = 2.0 + 2 * mesh.coordinate[0], 4.0 - 2 * mesh.coordinate[0]
        assert wide.tolist() == [there, here, here, here, there]

    simulate(4, program)


@pytest.mark.parametrize("needs", [False, True])
def test_a_block_that_does_not_fit_the_shape_raises_on_every_rank(needs):
    def program():
        mesh = init_device_mesh((3,))
        own = int(mesh.rank == 1)
        block = torch.ones(2 + own, requires_grad=needs)
        with pytest.raises(LayoutError if own else MismatchError, match="leave shape= out"):
            dt.halo(block, mesh, [Shard(0)], 1, shape=(6,))
        assert dt.halo(block, mesh, [Shard(0)], 1).shape == (3 + 2 * own,)

    simulate(3, program)
