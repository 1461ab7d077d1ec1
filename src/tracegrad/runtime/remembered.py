"""Remember adapters and wgpu's C types between processes, so that most processes need no child and parse no C.

The rows of adapters are kept in the user's cache directory, in a file whose name contains a hash of everything that
could change them. Reading the rows deletes them; they are written again after a device opened. So if a driver crashes
or hangs this process, the next process asks a child.

The tables of C types (wgpu_types.py) are kept under a hash of the header and of cffi, in a file whose name contains the
hash of its contents. They are data: nothing in the file is executed. The header is compiled again if anything differs,
or if another user could have written the file.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, cast

from tracegrad.runtime.cache import cache_folder, find, is_own, key_of, put
from tracegrad.runtime.wgpu_types import compiled

VARIABLE = "TRACEGRAD_PROBE"  # "always": each process asks a child for the adapters
NODES = ("/dev/dri/*", "/dev/nvidia*", "/dev/kfd", "/dev/dxg", "/dev/mali*", "/dev/nvhost-gpu")
FACTS = ("/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version", "/proc/sys/kernel/osrelease")
READ_BY_DRIVERS = (
    "VK_", "WGPU_", "MESA_", "LIBGL_", "GALLIUM_", "LP_", "ZINK_", "NVIDIA_", "CUDA_VISIBLE", "__GL", "__NV", "__VK",
    "DRI_", "RADV_", "AMD_", "ANV_", "INTEL_", "LD_", "DYLD_", "DISPLAY", "WAYLAND_", "XDG_RUNTIME", "XDG_CONFIG",
    "XDG_DATA", "ENABLE_", "DISABLE_", "GALLIVM_",
)  # fmt: skip
MANIFESTS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH")

Rows = list[dict[str, Any]]


def take() -> Rows | None:
    """Return the rows from a child if nothing has changed since; they are deleted until `keep` is called."""
    # unusable contents are ignored, so a child is asked
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        path = _path()
        if is_own(path):
            text = path.read_text(encoding="utf-8")
            path.unlink()
            return cast("Rows", json.loads(text)["rows"])
    return None


def keep(rows: Rows) -> None:
    """Store the rows if there is a place to store them."""
    with contextlib.suppress(OSError):
        put(_path(), json.dumps({"rows": rows}).encode())


def _path() -> Path:
    """Return the file of the rows: one for each set of circumstances, so a machine with two environments keeps both.

    Raises OSError where no rows are kept.
    """
    if os.name != "posix" or sys.platform == "emscripten" or os.environ.get(VARIABLE, "") == "always":
        raise FileNotFoundError("rows are not kept here")
    digest = key_of(json.dumps(circumstances()))
    return cache_folder() / f"adapters-{digest}.json"


def circumstances() -> list[Any]:
    """Return everything that determines the adapters that wgpu finds here, as plain data."""
    package = _origin("wgpu").parent
    files = [package / "_version.py", *sorted((package / "resources").glob("*wgpu_native*")), Path("/etc/ld.so.cache")]
    named = [os.environ[n].split(os.pathsep) for n in (*MANIFESTS, "WGPU_LIB_PATH") if os.environ.get(n)]
    files += [Path(p) for part in named for p in part]
    files += manifests()
    files += [library for manifest in files if (library := _library(manifest)) is not None]
    nodes = sorted(path for pattern in NODES for path in glob.glob(pattern))
    return [
        [platform.node(), platform.version(), platform.machine(), sys.prefix, os.getuid(), sorted(os.getgroups())],
        [_text(Path(path)) for path in FACTS],
        [[str(path), *_stamp(path)] for path in files],
        [[node, *_stamp(Path(node))[1:5], os.access(node, os.R_OK | os.W_OK)] for node in nodes],
        sorted([n, v] for n, v in os.environ.items() if n.startswith(READ_BY_DRIVERS)),
    ]


def manifests() -> list[Path]:
    """Return the files that announce Vulkan drivers and layers, from where the loader looks for them."""
    home = Path.home()
    folders = [
        os.environ.get("XDG_CONFIG_HOME") or str(home / ".config"),
        os.environ.get("XDG_DATA_HOME") or str(home / ".local/share"),
        *(os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep),
        *(os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep),
        "/etc",
        "/usr/local/etc",
    ]
    kinds = [Path(folder, "vulkan", x) for folder in folders for x in ("icd.d", "implicit_layer.d", "explicit_layer.d")]
    return [path for kind in kinds for path in sorted(kind.glob("*.json"))]


def _library(manifest: Path) -> Path | None:
    """Return the driver that a manifest names by its path; None if it names no path."""
    try:
        said: Any = json.loads(manifest.read_text(encoding="utf-8")) if manifest.suffix == ".json" else {}
        name = str((said.get("ICD") or said.get("layer"))["library_path"])
        return manifest.parent / name if "/" in name else None
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None


def _stamp(path: Path) -> list[int]:
    """Return properties of a file that differ after the file changed."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_rdev, found.st_size, found.st_mtime_ns]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def types() -> str:
    """Return the tables of wgpu's C types, compiled before or now; "" on errors, or if wgpu is loaded already."""
    if "wgpu" in sys.modules:
        return ""
    with contextlib.suppress(OSError):
        if text := types_file().read_text(encoding="utf-8"):
            return text
    with contextlib.suppress(Exception):  # cffi can raise any kind; wgpu-py then parses the header itself
        header, key = _header()
        if header:
            text = compiled(header)
            with contextlib.suppress(OSError):
                put(cache_folder() / f"types-{key}-{key_of(text)}", text.encode())
            return text
    return ""


def types_file() -> Path:
    """Return the file with the tables of C types; an empty file if no process has written one that is valid."""
    with contextlib.suppress(OSError):
        return find(cache_folder(), f"types-{_header()[1]}") or Path(os.devnull)
    return Path(os.devnull)


def _header() -> tuple[str, str]:
    """Return wgpu's header, and the key of its types: everything that decides the tables."""
    header, cffi = _text(_origin("wgpu").parent / "resources" / "combined_header.h"), _origin("_cffi_backend")
    return header, key_of(header, str(cffi), *map(str, _stamp(cffi)), sys.version)


def _origin(module: str) -> Path:
    """Return the file that a module is loaded from."""
    found = importlib.util.find_spec(module)
    return Path(found.origin if found is not None and found.origin else "")
