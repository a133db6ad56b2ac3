"""The port report: the NumPy functions that a script uses, and their counterparts here.

The script is parsed and not run. Names are followed from its imports of NumPy, or of this library,
wherever they are used; what a variable holds is not known, so that methods are only guessed at.
What functions send was measured (`_functions.json`, made by ``python -m tests.function_pages``).
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

import distarray as da
from distarray.array import leading_names
from distarray.core import INSTEAD, functions, instead_of, method_of
from distarray.errors import ArgumentError, FileError

KINDS = {
    "missing": "not there",
    "gathers": "gathering an operand that is cut, on every process, but not one that is replicated",
    "items": "sending items, about a block of each process",
    "states": "exchanging small states",
    "varies": "sending what depends on their arguments",
    "nothing": "sending nothing, where operands lie alike",
    "made": "making or describing arrays, and sending nothing",
    "numpy": "NumPy's own: types, constants, settings",
}
"""What may become of a function, in the order of the report."""

GENERAL = "NumPy's on x.full_array(), or on blocks by da.map_blocks or x.to_local()"

_SETTINGS = {
    *("errstate", "geterr", "seterr", "geterrcall", "seterrcall", "getbufsize", "setbufsize"),
    *("printoptions", "get_printoptions", "set_printoptions", "show_config", "show_runtime"),
    *("array2string", "base_repr", "binary_repr", "format_float_positional", "s_", "index_exp"),
    *("format_float_scientific", "typename", "mintypecode", "broadcast", "get_include", "test"),
}
"""Names of NumPy's that need no form of ours."""
_GENERATOR = "random.Generator"
_MOVING = ("choice", "permutation", "permuted", "shuffle")
"""Its methods that move rows of arrays."""
"""What a variable is that holds what `default_rng` returned."""
_BUILDERS = tuple(map(type, (np.r_, np.c_, np.mgrid, np.ogrid)))
_METHODS = {
    name for name in dir(np.ndarray) if not name.startswith("_") and not hasattr(da.DistArray, name)
}


class Use(NamedTuple):
    """A name that a script uses, what becomes of it, and what to do."""

    name: str
    kind: str
    lines: tuple[int, ...]
    remedy: str


def report(path: str) -> tuple[str, bool]:
    """Return the report on a script, and whether all that it uses is there.

    Raises
    ------
    FileError
        If the script cannot be read.
    ArgumentError
        If it is not written in this version of Python.
    """
    if path.endswith(".ipynb"):
        raise ArgumentError(f"{path} is a notebook; export it: jupyter nbconvert --to script")
    found = _Finder()
    try:
        found.visit(ast.parse(Path(path).read_bytes(), path))
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise ArgumentError(f"{path} is no Python script: {error}") from None
    except (RecursionError, MemoryError):
        raise ArgumentError(f"{path} has expressions that are nested too deep") from None
    for name in list(found.packages):
        if any(Path(path).with_name(one).exists() for one in (name, f"{name}.py")):
            del found.packages[name]  # a part of the same program
    uses = [_classify(name, tuple(lines)) for name, lines in found.names.items()]
    count = sum(len(use.lines) for use in uses)
    missing = [use for use in uses if use.kind == "missing"]
    there = count - sum(len(use.lines) for use in missing)
    parts = [f"{path}: {there} of {count} uses of NumPy are there"]
    for kind, told in KINDS.items():
        of_kind = sorted((use.lines, use.name, use.remedy) for use in uses if use.kind == kind)
        if of_kind:
            parts.append(f"\n{told} ({len(of_kind)})")
            parts += [
                _line(lines, found.spell(name) + _note(name), remedy)
                for lines, name, remedy in of_kind
            ]
    arguments = _missing_arguments(found)
    if arguments:
        parts.append("\narguments that functions do not take so")
        parts += arguments
    if found.methods:
        parts.append("\nattributes that distributed arrays lack, if these are arrays")
        parts += [
            _line(tuple(at), f".{name}", INSTEAD.get(f"ndarray.{name}", ""))
            for name, at in sorted(found.methods.items())
        ]
    if found.packages:
        parts.append("\npackages that gather distributed arrays where they call np.asarray")
        parts += [_line(tuple(at), name, "") for name, at in sorted(found.packages.items())]
    return "\n".join(parts), not missing and not arguments


