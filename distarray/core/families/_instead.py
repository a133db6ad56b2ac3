"""Remedies for names of NumPy's that are not there, where there is something better to write.

Better than to call NumPy's function on the whole array, or on blocks. Names are paths inside of
NumPy; some are of its older versions, from which scripts still have them.
"""

import numpy as np

_OF_BLOCK = "x.to_local().{0}, that of this process's block"
_COMPARE = "assert da.{0}, which gathers nothing, or NumPy's of x.full_array()"
_DEFAULT_RNG = "rng = da.random.default_rng(seed), and "

_GLOBAL_RANDOM = {
    **dict.fromkeys(("rand", "ranf", "sample", "random_sample", "random"), "rng.random(size)"),
    "randn": "rng.standard_normal(size)",
    **dict.fromkeys(("randint", "random_integers"), "rng.integers(low, high, size)"),
    **dict.fromkeys(("seed", "get_state", "set_state", "RandomState"), "its methods"),
    **{
        name: f"rng.{name}"
        for name in (
            *("beta", "binomial", "bytes", "chisquare", "choice", "dirichlet", "exponential", "f"),
            *("gamma", "geometric", "gumbel", "hypergeometric", "laplace", "logistic"),
            *("lognormal", "logseries", "multinomial", "multivariate_hypergeometric"),
            *("multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f"),
            *("normal", "pareto", "permutation", "permuted", "poisson", "power", "rayleigh"),
            *("shuffle", "standard_cauchy", "standard_exponential", "standard_gamma"),
            *("standard_normal", "standard_t", "triangular", "uniform", "vonmises", "wald"),
            *("weibull", "zipf"),
        )
    },
}

INSTEAD = {
    **{
        name: f"da.map_blocks(np.{name}.upper, x), and so on: blocks are of text"
        for name in ("strings", "char")
    },
    **dict.fromkeys(("savez", "savez_compressed"), "da.save for each array, or da.checkpoint.save"),
    **dict.fromkeys(
        ("loadtxt", "genfromtxt", "fromregex", "fromiter", "fromstring", "frombuffer"),
        "NumPy's on one process, and da.distribute_array of its result",
    ),
    **{
        name: f"da.map_blocks(np.{name}, x)"
        for name in ("is_busday", "busday_count", "busday_offset")
    },
    "datetime_as_string": "x.astype('U19'), or da.map_blocks(np.datetime_as_string, x)",
    "fromfile": "da.load, or da.asarray(np.memmap(...)), of which each process reads its block",
    "memmap": "da.asarray(np.memmap(...)), of which each process reads its block",
    "savetxt": "NumPy's on x.full_array(dst=0), on that process alone",
    **dict.fromkeys(("r_", "c_"), "da.concat, da.stack"),
    **dict.fromkeys(("mgrid", "ogrid"), "da.indices, or da.meshgrid of da.arange"),
    "frompyfunc": "da.vectorize with otypes=, as there are no arrays of objects",
    **dict.fromkeys(
        ("nditer", "ndenumerate"), "a loop over x.to_local(), whose da.local_rows tells"
    ),
    "ma": "da.where and the functions whose names begin with nan",
    **dict.fromkeys(("matrix", "asmatrix"), "da.asarray, and @ for products"),
    "bmat": "da.block",
    "ndarray": "da.DistArray",
    **dict.fromkeys(
        (
            *("seterr", "geterr", "seterrcall", "geterrcall", "setbufsize", "getbufsize"),
            *("base_repr", "binary_repr", "format_float_positional", "format_float_scientific"),
            *("show_config", "show_runtime", "get_include", "info", "datetime_data", "test"),
            *("isfortran", "require", "nested_iters"),
        ),
        "NumPy's own, of numbers and of x.to_local()",
    ),
    "lib": "NumPy's own, of x.to_local(), and da.sliding_window_view",
    **{
        old: f"da.{new}"
        for old, new in {
            "in1d": "isin",
            "trapz": "trapezoid",
            "product": "prod",
            "cumproduct": "cumprod",
            "alltrue": "all",
            "sometrue": "any",
            "msort": "sort(x, axis=0)",
            "round_": "round",
            "float_": "float64",
            "complex_": "complex128",
            "asfarray": "asarray(x, dtype=float)",
            "NaN": "nan",
            "Inf": "inf",
        }.items()
    },
    "testing.assert_allclose": _COMPARE.format("allclose(x, y)"),
    "testing.assert_almost_equal": _COMPARE.format("allclose(x, y)"),
    "testing.assert_array_almost_equal": _COMPARE.format("allclose(x, y)"),
    "testing.assert_array_equal": _COMPARE.format("array_equal(x, y)"),
    "testing.assert_equal": _COMPARE.format("array_equal(x, y)"),
    "testing.assert_array_less": _COMPARE.format("all(x < y)"),
    "ndarray.flat": "x.ravel(), a copy where items have to move, and to write x[mask] = values or "
    "da.put(x, places, values)",
    "ndarray.view": "x.astype(dtype) for the same values, and for the same bytes "
    "da.map_blocks(lambda block: block.view(dtype), x)",
    **dict.fromkeys(("ndarray.tofile", "ndarray.dump"), "da.save(path, x)"),
    "ndarray.dumps": "pickle.dumps(x.full_array()), or da.save(path, x)",
    "ndarray.resize": "x = da.resize(x, shape)",
    **{
        f"ndarray.{name}": _OF_BLOCK.format(name)
        for name in ("base", "ctypes", "data", "flags", "strides")
    },
    "ndarray.setflags": "da.broadcast_to(x, x.shape), which cannot be written into, or x.copy(), "
    "which can",
    "ndarray.byteswap": "da.map_blocks(lambda block: block.byteswap(), x)",
    "ndarray.getfield": "x[name], or da.map_blocks(lambda block: block.getfield(dtype), x)",
    "ndarray.setfield": "x[name] = values",
    "random.Generator.bit_generator": "da.random.default_rng(seed), which has one of its own",
    **{f"random.{name}": _DEFAULT_RNG + remedy for name, remedy in _GLOBAL_RANDOM.items()},
    **{
        f"random.{name}": "da.random.default_rng(seed), where a seed is one or several integers"
        for name in (
            *("SeedSequence", "BitGenerator", "MT19937", "Philox"),
            *("PCG64", "PCG64DXSM", "SFC64"),
        )
    },
}


def instead_of(path: str) -> str | None:
    """Return what to write for a name of NumPy's that is not there, if there is something."""
    home, _, name = path.rpartition(".")
    function = getattr(getattr(np, home), name, None) if home in ("strings", "char") else None
    if isinstance(function, np.ufunc):
        return f"NumPy's own np.{path}, which computes on blocks"
    if function is not None:
        return f"da.map_blocks(np.{path}, x): blocks are of text"
    return INSTEAD.get(path)
