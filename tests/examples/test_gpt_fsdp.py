"""The GPT with sharded parameters: the losses of one process, and going on with other ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

import gpt  # noqa: E402
import gpt_fsdp  # noqa: E402
import gpt_text  # noqa: E402
from gpt_model import GPT, Size  # noqa: E402

import distarray as da  # noqa: E402
import distarray.torch as dt  # noqa: E402
from distarray.testing import simulate  # noqa: E402

SIZE = Size(words=30, length=9, width=16, heads=4, layers=2)
STEPS, BATCH, RATE = 6, 6, 3e-3
NUMBERS = np.arange(2000) ** 2 % 29


@pytest.fixture(scope="module")
def whole() -> GPT:
    torch.manual_seed(0)
    return GPT(SIZE).double()


def _training(whole: GPT, shape: tuple[int, int], bfloat16: bool) -> gpt_fsdp.Training:
    mesh = da.init_device_mesh(shape, ("dp", "tp"))
    model = copy.deepcopy(whole)
    if bfloat16:
        model = model.float()
    gpt_fsdp.distribute(model, mesh, SIZE, bfloat16=bfloat16)
    return gpt_fsdp.Training(model, STEPS, RATE)


def _run(
    training: gpt_fsdp.Training, shape: tuple[int, int], path: Path, every: int
) -> list[float]:
    mesh = da.init_device_mesh(shape, ("dp", "tp"))
    training.run(mesh, NUMBERS, batch=BATCH, length=SIZE.length, every=every, path=path)
    return training.losses


@pytest.fixture(scope="module")
def expected(whole: GPT) -> list[float]:
    """Return the losses of one process that shards nothing."""

    def alone() -> list[float]:
        mesh, model = da.init_device_mesh((1, 1), ("dp", "tp")), copy.deepcopy(whole)
        gpt.distribute(model, mesh, SIZE)
        settings = {"steps": STEPS, "batch": BATCH, "length": SIZE.length, "rate": RATE}
        return list(gpt.train(model, mesh, NUMBERS, **settings))

    (losses,) = simulate(1, alone)
    return losses


@pytest.fixture(scope="module")
def saved(whole: GPT, tmp_path_factory) -> Callable[[bool], tuple[Path, list[float]]]:
    """Return a function that trains on 2 x 2 ranks and saves after four steps of six."""
    kept: dict[bool, tuple[Path, list[float]]] = {}

    def make(bfloat16: bool) -> tuple[Path, list[float]]:
        if bfloat16 not in kept:
            path = tmp_path_factory.mktemp("gpt")

            def on_four() -> list[float]:
                return _run(_training(whole, (2, 2), bfloat16), (2, 2), path, every=4)

            kept[bfloat16] = path, simulate(4, on_four)[0]
        return kept[bfloat16]

    return make


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)], ids=str)
def test_gradients_and_parameters_are_those_of_one_process(whole, shape) -> None:
    words, following = gpt_text.batch(NUMBERS, 0, BATCH, SIZE.length)
    alone = copy.deepcopy(whole)
    torch.nn.functional.cross_entropy(alone(words).flatten(0, 1), following.flatten()).backward()
    expected = {name: (p.detach(), p.grad) for name, p in alone.named_parameters()}

    def on_ranks() -> None:
        mesh, model = da.init_device_mesh(shape, ("dp", "tp")), copy.deepcopy(whole)
        gpt_fsdp.distribute(model, mesh, SIZE)
        groups, group = mesh["dp"].size, mesh["dp"].coordinate[0]
        parts = words.chunk(groups)[group], following.chunk(groups)[group]
        gpt.cross_entropy(model, *parts, mesh).backward()
        for name, parameter in model.named_parameters():
            value, gradient = expected[name]
            with torch.no_grad():
                assert torch.equal(dt.full_tensor(parameter), value), name
            torch.testing.assert_close(dt.full_tensor(parameter.grad), gradient, msg=name)

    simulate(shape[0] * shape[1], on_ranks)


def test_four_ranks_have_the_losses_of_one_process(saved, expected) -> None:
    _, losses = saved(False)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-10)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("shape", "bfloat16"),
    [(shape, False) for shape in ((2, 1), (1, 2), (3, 1), (1, 3))]
    + [((1, 2), True), ((3, 1), True)],
    ids=lambda value: {True: "bfloat16", False: "float64"}.get(value, str(value)),
)
def test_training_goes_on_with_other_ranks(whole, saved, shape, bfloat16) -> None:
    path, uninterrupted = saved(bfloat16)
    assert da.checkpoint.steps(path) == [4]

    def on_others() -> tuple[int, list[float]]:
        training = _training(whole, shape, bfloat16)
        training.resume(path)
        begun = len(training.losses)
        return begun, _run(training, shape, path, every=0)

    tolerance = 5e-3 if bfloat16 else 1e-9
    for begun, losses in simulate(shape[0] * shape[1], on_others):
        assert begun == 4
        np.testing.assert_allclose(losses, uninterrupted, rtol=0, atol=tolerance)
