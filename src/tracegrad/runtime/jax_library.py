"""JAX itself, as a value without types. Loaded where a session on JAX is opened; else it may be missing."""

from __future__ import annotations

import importlib
from typing import Any

jax: Any = importlib.import_module("jax")  # `import jax` would mean the module beside this one, to a type checker
jnp: Any = importlib.import_module("jax.numpy")
multihost: Any = importlib.import_module("jax.experimental.multihost_utils")
JaxError: type[Exception] = jax.errors.JaxRuntimeError
