"""For each elementwise row that is a public function: what it returns, and an example with its result."""

from collections.abc import Mapping, Sequence

TEXT = """
abs | Return |x| | [-1.5, 2.0]) -> tensor([1.5, 2. ])
add | Return a + b | [1.0, 2.0], 1.0) -> tensor([2., 3.])
atan2 | Return the angle of the point (b, a), in (-pi, pi] | [1.0, -1.0], [1.0, -1.0]) -> tensor([ 0.7853981, -2.3561945])
ceil | Return the smallest integer that is at least x | [1.2, -1.2]) -> tensor([ 2., -1.])
cos | Return the cosine of x radians | [0.0, 1.0]) -> tensor([1.       , 0.5403023])
div | Return a / b | [1.0, 4.0], 2.0) -> tensor([0.5, 2. ])
equal | Return a == b | [1.0, 2.0], 2.0) -> tensor([False,  True], dtype=bool)
erf | Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x | [0.0, 1.0]) -> tensor([0.       , 0.8427008])
exp | Return e^x | [0.0, 1.0]) -> tensor([1.      , 2.718282])
expm1 | Return e^x - 1, accurate also near 0 | [0.0, 1.0]) -> tensor([0.       , 1.7182819])
floor | Return the largest integer that is at most x | [1.2, -1.2]) -> tensor([ 1., -2.])
isnan | Return whether x is NaN | [1.0, np.nan]) -> tensor([False,  True], dtype=bool)
less | Return a < b | [1.0, 3.0], 2.0) -> tensor([ True, False], dtype=bool)
less_equal | Return a <= b | [1.0, 2.0], 2.0) -> tensor([ True,  True], dtype=bool)
log | Return the natural logarithm of x | [1.0, 2.0]) -> tensor([0.       , 0.6931472])
log1p | Return log(1 + x), accurate also near 0 | [0.0, 1.0]) -> tensor([0.       , 0.6931472])
logical_and | Return whether both a and b hold | np.array([True, False]), True) -> tensor([ True, False], dtype=bool)
logical_not | Return whether x does not hold | np.array([True, False])) -> tensor([False,  True], dtype=bool)
logical_or | Return whether a or b holds | np.array([True, False]), False) -> tensor([ True, False], dtype=bool)
maximum | Return the larger of a and b, or NaN if either is NaN | [1.0, 3.0], 2.0) -> tensor([2., 3.])
minimum | Return the smaller of a and b, or NaN if either is NaN | [1.0, 3.0], 2.0) -> tensor([1., 2.])
mul | Return a b | [1.0, 2.0], 3.0) -> tensor([3., 6.])
neg | Return -x | [1.0, -2.0]) -> tensor([-1.,  2.])
not_equal | Return a != b | [1.0, 2.0], 2.0) -> tensor([ True, False], dtype=bool)
pow | Return a^b
round | Return the nearest integer, the even one for halves | [0.5, 1.5, 1.7]) -> tensor([0., 2., 2.])
rsqrt | Return 1 / sqrt(x) | [1.0, 4.0]) -> tensor([1. , 0.5])
sign | Return -1, 0 or 1, with the sign of x | [-2.0, 0.0, 3.0]) -> tensor([-1.,  0.,  1.])
sin | Return the sine of x radians | [0.0, 1.0]) -> tensor([0.      , 0.841471])
sqrt | Return the square root of x | [1.0, 2.0]) -> tensor([1.       , 1.4142135])
square | Return x^2 | [2.0, 3.0]) -> tensor([4., 9.])
sub | Return a - b | [3.0, 2.0], 1.0) -> tensor([2., 1.])
tanh | Return (e^x - e^-x) / (e^x + e^-x) | [0.0, 1.0]) -> tensor([0.       , 0.7615942])
"""  # noqa: E501
EXAMPLES: Mapping[str, Sequence[str]] = {row.partition(" | ")[0]: row.split(" | ")[1:] for row in TEXT.split("\n")}
