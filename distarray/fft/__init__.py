"""Discrete Fourier transforms, as in `numpy.fft` and in the array API standard's extension `fft`.

A transform works on whole lines. Each process transforms the axes that are not cut; then a mesh
axis that cuts another axis cuts one that is done, or is not transformed, instead, for one exchange
(an all-to-all), and the result keeps that cut: `redistribute` brings it back where it is needed,
and an inverse transform leads back by itself. A line for which nothing else can be cut is
transformed by all processes together. Nothing large is gathered. Partial sums are reduced first,
each by one process if there are many: their parts may overflow where the sums do not.
"""

from typing import TYPE_CHECKING

from distarray._missing_names import missing_name_error
from distarray.fft._frequencies import fftfreq, fftshift, ifftshift, rfftfreq
from distarray.fft._transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        raise missing_name_error(f"fft.{name}")

    def __dir__():
        return __all__
