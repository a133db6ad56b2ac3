"""Remedies for names of NumPy's that are not there, where there is something better to write.

Better than to call NumPy's function on the whole array, or on blocks. Names are paths inside of
NumPy; some are of its older versions, from which scripts still have them.
"""

_ANY_DISTRIBUTION = (
    "the distribution's ppf of SciPy, da.map_blocks(lambda u: scipy.stats.{0}.ppf(u, ...), "
    "rng.random(size)), which gives the same numbers on any number of processes"
)
_BY_BLOCKS = (
    "NumPy's generator on each process, np.random.default_rng([seed, mesh.rank]), and "
    "da.DistArray.from_local of what it draws there"
)
_OF_BLOCK = "x.to_local().{0}, that of this process's block"
_SHUFFLE = "x[da.argsort(rng.random(len(x)))], which has the rows of x in another order"
_COMPARE = "assert da.{0}, which gathers nothing, or NumPy's of x.full_array()"
_DEFAULT_RNG = "rng = da.random.default_rng(seed), and "

_GENERATOR = {
    "choice": "x[rng.integers(0, len(x), n)], which draws with replacement (of numbers below m it "
    "is rng.integers(0, m, n)), or x[da.argsort(rng.random(len(x)))[:n]], without",
    "permutation": f"{_SHUFFLE}, or of numbers below m da.argsort(rng.random(m))",
    "shuffle": f"x[...] = {_SHUFFLE}",
    "permuted": "da.take_along_axis(x, da.argsort(rng.random(x.shape), axis=axis), axis)",
    "multivariate_normal": "mean + rng.standard_normal((n, len(mean))) @ np.linalg.cholesky(cov).T",
    **{
        theirs: _ANY_DISTRIBUTION.format(scipys)
        for theirs, scipys in {
            **{name: name for name in ("beta", "f", "gamma", "poisson", "vonmises", "zipf")},
            "binomial": "binom",
            "chisquare": "chi2",
            "hypergeometric": "hypergeom",
            "logseries": "logser",
            "negative_binomial": "nbinom",
            "noncentral_chisquare": "ncx2",
            "noncentral_f": "ncf",
            "standard_gamma": "gamma",
            "standard_t": "t",
            "wald": "invgauss",
        }.items()
    },
    **dict.fromkeys(("dirichlet", "multinomial", "multivariate_hypergeometric"), _BY_BLOCKS),
    "bytes": "rng.integers(0, 256, n, dtype='uint8')",
    "bit_generator": "da.random.default_rng(seed), which has one of its own",
}
_GLOBAL_RANDOM = {
    **dict.fromkeys(("rand", "ranf", "sample", "random_sample", "random"), "rng.random(size)"),
    "randn": "rng.standard_normal(size)",
    **dict.fromkeys(("randint", "random_integers"), "rng.integers(low, high, size)"),
    **dict.fromkeys(("seed", "get_state", "set_state", "RandomState"), "its methods"),
    **{
        name: f"rng.{name}"
        for name in (
            *("exponential", "geometric", "gumbel", "laplace", "logistic", "lognormal", "normal"),
            *("pareto", "power", "rayleigh", "standard_cauchy", "standard_exponential"),
            *("standard_normal", "triangular", "uniform", "weibull"),
        )
    },
    **{name: remedy for name, remedy in _GENERATOR.items() if name != "bit_generator"},
}

INSTEAD = {
    **dict.fromkeys(("savez", "savez_compressed"), "da.save for each array, or da.checkpoint.save"),
    **dict.fromkeys(
        ("loadtxt", "genfromtxt", "fromregex", "fromiter", "fromstring", "frombuffer"),
        "NumPy's on one process, and da.distribute_array of its result",
    ),
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
    "lib": "NumPy's own, of x.to_local(); a sliding_window_view(x, k) of x with n items is "
    "da.stack([x[i : n - k + 1 + i] for i in range(k)], axis=-1)",
    "lib.stride_tricks.sliding_window_view": "da.stack([x[i : n - k + 1 + i] for i in range(k)], "
    "axis=-1), of x with n items and windows of k",
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
    **{f"random.Generator.{name}": remedy for name, remedy in _GENERATOR.items()},
    **{f"random.{name}": _DEFAULT_RNG + remedy for name, remedy in _GLOBAL_RANDOM.items()},
    **{
        f"random.{name}": "da.random.default_rng(seed), where a seed is one or several integers"
        for name in (
            *("SeedSequence", "BitGenerator", "MT19937", "Philox"),
            *("PCG64", "PCG64DXSM", "SFC64"),
        )
    },
}
