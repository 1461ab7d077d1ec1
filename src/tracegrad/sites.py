"""Sites that `tg.capture` and `tg.patch` mark in a loss or forward, as the user can list them."""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.dtypes import TensorType
from tracegrad.errors import Site

PATCH = "patch."  # program inputs that belong to patch sites; no input of a user can have a dot in its name
VALUE, MASK = "value", "mask"


class SiteInfo(NamedTuple):
    """One site; prints as `patch attn.0: f32[2,4,8]  # model.py:14`."""

    kind: str  # "capture" or "patch"
    name: str
    type: TensorType
    site: Site | None  # the user's line

    def __repr__(self) -> str:
        where = f"  # {self.site.short}" if self.site else ""
        return f"{self.kind} {self.name}: {self.type}{where}"

    __str__ = __repr__


def patch_leaf(name: str, part: str) -> str:
    """The name of a patch site's leaf, and of the program's input: `patch.attn.0.value` or `patch.attn.0.mask`."""
    return f"{PATCH}{name}.{part}"
