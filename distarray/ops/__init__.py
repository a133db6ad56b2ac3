"""The functions of arrays, which `__all__` names; the floors above import from here.

What is imported under its own name is for those floors alone.
"""

from distarray.ops._correlation import average, corrcoef, cov
from distarray.ops._diagonals import diag, diagflat
from distarray.ops._extraction import compress, extract, place, putmask, trim_zeros
from distarray.ops._functional import (
    apply_along_axis,
    apply_over_axes,
    piecewise,
    select,
    vectorize,
)
from distarray.ops._index_arrays import (
    diag_indices,
    diag_indices_from,
    ix_,
    mask_indices,
    ravel_multi_index,
    tril_indices,
    tril_indices_from,
    triu_indices,
    triu_indices_from,
    unravel_index,
)
from distarray.ops._inserting import append, delete, insert, resize
from distarray.ops._inspection import (
    allclose,
    array_equal,
    array_equiv,
    asarray_chkfinite,
    broadcast_shapes,
    can_cast,
    common_type,
    copyto,
    iscomplexobj,
    isrealobj,
    may_share_memory,
    min_scalar_type,
    ndim,
    real_if_close,
    result_type,
    shape,
    shares_memory,
    size,
)
from distarray.ops._interpolation import interp
from distarray.ops._padding import pad
from distarray.ops._polynomials import (
    poly,
    polyadd,
    polyder,
    polydiv,
    polyfit,
    polyint,
    polymul,
    polysub,
    polyval,
    roots,
    vander,
)
from distarray.ops._searching import argmax, argmin, nanargmax, nanargmin, where
from distarray.ops._taking import (
    choose,
    fill_diagonal,
    put,
    put_along_axis,
    take,
    take_along_axis,
)
from distarray.ops.creation._asarray import (
    array,
    asanyarray,
    asarray,
    ascontiguousarray,
    asfortranarray,
    from_dlpack,
)
from distarray.ops.creation._filled import build as build
from distarray.ops.creation._filled import (
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from distarray.ops.creation._filled import target_layout as target_layout
from distarray.ops.creation._grids import fromfunction, indices
from distarray.ops.creation._like import creators as creators
from distarray.ops.creation._like import meshgrid
from distarray.ops.creation._ranges import arange, eye, geomspace, identity, linspace, logspace, tri
from distarray.ops.creation._windows import bartlett, blackman, hamming, hanning, kaiser
from distarray.ops.elementwise._arithmetic import (
    abs,
    absolute,
    add,
    cbrt,
    copysign,
    divide,
    divmod,
    fabs,
    float_power,
    floor_divide,
    fmax,
    fmin,
    fmod,
    frexp,
    gcd,
    heaviside,
    hypot,
    lcm,
    ldexp,
    maximum,
    minimum,
    mod,
    modf,
    multiply,
    negative,
    nextafter,
    positive,
    pow,
    power,
    reciprocal,
    remainder,
    sign,
    signbit,
    spacing,
    sqrt,
    square,
    subtract,
    true_divide,
)
from distarray.ops.elementwise._logic import (
    bitwise_and,
    bitwise_count,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    equal,
    greater,
    greater_equal,
    invert,
    iscomplex,
    isfinite,
    isinf,
    isnan,
    isnat,
    isneginf,
    isposinf,
    isreal,
    left_shift,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
    right_shift,
)
from distarray.ops.elementwise._logic import equal_or_unlike as equal_or_unlike
from distarray.ops.elementwise._logic import not_equal_or_unlike as not_equal_or_unlike
from distarray.ops.elementwise._rounding import (
    angle,
    around,
    astype,
    ceil,
    clip,
    conj,
    conjugate,
    copy,
    fix,
    floor,
    imag,
    isclose,
    nan_to_num,
    real,
    rint,
    round,
    trunc,
)
from distarray.ops.elementwise._transcendental import (
    acos,
    acosh,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    deg2rad,
    degrees,
    exp,
    exp2,
    expm1,
    i0,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logaddexp2,
    rad2deg,
    radians,
    sin,
    sinc,
    sinh,
    tan,
    tanh,
)
from distarray.ops.families._halos import HaloPlan as HaloPlan
from distarray.ops.families._halos import HaloSpec as HaloSpec
from distarray.ops.families._halos import plan_halo as plan_halo
from distarray.ops.families._halos import read_halo as read_halo
from distarray.ops.families._neighbours import Fill as Fill
from distarray.ops.families._neighbours import fill_in as fill_in
from distarray.ops.families._neighbours import fill_views as fill_views
from distarray.ops.families._relabel import move_cuts as move_cuts
from distarray.ops.families._relabel import replace_axes as replace_axes
from distarray.ops.families._relabel import uncut_axes as uncut_axes
from distarray.ops.families._selection import expand as expand
from distarray.ops.families._selection import normalize_key as normalize_key
from distarray.ops.families._values import give_values as give_values
from distarray.ops.families._windows import Exchange as Exchange
from distarray.ops.families._windows import Pair as Pair
from distarray.ops.families._windows import Window as Window
from distarray.ops.families._windows import from_flat as from_flat
from distarray.ops.families._windows import refuse_exchange as refuse_exchange
from distarray.ops.families._windows import run_exchange as run_exchange
from distarray.ops.families._windows import target_views as target_views
from distarray.ops.families._windows import to_flat as to_flat
from distarray.ops.indexing._items import getitem as getitem
from distarray.ops.indexing._items import rows as rows
from distarray.ops.indexing._items import setitem as setitem
from distarray.ops.indexing._places import argwhere, flatnonzero, nonzero
from distarray.ops.linear_algebra._contraction import dot, inner, matmul, outer, tensordot, vecdot
from distarray.ops.linear_algebra._convolution import convolve, correlate
from distarray.ops.linear_algebra._einsum import einsum
from distarray.ops.linear_algebra._products import (
    cross,
    diagonal,
    einsum_path,
    kron,
    matvec,
    trace,
    vdot,
    vecmat,
)
from distarray.ops.linear_algebra._whole_axes import REPLICATED_BYTES as REPLICATED_BYTES
from distarray.ops.linear_algebra._whole_axes import Axes as Axes
from distarray.ops.linear_algebra._whole_axes import LinAlgError as LinAlgError
from distarray.ops.linear_algebra._whole_axes import agree as agree
from distarray.ops.linear_algebra._whole_axes import raise_alike as raise_alike
from distarray.ops.linear_algebra._whole_axes import whole_axes as whole_axes
from distarray.ops.manipulation._bits import packbits, unpackbits
from distarray.ops.manipulation._joining import concat, repeat, roll, stack, tile, unstack
from distarray.ops.manipulation._joining import concat as concatenate
from distarray.ops.manipulation._reshape import flatten, ravel, reshape
from distarray.ops.manipulation._shape import (
    broadcast_arrays,
    broadcast_to,
    expand_dims,
    flip,
    fliplr,
    flipud,
    matrix_transpose,
    moveaxis,
    permute_dims,
    rollaxis,
    rot90,
    squeeze,
    swapaxes,
    transpose,
    tril,
    triu,
)
from distarray.ops.manipulation._sliding import sliding_window_view
from distarray.ops.manipulation._stacking import (
    array_split,
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block,
    column_stack,
    dsplit,
    dstack,
    hsplit,
    hstack,
    split,
    vsplit,
    vstack,
)
from distarray.ops.manipulation._stacking import vstack as row_stack
from distarray.ops.searching._searchsorted import searchsorted
from distarray.ops.sets._membership import intersect1d, isin, setdiff1d, setxor1d, union1d
from distarray.ops.sets._unique import (
    unique,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
)
from distarray.ops.sorting._sort import (
    argpartition,
    argsort,
    lexsort,
    partition,
    sort,
    sort_complex,
    topk,
)
from distarray.ops.sorting._sort import partition_in_place as partition_in_place
from distarray.ops.sorting._sort import sort_in_place as sort_in_place
from distarray.ops.statistical import _ufunc_methods as _ufunc_methods
from distarray.ops.statistical._differences import diff, ediff1d, trapezoid, unwrap
from distarray.ops.statistical._gradient import gradient
from distarray.ops.statistical._histograms import (
    bincount,
    digitize,
    histogram,
    histogram2d,
    histogram_bin_edges,
    histogramdd,
)
from distarray.ops.statistical._moments import mean, nanmean, nanstd, nanvar, ptp, std, var
from distarray.ops.statistical._quantiles import (
    median,
    nanmedian,
    nanpercentile,
    nanquantile,
    percentile,
    quantile,
)
from distarray.ops.statistical._reductions import (
    all,
    amax,
    amin,
    any,
    count_nonzero,
    max,
    min,
    nanmax,
    nanmin,
    nanprod,
    nansum,
    prod,
    sum,
)
from distarray.ops.statistical._reductions import by_tiles as by_tiles
from distarray.ops.statistical._scans import (
    cumprod,
    cumsum,
    cumulative_prod,
    cumulative_sum,
    nancumprod,
    nancumsum,
)

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "all", "allclose", "amax", "amin", "angle", "any",
    "append", "apply_along_axis", "apply_over_axes", "arange", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "argmax", "argmin", "argpartition", "argsort",
    "argwhere", "around", "array", "array_equal", "array_equiv", "array_split", "asanyarray",
    "asarray", "asarray_chkfinite", "ascontiguousarray", "asfortranarray", "asin", "asinh",
    "astype", "atan", "atan2", "atanh", "atleast_1d", "atleast_2d", "atleast_3d", "average",
    "bartlett", "bincount", "bitwise_and", "bitwise_count", "bitwise_invert", "bitwise_left_shift",
    "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "blackman", "block",
    "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast", "cbrt", "ceil", "choose",
    "clip", "column_stack", "common_type", "compress", "concat", "concatenate", "conj", "conjugate",
    "convolve", "copy", "copysign", "copyto", "corrcoef", "correlate", "cos", "cosh",
    "count_nonzero", "cov", "cross", "cumprod", "cumsum", "cumulative_prod", "cumulative_sum",
    "deg2rad", "degrees", "delete", "diag", "diag_indices", "diag_indices_from", "diagflat",
    "diagonal", "diff", "digitize", "divide", "divmod", "dot", "dsplit", "dstack", "ediff1d",
    "einsum", "einsum_path", "empty", "empty_like", "equal", "exp", "exp2", "expand_dims", "expm1",
    "extract", "eye", "fabs", "fill_diagonal", "fix", "flatnonzero", "flatten", "flip", "fliplr",
    "flipud", "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frexp",
    "from_dlpack", "fromfunction", "full", "full_like", "gcd", "geomspace", "gradient", "greater",
    "greater_equal", "hamming", "hanning", "heaviside", "histogram", "histogram2d",
    "histogram_bin_edges", "histogramdd", "hsplit", "hstack", "hypot", "i0", "identity", "imag",
    "indices", "inner", "insert", "interp", "intersect1d", "invert", "isclose", "iscomplex",
    "iscomplexobj", "isfinite", "isin", "isinf", "isnan", "isnat", "isneginf", "isposinf", "isreal",
    "isrealobj", "ix_", "kaiser", "kron", "lcm", "ldexp", "left_shift", "less", "less_equal",
    "lexsort", "linspace", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logspace", "mask_indices", "matmul",
    "matrix_transpose", "matvec", "max", "maximum", "may_share_memory", "mean", "median",
    "meshgrid", "min", "min_scalar_type", "minimum", "mod", "modf", "moveaxis", "multiply",
    "nan_to_num", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean",
    "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
    "ndim", "negative", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "outer",
    "packbits", "pad", "partition", "percentile", "permute_dims", "piecewise", "place", "poly",
    "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval",
    "positive", "pow", "power", "prod", "ptp", "put", "put_along_axis", "putmask", "quantile",
    "rad2deg", "radians", "ravel", "ravel_multi_index", "real", "real_if_close", "reciprocal",
    "remainder", "repeat", "reshape", "resize", "result_type", "right_shift", "rint", "roll",
    "rollaxis", "roots", "rot90", "round", "row_stack", "searchsorted", "select", "setdiff1d",
    "setxor1d", "shape", "shares_memory", "sign", "signbit", "sin", "sinc", "sinh", "size",
    "sliding_window_view", "sort", "sort_complex", "spacing", "split", "sqrt", "square", "squeeze",
    "stack", "std", "subtract", "sum", "swapaxes", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "tile", "topk", "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices",
    "tril_indices_from", "trim_zeros", "triu", "triu_indices", "triu_indices_from", "true_divide",
    "trunc", "union1d", "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unpackbits", "unravel_index", "unstack", "unwrap", "vander", "var", "vdot", "vecdot", "vecmat",
    "vectorize", "vsplit", "vstack", "where", "zeros", "zeros_like",
]  # fmt: skip
