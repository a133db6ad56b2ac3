"""Signatures: every public function tells its arguments, and says by name what does not fit."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import distarray as da
from distarray.core._op import Op
from distarray.errors import ArgumentTypeError
from distarray.testing import simulate

NAMES = [
    name
    for name in da.__all__
    if callable(getattr(da, name))
    and not isinstance(getattr(da, name), type)
    and (getattr(da, name).__module__ or "").startswith("distarray")
]
"""Functions of our own; classes, NumPy's dtypes and constants are none."""
OPS = [name for name in NAMES if isinstance(getattr(da, name), Op)]


def python_says(name: str, signature: inspect.Signature, *args: Any, **options: Any) -> str:
    """Return what Python says of a function of this name and signature, or nothing."""
    kinds = inspect.Parameter
    texts, before = [], None
    for one in signature.parameters.values():
        if before is kinds.POSITIONAL_ONLY and one.kind is not before:
            texts.append("/")
        if one.kind is kinds.KEYWORD_ONLY and before not in (one.kind, kinds.VAR_POSITIONAL):
            texts.append("*")
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(one.kind, "")
        texts.append(f"{star}{one.name}" + ("" if one.default is one.empty else "=None"))
        before = one.kind
    texts += ["/"] * (before is kinds.POSITIONAL_ONLY)
    scope: dict[str, Any] = {}
    exec(f"def {name}({', '.join(texts)}): pass", scope)
    try:
        scope[name](*args, **options)
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.host_only  # nothing is computed
@pytest.mark.parametrize("name", NAMES)
def test_public_function_tells_its_name_documentation_and_arguments(name):
    function = getattr(da, name)
    assert function.__name__ in (name, *dir(da))
    assert getattr(da, function.__name__) is function
    assert function.__doc__.strip()
    parameters = inspect.signature(function).parameters.values()
    of_any_number = {"broadcast_arrays", "common_type", "einsum", "map_blocks", "result_type"}
    of_any_number |= {"broadcast_shapes", "einsum_path", "map_overlap", "meshgrid", "print0"}
    of_any_number |= {"atleast_1d", "atleast_2d", "atleast_3d", "gradient", "ix_", "pad"}
    of_any_number |= {"apply_along_axis", "fromfunction", "piecewise"}  # for users' functions
    of_any_number |= {"init_device_mesh"}  # which refuses other names in words of its own
    if name not in of_any_number:
        assert not [one for one in parameters if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


@pytest.mark.host_only  # nothing is computed
@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_do_not_fit_are_refused_in_pythons_words(name):
    function = getattr(da, name)
    signature = inspect.signature(function)
    own = function.__qualname__
    parameters = signature.parameters.values()
    required = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]

    def program() -> list[str]:
        x = da.ones((3, 4))
        calls: list[tuple[list[Any], dict[str, Any]]] = [
            ([], {}),
            ([], {"wrong": 1}),
            ([x] * len(required), {"wrong": 1}),
            ([x] * 20, {}),
            *(([x] * len(required), {one.name: 1}) for one in required),
        ]
        said = []
        with da.CommLog() as log:
            for args, options in calls:
                expected = python_says(own, signature, *args, **options)
                if expected:
                    with pytest.raises(TypeError) as caught:
                        function(*args, **options)
                    assert str(caught.value).partition("; its signature is")[0] == expected
                    said.append(str(caught.value))
        assert log.count() == 0
        return said

    one, *others = simulate(3, program)
    assert all(said == one for said in others)


@pytest.mark.host_only
@pytest.mark.parametrize("name", OPS)
def test_error_of_an_operation_shows_its_signature(name):
    op = getattr(da, name)
    with pytest.raises(ArgumentTypeError) as caught:
        op()
    assert str(caught.value).endswith(f"; its signature is {op.name}{inspect.signature(op)}")


def test_method_refuses_arguments_by_the_name_of_the_function():
    def program() -> None:
        x = da.ones((3, 4))
        for name in ("sum", "mean", "cumsum", "argmax", "squeeze", "round"):
            with pytest.raises(
                TypeError, match=rf"^{name}\(\) got an unexpected keyword .*'wrong'"
            ):
                getattr(x, name)(wrong=1)

    simulate(1, program)


def test_function_with_a_rule_refuses_what_its_own_signature_lacks_before_it_runs():
    ran = []

    def scaled(x: Any, by: float = 2.0) -> Any:
        ran.append(by)
        return x * by

    function = da.register_rule(scaled, "i->i")
    assert inspect.signature(function) == inspect.signature(scaled)

    def program() -> None:
        with pytest.raises(ArgumentTypeError, match=r"^scaled\(\) got an unexpected .* 'wrong'"):
            function(da.ones(3), wrong=1)

    simulate(2, program)
    assert not ran


def test_axis_and_keepdims_are_taken_as_integers_are():
    def program() -> None:
        x = da.arange(12).reshape(3, 4)
        plain = x.full_array()
        for axis in (np.array(1), np.int8(-1), [1], (np.array(0), 1)):
            assert np.array_equal(da.sum(x, axis), plain.sum(tuple(np.atleast_1d(axis))))
        for name in ("mean", "var", "std", "argmax", "ptp", "max", "all"):
            function = getattr(da, name)
            for keepdims in (np.array(1), 1, np.True_):
                assert function(x, axis=np.array(1), keepdims=keepdims).shape == (3, 1)
            for wrong in (None, "yes", 1.0, [1], np.array([1])):
                with pytest.raises(ArgumentTypeError, match=r"keepdims=.* must be True or False"):
                    function(x, axis=1, keepdims=wrong)
        assert np.array_equal(da.cumsum(x, np.array(1)), plain.cumsum(1))

    simulate(2, program)


@pytest.mark.host_only  # CuPy's take none
def test_ufuncs_signature_is_a_text_or_a_tuple():
    def program() -> None:
        x = da.ones(4, np.float32)
        assert np.add(x, x, signature="dd->d").dtype == np.float64
        assert np.add(x, x, signature=(None, None, np.float64)).dtype == np.float64
        with pytest.raises(ArgumentTypeError, match=r"add\(signature=\['d'\]\)"):
            np.add(x, x, signature=["d"])
        for wrong in (["safe"], "none", np.zeros(2)):
            error = da.errors.ArgumentError if isinstance(wrong, str) else ArgumentTypeError
            with pytest.raises(error, match=r"add\(casting=.*\): one of"):
                np.add(x, x, casting=wrong)
        with pytest.raises(ArgumentTypeError, match=r"add\(\) got order="):
            np.add(x, x, order=np.zeros(2))

    simulate(2, program)
