"""XLA with little optimisation, for tests that compile many programs: it takes a quarter of the time.

What tracegrad gives to XLA is the same, so what it gets wrong there is wrong here, too. Other tests run what users
have: the first row of each op, and a third of the random programs and of the models.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

OPTIONS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,  # LLVM starts anew for each part of a program
}
KNOWN = "0.10."  # versions of jaxlib with these options; XLA refuses those it lacks


def options() -> dict[str, bool | int]:
    """Options of this jaxlib that make it quick; none if it is another version, or is not installed."""
    try:
        return OPTIONS if importlib.metadata.version("jaxlib").startswith(KNOWN) else {}
    except importlib.metadata.PackageNotFoundError:
        return {}


def devices(n: int) -> dict[str, str]:
    """The environment of a child that has `n` devices on the processor, and compiles quickly.

    It has no cache, because JAX reads what another process has half written.
    """
    flags = [f"--{name}={str(value).lower()}" for name, value in options().items()]
    flags.append(f"--xla_force_host_platform_device_count={n}")
    more = {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return {**os.environ, **more}


@contextmanager
def quickly() -> Iterator[None]:
    """Sessions of device="jax" that compile quickly."""
    if not options():
        yield
        return
    import jax

    with patch.object(jax, "jit", functools.partial(jax.jit, compiler_options=options())):
        yield
