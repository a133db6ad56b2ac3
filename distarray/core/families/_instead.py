"""What to write instead of names of NumPy's that are not there, where there is something better.

Better than to call NumPy's function on the whole array, or on blocks.
"""

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
        ("nditer", "ndenumerate", "ndindex"), "a loop over x.to_local(), whose da.local_rows tells"
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
            *("isfortran", "require", "nested_iters", "lib"),
        ),
        "NumPy's own, of numbers and of x.to_local()",
    ),
}
