"""Loss scaling where ranks skip a step together, whichever of them found what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from distarray.comm import DeviceMesh, Purpose
from distarray.errors import CommunicationError
from distarray.layout import Layout, Partial
from distarray.redistribute import redistribute_local
from distarray.torch._layouts import check_mesh


class GradScaler(torch.amp.GradScaler):
    """Scale losses as `torch.amp.GradScaler` does, alike on all ranks of a mesh.

    torch's own looks at the gradients of its process. Where parameters are cut, a block of one rank
    may overflow and those of others not: that rank alone would skip the step, and go on with
    another scale and other weights than the rest. Here the ranks agree, by one all-reduce of three
    numbers for each optimizer and step.

    Parameters
    ----------
    mesh
        All ranks that train the model, usually the whole mesh: not its tensor-parallel axis alone,
        unless gradients are averaged over the others.
    device
        "cuda" or "cpu", as in torch.
    **options
        Of `torch.amp.GradScaler`: ``init_scale``, ``growth_factor``, ``backoff_factor``,
        ``growth_interval``, ``enabled``. The same on every rank.

    Raises
    ------
    MismatchError
        By ``unscale_`` and ``step``: the ranks have different scales, or optimizers of other
        numbers of parameters.
    CommunicationError
        By the same: another rank cannot unscale its gradients, such as those of float16.

    Notes
    -----
    ``unscale_``, or ``step`` where that was not called before, is collective over the mesh, and
    waits for the device. Every rank calls it for the same optimizers in the same order.

    Examples
    --------
    >>> model = nn.Linear(4, 6)
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
    >>> scaler = dt.GradScaler(da.default_mesh(), "cpu", init_scale=1024.0)
    >>> scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    >>> scaler.unscale_(optimizer)
    >>> norm = dt.clip_grad_norm_(model.parameters(), 1.0)
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> scaler.get_scale()
    1024.0
    """

    def __init__(self, mesh: DeviceMesh, device: str = "cuda", **options: Any) -> None:
        check_mesh(mesh)
        super().__init__(device, **options)
        self._mesh = mesh

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        """Do what torch does, and return by device what any rank has found.

        Both ways of torch come here: that of optimizers that unscale by themselves, too.
        """
        failed: Exception | None = None
        found: dict[torch.device, torch.Tensor] = {}
        try:
            found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        except Exception as error:
            failed = error
        here = [bool(value) for value in found.values()]
        told = self._largest([any(here), bool(here), failed is not None], optimizer)
        if failed is not None:
            raise failed
        if told[2]:
            raise CommunicationError(
                "GradScaler: another rank could not unscale its gradients, and raises why; nothing "
                "is stepped here either"
            )
        if told[1] and not found:  # gradients of other ranks only
            found = {found_inf.device: found_inf}
        for value in found.values():
            value.fill_(told[0])
        return found

    def _largest(self, told: list[bool], optimizer: torch.optim.Optimizer) -> list[float]:
        """Return which of some statements hold on any rank (collective)."""
        src = Layout(self._mesh, [Partial("max")] * self._mesh.ndim, (len(told),))
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        name = type(optimizer).__name__
        purpose = Purpose.of(
            f"GradScaler, {name} of {count} parameters, scale {self.get_scale():g}"
        )
        result = redistribute_local(
            np.array(told, np.float64), src, src.without_partial(), purpose=purpose
        )
        return [float(one) for one in result]
