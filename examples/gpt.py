"""Train a small GPT on Python's own source with tensor, sequence, loss and data parallelism.

Run it as ``mpiexec -n 4 python examples/gpt.py --mesh 2,2``: two groups of ranks take half of each
batch each, and the two ranks of a group share the weights. ``python examples/gpt.py`` does the same
on one process, with the same losses. It writes ``gpt.pt``, ``gpt.csv`` and, where matplotlib is
there, ``gpt.png``. Needs the extras ``torch`` and ``examples``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import gpt_text
import torch
from arguments import at_least, mesh_shape
from gpt_model import GPT, Size
from torch.nn import functional
from tqdm import tqdm

import distarray as da
import distarray.torch as dt

Tuning = tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]


def distribute(model: GPT, mesh: da.DeviceMesh, size: Size) -> None:
    """Cut the weights over ``tp``, and keep the copies that ``dp`` has of everything in step."""
    cut(model, mesh["tp"], size)
    dt.replicate(model, mesh["dp"])


def cut(model: GPT, mesh: da.DeviceMesh, size: Size) -> None:
    """Cut the weights, and the activations between layers along the passages."""
    passages = da.Shard(1)  # of (batch, length, width)
    head = size.width // size.heads  # is never torn apart
    qkv = {"parts": [size.width] * 3, "unit": head}
    plan = {
        "words": dt.RowwiseParallel(output_layouts=passages),
        "positions": dt.ColwiseParallel(output_layouts=passages),
        "blocks.*.norm?": dt.SequenceParallel(),
        "blocks.*.attention.qkv": dt.ColwiseParallel(input_layouts=passages, **qkv),
        "blocks.*.attention.out": dt.RowwiseParallel(output_layouts=passages, unit=head),
        "blocks.*.up": dt.ColwiseParallel(input_layouts=passages),
        "blocks.*.down": dt.RowwiseParallel(output_layouts=passages),
        "norm": dt.SequenceParallel(),
        "head": dt.ColwiseParallel(input_layouts=passages),  # each rank scores its share of words
    }
    dt.parallelize_module(model, mesh, plan)


def tuned(model: GPT, steps: int, rate: float) -> Tuning:
    """Return what changes the weights, and what lets it do so ever more slowly."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, rate / 10)


def train(
    model: GPT,
    mesh: da.DeviceMesh,
    numbers,
    *,
    steps: int,
    batch: int,
    length: int,
    rate: float = 1e-3,
    seed: int = 0,
    begin: int = 0,
    tuning: Tuning | None = None,
) -> Iterator[float]:
    """Yield the loss of each step over the whole batch, the same on every rank.

    Parameters
    ----------
    model
        Distributed over the mesh.
    numbers
        The text, whole on every rank.
    batch
        Passages of a step, over all ranks; a multiple of the size of ``dp``.
    begin, tuning
        Steps that are done already, and what has tuned the model meanwhile.
    """
    optimizer, slower = tuning or tuned(model, steps, rate)
    groups, group = mesh["dp"].size, mesh["dp"].coordinate[0]
    for step in range(begin, steps):
        words, following = gpt_text.batch(numbers, step, batch, length, seed=seed)
        loss = cross_entropy(
            model, words.chunk(groups)[group], following.chunk(groups)[group], mesh
        )
        optimizer.zero_grad()
        loss.backward()
        dt.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        slower.step()
        yield mean(loss, mesh)


def cross_entropy(
    model: GPT, words: torch.Tensor, following: torch.Tensor, mesh: da.DeviceMesh
) -> torch.Tensor:
    """Return the mean loss of this group's passages; no rank sees the scores of all words."""
    with dt.loss_parallel(mesh["tp"]):
        return functional.cross_entropy(model(words).flatten(0, 1), following.flatten())


def mean(loss: torch.Tensor, mesh: da.DeviceMesh) -> float:
    """Average a loss over the groups."""
    parts = da.Partial("avg")
    return float(dt.redistribute(loss.detach(), mesh["dp"], [parts], [da.Replicate()]))


@torch.no_grad()
def sample(
    model: GPT, mesh: da.DeviceMesh, start: list[int], count: int, size: Size, *, seed: int = 0
) -> list[int]:
    """Continue a text. All ranks of a group do this together, and draw the same words."""
    random = torch.Generator().manual_seed(seed)
    found = list(start)
    for _ in range(count):
        scores = model(torch.tensor([found[-size.length :]]))[0, -1]
        scores = dt.redistribute(
            scores, mesh["tp"], [da.Shard(0)], [da.Replicate()], shape=(size.words,)
        )
        chances = torch.softmax(scores.double() / 0.8, 0)
        found.append(int(torch.multinomial(chances, 1, generator=random)))
    return found


