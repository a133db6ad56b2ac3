"""The mode that follows layouts through torch's functions, with gradients or without.

It is open where `check_layouts` or `loss_parallel` opens it, and in the ``forward`` of modules that
hold parallelized ones. Of each function it knows what becomes of the layouts of what goes in; what
it draws at random for a share follows from the share's place. A function that takes a share for the
whole raises under the contexts. In ``forward`` its result is remembered as such, and it is an error
where a style takes that, or where it leaves the outermost module: before, the ranks may still
be brought together by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any

import torch
from torch import nn

from distarray.errors import LayoutError
from distarray.torch._compat import function_mode_depth, function_modes
from distarray.torch._modules import state_of
from distarray.torch._untraced import untraced, untraced_alone, untraced_itself
from distarray.torch.following._carried import carry, concerns, lose, lost_of, tensors_in
from distarray.torch.following._drawn import draw, draws
from distarray.torch.following._recomputed import open_again, opening_frame
from distarray.torch.following._together import (
    called_by_library,
    check_beside,
    number_of,
    refusal,
    worked_over,
)
from distarray.torch.following._unseen import Pausing
from distarray.torch.parallel._arrivals import check_summed, is_cut_short
from distarray.torch.parallel._forward_wrapper import around, passage_of
from distarray.torch.training._initialisers import IN_PLACE_OF

_FOLLOWED_PROPERTIES = ("data", "real", "imag", "T", "mT", "H", "mH")


@contextmanager
def check_layouts() -> Iterator[None]:
    """Raise where a torch function takes this rank's share of a tensor for the whole.

    For one step of any program with parallelized modules, with gradients or without. Inside,
    layouts are followed through torch's functions everywhere, not only in the ``forward`` of
    modules that hold parallelized ones, and what works along a cut axis is an error in the line
    that calls it: ``softmax``, ``sum``, ``argmax``, ``topk``, ``x[..., 0]``, a matrix product. What
    is not known to go wrong passes.

    A slice that each rank takes by hand of what all have, ``x[rank * k : (rank + 1) * k]``, goes on
    counting as replicated: no rank can see that others take other items. Say that it is a share,
    ``dt.redistribute(part, mesh, [da.Shard(0)], [da.Shard(0)])``, or let `redistribute` cut it.
    Numbers that are read into Python (``x.max().item()``) are not followed.

    Raises
    ------
    LayoutError
        By the function, before it computes anything.

    Examples
    --------
    >>> with dt.check_layouts():
    ...     model(x).sum().backward()
    """
    with Following():
        yield


class Following(Pausing):
    """Sees torch's functions called in this thread.

    Parameters
    ----------
    strict
        Whether a function that takes a share for the whole raises at once.
    """

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strict = strict
        self._instead: Mapping[Any, Callable[..., Any]] = {}
        self._opened_in: FrameType | None = opening_frame()

    def __exit__(self, *error: Any) -> None:
        self._opened_in = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def anew(self) -> Callable[[], Following]:
        """Return what makes such a mode."""
        return partial(Following, strict=self._strict)

    def open_again(self, *, refuse: bool = False) -> None:
        """Let checkpoints that are under way open such a mode when they run again."""
        open_again(self.anew(), self._opened_in, refuse=refuse)

    @untraced_alone
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        func = IN_PLACE_OF.get(func, func)
        if func in self._instead:
            return self._instead[func](*args, **kwargs)
        if torch.compiler.is_compiling():
            return func(*args, **kwargs)
        if (
            _tells_nothing(func)
            or not (concerns(args) or concerns(kwargs.values()) or draws(func, args, kwargs))
            or called_by_library(_run)
        ):
            return func(*args, **kwargs)
        return self._followed(func, args, kwargs)

    @untraced
    def _followed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        worked = worked_over(func, args, kwargs)
        if worked is not None and self._strict:
            raise refusal(*worked)
        check_beside(func, args, kwargs)
        if draws(func, args, kwargs):
            self.open_again()
            result = draw(func, args, kwargs)
        else:
            try:
                result = func(*args, **kwargs)
            except (RuntimeError, ValueError, IndexError) as error:
                if worked is None:
                    raise
                raise refusal(*worked, where="") from error  # perhaps on this rank alone
        carry(func, args, kwargs, result, None if worked is None else worked[1])
        number = number_of(func, args, kwargs, result)
        if number is not None:
            if self._strict:
                raise refusal(*number)
            lose(result, number[1])
        return result


def follow(module: nn.Module) -> None:
    """Let layouts be followed in the forward of a module that holds parallelized ones."""
    if type(module).forward is not nn.Module.forward and _run not in passage_of(module).arounds:
        around(module, _run)


@untraced_itself
def _run(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if function_mode_depth() and any(isinstance(mode, Following) for mode in function_modes()):
        return forward(*args, **kwargs)
    with Following(strict=False):
        output = forward(*args, **kwargs)
    _check_leaving(module, output)
    return output


@untraced
def _check_leaving(module: nn.Module, output: Any) -> None:
    """Raise where what leaves is of each rank's alone, and nothing says how it is placed.

    It was computed along an axis that a style of the module cuts, or of contributions to sums.
    """
    for x in _tensors(output):
        lost = lost_of(x)
        if lost is None or not (lost.function or lost.layout.has_partial):
            continue
        meshes = {over for child in module.modules() for _, over in state_of(child).styles}
        for mesh in meshes:
            check_summed(lost, mesh, "what leaves")
        if any(is_cut_short(lost, mesh) for mesh in meshes):
            raise LayoutError(
                f"what leaves was computed from a tensor placed as {lost.layout} by "
                f"{lost.function}, along an axis that is cut, of which each rank saw its share "
                "only. Let the style that the tensor comes from pass "
                "output_layouts=da.Replicate(), or bring the ranks' results together by "
                "dt.redistribute. Where a result of each rank's alone is meant, say how it is "
                "placed: dt.redistribute(x, mesh, [da.Shard(-1)], [da.Shard(-1)])"
            )


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in an output, in containers within containers too."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return tensors_in((value,), {})
    return [x for part in value for x in _tensors(part)]


@cache
def _tells_nothing(function: Any) -> bool:
    """Tell whether a function returns no tensor of items, such as what reads a shape."""
    if getattr(function, "__name__", "") != "__get__":
        return False
    return function not in {getattr(torch.Tensor, name).__get__ for name in _FOLLOWED_PROPERTIES}
