"""``python -m distarray`` tells what it finds, also under mpiexec, and plans without MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import distarray as da
from distarray import _bench
from distarray.__main__ import main
from distarray.redistribute import forget_speeds

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[1]
STAND_IN = ROOT / "tests" / "cupy_stand_in"
OPTIONAL = ("torch", "h5py", "zarr", "matplotlib")
NO_NUMBA = {"DISTARRAY_KERNELS": "numpy"}  # which takes long to import
NONE = "none: ranks exchange messages"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return a folder whose modules import at once in the place of optional packages."""
    folder = tmp_path_factory.mktemp("optional")
    for name in OPTIONAL:
        (folder / f"{name}.py").write_text(f"__version__ = 'that of {name}'")
    return folder


def path_of(*folders: Path) -> str:
    return os.pathsep.join(map(str, (*folders, ROOT)))


def command(*arguments: str, ranks: int = 0, **environment: str) -> str:
    """Return what the command line prints, in a process of its own."""
    launcher = []
    if ranks:
        beside = Path(sys.executable).parent / "mpiexec"
        mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
        if mpiexec is None:
            pytest.skip("no mpiexec beside this Python nor on PATH")
        launcher = [mpiexec, "-n", str(ranks)]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDI", "HYDRA"))}
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "distarray", *arguments],
        cwd=ROOT,
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_info_of_one_rank_tells_versions_mpi_and_packages():
    told = command("info")
    assert da.__version__ in told
    assert "thread level" in told
    assert "1 on 1 node" in told
    assert all(name in told for name in ("NumPy", "mpi4py", "numba", "vendor", "cupy", "h5py"))


def test_info_needs_no_docstrings() -> None:
    assert da.__version__ in command("info", PYTHONOPTIMIZE="2")


@pytest.mark.parametrize(
    ("environment", "nodes", "memory"),
    [
        ({}, "3 on 1 node", "every rank reads every other"),
        ({"DISTARRAY_RANKS_PER_NODE": "2"}, "3 on 2 nodes", "of 0 to 1 other ranks"),
        ({"DISTARRAY_SHARED_MEMORY": "0"}, "3 on 1 node", NONE),
    ],
)
def test_info_under_mpiexec_is_printed_once_and_finds_out_about_memory(
    quick, environment, nodes, memory
):
    told = command("info", ranks=3, PYTHONPATH=path_of(quick), **environment)
    assert told.count("thread level") == 1
    assert all(told.count(f"that of {name}") == 1 for name in OPTIONAL)
    assert nodes in told
    allowed = "DISTARRAY_SHARED_MEMORY" not in environment
    assert memory in told or (allowed and NONE in told)  # not every system allows it
    assert all(f"{name}  {value}" in told for name, value in environment.items())


