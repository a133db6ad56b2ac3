"""Along which axes of a tensor a torch function works: where its items meet, or change places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from distarray.torch.following._products import PRODUCTS, labelled

Axes = frozenset[int]

_ALL = None
"""As a default: all axes, where none is named."""
_ALONG: dict[str, tuple[int, int | None]] = {
    # position of the argument that names the axes, and what counts where it is left out
    **dict.fromkeys(
        (
            *("sum", "mean", "prod", "nansum", "nanmean", "amax", "amin", "max", "min", "median"),
            *("nanmedian", "argmax", "argmin", "any", "all", "std", "var", "std_mean", "var_mean"),
            *("logsumexp", "softmax", "log_softmax", "softmin", "count_nonzero", "flip"),
            *("unique_consecutive", "argwhere", "squeeze"),
        ),
        (1, _ALL),
    ),
    **dict.fromkeys(("sort", "argsort", "mode", "glu"), (1, -1)),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"), (1, _ALL)),
    **dict.fromkeys(("gather", "index_select", "select", "narrow"), (1, _ALL)),
    **dict.fromkeys(("index_add", "index_copy", "index_fill", "index_reduce"), (1, _ALL)),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), (1, _ALL)),
    **dict.fromkeys(("select_scatter", "slice_scatter"), (2, 0)),
    **dict.fromkeys(
        ("norm", "vector_norm", "quantile", "nanquantile", "take_along_dim"), (2, _ALL)
    ),
    **dict.fromkeys(("roll", "repeat_interleave"), (2, _ALL)),
    **dict.fromkeys(("topk", "kthvalue", "diff"), (2, -1)),
    **dict.fromkeys(("chunk", "split", "tensor_split"), (2, 0)),
    **dict.fromkeys(("hsplit", "fliplr"), (99, 1)),
    **dict.fromkeys(("vsplit", "flipud", "msort"), (99, 0)),
    **dict.fromkeys(("pairwise_distance", "multinomial"), (99, -1)),
    **dict.fromkeys(("cat", "concat", "concatenate"), (1, 0)),
    "aminmax": (99, _ALL),
    "unbind": (1, 0),
    "unique": (4, _ALL),
    "normalize": (2, 1),
    "cosine_similarity": (2, 1),
    "vecdot": (99, -1),
    "cross": (2, _ALL),  # by default the first axis of length 3, which may be a rank's own
    "linalg_cross": (99, -1),
    "trapezoid": (99, -1),
    "trapz": (99, -1),
    "hstack": (99, 1),
    "vstack": (99, 0),
    "gumbel_softmax": (4, -1),
    "local_response_norm": (99, 1),
}
_WHOLE = frozenset(
    (
        *("equal", "allclose", "bincount", "histc", "histogram", "unravel", "nonzero", "take"),
        *("masked_select", "masked_scatter", "dist", "cov", "corrcoef", "trace"),
        *("diag", "diagonal", "rot90", "nll_loss", "linear_cross_entropy", "multi_margin_loss"),
        *("multilabel_margin_loss", "multilabel_soft_margin_loss", "cosine_embedding_loss"),
        *("triplet_margin_loss", "triplet_margin_with_distance_loss", "margin_ranking_loss"),
        *(
            "hinge_embedding_loss",
            "ctc_loss",
            "matrix_norm",
            "put",
            "fill_diagonal",
            "searchsorted",
            "bucketize",
        ),
    )
)
"""Functions that work along all axes, or that are not told apart more finely."""
_LOSSES = frozenset(
    (
        *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss"),
        "gaussian_nll_loss",
    )
)
"""Of item by item, and then of all items unless ``reduction="none"``."""
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_BARE = ("special_", "linalg_")
_OTHERS = ("linalg_cross",)
"""Functions that differ from those of the same bare name."""


@cache
def bare(name: str) -> str:
    """Return the name of a torch function without what says only how it is called."""
    if name in _OTHERS:
        return name
    for prefix in _BARE:
        name = name.removeprefix(prefix)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name


@cache
def works_along(name: str) -> bool:
    """Tell whether `worked_axes` knows a function."""
    return any(name in known for known in (_ALONG, _WHOLE, _LOSSES, PRODUCTS, _SHAPED))


def worked_axes(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], tensor: torch.Tensor
) -> Axes | None:
    """Return the axes of an argument along which a function works; None where that is not known.

    Parameters
    ----------
    name
        As `bare` returns it.
    tensor
        One of the arguments, or of the tensors in one of them.
    """
    every = frozenset(range(tensor.ndim))
    if name in _WHOLE:
        return every
    if name in _LOSSES:
        given = [kwargs.get("reduction"), *args]
        reduction = next((x for x in given if isinstance(x, str)), "mean")
        return Axes() if reduction == "none" else every
    if name in PRODUCTS:
        uses = [labels for x, labels in labelled(name, args, kwargs) if x is tensor]
        return frozenset(i for one in uses for i, label in enumerate(one) if type(label) is str)
    found = _SHAPED.get(name)
    if found is not None:
        return found(args, kwargs, tensor)
    if name not in _ALONG:
        return None
    position, default = _ALONG[name]
    along = _named(args, kwargs, position, default)
    if name in ("max", "min") and isinstance(along, torch.Tensor):
        return Axes()  # of two tensors, item by item
    if name == "flip" and isinstance(along, int):
        along = [axis for axis in args[position:] if isinstance(axis, int)] or along
    if name in ("tensor_split", "split") and along is _ALL:
        along = 0
    if isinstance(along, bool) or along is _ALL:
        return every  # such as std(x, unbiased)
    along = [along] if isinstance(along, int) else list(along)
    if not all(isinstance(axis, int) and -tensor.ndim <= axis < tensor.ndim for axis in along):
        return every if tensor.ndim < 2 else None
    return frozenset(axis % tensor.ndim for axis in along) or every


def _named(args: Sequence[Any], kwargs: dict[str, Any], position: int, default: int | None) -> Any:
    if len(args) > position:
        return args[position]
    return next((kwargs[key] for key in ("dim", "dims", "axis", "other") if key in kwargs), default)


def _normalized_shape(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    shape = args[1] if len(args) > 1 else kwargs.get("normalized_shape", x.shape)
    count = 1 if isinstance(shape, int) else len(shape)
    return frozenset(range(max(x.ndim - count, 0), x.ndim)) if x is _first(args, kwargs) else Axes()


def _channels_on(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    return frozenset(range(1, x.ndim)) if x is _first(args, kwargs) else Axes()


def _behind_channels(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    return frozenset(range(2, x.ndim)) if x is _first(args, kwargs) else Axes()


def _beside_channels(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    training = args[5] if len(args) > 5 else kwargs.get("training", False)
    return frozenset(range(x.ndim)) - {1} if training and x is _first(args, kwargs) else Axes()


def _last_two(_: Sequence[Any], __: dict[str, Any], x: torch.Tensor) -> Axes:
    return frozenset(range(max(x.ndim - 2, 0), x.ndim))


def _renormalized(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    """Return all axes but the one whose slices are normalised each by itself."""
    axis = args[2] if len(args) > 2 else kwargs["dim"]
    return frozenset(range(x.ndim)) - {axis % x.ndim}


def _met(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    """Return all axes where indices are returned, of a condition alone."""
    alone = len(args) + len(kwargs) == 1
    return frozenset(range(x.ndim)) if alone else Axes()


def _padded(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    """Return the axes that grow or shrink, named from the last one on by pairs of widths."""
    widths = list(args[1] if len(args) > 1 else kwargs.get("pad", ()))
    return frozenset(x.ndim - 1 - i // 2 for i, width in enumerate(widths) if width)


def _pooled(count: int) -> Callable[[Sequence[Any], dict[str, Any], torch.Tensor], Axes]:
    """Return what tells the last axes, over whose windows a function goes."""
    return lambda _, __, x: frozenset(range(max(x.ndim - count, 0), x.ndim))


def _convolved(args: Sequence[Any], kwargs: dict[str, Any], x: torch.Tensor) -> Axes:
    """Return the axes with windows of several items, and that of the channels that are summed."""
    if x is not _first(args, kwargs):
        return Axes()
    weight = args[1] if len(args) > 1 else kwargs["weight"]
    groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
    lengths = weight.shape[2:]
    first = x.ndim - len(lengths)
    axes = {first + i for i, length in enumerate(lengths) if length > 1}
    return frozenset(axes if groups > 1 else axes | {first - 1})


def _first(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


_SHAPED: dict[str, Callable[[Sequence[Any], dict[str, Any], torch.Tensor], Axes]] = {
    "tril": _last_two,
    "triu": _last_two,
    "layer_norm": _normalized_shape,
    "rms_norm": _normalized_shape,
    "group_norm": _channels_on,
    "instance_norm": _behind_channels,
    "batch_norm": _beside_channels,
    "pad": _padded,
    "interpolate": _behind_channels,
    **{
        f"{kind}_pool{count}d": _pooled(count)
        for kind in ("avg", "max", "lp", "adaptive_avg", "adaptive_max", "fractional_max")
        for count in (1, 2, 3)
    },
    **dict.fromkeys(CONVOLUTIONS, _convolved),
    "renorm": _renormalized,
    "where": _met,
}
