"""``python -m distarray port``: each use of NumPy is found, with lines and what becomes of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import distarray as da
from distarray import _port
from distarray.__main__ import main

SCRIPT = """\
import os
import numpy as np
import numpy.linalg as la
from numpy import sqrt as root, pi
from numpy.random import default_rng
import scipy.stats

x = np.arange(9, dtype=np.float32) * pi
y = root(x) @ x
z = la.norm(x)
np.add.reduce(x)
np.subtract.reduceat(x, [0, 2])
np.random.seed(3)
rng = default_rng(0)
np.savez("a.npz", x)
np.no_such_name
np.linalg.qr
x.tofile("x")
with np.errstate(all="ignore"):
    np.matmul(x, np.newaxis)
os.path.join("a")
"""


def uses(source: str, tmp_path: Path) -> dict[str, _port.Use]:
    path = tmp_path / "script.py"
    path.write_text(source)
    found = _port._Finder()
    found.visit(_port.ast.parse(source))
    return {name: _port._classify(name, tuple(lines)) for name, lines in found.names.items()}


def test_names_are_followed_from_imports_with_their_lines(tmp_path):
    found = uses(SCRIPT, tmp_path)
    assert {name: use.lines for name, use in found.items()} == {
        "arange": (8,),
        "float32": (8,),
        "pi": (8,),
        "sqrt": (9,),
        "linalg.norm": (10,),
        "add.reduce": (11,),
        "subtract.reduceat": (12,),
        "random.seed": (13,),
        "random.default_rng": (14,),
        "savez": (15,),
        "no_such_name": (16,),
        "linalg.qr": (17,),
        "errstate": (19,),
        "matmul": (20,),
        "newaxis": (20,),
    }


def test_each_use_is_of_its_kind(tmp_path):
    found = uses(SCRIPT, tmp_path)
    kinds = {name: use.kind for name, use in found.items()}
    assert kinds["sqrt"] == "nothing"
    assert kinds["matmul"] == "gathers"
    assert kinds["add.reduce"] == "nothing"
    assert kinds["arange"] == kinds["random.default_rng"] == "made"
    assert kinds["errstate"] == "numpy"
    assert kinds["savez"] == kinds["random.seed"] == kinds["no_such_name"] == "missing"
    assert "da.checkpoint.save" in found["savez"].remedy
    assert "default_rng" in found["random.seed"].remedy
    assert np.__version__ in found["no_such_name"].remedy


def test_the_report_has_all_of_it_and_the_status_says_what_is_missing(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert main(["port", str(path)]) == 1
    told = capsys.readouterr().out
    assert "uses of NumPy are there" in told
    assert "line 15: np.savez: use da.save for each array" in told
    assert "line 18: .tofile: use da.save(path, x)" in told
    assert "line 17: np.linalg.qr (of tall matrices" in told.partition("small states")[2]
    assert "line 6: scipy" in told
    assert "os" not in told.split("packages")[1]
    path.write_text("import distarray as np\nprint(np.sum(np.ones(3)))\n")
    assert main(["port", str(path)]) == 0
    assert "2 of 2 uses" in capsys.readouterr().out


def test_names_are_told_as_the_script_has_them(tmp_path, capsys):
    source = """
import numpy as np, distarray, distarray as da
from distarray import linalg
own = da.linalg
rows = da.default_mesh(), own.norm(da.ones(3)), linalg.qr(np.ones(3)), distarray.sin(2, k=1)
da.no_such_name, np.random.seed(3), np.cos(3), da.cos(3), da.random.default_rng(0).normal(size=3)
"""
    path = tmp_path / "script.py"
    path.write_text(source)
    assert main(["port", str(path)]) == 1
    told = re.findall(r": ((?:np|da)\.[a-zA-Z_.]+)", capsys.readouterr().out)
    assert {*told} == {
        *("da.default_mesh", "da.linalg.norm", "da.linalg.qr", "da.sin"),
        *("da.no_such_name", "da.random.default_rng", "da.random.Generator.normal"),
        *("np.ones", "np.random.seed", "np.cos"),
    }
    path.write_text("import distarray as np\nnp.sin(3)\n")
    assert main(["port", str(path)]) == 0
    assert "line 2: np.sin" in capsys.readouterr().out


def test_names_that_stand_for_numpy_are_followed(tmp_path):
    source = """
import numpy as np, numpy.typing as npt
xp, unknown = np, 3
xp = np
la = xp.linalg
def f(x: npt.NDArray, nx=np, *, lib=la):
    return nx.savez("a", lib.norm(x)), xp.sin(x)
"""
    found = uses(source, tmp_path)
    assert found.keys() == {"savez", "linalg.norm", "sin", "typing.NDArray"}
    assert found["typing.NDArray"].kind == "numpy"


def test_generators_are_followed(tmp_path):
    source = """
