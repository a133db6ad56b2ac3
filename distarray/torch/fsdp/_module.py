"""Methods of modules that `fully_shard` was applied to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import nn

from distarray.errors import ArgumentError, ArgumentTypeError
from distarray.torch._modules import locate_errors, place_parameters
from distarray.torch._opaque import skip_compile
from distarray.torch.fsdp._bucket import PostAllGather, PreAllGather
from distarray.torch.fsdp._group import Group
from distarray.torch.fsdp._state import Call, State, state_beside


class UnshardHandle:
    """Parameters that are being gathered.

    Examples
    --------
    >>> def shapes():
    ...     model = dt.fully_shard(nn.Linear(4, 6), da.default_mesh())
    ...     shard = [*model.weight.shape]
    ...     handle = model.unshard(async_op=True)
    ...     handle.wait()
    ...     return shard, [*model.weight.shape]
    >>> da.testing.simulate(2, shapes)
    [([3, 4], [6, 4]), ([3, 4], [6, 4])]
    """

    def __init__(self, group: Group | None) -> None:
        self._group = group

    def wait(self) -> None:
        """Return when the module's parameters are whole, of the values that the shards have now."""
        if self._group is not None:
            self._group.unshard()
            self._group.hold_unsharded()
            self._group = None


class FSDPModule:
    """Mixed into the class of every module that `fully_shard` is applied to.

    Methods with ``recurse`` also apply to the sharded modules inside.

    Examples
    --------
    >>> model = dt.fully_shard(nn.Linear(4, 6), da.default_mesh())
    >>> isinstance(model, dt.FSDPModule), isinstance(model, nn.Linear)
    (True, True)
    >>> model.set_requires_gradient_sync(False)  # of the next pass none are reduced
    """

    @skip_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with whole parameters."""
        return call_unsharded(cast("nn.Module", self), super().__call__, args, kwargs)  # type: ignore[misc]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the shards, also between `unshard` and `reshard`."""
        shards: dict[int, nn.Parameter] = {}
        for group in self._groups(True):
            shards |= group.shards_by_held()
        for name, found in super().named_parameters(*args, **kwargs):  # type: ignore[misc]
            yield name, shards.get(id(found), found)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's shards; `distarray.torch.state_dict` returns whole parameters."""
        whole = [(group, group.held) for group in self._groups(True) if group.held is not None]
        self._hide()
        try:
            return super().state_dict(*args, **kwargs)  # type: ignore[misc]
        finally:
            for group, held in whole:  # hooks may ask for it while modules compute
                group.hold(held)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load this rank's shards; `distarray.torch.load_state_dict` takes whole parameters."""
        try:
            return super().load_state_dict(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._follow()

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Convert all tensors, as ``to`` and ``to_empty`` do; shared parameters stay shared."""
        self._hide()
        try:
            return super()._apply(*args, **kwargs)  # type: ignore[misc]
        finally:
            place_parameters(cast("nn.Module", self))
            self._follow()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, also those that are on their way or kept for a later pass.

        An optimizer's ``zero_grad`` sees the gradients of shards alone.
        """
        for group in self._groups(True):
            group.forget_gradients()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def _hide(self) -> None:
        for group in self._groups(True):
            group.hold_shards()

    def _follow(self) -> None:
        for group in self._groups(True):
            group.adopt_replaced()

    def __reduce_ex__(self, _: Any) -> Any:
        raise ArgumentTypeError(
            "a sharded module cannot be copied or pickled; copy it before fully_shard, or save and "
            "load it by da.checkpoint, or dt.state_dict and dt.load_state_dict"
        )

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gather the parameters of this module (collective); modules inside keep their own.

        Parameters
        ----------
        async_op
            Return at once; the handle's ``wait()`` returns when they are whole.
        """
        group = self._state.group
        handle = UnshardHandle(group)
        with locate_errors(cast("nn.Module", self)):
            if group is not None:
                group.start_unshard()
            if async_op:
                return handle
            handle.wait()
        return None

    def reshard(self) -> None:
        """Let this module's whole parameters go; changes that were made to them are lost."""
        group = self._state.group
        if group is not None:
            group.reshard()

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Say whether the end of a backward pass waits for the gradients; True at first.

        With False they go on their way, and the next pass that is the last one waits for them.
        """
        self._state.own.last_backward = is_last_backward

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """Say whether backward passes reduce gradients, or keep them whole for a later one."""
        for group in self._groups(recurse):
            group.syncing = requires_gradient_sync

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Say whether gradients are reduced among replicas, too, or kept for a later pass.

        On meshes of several axes: the last one shards, the others hold replicas.
        """
        for group in self._groups(recurse):
            group.replicas_sync = requires_all_reduce

    def set_reshard_after_forward(
        self, reshard_after_forward: bool | int | None, *, recurse: bool = True
    ) -> None:
        """Set it as `fully_shard` does."""
        for group in self._groups(recurse):
            group.set_reshard_after_forward(reshard_after_forward)

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """Say whether whole parameters go after backward, or stay for the next forward pass."""
        for group in self._groups(recurse):
            group.reshard_after_backward = reshard_after_backward

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Say whether the parameters come at the start of this module's backward pass.

        False for those that it does not need, of an embedding for instance. Parameters that
        turn out to be needed are gathered nevertheless.
        """
        for group in self._groups(False):
            group.unshard_in_backward = unshard_in_backward

    def set_modules_to_forward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Name the modules to gather while this one computes, in the place of the usual next."""
        for group in self._groups(False):
            group.forward_prefetch = _groups_of(modules)

    def set_modules_to_backward_prefetch(self, modules: Sequence[FSDPModule]) -> None:
        """Name the modules to gather while this one computes its gradients."""
        for group in self._groups(False):
            group.backward_prefetch = _groups_of(modules)

    def set_all_gather_extension(self, name: str, pre: PreAllGather, post: PostAllGather) -> None:
        """Let a parameter's blocks travel in another form: quantised, for instance.

        Parameters
        ----------
        name
            Of the parameter, in this module or one inside that is not sharded by itself.
        pre
            Function of this rank's block, of any size: one or a tuple of tensors, of any shapes and
            dtypes, that travel in its place.
        post
            Function of what all ranks have sent (a list of tuples, in rank order), of the
            `Layout` of the whole over the mesh, and of the whole, not filled: it fills it
            (``layout.local_box(coordinate)`` tells where a rank's block belongs) and returns
            None, or returns what modules use instead, whose memory autograd keeps till backward.
        """
        for one, function in (("pre", pre), ("post", post)):
            if not callable(function):
                raise ArgumentTypeError(
                    f"{one}={function!r}: an extension has two functions, one before and one after "
                    "the all-gather; pass both"
                )
        path, _, last = name.rpartition(".")
        module = cast("nn.Module", self)
        group = self._state.group
        if group is None:
            raise ArgumentError(f"{name!r}: this module has no parameters of its own to gather")
        with locate_errors(module):
            group.set_extension(module.get_submodule(path), last, (pre, post))

    def set_gradient_divide_factor(self, factor: float | None, *, recurse: bool = True) -> None:
        """Set what the sums of gradients over all ranks are divided by; None: their number."""
        if factor is not None and not factor > 0:
            raise ArgumentError(f"factor={factor}: must be a positive number, or None")
        for group in self._groups(recurse):
            group.factor = factor

    @property
    def _state(self) -> State:
        state = state_beside(cast("nn.Module", self))
        if state is None:
            raise ArgumentError(
                f"this {type(self).__name__} was made from a sharded module and is not sharded "
                "itself; call fully_shard on it"
            )
        return state

    def _groups(self, recurse: bool) -> Iterator[Group]:
        module = cast("nn.Module", self)
        for child in module.modules() if recurse else (module,):
            state = state_beside(child)
            if state is not None and state.group is not None:
                yield state.group


@skip_compile
def call_unsharded(module: nn.Module, function: Any, args: Any, kwargs: Any) -> Any:
    """Return what a function of a sharded module returns, called with whole parameters."""
    state = state_beside(module)
    if state is None:
        return function(*args, **kwargs)
    call = Call(state, module)
    try:
        args, kwargs = state.pre_forward(args, kwargs)
        return state.post_forward(function(*args, **kwargs))
    except RuntimeError as error:
        if "support saved tensor hooks" not in str(error):
            raise
        raise ArgumentError(
            "a transform of torch.func (grad, vjp, vmap, ...) was called inside of the forward "
            "pass of a sharded module, where autograd's hooks for saved tensors let parameters "
            "come and go. Call it around the whole module, take gradients by torch.autograd.grad, "
            "or use dt.replicate"
        ) from error
    finally:
        call.end()


_classes: dict[type[nn.Module], type[nn.Module]] = {}


def mix_in(module: nn.Module) -> None:
    """Let a module be of its class and an `FSDPModule`."""
    kind = type(module)
    found = _classes.get(kind)
    if found is None:
        found = _classes[kind] = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    module.__class__ = found


def _groups_of(modules: Sequence[FSDPModule]) -> list[Group]:
    found: list[Group] = []
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ArgumentError(
                f"cannot prefetch a {type(module).__name__}, to which fully_shard was not applied"
            )
        found += module._groups(False)
    return found