def _note(name: str) -> str:
    """Return what a function was measured of."""
    note = _read_functions().get(name, {}).get("note")
    return f" ({note})" if note else ""


def _line(lines: tuple[int, ...], name: str, remedy: str) -> str:
    lines = tuple(dict.fromkeys(lines))
    shown = ", ".join(map(str, lines[:6])) + (", ..." if len(lines) > 6 else "")
    return f"  line {shown}: {name}" + (f": use {remedy}" if remedy else "")


# --- what a script uses --------------------------------------------------------------------------


class _Finder(ast.NodeVisitor):
    """Collects names of NumPy with the lines where they are used."""

    def __init__(self) -> None:
        self.names: dict[str, list[int]] = {}
        self.arguments: dict[tuple[str, str], list[int]] = {}
        """Those passed by name, with the function that gets them."""
        self.methods: dict[str, list[int]] = {}
        self.packages: dict[str, list[int]] = {}
        self._known: dict[str, str] = {}
        """Names in the script, and what they are inside of NumPy."""
        self._ours: set[str] = set()
        """Those that are of this library."""
        self._through: dict[str, set[bool]] = {}
        """Whether names are used as ours, or as NumPy's."""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            package, _, rest = alias.name.partition(".")
            if package not in ("numpy", "distarray"):
                self._note_package(package, node.lineno)
                continue
            own = alias.asname or package
            self._known[own] = rest if alias.asname else ""
            self._note_owner(own, package == "distarray" and own != "np")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package, _, rest = (node.module or "").partition(".")
        if package not in ("numpy", "distarray"):
            if not node.level:
                self._note_package(package, node.lineno)
            return
        for alias in node.names:
            if alias.name == "*":
                module: Any = _resolve(rest.split("."))[0] if rest else np
                self._known |= {name: _join(rest, name) for name in getattr(module, "__all__", ())}
            else:
                self._known[alias.asname or alias.name] = _join(rest, alias.name)
                self._note_owner(alias.asname or alias.name, package == "distarray")

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._follow(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._follow(node.target, node.value)
        self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        names = [*node.posonlyargs, *node.args]
        for name, default in zip(names[::-1], node.defaults[::-1], strict=False):
            self._follow(name, default)
        for name, one in zip(node.kwonlyargs, node.kw_defaults, strict=True):
            self._follow(name, one)
        for name in [*names, *node.kwonlyargs]:
            if self._path(name.annotation) == _GENERATOR:
                self._known[name.arg] = _GENERATOR
        self.generic_visit(node)

    def _follow(self, name: ast.AST, value: ast.AST | None) -> None:
        """Note a name that stands for NumPy, a part of it, or a generator: ``xp = np``."""
        path, own = self._path(value), getattr(name, "id", getattr(name, "arg", None))
        if path is not None and own is not None:
            found, rest = _resolve(filter(None, path.split(".")))
            if path == _GENERATOR or (isinstance(found, ModuleType) and not rest):
                self._known[own] = path
                self._note_owner(own, _base_name(value) in self._ours)
        elif own is not None and self._known.get(own) == _GENERATOR:
            del self._known[own]

    def _path(self, node: ast.AST | None) -> str | None:
        """Return what a name with attributes is inside of NumPy; None for anything else."""
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Call) and self._path(node.func) == "random.default_rng":
            return _join(_GENERATOR, *path)
        if isinstance(node, ast.Name) and node.id in self._known:
            return _join(self._known[node.id], *path)
        return None

    def _note_owner(self, own: str, is_ours: bool) -> None:
        (self._ours.add if is_ours else self._ours.discard)(own)

    def spell(self, name: str) -> str:
        """Return a name as the script has it."""
        return f"{'da' if self._through.get(name) == {True} else 'np'}.{name}"

    def visit_Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        for one in node.keywords:
            if path is not None and one.arg is not None:
                self._through.setdefault(path, set()).add(_base_name(node.func) in self._ours)
                self.arguments.setdefault((path, one.arg), []).append(node.lineno)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            if node.attr in _METHODS:
                self.methods.setdefault(node.attr, []).append(node.lineno)
            self.generic_visit(node)
            return
        self._note(path, node)
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Call):
            self.visit(base)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self._known.get(node.id):
            self._note(self._known[node.id], node)

    def _note(self, path: str, node: ast.expr) -> None:
        parts = path.split(".")
        if parts[0] == "torch":  # adapters of ours, and nothing of NumPy's
            return
        found, rest = _resolve(parts)
        if (isinstance(found, ModuleType) or found is np.random.Generator) and not rest:
            return
        kept = len(parts) - len(rest)
        if found is np.random.Generator:
            kept += 1
        elif isinstance(found, np.ufunc) and rest[:1] != [] and hasattr(np.ufunc, rest[0]):
            kept += 1  # np.add.reduce
        elif isinstance(found, ModuleType):
            kept += 1  # what NumPy lacks
        name = ".".join(parts[:kept])
        self.names.setdefault(name, []).append(node.lineno)
        self._through.setdefault(name, set()).add(_base_name(node) in self._ours)

    def _note_package(self, package: str, line: int) -> None:
        if package not in sys.stdlib_module_names and package not in ("mpi4py", "__future__"):
            self.packages.setdefault(package, []).append(line)


