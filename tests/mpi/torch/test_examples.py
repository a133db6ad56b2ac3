"""The example programs with torch modules: any mesh gives the losses of one process."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpt  # noqa: E402
import gpt_fsdp  # noqa: E402
import gpt_text  # noqa: E402
from gpt_model import GPT, Size  # noqa: E402

import distarray as da  # noqa: E402

pytestmark = pytest.mark.mpi

STEPS = 40
SIZE = Size(words=60, length=13, width=24, heads=4, layers=2)
BATCH, RATE = 4, 3e-3


def _model() -> GPT:
    torch.manual_seed(0)
    return GPT(SIZE).double()


def _numbers() -> np.ndarray:
    """Return an unclear rhythm, of which something can be learnt."""
    random = np.random.default_rng(0)
    return (np.arange(4000) ** 2 % 47 + random.integers(0, 5, 4000)) % SIZE.words


def _alone(steps: int) -> list[float]:
    """Train the same model with torch alone."""
    model, losses = _model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, RATE / 10)
    for step in range(steps):
        words, following = gpt_text.batch(_numbers(), step, BATCH, SIZE.length)
        loss = torch.nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        slower.step()
        losses.append(loss.item())
    return losses


def _distributed(shape: tuple[int, int], steps: int) -> list[float]:
    mesh = da.init_device_mesh(shape, ("dp", "tp"))
    model = _model()
    gpt.distribute(model, mesh, SIZE)
    settings = {"steps": steps, "batch": BATCH, "length": SIZE.length, "rate": RATE}
    return list(gpt.train(model, mesh, _numbers(), **settings))


@pytest.mark.mpi(min_size=4)
def test_gpt_on_two_by_two_follows_one_process_for_forty_steps() -> None:
    found, expected = _distributed((2, 2), STEPS), _alone(STEPS)
    assert expected[-1] < expected[0] - 0.2
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_gpt_on_any_mesh_begins_as_one_process() -> None:
    ranks, expected = da.default_mesh().size, _alone(5)
    for tensor in range(1, ranks + 1):
        if ranks % tensor == 0 and BATCH % (ranks // tensor) == 0:
            found = _distributed((ranks // tensor, tensor), 5)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_gpt_program_saves_what_any_mesh_can_go_on_from(mpi_tmp_path: Path) -> None:
    sizes = {"length": 12, "width": 16, "heads": 4, "layers": 1, "batch": 4, "samples": 15}
    common = ["--double", *(f"--{name}={value}" for name, value in sizes.items())]
    mesh = f"1,{da.default_mesh().size}"

    def run(steps: int, *more: str) -> str:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            gpt.main([*common, "--steps", str(steps), "--out", str(mpi_tmp_path), *more])
        return said.getvalue()

    trained = run(3, "--mesh", mesh)
    checkpoint = mpi_tmp_path / "gpt.pt"
    da.default_mesh().communicator().barrier()
    again = run(0, "--start-from", str(checkpoint))
    if da.default_mesh().rank == 0:
        state = torch.load(checkpoint)
        assert state["blocks.0.attention.qkv.weight"].shape == (48, 16)
        told = trained[trained.index(" on text that was held out") - 6 :]
        assert told in again
        assert (mpi_tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert trained == again == ""


def test_sharded_gpt_program_goes_on_from_a_checkpoint_of_another_mesh(mpi_tmp_path: Path) -> None:
    ranks = da.default_mesh().size
    sizes = {"length": 12, "width": 16, "heads": 4, "layers": 1, "batch": 12, "samples": 5}
    common = ["--double", *(f"--{name}={value}" for name, value in sizes.items())]

    def losses(shape: tuple[int, int], steps: int, *more: str) -> np.ndarray:
        mesh = f"{shape[0]},{shape[1]}"
        told = ["--steps", str(steps), "--out", str(mpi_tmp_path), "--mesh", mesh, *more]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            gpt_fsdp.main([*common, *told])
        da.default_mesh().communicator().barrier()
        found = np.loadtxt(mpi_tmp_path / "gpt.csv", delimiter=",", skiprows=1)[:, 1]
        da.default_mesh().communicator().barrier()
        return found

    shape = (2, 2) if ranks == 4 else (ranks, 1)
    uninterrupted = losses(shape, 5, "--save-every", "2")
    assert da.checkpoint.steps(mpi_tmp_path / "gpt-checkpoints") == [2, 4]
    again = losses((1, ranks), 5, "--save-every", "0", "--resume")
    np.testing.assert_allclose(again, uninterrupted, rtol=0, atol=1e-9)


def test_digits_are_read_as_by_one_process() -> None:
    pytest.importorskip("sklearn")
    import digits

    torch.manual_seed(0)
    alone = digits.network(5).double()
    torch.manual_seed(0)
    shared = digits.network(5).double()
    digits.distribute(shared, da.default_mesh())
    losses, expected = (digits.fit(model, epochs=2, batch=200) for model in (shared, alone))
    np.testing.assert_allclose(losses, expected, rtol=1e-10)
    assert digits.accuracy(shared) == digits.accuracy(alone) > 0.3
