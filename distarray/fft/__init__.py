"""Discrete Fourier transforms, as in `numpy.fft` and in the array API standard's extension `fft`.

A transform works on whole lines. Where a mesh axis cuts the axis that is transformed, it cuts
another one instead, for one exchange (an all-to-all), and the result keeps that cut: `redistribute`
brings it back where it is needed. So n-d transforms take as many exchanges as mesh axes cut
transformed axes; axes that are not cut come first. Where there is no other axis longer than 1,
every process transforms all of it, up to 128 MiB, and keeps its part.
"""

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
