"""Parts of a sharded module that are called outside of it are refused: they would use shards."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import distarray.torch as dt  # noqa: E402
from distarray.errors import LayoutError  # noqa: E402
from tests.torch.fsdp.models import Model, model  # noqa: E402
from tests.torch.fsdp.training import (  # noqa: E402
    check_gradients,
    filled,
    gradients,
    on_ranks,
    square_mean,
    values,
)

REFUSED = r"called outside of the call of.*register_fsdp_forward_method"


def words(mesh) -> torch.Tensor:
    """Return this rank's words."""
    generator = torch.Generator().manual_seed(7 + mesh.rank)
    return torch.randint(0, 11, (2, 3), generator=generator)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("after", [True, False])
def test_parts_called_outside_are_refused(ranks, after):
    """An embedding or a layer of some of the rows alone would go through."""

    def program(mesh):
        mine = dt.fully_shard(model(), mesh, reshard_after_forward=after)
        tokens = words(mesh)
        hidden = values(2, 7, seed=mesh.rank)
        for _ in range(2):
            for part, x in ((mine.embed, tokens), (mine.head, hidden), (mine.layers[0], hidden)):
                with pytest.raises(LayoutError, match=REFUSED):
                    part(x)
                with pytest.raises(LayoutError, match=REFUSED), torch.no_grad():
                    part(x)
            mine(tokens).square().mean().backward()
        return True

    assert all(on_ranks(ranks, program))


def test_parts_that_are_whole_are_called_as_ever():
    def program(mesh):
        whole = model()
        mine = copy.deepcopy(whole)
        dt.fully_shard(mine.embed, mesh)
        dt.fully_shard(mine, mesh)
        tokens = words(mesh)
        torch.testing.assert_close(mine.embed(tokens), whole.embed(tokens))  # by itself
        hidden = values(2, 7, seed=mesh.rank)
        mine.unshard()
        torch.testing.assert_close(mine.head(hidden), whole.head(hidden))
        mine.reshard()
        with pytest.raises(LayoutError, match=REFUSED):
            mine.head(hidden)

    on_ranks(2, program)


def test_methods_that_are_registered_call_parts():
    class Spoken(Model):
        def hidden(self, tokens):
            return self.layers[0](self.embed(tokens))

    def program(mesh):
        whole = filled(Spoken())
        mine = dt.fully_shard(copy.deepcopy(whole), mesh)
        with pytest.raises(LayoutError, match=r"embed.*called outside|called outside"):
            mine.hidden(words(mesh))
        dt.register_fsdp_forward_method(mine, "hidden")
        torch.testing.assert_close(mine.hidden(words(mesh)), whole.hidden(words(mesh)))

    on_ranks(2, program)


@pytest.mark.parametrize("reentrant", [True, False])
def test_regions_that_are_computed_again_call_parts(reentrant):
    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Sequential(nn.Linear(5, 6), nn.GELU(), nn.Linear(6, 5))

        def forward(self, x):
            return checkpoint(self.inside, x, use_reentrant=reentrant)

    whole = filled(Region())
    batches = [values(2, 5, seed=30 + i) for i in range(2)]
    plain = copy.deepcopy(whole)
    square_mean(plain, torch.cat(batches).requires_grad_()).backward()
    wanted = gradients(plain)

    def program(mesh):
        mine = dt.fully_shard(copy.deepcopy(whole), mesh, reshard_after_forward=True)
        square_mean(mine, batches[mesh.rank].clone().requires_grad_()).backward()
        check_gradients(mine, wanted)

    on_ranks(2, program)


def test_calls_of_parts_by_functional_call_and_copies_of_parts():
    def program(mesh):
        whole = model()
        mine = dt.fully_shard(copy.deepcopy(whole), mesh)
        tokens = words(mesh)
        given = {"weight": whole.embed.weight.detach()}
        torch.testing.assert_close(
            torch.func.functional_call(mine.embed, given, (tokens,)), whole.embed(tokens)
        )
        part = copy.deepcopy(mine.embed)
        pickle.loads(pickle.dumps(part))
        part.weight = nn.Parameter(whole.embed.weight.detach().clone())
        torch.testing.assert_close(part(tokens), whole.embed(tokens))

    on_ranks(2, program)