import numpy as np
from numpy.random import default_rng, Generator
rng = np.random.default_rng(0)
rng.choice(3), rng.normal(size=3), rng.power(2.0, size=3), use(rng)
own: Generator = default_rng(1)
own.poisson(np.sin(2)), default_rng(seed=np.cos(3)).shuffle(x)
def f(source: np.random.Generator):
    return source.permutation(3)
rng = 3
rng.bytes
default_rng(2).bit_generator
"""
    found = uses(source, tmp_path)
    of = "random.Generator."
    assert {name.removeprefix(of): use.kind for name, use in found.items()} == {
        "random.default_rng": "made",
        **dict.fromkeys(("normal", "poisson", "power"), "made"),
        **dict.fromkeys(("choice", "shuffle", "permutation"), "varies"),
        "bit_generator": "missing",
        **dict.fromkeys(("sin", "cos"), "nothing"),
    }
    assert "one of its own" in found[f"{of}bit_generator"].remedy
    assert main(["port", str(_written(tmp_path, source))]) == 1


def test_arguments_that_functions_lack_or_take_by_position_are_told(tmp_path, capsys):
    source = """
import numpy as np
x = np.linspace(start=0, stop=1, num=3)
y = np.array(x, ndmin=2) + np.zeros(3, dtype=float)
np.einsum("i,i", x, x, optimize=True), np.clip(x, a_min=0, a_max=1), np.repeat(x, repeats=2)
np.add(x, y, where=x), np.sum(a=x, axis=0), np.add.reduce(x, keepdims=True), np.int8(x=3)
np.no_such_name(k=3), np.errstate(all="ignore"), np.random.default_rng(seed=1)
"""
    assert main(["port", str(_written(tmp_path, source))]) == 1
    told = capsys.readouterr().out.partition("do not take so\n")[2]
    assert told.splitlines() == [
        "  line 3: np.linspace(start=): use it by position",
        "  line 3: np.linspace(stop=): use it by position",
        "  line 4: np.array(ndmin=): use the function without it",
        "  line 6: np.sum(a=): use it by position",
    ]


def test_the_script_is_not_run(tmp_path):
    assert main(["port", str(_written(tmp_path, "import numpy\nraise SystemExit(7)\n"))]) == 0


def test_star_imports_are_followed(tmp_path):
    found = uses("from numpy import *\nfrom numpy.linalg import *\nsin(inv(1))\nprint(x)", tmp_path)
    assert found.keys() == {"sin", "linalg.inv"}


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *(("script.py", one) for one in (None, "def f(:\n", "\0", "x = " + "-" * 9999 + "1\n")),
        ("script.py.ipynb", '{"cells": [], "nbformat": 4}'),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, name, source, capsys):
    path = tmp_path / name
    if source is not None:
        path.write_text(source)
    with pytest.raises(SystemExit) as left:
        main(["port", str(path)])
    assert left.value.code == 2
    assert "script.py" in capsys.readouterr().err


def _written(folder: Path, source: str) -> Path:
    path = folder / "script.py"
    path.write_text(source)
    return path


def test_settings_are_names_that_numpy_has():
    assert all(hasattr(np, name) for name in _port._SETTINGS)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("strings.str_len", r"NumPy's own np\.strings\.str_len, which computes on blocks"),
        ("strings.add", r"NumPy's own np\.strings\.add, which computes on blocks"),
        ("strings.replace", r"da\.map_blocks\(np\.strings\.replace, x\)"),
        ("char.upper", r"da\.map_blocks\(np\.char\.upper, x\)"),
        ("is_busday", r"da\.map_blocks\(np\.is_busday, x\)"),
        ("datetime_as_string", r"x\.astype\('U19'\)"),
    ],
)
def test_functions_of_text_and_dates_name_their_own_remedy(name, remedy, tmp_path):
    text, _ = _port.report(str(_written(tmp_path, f"import numpy as np\nnp.{name}(a)\n")))
    assert re.search(rf"line 2: np\.{name}: use {remedy}", text)


def test_remedies_for_text_and_dates_give_what_numpy_gives():
    text = np.array(["a", "bcd", "ef"])
    days = np.arange("2024-01-05", "2024-01-09", dtype="M8[D]")

    def program():
        x, day = da.asarray(text), da.asarray(days)
        assert np.array_equal(np.strings.str_len(x), [1, 3, 2])
        assert np.array_equal(da.map_blocks(np.strings.upper, x), np.strings.upper(text))
        assert np.array_equal(da.map_blocks(np.is_busday, day), np.is_busday(days))
        assert np.array_equal(day.astype("U19"), np.datetime_as_string(days))
        with pytest.raises(da.errors.ArgumentTypeError, match=r"map_blocks\(np\.strings\.upper"):
            np.strings.upper(x)

    da.testing.simulate(2, program)
