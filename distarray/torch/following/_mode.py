"""The mode that follows layouts through torch's functions, with gradients or without.

It is open where `check_layouts` or `loss_parallel` opens it, and in the ``forward`` of modules that
hold parallelized ones. Of each function it knows what becomes of the layouts of what goes in; what
it draws at random for a shard follows from the shard's place. A function that takes a shard for the
whole raises under the contexts. In ``forward`` its result is remembered as such, and it is an error
where a style takes that, or where it leaves the outermost module: before, the ranks may still
be brought together by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import pairwise, permutations
from typing import Any

import torch

from distarray.errors import LayoutError
from distarray.layout import Layout, Shard
from distarray.torch._compat import (
    base_of,
    function_modes,
    is_in_function_forward,
    skip_frame,
    wrap_checkpointed,
)
from distarray.torch._layouts import (
    Derived,
    Lost,
    Placed,
    cut_axes,
    cut_over,
    derived_over,
    divided_axes,
    is_known,
    is_placed,
    is_placed_along,
    is_sharded,
    known_of,
    lost_of,
    note,
    place,
    relabel,
)
from distarray.torch._opaque import Pausing, disable_compile
from distarray.torch.following._axes import PRODUCTS, single_axes
from distarray.torch.following._gradients import RESIZING, derive, place_beside, sum_gradients
from distarray.torch.following._operands import (
    Operand,
    hidden,
    known_layout,
    of_weights,
    own_weights,
    tensors_in,
)
from distarray.torch.following._random import draw, draws
from distarray.torch.following._rules import (
    LOSSES,
    RESHAPING,
    Call,
    Case,
    Follows,
    Rule,
    item_by_item,
    needs_items,
    put,
    rule_of,
    tell_length,
)
from distarray.torch.training import ORIGINALS

_FRESH = ("new_", "__get__")
"""Beginnings of names: results are no part of the arguments."""
_JOINING = (
    *("cat", "concat", "concatenate", "stack"),
    *("hstack", "vstack", "dstack", "row_stack", "column_stack"),
)
_MEETING = frozenset((*PRODUCTS, *LOSSES, *_JOINING))
"""Functions beside those that work item by item, of several tensors that have their axes alike."""
_MEANS = ("mean", "sum", "nanmean", "nansum", "cross_entropy", "nll_loss", *LOSSES)
"""Functions whose single numbers, of each rank's items, are averaged or added up as losses are."""
_TAKING = ("chunk", "split", "tensor_split", "narrow", "glu", "__getitem__")


@contextmanager
def check_layouts() -> Iterator[None]:
    """Raise where a torch function takes this rank's shard of a tensor for the whole.

    For one step of any program with parallelized modules, with gradients or without. Inside,
    layouts are followed through torch's functions everywhere, not only in the ``forward`` of
    modules that hold parallelized ones, and what works along a cut axis is an error in the line
    that calls it: ``softmax``, ``sum``, ``argmax``, ``topk``, ``x[..., 0]``, a matrix product. What
    is not known to go wrong passes.

    A slice that each rank takes by hand of what all have, ``x[rank * k : (rank + 1) * k]``, goes on
    counting as replicated: no rank can see that others take other items. Say that it is a shard,
    ``dt.redistribute(part, mesh, [da.Shard(0)], [da.Shard(0)])``, or let `redistribute` cut it.
    Numbers that are read into Python (``x.max().item()``) are not followed.

    Raises
    ------
    LayoutError
        By the function, before it computes anything.

    Examples
    --------
    >>> def refused():
    ...     layer = nn.Linear(4, 6)
    ...     dt.parallelize_module(layer, da.default_mesh(), dt.ColwiseParallel())
    ...     with dt.check_layouts():
    ...         try:
    ...             layer(torch.ones(2, 4)).softmax(-1)
    ...         except da.errors.LayoutError:
    ...             return True
    >>> da.testing.simulate(2, refused)
    [True, True]
    """
    with Following():
        yield


