"""Numbers that an example cannot work with are refused, before anything is computed."""

from __future__ import annotations

from importlib import import_module

import pytest

REFUSED = {
    "diffusion": ["points=0", "points=-1", "steps=0", "rate=-1", "rtol=-1", "rtol=nan"],
    "digits": ["epochs=0"],
    "flights_pca_kmeans": ["clusters=0", "components=0", "components=100", "share=0", "share=2"],
    "flights_sklearn": ["share=0", "share=-1", "share=1e-300", "share=nan"],
    "gaussian_process": ["points=0", "noise=0", "noise=1e-300", "lengths=0", "grid=0", "grid=1"],
    "gpt": ["steps=-1", "batch=0", "width=0", "heads=0", "heads=3", "mesh=1", "mesh=0", "mesh=x"],
    "gpt_fsdp": ["steps=-1", "save-every=-1", "rate=inf", "length=0"],
    "heat_equation": ["points=0", "points=-1", "steps=0"],
    "option_prices": ["paths=0", "paths=1", "days=0", "batch=0", "batch=1", "seed=-1"],
    "photograph_pca": ["size=0", "size=1000"],
    "taylor_green": ["points=0", "viscosity=1/0", "viscosity=x", "dt=nan", "steps=-1", "mesh=0"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_out_of_range_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in REFUSED[name]:
        with pytest.raises(SystemExit) as caught:
            import_module(name).main([f"--{option}"])
        assert caught.value.code == 2
        message = capsys.readouterr().err
        assert "error: " in message
        assert option.partition("=")[2].split("/")[0] in message
