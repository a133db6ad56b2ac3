"""Compilation of Numba kernels on first use, kept on disk safely for many ranks at once.

Modules of kernels import Numba at their top, which takes about half a second; they are loaded by
`load_kernels` when a block is large enough to be worth it, and never where Numba cannot work: NumPy
serves then, with the same values.

Numba's own cache writes its index before its data and numbers the data files of one function
over all signatures and processors. Ranks that start together on a cold cache, or after an
upgrade, could thus load each other's code. Here each compiled kernel has a folder of its own,
named after everything its machine code depends on, so that whoever writes there writes the same.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from distarray.comm._settings import setting

_PATIENCE = 60.0
"""Seconds to wait for another process that compiles the same kernel."""

_modules: dict[str, ModuleType | None] = {}
_lock = threading.RLock()


def load_kernels(name: str) -> Any:
    """Return a module of kernels, loaded on first use; None where Numba cannot be used.

    ``DISTARRAY_NUMBA=0`` switches all kernels off.
    """
    try:
        return _modules[name]
    except KeyError:
        with _lock:
            if name not in _modules:
                _modules[name] = importlib.import_module(name) if _usable() else None
            return _modules[name]


def are_loaded(name: str) -> bool:
    """Tell whether a module of kernels was loaded before, so that using it costs nothing more."""
    return _modules.get(name) is not None


def _usable() -> bool:
    if setting("DISTARRAY_NUMBA", "1") == "0":
        return False
    try:
        import numba
    except ImportError:  # not installed, or not yet for this version of NumPy
        return False
    return not numba.config.DISABLE_JIT


class Kernel:
    """A function over raw memory, compiled for one signature when it is first called.

    Numba compiles it without the interpreter's lock; its closure may hold constants. ``uses`` are
    the modules from which it inlines functions: a change in them makes another kernel.
    """

    __slots__ = ("_function", "_signature", "_uses", "run")

    def __init__(self, function: Callable[..., Any], signature: str, *uses: ModuleType) -> None:
        self._function = function
        self._signature = signature
        self._uses = uses
        self.run: Callable[..., Any] = self._compile_and_run

    def __call__(self, *arguments: Any) -> Any:
        return self.run(*arguments)

    def _compile_and_run(self, *arguments: Any) -> Any:
        with _lock:
            if self.run == self._compile_and_run:
                self.run = compile_function(self._function, self._signature, *self._uses)
        return self.run(*arguments)


def compile_function(
    function: Callable[..., Any], signature: str, *uses: ModuleType
) -> Callable[..., Any]:
    """Return ``function`` compiled for ``signature``, from disk where it was compiled before."""
    import numba

    for folder in _folders(function, signature, uses):
        with contextlib.suppress(OSError, RuntimeError):  # not writable, full, or gone meanwhile
            folder.mkdir(parents=True, exist_ok=True)
            with _one_compiles(folder):
                return _dispatcher(function, signature, str(folder))
    dispatcher = numba.njit(nogil=True)(function)
    dispatcher.compile(signature)
    return dispatcher  # type: ignore[no-any-return]


def _dispatcher(function: Callable[..., Any], signature: str, folder: str) -> Callable[..., Any]:
    import numba

    given = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder  # read when the cache of a function is set up, here
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    finally:
        numba.config.CACHE_DIR = given
    if not dispatcher.stats.cache_path.startswith(folder):
        raise OSError(f"{folder} is not writable")
    dispatcher.compile(signature)
    return dispatcher  # type: ignore[no-any-return]


def _folders(
    function: Callable[..., Any], signature: str, uses: Sequence[ModuleType]
) -> list[Path]:
    """Return where a kernel may be kept, best first."""
    import hashlib

    import numba
    from llvmlite import binding

    source = Path(inspect.getfile(function))
    closure = function.__closure__ or ()
    depends_on = (
        source.read_bytes(),
        [inspect.getsource(module) for module in uses],
        function.__qualname__,
        [cell.cell_contents for cell in closure],
        signature,
        numba.__version__,
        sys.version_info[:3],
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        numba.config.CPU_NAME,
        numba.config.CPU_FEATURES,
        numba.config.OPT,
    )
    digest = hashlib.blake2b(repr(depends_on).encode(), digest_size=10).hexdigest()
    name = f"{source.stem.strip('_')}-{digest}"
    if numba.config.CACHE_DIR:
        return [Path(numba.config.CACHE_DIR) / name]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [source.parent / "__pycache__" / name, Path(home) / "distarray" / name]


@contextlib.contextmanager
def _one_compiles(folder: Path) -> Iterator[None]:
    """Let one process compile while the others wait to load, where the file system has locks.

    Only to save work: without the lock all would compile, and write the same.
    """
    if any(folder.rglob("*.nbc")):
        yield
        return
    try:
        import fcntl

        handle = open(folder / "lock", "w")  # noqa: SIM115 - closed below
    except (ImportError, OSError):
        yield
        return
    with handle:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and not any(folder.rglob("*.nbc")):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
            else:
                break
        yield
