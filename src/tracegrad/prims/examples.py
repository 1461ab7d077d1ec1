"""For each elementwise row that is a public function: what it returns, and an example with its result."""

TEXT = """
abs([-1.5, 2.0]) -> tensor([1.5, 2. ])
add([1.0, 2.0], 1.0) -> tensor([2., 3.])
atan2([1.0, -1.0], [1.0, -1.0]) -> tensor([ 0.7853981, -2.3561945])
ceil([1.2, -1.2]) -> tensor([ 2., -1.])
cos([0.0, 1.0]) -> tensor([1.       , 0.5403023])
div([1.0, 4.0], 2.0) -> tensor([0.5, 2. ])
equal([1.0, 2.0], 2.0) -> tensor([False,  True], dtype=bool)
erf([0.0, 1.0]) -> tensor([0.       , 0.8427008])
exp([0.0, 1.0]) -> tensor([1.      , 2.718282])
expm1([0.0, 1.0]) -> tensor([0.       , 1.7182819])
floor([1.2, -1.2]) -> tensor([ 1., -2.])
isnan([1.0, np.nan]) -> tensor([False,  True], dtype=bool)
less([1.0, 3.0], 2.0) -> tensor([ True, False], dtype=bool)
less_equal([1.0, 2.0], 2.0) -> tensor([ True,  True], dtype=bool)
log([1.0, 2.0]) -> tensor([0.       , 0.6931472])
log1p([0.0, 1.0]) -> tensor([0.       , 0.6931472])
logical_and(np.array([True, False]), True) -> tensor([ True, False], dtype=bool)
logical_not(np.array([True, False])) -> tensor([False,  True], dtype=bool)
logical_or(np.array([True, False]), False) -> tensor([ True, False], dtype=bool)
maximum([1.0, 3.0], 2.0) -> tensor([2., 3.])
minimum([1.0, 3.0], 2.0) -> tensor([1., 2.])
mul([1.0, 2.0], 3.0) -> tensor([3., 6.])
neg([1.0, -2.0]) -> tensor([-1.,  2.])
not_equal([1.0, 2.0], 2.0) -> tensor([ True, False], dtype=bool)
round([0.5, 1.5, 1.7]) -> tensor([0., 2., 2.])
rsqrt([1.0, 4.0]) -> tensor([1. , 0.5])
sign([-2.0, 0.0, 3.0]) -> tensor([-1.,  0.,  1.])
sin([0.0, 1.0]) -> tensor([0.      , 0.841471])
sqrt([1.0, 2.0]) -> tensor([1.       , 1.4142135])
square([2.0, 3.0]) -> tensor([4., 9.])
sub([3.0, 2.0], 1.0) -> tensor([2., 1.])
tanh([0.0, 1.0]) -> tensor([0.       , 0.7615942])
"""
# Name -> the rest of its line
EXAMPLES: dict[str, str] = {name: rest for name, _, rest in [line.partition("(") for line in TEXT.split("\n")]}

MEANINGS = {
    "abs": "Return |x|",
    "add": "Return a + b",
    "atan2": "Return the angle of the point (b, a), in (-pi, pi]",
    "ceil": "Return the smallest integer that is at least x",
    "cos": "Return the cosine of x radians",
    "div": "Return a / b",
    "equal": "Return a == b",
    "erf": "Return the error function, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x",
    "exp": "Return e^x",
    "expm1": "Return e^x - 1, accurate also near 0",
    "floor": "Return the largest integer that is at most x",
    "isnan": "Return whether x is NaN",
    "less": "Return a < b",
    "less_equal": "Return a <= b",
    "log": "Return the natural logarithm of x",
    "log1p": "Return log(1 + x), accurate also near 0",
    "logical_and": "Return whether both a and b hold",
    "logical_not": "Return whether x does not hold",
    "logical_or": "Return whether a or b holds",
    "maximum": "Return the larger of a and b, or NaN if either is NaN",
    "minimum": "Return the smaller of a and b, or NaN if either is NaN",
    "mul": "Return a b",
    "neg": "Return -x",
    "not_equal": "Return a != b",
    "pow": "Return a^b",
    "round": "Return the nearest integer, the even one for halves",
    "rsqrt": "Return 1 / sqrt(x)",
    "sign": "Return -1, 0 or 1, with the sign of x",
    "sin": "Return the sine of x radians",
    "sqrt": "Return the square root of x",
    "square": "Return x^2",
    "sub": "Return a - b",
    "tanh": "Return (e^x - e^-x) / (e^x + e^-x)",
}
