"""Train the small GPT with sharded parameters, stop, and go on with any other number of ranks.

Run it as ``mpiexec -n 4 python examples/gpt_fsdp.py --mesh 2,2 --steps 200``: the weights are cut
over the two ranks of a group, and each of them is shared out among the groups, which gather them
layer by layer in bfloat16 and add up their gradients in float32. ``--resume`` goes on from the last
checkpoint to a later step, on any mesh:
``mpiexec -n 3 python examples/gpt_fsdp.py --mesh 3,1 --steps 400 --resume``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gpt
import torch
from arguments import at_least
from gpt_model import GPT, Size

import distarray as da
import distarray.torch as dt


def distribute(model: GPT, mesh: da.DeviceMesh, size: Size, *, bfloat16: bool = False) -> None:
    """Cut the weights over ``tp``, and share out what each rank then has over ``dp``.

    With ``bfloat16`` layers compute in it. Gradients are added up in float32, and the shares that
    the optimizer changes stay in float32; so does the loss, which takes scores in float32.
    """
    inside = outside = None
    if bfloat16:
        inside = dt.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        outside = replace(inside, output_dtype=torch.float32)
    gpt.cut(model, mesh["tp"], size)
    for block in model.blocks:
        dt.fully_shard(block, mesh["dp"], mp_policy=inside)
    dt.fully_shard(model, mesh["dp"], mp_policy=outside)  # what is not in the blocks


class Training:
    """What a checkpoint has: everything that changes from step to step.

    Parameters
    ----------
    model
        Distributed.
    steps
        Of the whole training, after which the learning rate is a tenth of ``rate``.
    """

    def __init__(self, model: GPT, steps: int, rate: float) -> None:
        self.model, self.steps = model, steps
        self.optimizer, self.slower = self.tuning = gpt.tuned(model, steps, rate)
        self.losses: list[float] = []

    @property
    def state(self) -> dict:
        """What is saved, and loaded into."""
        tuning = {"optimizer": self.optimizer, "slower": self.slower}
        return {"model": self.model, **tuning, "losses": self.losses}

    def save(self, path: Path) -> None:
        """Save as the newest of the checkpoints, of which two stay."""
        da.checkpoint.save(path, self.state, step=len(self.losses), keep_last=2)

    def resume(self, path: Path) -> None:
        """Load the newest checkpoint, whichever mesh has saved it."""
        self.losses = da.checkpoint.load(path, self.state)["losses"]

    def run(
        self, mesh: da.DeviceMesh, numbers, *, batch: int, length: int, every: int, path: Path
    ) -> None:
        """Take the steps that are left, and save whenever ``every`` of them are done."""
        begin = len(self.losses)
        settings = {"steps": self.steps, "batch": batch, "length": length, "begin": begin}
        losses = gpt.train(self.model, mesh, numbers, tuning=self.tuning, **settings)
        for step, loss in gpt.progress(losses, mesh, self.steps, begin):
            self.losses.append(loss)
            if every and step % every == 0:
                self.save(path)


def main(arguments: list[str] | None = None) -> None:
    """Train, save from time to time, and show what the model writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    gpt.options_of(parser)
    parser.set_defaults(batch=12)  # goes over 1, 2, 3, 4 and 6 groups
    parser.add_argument(
        "--save-every", type=at_least(0), default=100, metavar="STEPS", help="0: never"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    options = parser.parse_args(arguments)
    path = options.out / "gpt-checkpoints"
    if options.save_every and not options.resume and da.checkpoint.latest(path) is not None:
        parser.error(f"{path} has checkpoints of another run: pass --resume, or another --out")

    mesh, text, model, size = gpt.prepared(parser, options)
    whole = sum(p.numel() for p in model.parameters())
    distribute(model, mesh, size, bfloat16=not options.double)
    training = Training(model, options.steps, options.rate)
    if options.resume:
        training.resume(path)
    if mesh.rank == 0:
        held = sum(p.numel() for p in model.parameters())
        print(f"{whole} parameters, {held} on rank 0 of {mesh.size}; {size}")
        if options.resume:
            print(f"{len(training.losses)} steps are done")
    training.run(
        mesh,
        text.train,
        batch=options.batch,
        length=size.length,
        every=options.save_every,
        path=path,
    )
    gpt.show(model, mesh, text, size, training.losses, options)


if __name__ == "__main__":
    main()
