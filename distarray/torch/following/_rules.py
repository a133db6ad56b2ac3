"""Rules: along which axes of an argument a torch function works, and where the others go.

One table, by the functions' names. A function works along an axis where its items meet or change
places there; of such an axis a rank needs all items.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from distarray.layout import Layout
from distarray.torch._layouts import (
    Lost,
    Placed,
    cut_axes,
    cuts_along_others,
    lines_known,
    own_placed,
)
from distarray.torch.following._axes import (
    PRODUCTS,
    Axes,
    Labels,
    is_mask,
    label_axes,
    label_index,
    picked_axes,
    reshaped_axes,
    single_axes,
    squeezed_axes,
    torn_axes,
)
from distarray.torch.following._operands import Operand, tensors_in

Works = Callable[["Call", torch.Tensor], "frozenset[int] | None"]
"""Tells the axes of an argument along which a call works; None where that is not known."""
Follows = Callable[["Case"], "Axes | None"]
"""Tells where the cut axes of an argument are in a result; None where that is not known."""


class Rule(NamedTuple):
    """What is known of a torch function."""

    name: str  # without what says only how it is called
    works: Works | None = None  # not known to work along axes
    follows: Follows | None = None  # not known to keep any
    moves_axes_in_place: bool = False  # the tensor itself has other axes afterwards
    tells_nothing: bool = False  # no tensor of items is returned, as by what reads a shape


_SPELLINGS = {"axis": "dim", "keepdims": "keepdim", "x2": "other"} | dict.fromkeys(
    ("x", "a", "x1", "self"), "input"
)
"""NumPy's names of arguments, which torch takes for its own."""
INDEXING = ("__getitem__", "__setitem__", "index_put")
_WRITING = (
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__imod__"),
    *("__ifloordiv__", "__ipow__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
)
"""Beside those whose names end with _."""
_TEMPLATES = ("type_as", "to")
"""Functions of one tensor, which of another read the dtype and the device alone."""


class Call:
    """One call of a torch function.

    ``tensors`` and ``operands`` are those among the arguments, and in sequences among them, but
    those to write into; ``varying`` has the lines of ranks along which some operand differs, or its
    gradient, and what becomes of the parts of that.
    """

    __slots__ = (
        *("args", "function", "kwargs", "name", "named", "operands", "rule", "tensors"),
        "varying",
    )

    def __init__(
        self, function: Any, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", "the function")
        self.rule = rule
        self.args = args
        self.kwargs = kwargs
        self.named = {_SPELLINGS.get(key, key): value for key, value in kwargs.items()}  # torch's
        read = {key: value for key, value in kwargs.items() if key != "out"} if kwargs else kwargs
        if rule.name in _TEMPLATES:
            args, read = args[:1], {}
        self.tensors = tensors_in(args, read)
        self.operands = [Operand.of(x) for x in self.tensors]
        self.varying: dict[tuple[int, ...], str] = {}

    def with_tensors(self, others: Mapping[int, torch.Tensor]) -> Call:
        """Return the call with other tensors in the place of those of these identities."""

        def other(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return others.get(id(value), value)
            if isinstance(value, list | tuple):
                return (list if isinstance(value, list) else tuple)(map(other, value))
            return value

        kwargs = {key: other(value) for key, value in self.kwargs.items()}
        return Call(self.function, self.rule, tuple(map(other, self.args)), kwargs)

    def elsewhere(self) -> Call | None:
        """Return the call with what stands beside its operands: how other meshes cut these."""
        cuts = next((one.elsewhere for one in self.operands if one.elsewhere is not None), None)
        if cuts is None:
            return None
        call, lines = copy.copy(self), lines_known(cuts.layout if isinstance(cuts, Lost) else cuts)
        call.operands = []
        for one in self.operands:
            own = one.elsewhere
            if own is None and one.placed is not None and not one.placed.parts:
                layout = one.placed.layout
                own = cuts_along_others(layout, lines_known(layout) - lines)
            placed = Placed(own) if isinstance(own, Layout) else None
            call.operands.append(Operand(one.x, placed, own if isinstance(own, Lost) else None))
        return call

    @property
    def first(self) -> Any:
        """The argument that most functions work on."""
        return self.told(0, "input tensors tensor")

    def told(self, position: int, names: str, default: Any = None) -> Any:
        """Return an argument by its place, or by one of its names, which blanks separate."""
        if len(self.args) > position:
            return self.args[position]
        return next((self.named[key] for key in names.split() if key in self.named), default)

    def index(self) -> Any:
        """Return what tells the items that are picked, of a function in `INDEXING`."""
        index = self.told(1, "indices")
        return tuple(index) if self.rule.name == "index_put" else index

    def labels(self) -> list[tuple[Operand, Labels]]:
        """Return operands with labels for their axes: those of one label meet, items by items."""
        if self.rule.name in PRODUCTS:
            found = label_axes(self.rule.name, self.args, self.named)
        elif self.rule.name in INDEXING:
            found = self._picking()
        else:
            found = [(x, _from_end(x)) for x in self.tensors]
        known = {id(one.x): one for one in self.operands}
        return [(known[id(x)], labels) for x, labels in found]

    def _picking(self) -> list[tuple[torch.Tensor, Labels]]:
        """Return the labels of a tensor, of those of an index, and of what is put there."""
        x, index, value = self.first, self.index(), self.told(2, "values")
        has_value = isinstance(value, torch.Tensor)
        if not self.picks_item_by_item:
            return label_index(x, index) + ([(value, _from_end(value))] if has_value else [])
        [mask] = self.tensors[1:2]
        labels: list[tuple[torch.Tensor, Labels]] = [(x, _from_end(x)), (mask, _from_end(x))]
        return labels + ([(value, ("",) * value.ndim)] if has_value else [])

    @property
    def picks_item_by_item(self) -> bool:
        """Whether items are overwritten where a mask of the same shape tells, by one value."""
        name, value = self.rule.name, self.told(2, "values")
        if name == "__getitem__" or (isinstance(value, torch.Tensor) and value.numel() != 1):
            return False
        index = self.index()
        mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
        return is_mask(mask) and mask.shape == self.first.shape

    @property
    def written(self) -> Any:
        """The tensor that is written into, where the function is called for that."""
        in_place = self.name.endswith("_") and not self.name.endswith("__")
        return self.first if in_place or self.name in _WRITING else None

    @property
    def is_of_weights(self) -> bool:
        """Whether it is a product with parameters that a style has cut, which adds up products."""
        products = self.rule.name in PRODUCTS or self.rule.name in CONVOLUTIONS
        return products and any(one.is_weight for one in self.operands)


def _from_end(x: torch.Tensor) -> Labels:
    return tuple(range(-x.ndim, 0))


class Case(NamedTuple):
    """One operand of a call, and one of its results."""

    call: Call
    source: torch.Tensor
    layout: Layout
    result: torch.Tensor

    @property
    def cut(self) -> tuple[int, ...]:
        """Which axes of the source some mesh axis cuts."""
        return cut_axes(self.layout)

    @property
    def kept(self) -> Axes:
        """These axes where they stay in their places."""
        return {axis: axis for axis in self.cut}


# --- along which axes functions work -------------------------------------------------------------

_ALL = None
"""As a default: all axes, where none is named."""
_ALONG: dict[tuple[int, int | tuple[int, int] | None], str] = {
    # position of the argument that names the axes (99: none does), and what counts without it
    (1, _ALL): "sum mean prod nansum nanmean amax amin max min median nanmedian argmax argmin any "
    "all std var std_mean var_mean logsumexp softmax log_softmax softmin count_nonzero flip "
    "argwhere squeeze cumsum cumprod cummax cummin logcumsumexp gather "
    "index_select select narrow index_add index_copy index_fill index_reduce scatter scatter_add "
    "scatter_reduce fft_fftshift fft_ifftshift hash_tensor",
    (1, 0): "cat concat concatenate unbind slice",
    (1, -1): "sort argsort mode glu",
    (2, 0): "select_scatter slice_scatter chunk split split_with_sizes tensor_split unsafe_chunk "
    "unsafe_split unsafe_split_with_sizes",
    (2, 1): "normalize cosine_similarity",
    (2, -1): "topk kthvalue diff fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft",
    (2, (-2, -1)): "fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_hfft2 fft_ihfft2",
    # by default cross takes the first axis of length 3, which may be a rank's own
    (2, _ALL): "norm vector_norm quantile nanquantile take_along_dim roll repeat_interleave cross "
    "fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_hfftn fft_ihfftn",
    (4, -1): "gumbel_softmax",
    (99, _ALL): "aminmax gradient",
    (99, 0): "__reversed__ vsplit flipud msort vstack row_stack segment_reduce pad_sequence",
    (99, 1): "hsplit fliplr hstack column_stack local_response_norm",
    (99, 2): "dsplit dstack",
    (99, -1): "pairwise_distance multinomial vecdot linalg_cross trapezoid trapz "
    "cumulative_trapezoid",
}
_WHOLE = (
    "equal allclose unique unique_consecutive bincount histc histogram unravel nonzero take "
    "masked_select masked_scatter "
    "dist cov corrcoef trace diag diagonal rot90 nll_loss linear_cross_entropy multi_margin_loss "
    "multilabel_margin_loss multilabel_soft_margin_loss cosine_embedding_loss triplet_margin_loss "
    "triplet_margin_with_distance_loss margin_ranking_loss hinge_embedding_loss ctc_loss "
    "matrix_norm put fill_diagonal searchsorted bucketize diagonal_copy diagonal_scatter "
    "diag_embed diagflat block_diag combinations cartesian_prod pdist histogramdd "
    "nonzero_static stft istft kron vander sum_to_size resize resize_as as_strided as_strided_copy "
    "frobenius_norm nuclear_norm native_norm norm_except_dim pca_lowrank svd_lowrank"
)
"""Functions that work along all axes, or that are not told apart more finely."""
LOSSES = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("poisson_nll_loss", "gaussian_nll_loss"),
)
"""Of item by item, and then of all items unless ``reduction="none"``."""
_OF_MATRICES = (
    "tril triu inv inverse det logdet slogdet cholesky cholesky_inverse cholesky_solve cond qr svd "
    "svdvals eig eigvals eigh eigvalsh lu lu_factor lu_factor_ex lu_solve lu_unpack ldl_factor "
    "ldl_solve geqrf ormqr orgqr householder_product pinv pinverse matrix_exp matrix_power "
    "matrix_rank lstsq solve solve_ex inv_ex cholesky_ex solve_triangular triangular_solve lobpcg"
)
"""Functions of the last two axes."""
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
CONVOLUTIONS = tuple(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))


def _every(_: Call, x: torch.Tensor) -> frozenset[int]:
    return frozenset(range(x.ndim))


def _every_if_reduced(call: Call, x: torch.Tensor) -> frozenset[int]:
    given = [call.kwargs.get("reduction"), *call.args]
    reduction = next((one for one in given if isinstance(one, str)), "mean")
    return frozenset() if reduction == "none" else _every(call, x)


def _classified(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axis of the classes; all axes where the losses of items are reduced."""
    classes = frozenset({min(1, x.ndim - 1)}) if x is call.first else frozenset[int]()
    return _every_if_reduced(call, x) or classes


def _looked_up(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axis of a table's words; all axes of words whose gradients go by their counts."""
    if x is not call.first:
        return frozenset({0})
    return _every(call, x) if call.told(5, "scale_grad_by_freq", False) else frozenset()


def _along(position: int, default: int | tuple[int, int] | None) -> Works:
    """Return what tells the axes that an argument names."""

    def works(call: Call, x: torch.Tensor) -> frozenset[int] | None:
        along = call.told(position, "dim dims dimension other", default)
        name = call.rule.name
        if name in ("max", "min") and isinstance(along, torch.Tensor):
            return frozenset()  # of two tensors, item by item
        if name in ("flip", "count_nonzero") and isinstance(along, int):
            along = [axis for axis in call.args[position:] if isinstance(axis, int)] or along
        if name in ("tensor_split", "split") and along is _ALL:
            along = 0
        if isinstance(along, bool) or along is _ALL:
            return _every(call, x)  # such as std(x, unbiased)
        along = [along] if isinstance(along, int) else list(along)
        if not all(isinstance(axis, int) and -x.ndim <= axis < x.ndim for axis in along):
            return _every(call, x) if x.ndim < 2 else None
        return frozenset(axis % x.ndim for axis in along) or _every(call, x)

    return works


def _summed(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes whose letters the result of a product lacks."""
    uses = [labels for one, labels in call.labels() if one.x is x]
    return frozenset(i for one in uses for i, label in enumerate(one) if type(label) is str)


def _picked(call: Call, x: torch.Tensor) -> frozenset[int] | None:
    """Return the axes from which an index picks."""
    if x is not call.first or call.picks_item_by_item:
        return None
    return picked_axes(call.index(), x.ndim)


def _of_first(axes: Works) -> Works:
    """Return what tells axes of the first argument, and knows none of others such as weights."""
    return lambda call, x: axes(call, x) if x is call.first else None


def _last(count: int) -> Works:
    """Return what tells the last axes, over which windows or triangles go."""
    return lambda _, x: frozenset(range(max(x.ndim - count, 0), x.ndim))


def _axes_from(axis: int) -> Works:
    return lambda _, x: frozenset(range(axis, x.ndim))


def _normalized_shape(call: Call, x: torch.Tensor) -> frozenset[int] | None:
    shape = call.told(1, "normalized_shape", x.shape)
    return _last(1 if isinstance(shape, int) else len(shape))(call, x)


def _beside_channels(call: Call, x: torch.Tensor) -> frozenset[int]:
    return frozenset(range(x.ndim)) - {1} if call.told(5, "training", False) else frozenset()


def _renormalized(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return all axes but the one whose slices are normalised each by itself."""
    return _every(call, x) - {call.told(2, "dim") % x.ndim}


def _all_if_condition(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return all axes where indices are returned, of a condition alone."""
    return _every(call, x) if len(call.args) + len(call.kwargs) == 1 else frozenset()


def _repeated(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes of which there is more than one copy, told from the last one on."""
    told = call.told(1, "repeats dims", ())
    counts = [told, *call.args[2:]] if isinstance(told, int) else list(told)
    counts = counts[-x.ndim :]
    return frozenset(x.ndim - len(counts) + i for i, count in enumerate(counts) if count != 1)


def _unfolded(call: Call, x: torch.Tensor) -> frozenset[int] | None:
    """Return the axes of windows: of the method the one that is named, of the function all."""
    if call.function is torch.nn.functional.unfold:
        return _axes_from(2)(call, x)
    return _along(1, _ALL)(call, x)


def _padded(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes that grow or shrink, named from the last one on by pairs of widths."""
    widths = list(call.told(1, "pad", ()))
    return frozenset(x.ndim - 1 - i // 2 for i, width in enumerate(widths) if width)


def _convolved(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes with windows of several items, and that of the channels that are summed."""
    lengths = call.told(1, "weight").shape[2:]
    first = x.ndim - len(lengths)
    axes = {first + i for i, length in enumerate(lengths) if length > 1}
    return frozenset(axes if call.told(6, "groups", 1) > 1 else axes | {first - 1})


def _attention_axes(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the features of query, key and value, and the items of the last two: not the batch."""
    query, *others = call.args[:3]
    axes = {x.ndim - 1} if any(x is one for one in (query, *others)) else set()
    return frozenset(axes | {0} if any(x is one for one in others) else axes)


def _recurrent(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return all axes but that of the batch, of which packed sequences have none."""
    if len(call.args) < 9 or isinstance(call.args[3], list):  # parameters come after lengths
        return _every(call, x)
    batch = 0 if x is call.first and call.args[8] else 1
    return _every(call, x) - ({batch} if x.ndim == 3 else set())


def _chained(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes over which a product of many matrices sums."""
    chain = call.tensors
    rows = [0] if any(one is x for one in chain[1:]) else []
    columns = [x.ndim - 1] if any(one is x for one in chain[:-1]) else []
    return frozenset(rows + columns)


def _torn(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return the axes that a reshape tears, those of the first argument.

    ``y.unflatten(-1, (heads, -1))`` has all heads on every rank, each of them too short.
    """
    name, ndim = call.rule.name, max(x.ndim, 1)
    sizes, start, end = call.told(1, "shape size sizes"), 0, x.ndim
    if name == "unflatten":
        sizes, start = call.told(2, "sizes"), call.told(1, "dim") % ndim
        end = start + 1
    elif name == "flatten":
        sizes, start = [-1], call.told(1, "start_dim", 0) % ndim
        end = call.told(2, "end_dim", -1) % ndim + 1
    elif isinstance(sizes, int):
        sizes = call.args[1:]
    if x is not call.first or not isinstance(sizes, list | tuple):
        return frozenset()
    after = (*x.shape[:start], *map(int, sizes), *x.shape[end:])
    placed = own_placed(x)
    return torn_axes(tuple(x.shape), after, len(placed.parts) if placed else 0)


def tell_length(call: Call) -> None:
    """Tell a reshape of no items the length, -1, that torch could not tell.

    It is told from the other lengths, as on a rank that has items: a rank may have no heads, but
    their features are as many as elsewhere, ``q.reshape(*q.shape[:-1], -1, 2)``.
    """
    x, sizes = call.first, call.args[1:]
    if call.rule.name not in ("view", "reshape") or not isinstance(x, torch.Tensor) or x.numel():
        return
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = tuple(sizes[0])
    if not all(isinstance(size, int) for size in sizes) or not {0, -1} <= set(sizes):
        return
    length, rest = divmod(prod(n or 1 for n in x.shape), -prod(n or 1 for n in sizes))
    if not rest:
        call.args = (x, tuple(length if size == -1 else size for size in sizes))


def _by_largest(call: Call, x: torch.Tensor) -> frozenset[int]:
    """Return all axes where no number of classes is told, which then follows from the items."""
    return frozenset() if call.told(1, "num_classes", -1) >= 0 else _every(call, x)


_WORKS: dict[str, Works] = {
    **{name: _along(*told) for told, names in _ALONG.items() for name in names.split()},
    **dict.fromkeys(_WHOLE.split(), _every),
    **dict.fromkeys(LOSSES, _every_if_reduced),
    **dict.fromkeys(PRODUCTS, _summed),
    **dict.fromkeys(INDEXING, _picked),
    **dict.fromkeys(_OF_MATRICES.split(), _last(2)),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _last(3)),
    **dict.fromkeys(("repeat", "tile"), _repeated),
    "unfold": _unfolded,
    **dict.fromkeys(("fold", "channel_shuffle"), _axes_from(1)),
    **dict.fromkeys(("layer_norm", "rms_norm"), _of_first(_normalized_shape)),
    "group_norm": _of_first(_axes_from(1)),
    **dict.fromkeys(
        ("instance_norm", "interpolate", "grid_sample", "grid_sampler_2d", "grid_sampler_3d"),
        _of_first(_axes_from(2)),
    ),
    "batch_norm": _of_first(_beside_channels),
    **dict.fromkeys(("pad", "constant_pad_nd"), _padded),
    **{
        f"{kind}pool{count}d{indices}": _last(count)
        for kind in (
            *("avg_", "max_", "lp_", "adaptive_avg_", "adaptive_max_", "fractional_max_"),
            "max_un",
        )
        for count in (1, 2, 3)
        for indices in ("", "_with_indices")
    },
    **dict.fromkeys(CONVOLUTIONS, _of_first(_convolved)),
    "renorm": _renormalized,
    **dict.fromkeys(RECURRENT, _recurrent),
    "multi_head_attention_forward": _attention_axes,
    "embedding_bag": _of_first(lambda call, x: _looked_up(call, x) | {x.ndim - 1}),
    "_pack_padded_sequence": _of_first(lambda *_: frozenset({0, 1})),
    "conv_tbc": _of_first(lambda _, x: frozenset({0, x.ndim - 1})),
    **dict.fromkeys(("multi_dot", "chain_matmul"), _chained),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten"), _torn),
    "one_hot": _by_largest,
    "where": _all_if_condition,
    "cross_entropy": _classified,
    "embedding": _looked_up,
}


_NEEDING_ITEMS = (
    "max min amax amin aminmax argmax argmin median nanmedian mode quantile nanquantile kthvalue "
    "hash_tensor gradient interpolate select unbind"  # of none, unbind gives nothing to go on with
)
"""Functions of one item at least along the axes along which they work, beside pools and fft."""


def needs_items(call: Call) -> bool:
    """Tell whether a call fails on a rank that has no items along the axes where it works."""
    name = call.rule.name
    if name in ("__getitem__", "__setitem__"):
        index = call.args[1]
        return any(type(item) is int for item in (index if type(index) is tuple else (index,)))
    return name in _NEEDING_ITEMS.split() or name.startswith("fft_") or "_pool" in name


# --- where axes go -------------------------------------------------------------------------------

_ITEM_BY_ITEM = (
    "subtract multiply divide true_divide floor_divide negative absolute greater greater_equal "
    "less less_equal not_equal isclose fix dropout alpha_dropout bernoulli to type type_as float "
    "double half bfloat16 int long bool cpu cuda contiguous detach alias requires_grad tanhshrink "
    "softsign logsigmoid softshrink rrelu arccos arccosh arcsin arcsinh arctan arctan2 arctanh "
    "isreal expit fill zero float_power conj real imag complex polar gammainc gammaincc gammaln "
    "multigammaln ndtr psi short char byte cfloat cdouble chalf log_sigmoid binomial zeros_like "
    "ones_like full_like empty_like rand_like randn_like expand expand_as broadcast_to __radd__ "
    "__rmul__ __rsub__ __rdiv__ __rtruediv__ __rpow__ __floordiv__ __rfloordiv__ __rmod__ "
    "__invert__ __and__ __or__ __xor__ __rand__ __ror__ __rxor__ __ipow__ __ifloordiv__ __iadd__ "
    "__isub__ __imul__ __idiv__ __itruediv__ __imod__ __iand__ __ior__ __irshift__ copy "
    "hardswish threshold resolve_conj resolve_neg "
    "share_memory apply map map2 cauchy exponential geometric log_normal normal random uniform"
)
"""Beside all that torch itself tags as such."""
_PAIRING = ("gather", "scatter", "take_along_dim")
"""Beginnings of names: functions of a tensor and of indices with as many axes."""


@cache
def is_pointwise(name: str) -> bool:
    """Tell whether torch says of a function of its own that it works item by item."""
    packet: Any = getattr(torch.ops.aten, name, None)
    if not hasattr(packet, "overloads"):
        return False
    overloads = [getattr(packet, key) for key in packet.overloads()]
    return any(torch.Tag.pointwise in one.tags for one in overloads)


def item_by_item(case: Case) -> Axes | None:
    """Follow what may have more axes in front, or longer ones, but no cut one."""
    call, source, result = case.call, case.source, case.result
    if call.name == "where" and len(call.args) + len(call.kwargs) == 1:
        return None  # indices of a condition
    more = result.ndim - source.ndim
    return None if more < 0 else {axis: axis + more for axis in case.cut}


def _by_labels(case: Case) -> Axes | None:
    """Follow the axes over which a product does not sum, and from which an index does not pick."""
    uses = [labels for one, labels in case.call.labels() if one.x is case.source]
    if not uses:
        return None
    axes = {i: label + case.result.ndim for i in case.cut if type(label := uses[0][i]) is int}
    return axes if len(axes) == len(case.cut) else None


def put(case: Case) -> Axes | None:
    """Follow the axes of a tensor some items of which are overwritten."""
    is_kept = case.source is case.call.first and _by_labels(case) is not None
    return case.kept if is_kept else None


def _beside_worked(case: Case) -> Axes | None:
    """Follow a function along other axes, which it may drop."""
    source, result, rule = case.source, case.result, case.call.rule
    worked = None if rule.works is None else rule.works(case.call, source)
    if worked is None or worked & set(case.cut) or not _is_first(case):
        return None
    pairs = rule.name.startswith(_PAIRING) and case.cut  # with indices, which must be cut alike:
    if pairs and not all(one.is_cut for one in case.call.operands):
        return None  # along other axes than theirs these pick from where they are themselves
    if result.ndim == source.ndim - len(worked) < source.ndim:
        return {axis: axis - sum(one < axis for one in worked) for axis in case.cut}
    return case.kept if result.ndim == source.ndim else None


def _is_first(case: Case) -> bool:
    """Tell whether a function works on an operand first of all, and others meet its axes."""
    call, ndim = case.call, case.source.ndim
    firsts = call.first if isinstance(call.first, list | tuple) else (call.first,)
    if call.rule.works is None or not any(x is case.source for x in firsts):
        return False
    return all(
        one.x.ndim == ndim and call.rule.works(call, one.x) is not None
        if one.is_cut
        else one.x.ndim <= ndim
        for one in call.operands
    )


def _one_level(case: Case) -> Axes | None:
    """Follow a function beside an axis in front for each level, where there are several."""
    levels = case.call.told(1, "q")
    return None if isinstance(levels, torch.Tensor) and levels.ndim else _beside_worked(case)


def _kept(case: Case) -> Axes | None:
    """Follow the first argument, whose axes the result has."""
    is_kept = case.source is case.call.first and case.result.shape == case.source.shape
    return case.kept if is_kept else None


def _leading(case: Case) -> Axes | None:
    """Follow the first axes, behind which one is added or dropped, beside nothing that is cut."""
    is_alone = not any(one.is_cut and one.x is not case.source for one in case.call.operands)
    is_kept = case.source is case.call.first and all(i < case.result.ndim for i in case.cut)
    return case.kept if is_kept and is_alone else None


def _stacked(case: Case) -> Axes | None:
    along = case.call.told(1, "dim", 0) % case.result.ndim
    return {axis: axis + (axis >= along) for axis in case.cut}


def _squeezed(case: Case) -> Axes | None:
    dropped = _WORKS["squeeze"](case.call, case.source)
    return None if dropped is None else squeezed_axes(case.source.shape, dropped, case.layout)


def _reshaped(case: Case) -> Axes | None:
    if case.source is not case.call.first:
        return None  # it has told a shape
    single = single_axes(case.layout)
    return reshaped_axes(tuple(case.source.shape), tuple(case.result.shape), case.cut, single)


def _permuted(case: Case) -> Axes | None:
    """Try on a tensor without memory, whose axes are told apart by their lengths."""
    trial = torch.empty(tuple(range(2, 2 + case.source.ndim)), device="meta")
    call = case.call
    args = [trial if x is case.source else x for x in call.args]
    kwargs = {key: trial if x is case.source else x for key, x in call.kwargs.items()}
    order = [length - 2 for length in call.function(*args, **kwargs).shape]
    return {axis: order.index(axis) for axis in case.cut}


RESHAPING = ("view", "reshape", "flatten", "unflatten", "ravel", "view_as", "reshape_as")
_PERMUTING = "transpose swapaxes swapdims permute movedim moveaxis t adjoint unsqueeze"
_VIEWS: dict[str, Follows] = {
    **dict.fromkeys(RESHAPING, _reshaped),
    **dict.fromkeys(_PERMUTING.split(), _permuted),
    "squeeze": _squeezed,
    **dict.fromkeys(("one_hot", "embedding", "view_as_real", "view_as_complex"), _leading),
    "stack": _stacked,
    **dict.fromkeys(("quantile", "nanquantile"), _one_level),
    "__getitem__": _by_labels,
    **dict.fromkeys(("__setitem__", "index_put"), put),
    **dict.fromkeys(("prelu", "dropout1d", "dropout2d", "dropout3d"), _kept),
    **dict.fromkeys(
        (*RECURRENT, "multi_head_attention_forward", "multi_dot", "chain_matmul"), lambda _: None
    ),
}
_PROPERTIES: dict[Any, Follows] = {
    getattr(torch.Tensor, name).__get__: follows
    for follows, names in {item_by_item: "data real imag", _permuted: "T mT H mH"}.items()
    for name in names.split()
}
_MOVING_AXES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_")
_PREFIXES = ("special_", "linalg_", "_foreach_")
_OTHERS = ("linalg_cross", "index_copy", "index_copy_")
"""Functions that differ from those of the same bare name."""


@cache
def rule_of(function: Any) -> Rule:
    """Return what is known of a function."""
    name = getattr(function, "__name__", "")
    plain = bare(name)
    works = _WORKS.get(plain)
    follows = _VIEWS.get(plain) or _PROPERTIES.get(function)
    if follows is not None or name in CONVOLUTIONS or name.startswith("_foreach_"):
        pass  # of many tensors, each by itself, which may be placed otherwise
    elif works is not None and plain != "where":  # which of three works item by item
        follows = _by_labels if plain in PRODUCTS else _beside_worked
    elif plain in _ITEM_BY_ITEM.split() or is_pointwise(name) or is_pointwise(plain):
        follows = item_by_item
    getter = name == "__get__" and function not in _PROPERTIES
    return Rule(plain, works, follows, name in _MOVING_AXES, getter)


@cache
def bare(name: str) -> str:
    """Return the name of a torch function without what says only how it is called."""
    if name in _OTHERS:
        return name.removesuffix("_")
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name.removesuffix("_copy")