def _base_name(node: ast.AST | None) -> str:
    """Return the name with which an expression of attributes and calls begins."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _resolve(parts: Iterable[str]) -> tuple[Any, list[str]]:
    """Return what a path inside of NumPy leads to, through its modules, and what remains of it."""
    found: Any = np
    rest = list(parts)
    while rest and isinstance(found, ModuleType) and hasattr(found, rest[0]):
        found = getattr(found, rest.pop(0))
    return found, rest


# --- what becomes of it --------------------------------------------------------------------------


def _classify(name: str, lines: tuple[int, ...]) -> Use:
    found, rest = _resolve(name.split("."))
    package = name.partition(".")[0]
    own = not isinstance(found, ModuleType) and _is_numpys_own(found)
    if own or name in _SETTINGS or package == "typing":
        return Use(name, "numpy", lines, "")
    if isinstance(found, np.ufunc) and rest and callable(getattr(np.ufunc, rest[0], None)):
        method = method_of(found, rest[0])
        if method is not None:
            return Use(name, costs().get(_name_of(method), "varies"), lines, "")
        return Use(name, "missing", lines, GENERAL)
    ours = _find_ours(name)
    if found is np.random.Generator and rest and ours is not None:
        return Use(name, "varies" if rest[0] in _MOVING else "made", lines, "")
    if ours is not None:
        return Use(name, costs().get(name) or costs().get(_name_of(ours), "made"), lines, "")
    if not rest and callable(found) and found in functions:
        return Use(name, "made", lines, "")
    remedy = instead(name)
    if remedy is None and isinstance(found, ModuleType):
        remedy = f"another name: NumPy {np.__version__} has none such"
    return Use(name, "missing", lines, remedy or GENERAL)


def instead(name: str) -> str | None:
    """Return what to write for a name that is not there, if there is something of its own."""
    return instead_of(name) or INSTEAD.get(name.partition(".")[0])


def _find_ours(name: str) -> Any:
    found: Any = da
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def _is_numpys_own(found: Any) -> bool:
    """Tell whether something is a type of items, a constant or the like."""
    if isinstance(found, type):
        kinds = (np.generic, np.dtype, np.finfo, np.iinfo, Exception)
        return found is np.ndarray or issubclass(found, kinds)
    return not callable(found) and not isinstance(found, _BUILDERS)


def _missing_arguments(found: _Finder) -> list[str]:
    """Return a line for each argument, passed by name, that a function of ours does not take so."""
    missing = []
    for (name, key), lines in found.arguments.items():
        ours, theirs = _find_ours(name), _resolve(name.split("."))[0]
        if isinstance(ours, type) or not callable(ours) or not callable(theirs):
            continue
        try:
            parameters = inspect.signature(ours).parameters.values()
        except ValueError:  # of a method of NumPy's, whose versions differ in what they tell
            continue
        by_name = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
        if key not in by_name and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            leading = {*(p.name for p in parameters), *leading_names(theirs, ours)}
            remedy = "it by position" if key in leading else "the function without it"
            missing.append((tuple(lines), f"{found.spell(name)}({key}=)", remedy))
    return [_line(*one) for one in sorted(missing)]


@functools.cache
def _read_functions() -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]]
    told = json.loads(Path(__file__).with_name("_functions.json").read_text())
    return told


@functools.cache
def costs() -> dict[str, str]:
    """Return of each function, by its name, which of `KINDS` it is."""
    return {name: one["sends"] for name, one in _read_functions().items()}
