"""Kernels: functions over raw memory that Numba compiles, kept on disk as machine code.

To import Numba and to load what it keeps takes half a second; to compile a kernel a second or
more. So a kernel is compiled once, when a process has had enough work for it, and its machine code
is kept beside the sources in the object format of the system. Later processes link that by
llvmlite alone, in 30 ms, and import no Numba. It needs nothing of Python: the functions take
numbers and addresses, and what they call is in the code itself or in the C library.

A file is named after everything that its code depends on, and is replaced as a whole: whoever
writes it writes the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np

from distarray.comm._settings import setting
from distarray.comm.kernels import _machine
from distarray.errors import ArgumentError

JOBS: Final = (
    "copy", "transpose", "fill", "reduce", "group", "count", "compress", "expand", "merge", "take",
    "random", "renew",
)  # fmt: skip
"""What kernels do; `DISTARRAY_KERNELS` knows these words."""

_BYTES_BEFORE_LOADING: Final = 512 << 20
"""Bytes of a plain copy whose work NumPy does before the first kernel is loaded.

Loading takes 35 ms, as measured on Zen 4, and so much is gained by streaming stores then.
"""

_BYTES_BEFORE_COMPILING: Final = 16 << 30
"""The same before a kernel is compiled, which takes about a second."""

_TYPES: Final = {"int64": ctypes.c_int64, "uint64": ctypes.c_uint64, "float64": ctypes.c_double}

_CHECKSUM_BYTES: Final = 16  # bytes of the checksum before a kernel's signature and code

_C_LIBRARY: Final = frozenset(("sqrt", "memcpy", "memmove", "memset"))
"""What kernels may call: the interpreter has these of the C library."""

_hasty = 0
"""How many callers are `compiling_at_once`."""

_modules: dict[str, ModuleType | None] = {}
_lock = threading.RLock()
_linked: list[Any] = []  # LLVM's engines, which own the machine code


@functools.cache
def forced() -> dict[str, str]:
    """Return which jobs the user has decided on, "numpy" or "numba" for each.

    ``DISTARRAY_KERNELS`` has one of these words for all jobs, or ``job:word`` between commas.
    ``DISTARRAY_NUMBA=0`` is an older way to write ``DISTARRAY_KERNELS=numpy``. An ArgumentError
    says which words there are.
    """
    default = "numpy" if setting("DISTARRAY_NUMBA", "1") == "0" else ""
    told = setting("DISTARRAY_KERNELS", default)
    found: dict[str, str] = {}
    for part in told.split(",") if told else ():
        job, colon, word = part.strip().rpartition(":")
        if word not in ("numpy", "numba") or (colon and job not in JOBS):
            raise ArgumentError(
                f"DISTARRAY_KERNELS={told!r} is not understood at {part.strip()!r}; set numpy or "
                f"numba, or such words for some jobs, as in copy:numpy,reduce:numba, of "
                f"{', '.join(JOBS)}"
            )
        found |= dict.fromkeys((job,) if colon else JOBS, word)
    if "numba" in found.values() and not _usable():
        raise ArgumentError(
            f"DISTARRAY_KERNELS={told!r} asks for Numba, which is not installed or switched off by "
            "NUMBA_DISABLE_JIT; install it, or set DISTARRAY_KERNELS=numpy"
        )
    return found


@contextlib.contextmanager
def compiling_at_once() -> Iterator[None]:
    """Load or compile each kernel when it is first wanted, for what measures with it."""
    global _hasty
    with _lock:
        _hasty += 1
    try:
        yield
    finally:
        with _lock:
            _hasty -= 1


def load_kernels(name: str) -> Any:
    """Return a module of kernels for GPUs, loaded on first use; None where Numba cannot be used.

    ``DISTARRAY_KERNELS=numpy`` switches these off as well.
    """
    try:
        return _modules[name]
    except KeyError:
        with _lock:
            if name not in _modules:
                off = all(forced().get(job) == "numpy" for job in JOBS)
                usable = not off and _numba() is not None
                _modules[name] = importlib.import_module(name) if usable else None
            return _modules[name]


class Source(NamedTuple):
    """What becomes a kernel: a function, and its signature.

    The parameters are int64, uint64 and float64, or pointers, written ``CPointer(float64)``; the
    result is void or int64. Its closure may hold constants. It allocates nothing.
    """

    function: Callable[..., Any]
    signature: str


class Kernel:
    """A kernel by its name: ``name(*which)`` of a module returns its `Source`, or None.

    That module imports Numba, so it is imported only to compile.
    """

    def __init__(self, module: str, name: str, *which: Any) -> None:
        self._module, self._name, self._which = module, name, which
        self._run: Callable[..., Any] | None = None
        self._absent = False
        self._is_kept: bool | None = None
        self._seen = 0

    def pays(self, nbytes: int) -> bool:
        """Tell whether it is time to load the kernel, or to compile it; call this for all work.

        ``nbytes`` are those of a plain copy that takes NumPy as long as the work at hand.
        """
        if self._run is not None:
            return True
        if _hasty:
            return not self._absent
        self._seen += nbytes
        if self._absent or (self._seen <= _BYTES_BEFORE_LOADING and not _linked):
            return False
        if self._is_kept is None:
            self._is_kept = self._find() is not None
        return self._is_kept or self._seen > _BYTES_BEFORE_COMPILING

    def load(self) -> Callable[..., Any] | None:
        """Return what runs the kernel, whatever it takes to get there.

        None where there is no Numba, or no such kernel for this processor.
        """
        if self._run is not None:
            return self._run
        with _lock:
            if self._run is None and not self._absent:
                content = self._find() or self._compile()
                if content is None:
                    self._absent = True
                else:
                    self._run = _link(content)
            return self._run

    def _file(self) -> str:
        parts = [self._module.rpartition(".")[2].strip("_"), self._name, *map(str, self._which)]
        return f"{'-'.join(parts)}-{_digest(self._module)}.kernel"

    def _find(self) -> bytes | None:
        """Return what is kept of the kernel, if it is whole."""
        if not _usable():
            return None
        content = _machine.read(self._file())
        if content is None or _checksum(content[_CHECKSUM_BYTES:]) != content[:_CHECKSUM_BYTES]:
            return None
        return content[_CHECKSUM_BYTES:]

    def _compile(self) -> bytes | None:
        """Return signature and machine code, and keep both; None where Numba cannot make it."""
        if not _usable() or _numba() is None:
            return None
        source = getattr(importlib.import_module(self._module), self._name)(*self._which)
        if source is None:
            return None
        try:
            code = _machine_code(*source)
        except Exception as error:  # of another package, of which not all that is used is public
            warnings.warn(
                f"the installed Numba does not compile {self._name} ({error}); NumPy does "
                "its work, more slowly; try another version, or set DISTARRAY_KERNELS=numpy",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        content = source.signature.encode() + b"\0" + code
        _machine.write(self._file(), _checksum(content) + content)
        return content


kernel = functools.cache(Kernel)
"""Return the kernel of these names; one object for all who ask for it."""


def _checksum(content: bytes) -> bytes:
    return _hash(content).digest()


def _hash(content: bytes) -> Any:
    from hashlib import blake2b  # here, as what follows: a millisecond or more of the import

    return blake2b(content, digest_size=_CHECKSUM_BYTES)


def _usable() -> bool:
    """Tell whether Numba is installed and may compile, without importing it."""
    return bool(_version("numba")) and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def _numba() -> ModuleType | None:
    with contextlib.suppress(ImportError):  # not installed, or not yet for this version of NumPy
        numba = importlib.import_module("numba")
        return None if numba.config.DISABLE_JIT else numba
    return None


@functools.cache
def _version(package: str) -> bytes:
    """Return what tells a version of a package from others; nothing where it is not installed.

    It is not imported, and neither is `importlib.metadata` if that can be, which takes 12 ms.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return b""
    with contextlib.suppress(OSError):
        return (Path(spec.origin).parent / "_version.py").read_bytes()
    from importlib import metadata

    return metadata.version(package).encode()


