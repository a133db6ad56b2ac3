"""Operations as data: one frozen, callable `Op` for each function that the engine runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from distarray.core._base import BaseArray
from distarray.core._spec import Layouts, Move, Panels, Rule, Spec
from distarray.errors import ArgumentTypeError, public_code
from distarray.layout import DimMap, Layout
from distarray.typing import Buffer, Shape

if TYPE_CHECKING:
    from distarray.core.engine._pipeline import Step

State = tuple[Buffer, ...]
"""What one block contributes to an exchange: arrays with its exchanged axes of length 1."""
States = tuple[Buffer, ...]
"""For each array of a state those of all blocks that have items, in rank order along a new first
axis; `Step.boxes` says where these blocks lie."""


class Call(NamedTuple):
    """What a resolution depends on."""

    layouts: Sequence[Layout]
    """Of the operands that are arrays, all on one mesh; plain arrays are replicated."""
    dtypes: Sequence[Any]
    """Of all operands; the class of a Python number."""
    static: Any
    """The other arguments."""
    places: Sequence[int] = ()
    """Which of the operands are arrays."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Global shapes of the operands that are arrays."""
        return tuple(layout.shape for layout in self.layouts)


_UFUNC_METHODS = ("reduce", "accumulate", "reduceat", "outer", "at")


def _local(step: Step) -> Callable[..., Any]:
    return step.op.local


