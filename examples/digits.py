"""Read handwritten digits with a convolutional network whose channels are shared by all ranks.

Run it as ``mpiexec -n 3 python examples/digits.py``: any number of ranks will do, as channels need
not divide by it. ``--one`` computes the same on each rank alone, to compare. The 1,797 images are
those that scikit-learn brings along (UCI, optical recognition of handwritten digits). Needs the
extras ``torch`` and ``examples``.
"""

from __future__ import annotations

import argparse

import torch
from arguments import at_least
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from tqdm import tqdm

import distarray as da
import distarray.torch as dt

TRAINED_ON = 1400


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (1797, 1, 8, 8) between 0 and 1, and what they show."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels / 16).reshape(-1, 1, 8, 8), torch.from_numpy(labels)


def network(channels: int = 10) -> nn.Sequential:
    """Return two convolutions and two linear layers, for one process."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def distribute(model: nn.Sequential, mesh: da.DeviceMesh) -> None:
    """Cut every other layer by its outputs, and the next by its inputs."""
    plan = {
        "0": dt.ColwiseParallel(),
        "2": dt.RowwiseParallel(),
        "6": dt.ColwiseParallel(),
        "8": dt.RowwiseParallel(),
    }
    dt.parallelize_module(model, mesh, plan)


def fit(model: nn.Module, *, epochs: int, batch: int = 50, progress: bool = False) -> list[float]:
    """Train on the first images; return the mean loss of each epoch."""
    pictures, labels = (part[:TRAINED_ON] for part in images())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    random = torch.Generator().manual_seed(1)
    losses = []
    for _ in tqdm(range(epochs), "training", unit=" epochs", disable=not progress):
        total = 0.0
        for chosen in torch.randperm(TRAINED_ON, generator=random).split(batch):
            loss = functional.cross_entropy(model(pictures[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
        losses.append(total / TRAINED_ON)
    return losses


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of the other images that the model reads."""
    pictures, labels = (part[TRAINED_ON:] for part in images())
    return float((model(pictures).argmax(1) == labels).double().mean())


def main(arguments: list[str] | None = None) -> None:
    """Train, and tell how well it reads."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=at_least(1), default=20)
    parser.add_argument("--one", action="store_true", help="do not distribute")
    options = parser.parse_args(arguments)
    mesh = da.default_mesh()
    torch.manual_seed(0)
    model = network().double()
    if not options.one:
        distribute(model, mesh)
    first = mesh.rank == 0
    losses = fit(model, epochs=options.epochs, progress=first)
    share = accuracy(model)
    if first:
        held = sum(p.numel() for p in model.parameters())
        print(f"{mesh.size} rank(s), {held} parameters on this one")
        print(f"loss {losses[-1]:.12f}, {share:.2%} of the images that were held out")


if __name__ == "__main__":
    main()
