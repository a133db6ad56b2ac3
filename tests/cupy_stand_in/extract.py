"""Write down what the real CuPy has: names, signatures, the types that its ufuncs take.

Run with a Python that has CuPy (no GPU is needed): ``python tests/cupy_stand_in/extract.py``. The
stand-in has exactly these names, and refuses arguments that these signatures lack.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

MODULES = (
    "cupy",
    "cupy.linalg",
    "cupy.fft",
    "cupy.lib",
    "cupy.lib.stride_tricks",
    "cupy.random",
    "cupy.cuda",
    "cupy.cuda.runtime",
)


def signature(function: Any) -> str | None:
    """Return the arguments of a function as text, None where they are not told."""
    try:
        return re.sub(r"<[^>]*>", "None", str(inspect.signature(function)))
    except (TypeError, ValueError):
        first = (function.__doc__ or "").strip().partition("\n")[0]
        found = re.match(r"[\w.]+(\(.*?\))( ->.*)?$", first)
        if found is None:
            return None
        # Of Cython's "int axis=-1" the name and the default are kept.
        return re.sub(r"([(,] *)[\w_]+ (\w+)", r"\1\2", found[1])


def main() -> None:
    """Write data.json beside this file."""
    import cupy

    names, signatures, ufuncs = {}, {}, {}
    for name in MODULES:
        module = importlib.import_module(name)
        public = [n for n in dir(module) if not n.startswith("_")]
        names[name] = public
        for n in public:
            thing = getattr(module, n)
            if isinstance(thing, cupy.ufunc):
                ufuncs[f"{name}.{n}"] = {
                    "name": thing.name,
                    "nin": thing.nin,
                    "nout": thing.nout,
                    "types": thing.types,
                    "casting": thing._default_casting,
                    "scatter": thing._scatter_op,
                }
            elif callable(thing) and not isinstance(thing, type) and name != "cupy.cuda.runtime":
                signatures[f"{name}.{n}"] = signature(thing)
    methods = {
        n: signature(getattr(cupy.ndarray, n))
        for n in dir(cupy.ndarray)
        if not n.startswith("_") and callable(getattr(cupy.ndarray, n))
    }
    attributes = [n for n in dir(cupy.ndarray) if not n.startswith("_") and n not in methods]
    data = {
        "version": cupy.__version__,
        "names": names,
        "signatures": signatures,
        "ufuncs": ufuncs,
        "methods": methods,
        "attributes": attributes,
    }
    target = Path(__file__).with_name("cupy") / "data.json"
    target.write_text(json.dumps(data, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
