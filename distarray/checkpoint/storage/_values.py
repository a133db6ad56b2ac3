"""Plain Python values as JSON and back, exactly: nothing is pickled, so loading runs no code."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from distarray.checkpoint.storage._dtypes import dtype_of_spec, spec_of_dtype
from distarray.errors import ArgumentTypeError, CheckpointError

Node = Any
"""A value or a tree in the form of JSON; a dictionary says by its first key what it is."""


def is_plain(value: Any) -> bool:
    """Tell whether a value is no container and is written as it is."""
    return value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, bytearray, np.generic)
    )


def encode(value: Any, name: str) -> Node:
    """Return a value, or a container of such, as JSON."""
    if isinstance(value, np.generic):
        return {"scalar": spec_of_dtype(value.dtype), "bytes": _text(value.tobytes())}
    if isinstance(value, np.ndarray):
        value = items_of(value, name)
        data = _text(np.ascontiguousarray(value).tobytes())
        return {"values": spec_of_dtype(value.dtype), "shape": list(value.shape), "bytes": data}
    if value is None or isinstance(value, (bool, str)):
        return _string(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value) if abs(value) < 2**63 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, complex):
        return {"complex": [encode(value.real, name), encode(value.imag, name)]}
    if isinstance(value, (bytes, bytearray)):
        return {"data": _text(bytes(value))}
    if isinstance(value, Mapping):
        return {"dict": [[encode(k, name), encode(v, name)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encode(item, name) for item in value]}
    if "distarray.torch" in sys.modules and type(value).__module__.partition(".")[0] == "torch":
        raise ArgumentTypeError(
            f"{name or 'the state'} has a {type(value).__name__} in a da.checkpoint.PerRank, which "
            "takes plain values and NumPy arrays; pass tensor.numpy(), or its numbers"
        )
    raise unsupported_error(value, name)


_SUBCLASSES = (np.ndarray, np.memmap, np.recarray)
"""Arrays of NumPy that are no more than their items."""


def items_of(value: np.ndarray, name: str) -> np.ndarray:
    """Return an array of NumPy, over the same memory, that is no more than its items."""
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{name or 'the state'} is a masked array, and a checkpoint has no masks; pass "
            "x.filled(), or np.ma.getdata(x) and np.ma.getmaskarray(x) under two names"
        )
    if type(value) not in _SUBCLASSES:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ArgumentTypeError(
            f"{name or 'the state'} is a {kind}, of which a checkpoint has the items alone; pass "
            "np.asarray(x), and by itself what else it has"
        )
    return np.asarray(value)


def unsupported_error(value: Any, name: str) -> ArgumentTypeError:
    """Return the error of a value that cannot be saved."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    hint = ""
    is_of_torch = type(value).__module__.partition(".")[0] == "torch"
    if is_of_torch and "distarray.torch" not in sys.modules:
        hint = "; import distarray.torch, which knows modules, optimizers and tensors"
    return ArgumentTypeError(
        f"{name or 'the state'} is a {kind}, which a checkpoint cannot hold: it takes arrays, "
        "tensors, modules, optimizers, numbers, text, bytes, None, dictionaries, lists and tuples "
        f"of these, and objects with state_dict() and load_state_dict(){hint}"
    )


def decode(node: Node) -> Any:
    """Return the value that was encoded."""
    if not isinstance(node, dict):
        if isinstance(node, list):
            raise CheckpointError(f"a value of the manifest is not known: {str(node)[:80]}")
        return node
    try:
        return _decode_node(node)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"a value of the manifest cannot be read ({error!r}): {str(node)[:80]}"
        ) from None


def _decode_node(node: dict[str, Any]) -> Any:
    kind = next(iter(node), "")
    told = node[kind]
    if kind == "dict":
        return {decode(key): decode(value) for key, value in told}
    if kind in ("list", "tuple"):
        return (list if kind == "list" else tuple)(map(decode, told))
    if kind == "float":
        return float(told)
    if kind == "int":
        return int(told, 16)
    if kind == "text":
        return base64.b64decode(told).decode("utf-8", "surrogatepass")
    if kind == "complex":
        real, imaginary = map(decode, told)
        return complex(real, imaginary)
    if kind == "data":
        return base64.b64decode(told)
    if kind == "scalar":
        return np.frombuffer(base64.b64decode(node["bytes"]), dtype_of_spec(told))[0]
    if kind == "values":
        flat = np.frombuffer(base64.b64decode(node["bytes"]), dtype_of_spec(told))
        return flat.reshape(node["shape"]).copy()
    raise CheckpointError(f"a value of the manifest is of a kind not known here: {kind!r}")


def _string(text: str) -> Node:
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"text": _text(text.encode("utf-8", "surrogatepass"))}
    return str(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- trees of values and arrays ------------------------------------------------------------------


def join_name(name: str, key: Any) -> str:
    """Return the name of what a container called ``name`` has under a key."""
    part = ",".join(map(str, key)) if isinstance(key, tuple) else str(key)
    return f"{name}.{part}" if name else part


def kind_of(node: Node) -> str | None:
    """Return what a node is by its first key; None of a value that is written as it is."""
    return next(iter(node), None) if isinstance(node, dict) else None


def is_array(node: Node) -> bool:
    """Tell whether a node is an array."""
    return kind_of(node) == "array"


def is_container(node: Node) -> bool:
    """Tell whether a node has others in it."""
    return kind_of(node) in ("dict", "list", "tuple", "object")


def children_of(node: Node) -> list[tuple[Any, Node]]:
    """Return what is in a container, with its keys."""
    kind = kind_of(node)
    if kind == "object":
        return children_of(node["of"])
    if kind == "dict":
        return [(decode(key), child) for key, child in node[kind]]
    if kind in ("list", "tuple"):
        return list(enumerate(node[kind]))
    return []


def walk(node: Node, name: str = "") -> Iterator[tuple[str, Node]]:
    """Yield a node and all that is in it, with their names."""
    yield name, node
    for key, child in children_of(node):
        yield from walk(child, join_name(name, key))