def test_info_without_cupy_says_so_in_one_line(quick, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ModuleNotFoundError('no cupy', name='cupy')")
    told = command("info", PYTHONPATH=path_of(tmp_path, quick))
    assert "GPUs  none: CuPy is not installed" in told
    assert "CUDA-aware" not in told


def test_info_tells_gpus_bindings_and_how_values_move(quick):
    path = path_of(STAND_IN, quick)
    told = command("info", ranks=3, PYTHONPATH=path, DISTARRAY_CUDA_AWARE="auto")
    if "stand-in" not in told:
        pytest.skip("there is a real GPU")
    assert "CUDA 13.0 driver" in told
    assert "2 x stand-in for a GPU" in told
    assert [told.count(f"{n} (0000:0{n}:00.0)") for n in (0, 1)] == [2, 1]  # three ranks, two GPUs
    assert "CUDA-aware  " in told
    assert "library   " in told
    assert "device memory goes " in told
    assert "CuPy's own, which are slower: Numba does not reach the GPU" in told


@pytest.mark.parametrize(
    ("value", "answer", "way"), [("1", "yes", "as it is, by MPI"), ("0", "no", "pinned host")]
)
def test_info_tells_the_setting_that_decides(quick, value, answer, way):
    path = path_of(STAND_IN, quick)
    told = command("info", ranks=2, PYTHONPATH=path, DISTARRAY_CUDA_AWARE=value, **NO_NUMBA)
    assert f"CUDA-aware  {answer}" in told
    assert f"DISTARRAY_CUDA_AWARE={value}" in told
    assert way in told


def test_info_tells_of_a_setting_that_is_none(quick):
    path = path_of(STAND_IN, quick)
    told = command("info", ranks=2, PYTHONPATH=path, DISTARRAY_CUDA_AWARE="yes", **NO_NUMBA)
    assert "DISTARRAY_CUDA_AWARE='yes' is not known" in told
    assert "versions" in told


def test_plan_is_printed_without_mpi(capsys):
    assert main(["plan", "8192x8192", "4", "S0", "S1"]) == 0
    told = capsys.readouterr().out
    mesh = da.AbstractMesh((4,))
    source, target = (da.Layout(mesh, [da.Shard(axis)], (8192, 8192)) for axis in (0, 1))
    assert told == da.plan(source, target, "float64").explain() + "\n"
    assert main(["plan", "10x10", "4", "S0", "S1", "--rank", "3"]) == 0
    layouts = (da.Layout(mesh, [da.Shard(axis)], (10, 10)) for axis in (0, 1))
    assert capsys.readouterr().out == da.plan(*layouts, "float64").explain(rank=3) + "\n"


def test_plan_takes_meshes_reductions_dtypes_and_bounds(capsys):
    main(["plan", "64,48", "2x2", "P(max),S1", "R,S(-1)", "--dtype", "int16", "--max-bytes", "99"])
    told = capsys.readouterr().out
    assert "64x48 [axis0:P(max), axis1:S(1)]" in told
    assert "64x48 [axis0:R, axis1:S(1)]" in told
    assert "int16" in told


def test_plan_counts_nodes_and_the_network(capsys):
    main(["plan", "65536x65536", "100000", "S0", "S1", "--network", "25e9"])
    told = capsys.readouterr().out
    assert "64 ranks on a node" in told
    assert f"{da.layout.bytes_text(25e9 / 64)}/s for each rank" in told


def test_bench_keeps_what_plans_then_tell(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_bench, "_SIZES", (1 << 12, 1 << 20))
    monkeypatch.setattr(_bench, "_SECONDS", 1e-3)
    forget_speeds()
    main(["plan", "64x64", "2", "S0", "S1"])
    assert "typical speeds" in capsys.readouterr().out
    main(["bench"])
    told = capsys.readouterr().out
    assert "1 rank on this node" in told
    assert all(words in told for words in ("1.0 MiB", "GB/s", "kernels chosen", str(tmp_path)))
    assert told.startswith("measuring")
    assert "of one rank alone" in told
    assert "% of the times were half as long again" in told
    main(["plan", "64x64", "1", "R", "P"])
    assert "measured on this machine" in capsys.readouterr().out
    main(["plan", "64x64", "2", "S0", "S1"])
    assert "typical speeds" in capsys.readouterr().out, "one rank exchanges nothing"
    monkeypatch.undo()
    forget_speeds()


def test_layout_is_drawn(capsys):
    main(["layout", "10x6", "2x2", "S0,R"])
    assert "| 0 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "8xa", "4", "S0", "S1"], "is no shape"),
        (["plan", "8x8", "4", "S0", "Q"], "is no placement"),
        (["plan", "8x8", "4", "S0", "S5"], "Shard(axis=5)"),
        (["plan", "8x8", "4", "S0", "S1", "--dtype", "nonsense"], "is not a data type"),
        (["plan", "8x8", "4", "S0,R", "S1"], "takes 1, one for each mesh axis, not 2"),
        (["plan", "8x8", "4", "S0", "S1", "--max-bytes", "0"], "max_bytes=0"),
        (["plan", "8x8", "4", "S0", "S1", "--ranks-per-node", "0"], "--ranks-per-node=0"),
        (["nonsense"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_explained(arguments, says, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert says in capsys.readouterr().err