class Following(Pausing):
    """Sees torch's functions called in this thread.

    If ``strict``, a function that takes a shard for the whole raises at once. What ``runs_again``
    opens such a mode where it is computed again: a checkpoint, or the forward of a function of
    autograd's in which this one was opened. ``is_inside`` tells whether a followed module is under
    way: what leaves the outermost one is checked.
    """

    def __init__(self, *, strict: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._strict = strict
        self._instead: Mapping[Any, Callable[..., Any]] = {}
        self.runs_again: bool = is_in_function_forward()
        self.is_inside = False

    def anew(self) -> Following:
        """Return another such mode."""
        return Following(strict=self._strict)

    @contextmanager
    def running(self, *, is_inside: bool = True, again: bool = False) -> Iterator[None]:
        """Know that a followed module is under way, or a checkpoint, which runs again by itself."""
        before = self.runs_again, self.is_inside
        self.runs_again, self.is_inside = self.runs_again or again, is_inside
        try:
            yield
        finally:
            self.runs_again, self.is_inside = before

    @skip_frame
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        func = ORIGINALS.get(func, func)
        if func in self._instead:
            return self._instead[func](*args, **kwargs)
        if self.pauses or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        rule = rule_of(func)
        if rule.tells_nothing:
            return func(*args, **kwargs)
        found = self._follow(func, rule, args, kwargs)
        return func(*args, **kwargs) if found is None else found[0]

    @disable_compile  # which would look for what is known in dictionaries that change meanwhile
    def _follow(self, func: Any, rule: Rule, args: Any, kwargs: Any) -> tuple[Any] | None:
        """Return the result of a call, if it draws or anything is known of its operands."""
        drawing = draws(rule.name, args, kwargs)
        if not drawing and not any(is_known(x) or x in cut_over for x in tensors_in(args, kwargs)):
            return None
        return (self._followed(Call(func, rule, args, kwargs), drawing),)

    def _followed(self, call: Call, drawing: bool) -> Any:
        if not drawing and not _is_concerned(call):
            call = sum_gradients(call)
            result = call.function(*call.args, **call.kwargs)
            derive(call, result)
            _tell_base(call)
            return result
        elsewhere = call.elsewhere()
        worked = _worked_over(call)
        if worked is None and elsewhere is not None:
            worked = _worked_over(elsewhere)
        if worked is not None and self._strict:
            raise _refusal(*worked)
        if worked is not None and needs_items(call) and _is_empty_somewhere(worked[1]):
            raise _refusal(*worked, where="")
        _check_beside(call)
        call = sum_gradients(call)
        tell_length(call)
        if drawing:
            result = draw(call)
        else:
            try:
                # Of some pools torch fails backward alone.
                pooled = _of_one_item(call) if "_pool" in call.rule.name else None
                result = call.function(*call.args, **call.kwargs) if pooled is None else pooled
            except (RuntimeError, ValueError, IndexError) as error:
                worked = worked or _describe_lost(call)
                if worked is not None:
                    raise _refusal(*worked, where="") from error  # perhaps on this rank alone
                if (told := _describe_sizes(call)) is not None:
                    raise LayoutError(f"{told}: {error}") from error
                result = _of_one_item(call)
                if result is None:
                    raise
        wrong = _place(call, result, None if worked is None else worked[1])
        if wrong is None and (wrong := _number_of(call, result)) is not None:
            note(result, wrong[1])
        if wrong is not None and self._strict:
            raise _refusal(*wrong)
        derive(call, result)
        if elsewhere is not None and worked is None:
            _place_elsewhere(elsewhere, result)
        _tell_base(call)
        return result


def _is_concerned(call: Call) -> bool:
    """Tell whether anything follows from what is known of a call's operands.

    What all ranks have alike needs no check, and beside tensors of which nothing is known nothing
    follows from it.
    """
    alike = 0
    for _, placed, lost, *_, elsewhere in call.operands:
        if lost is not None or elsewhere is not None:
            return True
        if placed is not None and not placed.layout.is_replicated:
            return True
        alike += placed is not None
    return alike > 0 and (alike == len(call.operands) or call.rule.moves_axes_in_place)


# --- results -------------------------------------------------------------------------------------


def _place(call: Call, result: Any, worked: Lost | None) -> tuple[str, Lost] | None:
    """Place what a call has returned, where that follows from how its operands are placed.

    A result of which it is not known how is remembered as something of this rank's alone, unless a
    parameter with a layout took part: then the module's style says what the result is. That the
    function, or one before it, has ``worked`` along a cut axis is remembered in any case. Where a
    tensor was written into whose layout does not hold what it has become, what was written is
    returned, in words, and of what layout.
    """
    if call.name == "__setitem__":
        result = call.first
    known = [one for one in call.operands if one.placed is not None]
    known = [one for one in known if one.is_cut] or known
    losing = worked or _find_lost(call)
    if losing is None and not known:
        return None
    weights = [one.is_weight for one in known]
    follows = None if losing or call.is_of_weights else call.rule.follows
    if losing is None and _layout(known[0]).is_replicated:
        sized = call.name.endswith("_like") or call.name in RESIZING
        follows = None if sized else lambda _: {}  # all ranks have it
    if follows is not None and not _are_cut_alike(call, known):
        follows = None
    is_certain = losing is None and call.rule.follows is not None and not call.is_of_weights
    if losing is None and known[0].is_cut:
        losing = Lost(_layout(known[0]))
    if call.name.startswith(_FRESH) and call.rule.follows is None:
        return None
    wrong, written = None, tensors_in((call.kwargs.get("out"),), {})
    for x in tensors_in((result,), {}):
        own = next((one.placed for one in call.operands if one.x is x), None)
        if own is None and is_placed(x) and not any(x is one for one in written):
            continue
        placed = None if follows is None else _followed_to(call, follows, known[0], x)
        if placed is not None and (own is None or own[:4] == placed[:4]):
            place(x, *placed)
            if all(weights):
                of_weights.set(x, True)
        elif own and losing and is_certain and any(o.is_cut and o.x is not x for o in known):
            layouts = f"{own.layout}, beside one placed as {losing.layout}"
            wrong = (
                f"a tensor placed as {layouts}, in place",
                Lost(losing.layout, call.name, frozenset(cut_axes(losing.layout))),
            )
            note(x, wrong[1])
        elif losing is not None and (losing.function or not any(weights)):
            note(x, losing._replace(is_mean=not x.ndim and _is_mean(call, worked)))
    return wrong


def _is_mean(call: Call, worked: Lost | None) -> bool:
    """Tell whether a number is a mean or sum of a rank's items, or computed from such alone."""
    known = [one for operand in call.operands for one in (operand.lost, operand.elsewhere)]
    losts = [one for one in known if isinstance(one, Lost) and one.function]
    if worked is not None:
        return call.rule.name in _MEANS and not losts
    return all(one.is_mean for one in losts) and not any(x.ndim for x in call.tensors)


def _place_elsewhere(call: Call, result: Any) -> None:
    """Remember how meshes cut a result over which nothing else is known of it."""
    follows = call.rule.follows
    if follows is None and call.name.startswith(_FRESH):
        return
    known = [one for one in call.operands if one.is_cut]
    if not known or _find_lost(call) or not _are_cut_alike(call, known):
        follows = None
    source = known[0] if known else next(one for one in call.operands if one.lost)
    for x in tensors_in((call.first if call.name == "__setitem__" else result,), {}):
        placed = None if follows is None else _followed_to(call, follows, source, x)
        cuts = Lost(_cuts(source)) if placed is None else placed.layout
        if lost_of(x) or is_placed_along(x, _cuts(source)):
            continue
        if is_known(x):
            cut_over.set(x, cuts)
        elif placed is not None:
            place(x, placed.layout)
        else:
            note(x, Lost(_cuts(source)))


def _cuts(one: Operand) -> Layout:
    assert one.placed or one.lost  # it is known
    return (one.placed or one.lost).layout  # type: ignore[union-attr]


def _tell_base(call: Call) -> None:
    """Remember of a tensor what was written into a view of it: some shard, or of a rank's own."""
    written = call.written
    base = base_of(written) if isinstance(written, torch.Tensor) else None
    if base is None:
        return
    known, before = known_of(written), known_of(base)
    if isinstance(known, Placed) and is_sharded(known.layout) and not isinstance(before, Placed):
        known = Lost(known.layout)
    if isinstance(known, Lost) and not isinstance(before, Lost):
        note(base, known)
    elif isinstance(known, Derived) and before is None:
        note(base, Derived(known.source))


def _followed_to(call: Call, follows: Follows, source: Operand, x: torch.Tensor) -> Placed | None:
    """Return how a result is placed that follows from one operand; None where that is not known."""
    found = source.placed
    assert found is not None  # it is known
    item = follows is item_by_item and x.shape == source.x.shape
    if found.parts and not item and x is not source.x:
        return None
    axes = follows(Case(call, source.x, found.layout, x))
    if axes is None or any(x.shape[new] != source.x.shape[old] for old, new in axes.items()):
        return None
    placed = found._replace(layout=relabel(found.layout, axes, x.shape))
    return place_beside(placed, call.varying)


def _find_lost(call: Call) -> Lost | None:
    """Return in what the cut was lost before, or what is still to be added; None if neither."""
    losts = [one.lost for one in call.operands if one.lost is not None]
    layouts = (one.placed.layout for one in call.operands if one.placed is not None)
    losts += (Lost(layout) for layout in layouts if layout.has_partial)
    return next((lost for lost in losts if lost.function), losts[0] if losts else None)


def _are_cut_alike(call: Call, known: list[Operand]) -> bool:
    """Tell whether a rule for one operand holds for all: axes with one label are cut alike.

    Beside a tensor that is known to be cut others count as shards, or as alike on all ranks. Beside
    one that is known to be replicated they may be anything.
    """
    labels = call.labels()
    alone = call.name in _JOINING or not known[0].is_cut
    if alone and len(known) < len(labels):
        return False
    if len(known) == 1:
        return True
    if len({one.placed[1:4] for one in known if one.placed is not None}) > 1:
        return False  # parts of other sizes, or beside features that are none
    uses = [(_layout(one), of) for one, of in labels if any(one.x is other.x for other in known)]
    ndim = max((-i for _, of in uses for i in of if isinstance(i, int)), default=0)
    aligned = set()
    for layout, of in uses:
        axes = {axis: i + ndim for axis in cut_axes(layout) if isinstance(i := of[axis], int)}
        if len(axes) < len(cut_axes(layout)):
            return False
        aligned.add(relabel(layout, axes, (1,) * ndim))
    return len(aligned) == 1


def _layout(one: Operand) -> Layout:
    assert one.placed is not None  # it is known
    return one.placed.layout


# --- what takes a shard for the whole ------------------------------------------------------------


def _worked_over(call: Call) -> tuple[str, Lost] | None:
    """Return of what a function is about to take a shard for the whole; None if of nothing.

    Reductions, sorting, indices and the like along other axes pass, and so does what is not known:
    its result is known to come of a shard. What it works along is told in words, and which axes of
    which layout these are.
    """
    rule = call.rule
    if rule.moves_axes_in_place and (layout := known_layout(call.operands[0].x)) is not None:
        raise LayoutError(
            f"{call.name} would move the axes of a tensor placed as {layout} in place; take "
            f"{call.name[:-1]}, whose result has a layout of its own"
        )
    if rule.works is None or call.is_of_weights:
        return None
    squeezes = rule.name == "squeeze"
    for one in call.operands:
        x, placed, lost, *_ = one
        if one.is_cut and placed is not None:
            axes = rule.works(call, x)
            if not axes or (placed.parts and rule.name in _TAKING):
                continue  # of every part its shard, as it is meant
            layout = placed.layout
            met = axes & divided_axes(layout)
            if squeezes:
                met &= single_axes(layout)
            if met:
                return f"a tensor placed as {layout}", Lost(layout, rule.name, met)
        elif lost is not None and is_sharded(lost.layout) and not squeezes:
            axes = rule.works(call, x)
            if axes and len(axes) == x.ndim:
                return _computed_from(lost, rule.name)
    return _on_diagonal(call) if rule.name in PRODUCTS else None


def _of_one_item(call: Call) -> Any:
    """Return what a function makes of a block without items, of which torch computes nothing.

    Pools and the like take no image without channels, though they work along other axes. Of one
    channel they tell what there would be, and none of that is taken. None where that is not so.
    """
    one = next(iter(call.operands), None)
    if one is None or not one.is_cut or one.placed is None:
        return None
    if call.rule.works is None or call.rule.follows is None:
        return None
    layout = one.placed.layout
    empty = [axis for axis in cut_axes(layout) if not one.x.shape[axis]]
    if len(empty) != 1 or not all(n or axis in empty for axis, n in enumerate(one.x.shape)):
        return None
    single = one.x.new_zeros([n or 1 for n in one.x.shape])
    others = {
        id(x): torch.cat([x, single.to(x.dtype)], empty[0])
        for x in call.tensors
        if x.shape == one.x.shape
    }
    again = call.with_tensors(others)
    result = again.function(*again.args, **again.kwargs)

    def taken(x: torch.Tensor) -> torch.Tensor | None:
        axes = call.rule.follows and call.rule.follows(Case(call, one.x, layout, x))
        return None if axes is None else x.narrow(axes[empty[0]], 0, 0)

    if isinstance(result, torch.Tensor):
        return taken(result)
    parts = [taken(x) for x in tensors_in((result,), {})]
    if any(x is None for x in parts) or len(parts) != len(result):
        return None
    return tuple(parts) if type(result) is tuple else type(result)(parts)


def _is_empty_somewhere(lost: Lost) -> bool:
    """Tell whether some rank has no items of an axis along which a function works."""
    ends = (lost.layout.partition(axis).offsets for axis in lost.axes)
    return any(i == j for at in ends for i, j in pairwise(at))


def _on_diagonal(call: Call) -> tuple[str, Lost] | None:
    """Return of what a product would take its rows and columns from the same ranks alone."""
    cut: dict[Any, set[int | str]] = {}
    for one, labels in call.labels():
        if one.placed is None:
            continue
        layout = one.placed.layout
        for i, p in enumerate(layout.placements):
            if type(p) is Shard and layout.mesh.shape[i] > 1:
                found = cut.setdefault((layout.mesh, i), set())
                found.add(labels[p.axis])
                if len(found) > 1:
                    lost = Lost(layout, call.rule.name, frozenset({p.axis}))
                    return f"a tensor placed as {layout}", lost
    return None


def _check_beside(call: Call) -> None:
    """Raise where a function would take of one tensor a shard, and of one beside it all items.

    A shard of one item would be taken for what is the same for all. Of a tensor of which nothing is
    known, as many items as there are on all ranks are all of them.
    """
    rule = call.rule
    meet = rule.follows in (item_by_item, put) or rule.name in _MEETING
    if len(call.operands) < 2 or not meet or (rule.name in PRODUCTS and call.is_of_weights):
        return
    for (one, of_one), (other, of_other) in permutations(call.labels(), 2):
        if one.placed is None or other.lost is not None:
            continue
        layout = one.placed.layout
        for axis in sorted(divided_axes(layout)):
            label = of_one[axis]
            if type(label) is not int or label not in of_other:
                continue
            if _are_all(other, of_other.index(label), layout, axis, call.kwargs):
                shape, placed = tuple(other.x.shape), other.placed
                what = f"of shape {shape}" if placed is None else f"as {placed.layout}"
                raise LayoutError(
                    f"{call.name} of tensors placed as {layout} and {what}: along axis {axis} "
                    "every rank has its shard of the one, and all of the other. Let the styles "
                    "that they come from leave them alike, by output_layouts=, or bring one to the "
                    "other: dt.redistribute(x, mesh, [da.Replicate()], [da.Shard(axis)])"
                )


def _are_all(other: Operand, there: int, one: Layout, axis: int, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a tensor beside a shard has all items of an axis, and not one for all."""
    if other.placed is None:
        length = other.x.shape[there]
        offsets = one.partition(axis).offsets
        whole = length == one.shape[axis] and all(j - i < length for i, j in pairwise(offsets))
        return length != 1 and whole
    length = other.placed.layout.shape[there]
    if length == 1 or there in divided_axes(other.placed.layout):
        return False
    return length == one.shape[axis] or bool(kwargs.get("enable_gqa"))


def _number_of(call: Call, result: Any) -> tuple[str, Lost] | None:
    """Return of what a function, of whatever kind, has made a single number."""
    if not isinstance(result, torch.Tensor) or result.ndim:
        return None
    lost = lost_of(result)
    if lost is None or lost.is_mean or not is_sharded(lost.layout):
        return None
    return _computed_from(lost, call.name) if any(one.x.ndim for one in call.operands) else None


def _describe_lost(call: Call) -> tuple[str, Lost] | None:
    """Return of what a function that failed was to compute with something of this rank's alone."""
    losts = (one.lost for one in call.operands if one.lost is not None)
    lost = next((one for one in losts if one.function and is_sharded(one.layout)), None)
    return None if lost is None else _computed_from(lost, call.name)


def _describe_sizes(call: Call) -> str | None:
    """Return what is wrong with the sizes that a view of a shard, which failed, was to have."""
    one = next(iter(call.operands), None)
    if one is None or one.placed is None or not one.is_cut or call.rule.name not in RESHAPING:
        return None
    return (
        f"{call.name} of a tensor placed as {one.placed.layout}, of which this rank has a shard of "
        f"shape {tuple(one.x.shape)}, takes sizes of that: not the number of all heads, which a "
        "rank has some of, but -1 in its place and what is the same on every rank, the size of a "
        "head, as in y.unflatten(-1, (-1, size)) or y.view(batch, length, -1, size)"
    )


def _computed_from(lost: Lost, name: str) -> tuple[str, Lost]:
    layout = lost.layout
    what = f"what was computed from a tensor placed as {layout}"
    return what, Lost(layout, name, frozenset(cut_axes(layout)))


def _refusal(
    what: str, lost: Lost, where: str = " inside check_layouts or loss_parallel"
) -> LayoutError:
    """Return the error of a function that would take a shard for the whole."""
    return LayoutError(
        f"{lost.function}{where} would see this rank's shard only of {what}{lost.hint}; take "
        "the whole tensor, dt.full_tensor(x), or let the style that it comes from pass "
        "output_layouts=da.Replicate(), or take loss_parallel and cross_entropy for a loss, or "
        "call it outside where a result of this rank's alone is meant"
    )


# --- checkpoints ----------------------------------------------------------------------------------
# They run again, in the backward pass, what first ran where layouts are followed. There the mode is
# not open: torch switches modes off while ``backward`` runs, or it is called after the mode has
# ended. So what they keep are functions that open the modes themselves, and that know how their
# arguments were placed.


@cache
def watch_checkpoints() -> None:
    """Let checkpoints run again what they run inside of modes as they ran it, from now on."""
    wrap_checkpointed(_remember)


def _remember(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    modes = [m for m in function_modes() if isinstance(m, Following) and not m.pauses]
    insides = [mode.is_inside for mode in modes]
    tensors = [x if isinstance(x, torch.Tensor) else None for x in args]
    all_known = [None if x is None else known_of(x) for x in tensors]
    over_others = [None if x is None else derived_over.get(x) for x in tensors]
    elsewhere = [None if x is None else cut_over.get(x) for x in tensors]
    away, own = hidden.get(), own_weights.get()
    if not (modes or away or any(all_known)):
        return function

    def again(*args: Any, **kwargs: Any) -> Any:
        """Open the modes which were open when the checkpoint first ran the function."""
        every = (args, all_known, over_others, elsewhere)
        for x, known, more, cuts in zip(*map(reversed, every), strict=False):
            if known is None or is_placed(x):
                continue
            if isinstance(known, Placed):
                place(x, *known)
            else:
                note(x, known)
            if more:
                derived_over.set(x, more)
            if cuts:
                cut_over.set(x, cuts)
        with ExitStack() as stack:
            stack.callback(own_weights.reset, own_weights.set(own))
            for parameters, names in away:
                stack.callback(parameters.update, {name: parameters[name] for name in names})
                parameters.update(dict.fromkeys(names))
            are_open = all(mode in function_modes() for mode in modes)
            for mode, is_inside in zip(modes, insides, strict=True):
                one = mode if are_open else stack.enter_context(mode.anew())
                stack.enter_context(one.running(is_inside=is_inside, again=True))
            return function(*args, **kwargs)

    return again
