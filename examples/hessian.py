"""Newton's method by Hessian-vector products, in forward over reverse mode. Run: python examples/hessian.py

Each product costs about three evaluations of the function, whatever its size, and runs at once on NumPy arrays.
"""

import numpy as np

import tracegrad as tg


def rosenbrock(x):
    return tg.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def hvp(x, v):
    """Return the product of the Hessian at x and the vector v."""
    return tg.jvp(tg.grad(rosenbrock), (x,), (v,))[1]


def solve(x: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
    """Solve H(x) s = b by conjugate gradients, and stop where the curvature is not positive."""
    s, r = np.zeros_like(b), b
    p = r
    for _ in range(steps):
        hp = hvp(x, p)
        curvature = p @ hp
        if curvature <= 0 or r @ r < 1e-12:
            return s if s.any() else b
        alpha = (r @ r) / curvature
        s, new = s + alpha * p, r - alpha * hp
        p, r = new + (new @ new) / (r @ r) * p, new
    return s


def main(n: int = 6, steps: int = 60) -> float:
    x = np.full(n, -0.5, np.float32)
    for step in range(steps):
        value, g = tg.value_and_grad(rosenbrock)(x)
        if step % 5 == 0:
            print(f"{step:3} f = {value:.6f}  |gradient| = {np.linalg.norm(g):.5f}")
        direction, size = solve(x, -g, 3 * n), 1.0
        while size > 1e-6 and rosenbrock_at(x + size * direction) > value + 1e-4 * size * (g @ direction):
            size /= 2
        x = (x + size * direction).astype(np.float32)
    print("x =", np.round(x, 3))
    return float(np.abs(x - 1).max())


def rosenbrock_at(x: np.ndarray) -> float:
    return float(tg.vmap(rosenbrock)(x[None])[0])


if __name__ == "__main__":
    main()
