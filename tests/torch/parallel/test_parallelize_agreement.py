"""Ranks agree on the plan and on the modules before anything is cut, and cut a module once."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.errors import ArgumentError, LayoutError, MismatchError  # noqa: E402
from tests.torch.parallel.two_layers import Block, each  # noqa: E402

COL, ROW = dt.ColwiseParallel, dt.RowwiseParallel


@pytest.mark.parametrize(
    ("plans", "named"),
    [
        (({"up": COL()}, {"up": COL(), "down": ROW()}), ["nothing more", "down (Linear of"]),
        (({"up": COL()}, {"up": ROW()}), ["up (Linear of", "by ColwiseParallel(", "by RowwiseP"]),
        (({"up": COL()}, {"up": COL(output_layouts=da.Replicate())}), ["output_layouts=Replicate"]),
        (({"up": COL()}, {"down": COL()}), ["weight (6, 4) float32", "weight (4, 6) float32"]),
        (({"up": COL()}, {}), ["nothing more"]),
    ],
)
def test_plans_that_differ_between_ranks_raise_on_all(plans, named):
    model = Block()

    def program(mesh):
        twin = copy.deepcopy(model)
        with pytest.raises(MismatchError) as caught:
            dt.parallelize_module(twin, mesh, plans[mesh.rank == 1])
        assert twin.up.weight.shape == (6, 4)
        assert "ranks 0, 2: " in str(caught.value)
        assert "rank 1: " in str(caught.value)
        return str(caught.value)

    one, other, *_ = each(program, 3)
    assert one == other
    for text in named:
        assert text in one


def test_modules_that_differ_between_ranks_raise_on_all():
    models = [Block(), Block(5), Block().double(), Block().to("meta")]

    def program(mesh):
        for model in models[1:]:
            twin = copy.deepcopy(model if mesh.rank else models[0])
            with pytest.raises(MismatchError, match=r"up \(Linear of weight"):
                dt.parallelize_module(twin, mesh, {"up": COL(), "down": ROW()})
        frozen = copy.deepcopy(models[0])
        frozen.up.weight.requires_grad_(mesh.rank == 0)  # else trained on one rank alone
        with pytest.raises(MismatchError, match="float32 without gradient"):
            dt.parallelize_module(frozen, mesh, {"up": COL(), "down": ROW()})
        with pytest.raises(ArgumentError, match="matches no module"):  # a rank alone knows
            dt.parallelize_module(
                copy.deepcopy(models[0]), mesh, {"up" if mesh.rank else "left": COL()}
            )
        with pytest.raises(MismatchError, match="src_data_rank=0; rank 1: src_data_rank=1"):
            dt.parallelize_module(
                copy.deepcopy(models[0]), mesh, {"up": COL()}, src_data_rank=mesh.rank
            )

    each(program)


class Hooked(dt.ParallelStyle):
    """A style that has a function and an object, which no other process has."""

    def __init__(self):
        self.function = lambda x: x
        self.thing = object()

    def apply(self, module, mesh):
        del module, mesh


def test_styles_with_functions_and_objects_are_alike():
    model = Block()
    each(lambda mesh: dt.parallelize_module(copy.deepcopy(model), mesh, {"up": Hooked()}))


def test_uneven_blocks_of_an_earlier_call_are_alike():
    def program(mesh):
        model = Block(5)
        dt.parallelize_module(model, mesh, {"up": COL()})
        assert model.up.weight.shape[0] == (3, 2)[mesh.rank]
        told = dt.PrepareModuleInput(
            input_layouts=da.Replicate(), desired_input_layouts=da.Replicate()
        )
        dt.parallelize_module(model, mesh, {"up": told})

    each(program)


def test_a_module_is_parallelized_once():
    def program(mesh):
        for style in (COL(), ROW(), dt.ColwiseParallel(output_layouts=da.Replicate())):
            model = dt.parallelize_module(Block(), mesh, {"up": style})
            for again in (style, COL(), ROW()):
                with pytest.raises(LayoutError, match=r"up \(Linear\): .*(before|already)"):
                    dt.parallelize_module(model, mesh, {"up": again})
            copied = copy.deepcopy(model)
            with pytest.raises(LayoutError, match="up"):
                dt.parallelize_module(copied, mesh, {"up": COL()})
        with pytest.raises(LayoutError, match="already"):
            dt.parallelize_module(Block(), mesh, {"u*": COL(), "up": ROW()})
        gathered = dt.PrepareModuleInput(
            input_layouts=(da.Shard(0),), desired_input_layouts=(da.Replicate(),)
        )
        model = dt.parallelize_module(Block(), mesh, gathered)
        with pytest.raises(LayoutError, match=r"the module .* before"):
            dt.parallelize_module(model, mesh, gathered)

    each(program)