@functools.cache
def _digest(module: str) -> str:
    """Return a name for all that the machine code of a module's kernels depends on."""
    spec = importlib.util.find_spec(module)
    folders = {Path(__file__).parent, Path(spec.origin).parent if spec and spec.origin else Path()}
    depends_on = (
        [path.read_bytes() for folder in sorted(folders) for path in sorted(folder.glob("*.py"))],
        [_version(package) for package in ("numba", "llvmlite")],
        [os.environ.get(f"NUMBA_{name}") for name in ("OPT", "CPU_NAME", "CPU_FEATURES")],
        platform.machine(),
        _machine.label(),
        _machine.features(),
    )
    return str(_hash(repr(depends_on).encode()).hexdigest())


def versions() -> str:
    """Return a name for all that a choice between kernels and NumPy depends on."""
    return f"{_digest(__name__)} numpy {np.__version__}"


def _machine_code(function: Callable[..., Any], signature: str) -> bytes:
    """Compile a function to an object file, in which it is called "kernel".

    Numba's public functions add wrappers that call the interpreter, which no file can hold: hence
    the compiler beneath them.
    """
    from llvmlite import binding
    from numba.core import compiler, registry, sigutils

    target = registry.cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    flags = compiler.Flags()
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    contexts = target.typing_context, target.target_context
    arguments, result = sigutils.normalize_signature(signature)
    made = compiler.compile_extra(*contexts, function, arguments, result, flags, {})
    module = binding.parse_assembly(made.library.get_llvm_str())
    module.get_function(made.fndesc.llvm_func_name).name = "kernel"
    called = {
        f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")
    }
    if not called <= _C_LIBRARY:  # where it is linked the process would end
        raise TypeError(f"{function.__qualname__} calls {sorted(called - _C_LIBRARY)}")
    triple, name, features = target.target_context.codegen().magic_tuple()
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    return bytes(machine.emit_object(module))


def _link(content: bytes) -> Callable[..., Any]:
    """Return the function that runs machine code; it leaves the interpreter's lock."""
    from llvmlite import binding

    with contextlib.suppress(RuntimeError):  # which later versions raise: they need it no more
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    signature, _, code = content.partition(b"\0")
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _linked.append(engine)
    result, _, rest = signature.decode().rstrip(")").partition("(")
    kinds: list[Any] = (
        [_TYPES.get(kind, ctypes.c_void_p) for kind in rest.split(", ")] if rest else []
    )
    # As Numba calls its functions: where the result goes, where an error goes, the arguments.
    call = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(
        engine.get_function_address("kernel")
    )
    unread = ctypes.c_int64(), ctypes.c_int64()
    nothing, error = map(ctypes.addressof, unread)

    def run(*arguments: Any) -> None:
        if call(nothing, error, *arguments):
            raise ArithmeticError("a kernel has failed")

    def answer(*arguments: Any) -> int:
        found = ctypes.c_int64()
        if call(ctypes.addressof(found), error, *arguments):
            raise ArithmeticError("a kernel has failed")
        return found.value

    function = run if result == "void" else answer
    _linked.append(unread)
    return function