def _first_dtype(_: Op, call: Call) -> tuple[Any, Any]:
    return call.dtypes[0], call.dtypes[0]


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """A function of distributed arrays, which `_engine.run` runs.

    A family (reductions, scans, products, ...) is a function that makes these; its hooks get the
    operation or, for a call that is being resolved, the step, and are called once for operands of
    given layouts and dtypes.

    Parameters
    ----------
    name : str
        The public name.
    local : callable
        The function of plain blocks, usually NumPy's.
    spec : callable
        `spec(op, call)` gives the axes that operands and result share, as a `Spec` of letters, or,
        where the result looks at its operand, as a `DimMap`; or `Layouts` that it finds itself. It
        checks shapes and arguments.
    call : callable, optional
        `call(op, *args, **options)` brings the public arguments to `run(op, operands, static)`. Its
        own signature, without `op`, is the public one unless `describe` gives another. It may raise
        any TypeError for arguments that do not fit the signature, before anything else.
    dtypes : callable
        `dtypes(op, call)` gives the dtype of what the local step gives (of each array of a state),
        and that of the result. It checks the dtypes. The first is None where it is not known.
    bind : callable
        `bind(step)` gives the local step: a function of this process's blocks. By default `local`.
    combine : str, optional
        The Partial reduction of local results over a cut axis that the result lacks.
    identity : callable, optional
        `identity(op, dtype)` gives what an empty block contributes.
    finish : callable, optional
        `finish(step)` gives the second local step. Without an exchange it is a function of the
        result that all ranks have reduced at once. Where the spec has exchanged letters the first
        local step gives a `State`, and the second is a function of `States` and the blocks; with
        the spec's `prefix` it is one of what the blocks before come to, or None, and the blocks.
        If the result lacks the exchanged axes the states may be parts of some kept items, flat, and
        the second step goes item by item; the engine gives the result its shape.
    made : callable, optional
        `made(step, block)` gives the result's layout where the function makes lengths of its own;
        `block` is None outside of the mesh.
    outputs : callable, optional
        `outputs(step)` gives the layouts of all results, where these have other axes than the
        output of the spec; what the local step then gives is a block of each.
    work : callable, optional
        `work(spec, layouts)` gives the seconds of the local step, to weigh against sending.
    panels : callable, optional
        `panels(step, moves)` says which of the operands that have to move the local step brings by
        panels, if any; the engine asks the `communication` policy about them, and reduces them.
    rules : tuple of Rule
        Which Partial inputs may stay.
    kinds : str
        Kinds of dtype that it computes with. The engine refuses others, but for functions item by
        item, whose loops do.
    accepts : tuple of str
        NumPy's order of the arguments after the array.
    ufunc : ufunc, optional
        This function itself, or that of which it is a method (`reduce`, `accumulate`).
    nin : int
        Number of operands.
    plain : callable, optional
        `plain(op, operands, static)` is called where no operand is distributed, which is refused
        without it. With it numbers keep their types; they are no arrays without axes.
    check : callable, optional
        `check(operands, static)` refuses values that every rank knows, and that the function would
        refuse only where there are items; true if it may refuse values that only some ranks know.
    takes_objects : bool
        Whether plain operands may hold Python objects; the function must make none.
    is_fresh : bool
        Whether results never look at the memory of operands, which are not written into either; of
        ufuncs that is known.
    instead : Op, optional
        What answers for dtypes that this one does not take, or its Partial does not combine.
    otherwise : Op, optional
        What answers where the second local step gives None: states did not tell enough. That may be
        so on some ranks alone of those that exchange them.
    reproducible : Op, optional
        What answers for `reproducible=True` where items are floating point: in any order of items,
        and of any blocks, it finds the same bits.
    quick : callable, optional
        The function for distributed arrays that is quick where their blocks are small.
    defer : callable, optional
        `defer(op, operands, static)` gives the result in a fused function: an array that waits, or
        what is found of such a one tile by tile. None: to be computed as always.
    """

    name: str
    local: Callable[..., Any]
    spec: Callable[[Op, Call], Spec | DimMap | Layouts]
    call: Callable[..., Any] | None = None
    dtypes: Callable[[Op, Call], tuple[Any, Any]] = _first_dtype
    bind: Callable[[Step], Callable[..., Any]] = _local
    combine: str | None = None
    identity: Callable[[Op, Any], Any] | None = None
    finish: Callable[[Step], Callable[..., Any]] | None = None
    made: Callable[[Step, Buffer | None], Layout] | None = None
    outputs: Callable[[Step], tuple[Layout, ...]] | None = None
    work: Callable[[Spec, Sequence[Layout]], float] | None = None
    panels: Callable[[Step, Sequence[Move]], Panels | None] | None = None
    rules: tuple[Rule, ...] = ()
    kinds: str = ""
    accepts: tuple[str, ...] = ()
    ufunc: np.ufunc | None = None
    nin: int = 1
    plain: Callable[[Op, Sequence[Any], Any], Any] | None = None
    check: Callable[[Sequence[Any], Any], bool] | None = None
    takes_objects: bool = False
    is_fresh: bool = False
    instead: Op | None = None
    otherwise: Op | None = None
    reproducible: Op | None = None
    quick: Callable[..., Any] | None = None
    defer: Callable[[Op, Sequence[Any], Any], Any] | None = None

    @property
    def nout(self) -> int:
        """Number of results."""
        return getattr(self.local, "nout", 1)

    def __post_init__(self) -> None:
        self.describe(__name__=self.name, __qualname__=self.name, __module__="distarray")
        if self.call is not None:
            self.describe(__signature__=_without_op(self.call))
        if self.ufunc is not None and getattr(np, self.name, None) is self.ufunc:
            # NumPy's own methods, which lead to ours for distributed arrays: `add.reduce`.
            self.describe(**{method: getattr(self.ufunc, method) for method in _UFUNC_METHODS})

    def describe(self, **attributes: Any) -> Op:
        """Give the callable its documentation or signature."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function; see its own documentation."""
        quick = self.quick
        if quick and not options and len(args) == self.nin and isinstance(args[0], BaseArray):
            return quick(*args)
        assert self.call is not None  # else a public function of its own runs it
        try:
            return self.call(self, *args, **options)
        except TypeError:
            self.check_arguments(args, options)
            raise

    def check_arguments(self, args: Sequence[Any], options: dict[str, Any]) -> None:
        """Refuse arguments that do not fit the public signature.

        Raises
        ------
        ArgumentTypeError
            With what Python says of a function of this name and signature.
        """
        signature = inspect.signature(self)
        try:
            signature.bind(*args, **options)
        except TypeError:
            _raise_as_python(self.name, signature, args, options)

    def __repr__(self) -> str:
        return f"<distarray function {self.name}>"

    def __reduce__(self) -> str:
        return self.name


public_code[Op.__call__.__code__] = lambda variables: variables["self"].name


@functools.lru_cache(8)  # rows of a family share their `call`
def _without_op(call: Callable[..., Any]) -> inspect.Signature:
    """Return the public signature of a `call`: without the operation and what is bound already."""
    _, *parameters = inspect.signature(call).parameters.values()
    bound = getattr(call, "keywords", {})
    return inspect.Signature(
        [one.replace(annotation=one.empty) for one in parameters if one.name not in bound]
    )


def _raise_as_python(
    name: str, signature: inspect.Signature, args: Sequence[Any], options: dict[str, Any]
) -> NoReturn:
    """Call a function without a body, so that Python itself says what does not fit."""
    plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    signature = inspect.Signature(plain)
    bare = [one if one.default is one.empty else one.replace(default=None) for one in plain]
    names = str(inspect.Signature(bare))[1:-1]
    function = eval(f"lambda {names}: None")
    function.__qualname__ = name
    try:
        function(*args, **options)
    except TypeError as error:
        raise ArgumentTypeError(f"{error}; its signature is {name}{signature}") from None
    raise AssertionError(f"{name}{signature} takes what it should not")
