"""Calls by torch.func: with other tensors in the place of parameters, or inside its transforms.

What modules hold at that moment is gathered, by a function that every level of the transforms sees.
Autograd's hooks for saved tensors are not to be had there, so the wholes stay as long as anything
that was computed of them: nothing comes early, and nothing goes and comes again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from distarray.errors import ArgumentError
from distarray.torch._compat import is_in_functional_call, is_transforming
from distarray.torch._layouts import place
from distarray.torch.fsdp._parameter import ShardedParameter

Tensors = Sequence[torch.Tensor | None]


class Source(Protocol):
    """What gathers shares, and reduces the gradients of wholes."""

    @property
    def members(self) -> list[ShardedParameter]:
        """The parameters."""

    @property
    def divisor(self) -> float:
        """What sums of gradients are divided by."""

    @property
    def shown(self) -> Sequence[torch.Tensor] | None:
        """What modules hold in the place of the parameters."""

    def bundle_up(self) -> bool:
        """Make what gathers the parameters."""

    def gathered_of(self, shares: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Gather shares that are given (collective)."""

    def reduced_of(self, gradients: Tensors) -> Tensors:
        """Return the gradients of the shares (collective)."""


class _Gather(torch.autograd.Function):
    """The wholes of shares."""

    @staticmethod
    def forward(source: Source, *shares: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(source.gathered_of(shares))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.source = inputs[0]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None, *_Reduce.apply(ctx.source, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> Any:  # type: ignore[override]
        return _Gather.apply(ctx.source, *_filled(ctx.source, tangents))

    @staticmethod
    def vmap(*_: Any) -> NoReturn:
        raise ArgumentError(
            "torch.func.vmap (or jacfwd, hessian) over several values of a sharded parameter: one "
            "gathering has one value of each; call the module once for each of them"
        )


class _Reduce(torch.autograd.Function):
    """The gradients of shares, of those of wholes; None where there is none."""

    @staticmethod
    def forward(source: Source, *gradients: torch.Tensor | None) -> Any:
        return tuple(source.reduced_of(gradients))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.source = inputs[0]
        ctx.given = [gradient is not None for gradient in inputs[1:]]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # type: ignore[override]
        source = ctx.source
        wholes = _Gather.apply(source, *_filled(source, gradients))
        parts = zip(wholes, ctx.given, strict=True)
        return None, *(w / source.divisor if given else None for w, given in parts)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> Any:  # type: ignore[override]
        return _Reduce.apply(ctx.source, *tangents)

    @staticmethod
    def vmap(*_: Any) -> NoReturn:
        raise ArgumentError(
            "torch.func.vmap (or jacrev) over gradients of sharded parameters: these are averages "
            "over the ranks, whose samples differ, so that there are none of single samples. Take "
            "them of whole ones: functional_call of a copy of the module that is not sharded, with "
            "dt.state_dict(module); or jacrev(..., chunk_size=1) for rows that are averages"
        )


def given_to(source: Source) -> list[torch.Tensor] | None:
    """Return what is in the place of the parameters in a call by torch.func.

    None in an ordinary call, where modules hold the parameters, or by hand their wholes.

    Raises
    ------
    ArgumentError
        What is there is not of the form of this rank's shares.
    """
    shown: Sequence[Any] = source.shown or [None] * len(source.members)
    found: list[torch.Tensor] = []
    ordinary = not is_transforming()
    for member, whole in zip(source.members, shown, strict=True):
        held: Any = member.held
        if held is member.parameter or held is whole:
            held = member.parameter
        elif not isinstance(held, nn.Parameter) or is_in_functional_call():
            ordinary = False
        found.append(held)
    if ordinary:
        return None
    for member, held in zip(source.members, found, strict=True):
        _check(member, held)
    return found


def is_given(member: ShardedParameter) -> bool:
    """Tell whether another tensor is in the place of a parameter, for a call by torch.func."""
    return member.held is not member.parameter and is_in_functional_call()


@contextlib.contextmanager
def lent(source: Source, given: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let modules hold the wholes of what is given, and afterwards what they held before."""
    with _outside():
        source.bundle_up()
    before = [member.held for member in source.members]
    wholes = _Gather.apply(source, *given)
    for member, whole, share in zip(source.members, wholes, given, strict=True):
        is_frozen = share is member.parameter and not share.requires_grad
        held = whole.detach() if is_frozen else whole
        if member.inner is not None:
            place(held, *member.inner)
        member.show(held)
    try:
        yield
    finally:
        for member, one in zip(source.members, before, strict=True):
            member.show(one)  # type: ignore[arg-type]  # nobody has taken the parameter away


def _check(member: ShardedParameter, held: Any) -> None:
    parameter, shape = member.parameter, member.layout.local_shape()
    if any(module._parameters.get(name) is not member.held for module, name in member.slots):
        raise ArgumentError(
            f"{member.path}: the modules that share the parameter were given different tensors; "
            "give them one"
        )
    form = (tuple(held.shape), held.dtype, held.device)
    if form != (shape, parameter.dtype, parameter.device):
        raise ArgumentError(
            f"{member.path}: the parameter has been replaced by a tensor of shape {form[0]}, "
            f"{form[1]} on {form[2]}, where this rank's share is {shape}, {parameter.dtype} on "
            f"{parameter.device}; pass shares to torch.func.functional_call, as "
            "dict(module.named_parameters()) has them, or call a copy that is not sharded"
        )


def _filled(source: Source, tensors: Tensors) -> list[torch.Tensor]:
    """Return tensors of the shape of the shares, zeros where there are none."""
    return [
        torch.zeros_like(member.parameter, requires_grad=False) if one is None else one
        for member, one in zip(source.members, tensors, strict=True)
    ]


def _outside() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which tensors are made as outside of all transforms."""
    if not is_transforming():
        return contextlib.nullcontext()
    from torch._functorch import pyfunctorch

    return pyfunctorch.temporarily_clear_interpreter_stack()  # type: ignore[no-untyped-call, no-any-return]
