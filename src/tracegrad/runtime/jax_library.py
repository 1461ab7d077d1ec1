"""The module jax, without types. Imported only when a session on JAX is opened, because JAX can be missing."""

from __future__ import annotations

import importlib
from typing import Any

jax: Any = importlib.import_module("jax")  # to a type checker, `import jax` would mean the module beside this one
jnp: Any = importlib.import_module("jax.numpy")
multihost: Any = importlib.import_module("jax.experimental.multihost_utils")
JaxError: type[Exception] = jax.errors.JaxRuntimeError