def draw(path: Path, losses: list[float], title: str) -> None:
    """Draw the losses, where matplotlib is there."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.plot(range(1, len(losses) + 1), losses, linewidth=1)
    panel.set(xlabel="step", ylabel="cross entropy of a byte (nats)", title=title)
    panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def options_of(parser: argparse.ArgumentParser) -> None:
    """Add what every way of training this model can be told."""
    parser.add_argument(
        "--mesh", type=mesh_shape, help="ranks for data and for tensor parallelism, such as 2,2"
    )
    parser.add_argument("--steps", type=at_least(0), default=400)
    parser.add_argument(
        "--batch", type=at_least(1), default=16, help="passages of a step, over all ranks"
    )
    for name in ("length", "width", "heads", "layers"):
        parser.add_argument(f"--{name}", type=at_least(1), default=getattr(Size, name))
    parser.add_argument(
        "--rate", type=at_least(0, float), default=2e-3, help="learning rate at the beginning"
    )
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument(
        "--samples", type=at_least(0), default=400, help="bytes to write at the end"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder for what is written")


def prepared(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[da.DeviceMesh, gpt_text.Text, GPT, Size]:
    """Return the mesh, the text, the model of one process, and its size."""
    world = da.default_mesh()
    shape = options.mesh or (1, world.size)
    if len(shape) != 2:
        parser.error(f"--mesh {shape[0]}: it has two numbers, such as 2,2")
    if options.width % options.heads:
        parser.error(f"a width of {options.width} does not go over {options.heads} heads evenly")
    mesh = da.init_device_mesh(shape, ("dp", "tp"))
    if options.batch % mesh["dp"].size:
        parser.error(f"a batch of {options.batch} does not go over {mesh['dp'].size} groups evenly")
    text = gpt_text.Text(gpt_text.read_once(mesh))
    sizes = {name: getattr(options, name) for name in ("length", "width", "heads", "layers")}
    size = Size(words=len(text.alphabet), **sizes)
    torch.manual_seed(0)
    return mesh, text, GPT(size).to(torch.float64 if options.double else torch.float32), size


def progress(
    losses: Iterator[float], mesh: da.DeviceMesh, steps: int, begin: int = 0
) -> Iterator[tuple[int, float]]:
    """Show a bar on rank 0, and yield how many steps are done, and the loss."""
    bar = tqdm(total=steps, initial=begin, desc="training", unit=" steps", disable=mesh.rank > 0)
    for step, loss in enumerate(losses, begin + 1):
        bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        bar.update()
        yield step, loss
    bar.close()


def show(
    model: GPT,
    mesh: da.DeviceMesh,
    text: gpt_text.Text,
    size: Size,
    losses: list[float],
    options: argparse.Namespace,
) -> None:
    """Try the model on text that was held out, let it write, and keep and draw the losses."""
    words, following = gpt_text.batch(text.held_out, 0, 32, size.length)
    with torch.no_grad():
        held_out = float(cross_entropy(model, words, following, mesh))
    written = sample(model, mesh, text.encode("def "), options.samples, size)
    if mesh.rank > 0:
        return
    options.out.mkdir(parents=True, exist_ok=True)
    lines = [f"{step},{loss!r}\n" for step, loss in enumerate(losses, 1)]
    (options.out / "gpt.csv").write_text("step,loss\n" + "".join(lines))
    draw(options.out / "gpt.png", losses, f"dp x tp = {mesh.shape[0]} x {mesh.shape[1]}")
    if losses:
        print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last, ", end="")
    print(f"{held_out:.4f} on text that was held out\n\n{text.decode(written)}")


def main(arguments: list[str] | None = None) -> None:
    """Train, save, draw and show what the model writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options_of(parser)
    parser.add_argument("--start-from", type=Path, help="a gpt.pt of the same sizes, of any mesh")
    options = parser.parse_args(arguments)

    mesh, text, model, size = prepared(parser, options)
    count = sum(p.numel() for p in model.parameters())
    distribute(model, mesh, size)
    first = mesh.rank == 0
    if options.start_from:
        state = torch.load(options.start_from) if first else None
        dt.load_state_dict(model, state, src_data_rank=0, mesh=mesh)
    if first:
        held = sum(p.numel() for p in model.parameters())
        print(f"{count} parameters, {held} on rank 0 of {mesh.size}; {size}")
    settings = {"steps": options.steps, "batch": options.batch, "rate": options.rate}
    steps = train(model, mesh, text.train, length=size.length, **settings)
    losses = [loss for _, loss in progress(steps, mesh, options.steps)]

    show(model, mesh, text, size, losses, options)
    state = dt.state_dict(model, ranks=0, mesh=mesh)  # of whole tensors, on rank 0 alone
    if first:
        torch.save(state, options.out / "gpt.pt")


if __name__ == "__main__":
    main()
