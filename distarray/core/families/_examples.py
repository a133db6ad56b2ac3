"""Examples of rows, for their documentation: a call of each, and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from distarray.core._op import Op

_CALLS: Final = """
add [1, 2]; [10, 20] -> [11 22]
subtract [10, 20]; [1, 2] -> [ 9 18]
multiply [1, 2, 3]; 10 -> [10 20 30]
divide [1, 2, 3]; 2 -> [0.5 1.  1.5]
floor_divide [7, -7]; 2 -> [ 3 -4]
remainder [7, -7]; 3 -> [1 2]
fmod [7, -7]; 3 -> [ 1 -1]
divmod [7, -7]; 2 -> [ 3 -4] [1 1]
pow [1, 2, 3]; 2 -> [1 4 9]
float_power [1, 2, 4]; -1 -> [1.   0.5  0.25]
negative [1, -2] -> [-1  2]
positive [1, -2] -> [ 1 -2]
abs [-1.5, 2.0] -> [1.5 2. ]
fabs [-1, 2] -> [1. 2.]
sign [-3, 0, 5] -> [-1  0  1]
signbit [-1.0, 0.0, -0.0] -> [ True False  True]
copysign [1.0, 2.0]; [-0.0, 3.0] -> [-1.  2.]
heaviside [-2.0, 0.0, 3.0]; 0.5 -> [0.  0.5 1. ]
square [1, 2, 3] -> [1 4 9]
sqrt [1, 4, 9] -> [1. 2. 3.]
cbrt [1, 8, -27] -> [ 1.  2. -3.]
reciprocal [1.0, 2.0, 4.0] -> [1.   0.5  0.25]
hypot [3, 5]; [4, 12] -> [ 5. 13.]
maximum [1.0, da.nan]; [3.0, 3.0] -> [ 3. nan]
minimum [1.0, da.nan]; [3.0, 3.0] -> [ 1. nan]
fmax [1.0, da.nan]; [3.0, 3.0] -> [3. 3.]
fmin [1.0, da.nan]; [3.0, 3.0] -> [1. 3.]
gcd [12, 20]; 8 -> [4 4]
lcm [4, 6]; 10 -> [20 30]
nextafter [0.0]; 1.0 -> [5.e-324]
spacing [2.0**52, 2.0**60] -> [  1. 256.]
ldexp [1.0, 1.5]; [3, 1] -> [8. 3.]
frexp [1.0, 6.0] -> [0.5  0.75] [1 3]
modf [1.5, -2.25] -> [ 0.5  -0.25] [ 1. -2.]
equal [1, 2, 3]; [1, 0, 3] -> [ True False  True]
not_equal [1, 2, 3]; [1, 0, 3] -> [False  True False]
less [1, 2, 3]; 2 -> [ True False False]
less_equal [1, 2, 3]; 2 -> [ True  True False]
greater [1, 2, 3]; 2 -> [False False  True]
greater_equal [1, 2, 3]; 2 -> [False  True  True]
logical_and [True, True, False]; [True, False, False] -> [ True False False]
logical_or [True, True, False]; [True, False, False] -> [ True  True False]
logical_xor [True, True, False]; [True, False, False] -> [False  True False]
logical_not [True, False] -> [False  True]
bitwise_and [0b1100, 7]; 0b1010 -> [8 2]
bitwise_or [0b1100, 7]; 0b1010 -> [14 15]
bitwise_xor [0b1100, 7]; 0b1010 -> [ 6 13]
bitwise_invert [0, 7] -> [-1 -8]
bitwise_left_shift [1, 3]; 2 -> [ 4 12]
bitwise_right_shift [5, 16]; 2 -> [1 4]
bitwise_count [7, 8] -> [3 1]
isfinite [1.0, da.inf, da.nan] -> [ True False False]
isinf [1.0, -da.inf, da.nan] -> [False  True False]
isnan [1.0, da.inf, da.nan] -> [False False  True]
isnat [da.datetime64("NaT"), da.datetime64("2020-01-01")] -> [ True False]
isposinf [1.0, -da.inf, da.inf] -> [False False  True]
isneginf [1.0, -da.inf, da.inf] -> [False  True False]
isreal [1 + 1j, 2 + 0j] -> [False  True]
iscomplex [1 + 1j, 2 + 0j] -> [ True False]
ceil [-1.5, 1.2] -> [-1.  2.]
floor [-1.5, 1.2] -> [-2.  1.]
trunc [-1.5, 1.2] -> [-1.  1.]
rint [0.5, 1.5, 1.6] -> [0. 2. 2.]
conj [1 + 2j] -> [1.-2.j]
exp [0, 1] -> [1.         2.71828183]
exp2 [0, 1, 3] -> [1. 2. 8.]
expm1 [1e-20] -> [1.e-20]
log [1.0, da.e] -> [0. 1.]
log1p [1e-20] -> [1.e-20]
log2 [1, 2, 8] -> [0. 1. 3.]
log10 [1, 10, 1000] -> [0. 1. 3.]
logaddexp [1000.0]; 1000.0 -> [1000.69314718]
logaddexp2 [1000.0]; 1000.0 -> [1001.]
sin [0.0, da.pi / 6] -> [0.  0.5]
cos [0.0, da.pi] -> [ 1. -1.]
tan [0.0, 1.0] -> [0.         1.55740772]
asin [0.0, 1.0] -> [0.         1.57079633]
acos [1.0, 0.0] -> [0.         1.57079633]
atan [0.0, 1.0] -> [0.         0.78539816]
atan2 [0.0, 1.0]; [-1.0, 1.0] -> [3.14159265 0.78539816]
sinh [0.0, 1.0] -> [0.         1.17520119]
cosh [0.0, 1.0] -> [1.         1.54308063]
tanh [0.0, 1.0] -> [0.         0.76159416]
asinh [0.0, 1.0] -> [0.         0.88137359]
acosh [1.0, 2.0] -> [0.        1.3169579]
atanh [0.0, 0.5] -> [0.         0.54930614]
deg2rad [0, 180] -> [0.         3.14159265]
rad2deg [0.0, da.pi] -> [  0. 180.]
radians [0, 180] -> [0.         3.14159265]
degrees [0.0, da.pi] -> [  0. 180.]
sinc [0.0, 0.5] -> [1.         0.63661977]
i0 [0.0, 1.0] -> [1.         1.26606588]
sum [[1, 2], [3, 4]]; axis=0 -> [4 6]
prod [[1, 2], [3, 4]]; axis=0 -> [3 8]
min [[1, 5], [3, 4]]; axis=0 -> [1 4]
max [[1, 5], [3, 4]]; axis=0 -> [3 5]
nanmax [[1.0, da.nan], [3.0, 2.0]]; axis=0 -> [3. 2.]
nanmin [[1.0, da.nan], [3.0, 2.0]]; axis=0 -> [1. 2.]
nansum [[1.0, da.nan], [3.0, 2.0]]; axis=0 -> [4. 2.]
nanprod [[1.0, da.nan], [3.0, 2.0]]; axis=0 -> [3. 2.]
any [[0, 1], [0, 0]]; axis=0 -> [False  True]
all [[1, 0], [1, 1]]; axis=0 -> [ True False]
count_nonzero [[1, 0], [2, 3]]; axis=0 -> [2 1]
cumsum [1, 2, 4] -> [1 3 7]
cumprod [1, 2, 4] -> [1 2 8]
cumulative_sum [1, 2, 4]; include_initial=True -> [0 1 3 7]
cumulative_prod [1, 2, 4]; include_initial=True -> [1 1 2 8]
"""
"""Name, items of a distributed operand; other arguments -> what is printed of the result."""

_EXAMPLES: Final = dict(line.split(" ", 1) for line in _CALLS.strip().splitlines())


def example(op: Op) -> str:
    """Return the section of a row's documentation; nothing for a row that is not public."""
    call, _, shown = _EXAMPLES.get(op.name, "").partition(" -> ")
    if not shown:
        return ""
    first, *others = call.split("; ")
    arguments = ", ".join([f"da.asarray({first})", *others])
    each = "*" * (op.nout > 1)
    return f"""Examples
--------
>>> import distarray as da
>>> print({each}da.{op.name}({arguments}))
{shown}
"""
