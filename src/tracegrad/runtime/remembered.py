"""Remember adapters and wgpu-py's header between processes, so that most need not ask a child or parse C.

The rows of adapters are kept in the user's cache directory, with everything that could change them, and are valid only
while all of it is the same. Reading the rows deletes them; they are written again after a device opened. So if a driver
crashes or hangs this process, the next process asks a child.

What cffi reads in the header is kept as JSON, under a hash of the header and of all code that reads it. Parsing 0.1 MB
of C takes 0.3 of the 0.48 s to import wgpu; loading the JSON takes 0.02 s. The header is parsed if anything differs
from cffi 2, or if another user could have written the file. The file is JSON, not pickle: a damaged or forged file can
only give wrong descriptions of C types, and cannot run code.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tracegrad.runtime import cffi_names
from tracegrad.runtime.cache import cache_folder, is_own, key_of, put

VARIABLE = "TRACEGRAD_PROBE"  # "always": ask in every process
NODES = ("/dev/dri/*", "/dev/nvidia*", "/dev/kfd", "/dev/dxg", "/dev/mali*", "/dev/nvhost-gpu")
FACTS = ("/proc/sys/kernel/random/boot_id", "/proc/driver/nvidia/version", "/proc/sys/kernel/osrelease")
READ_BY_DRIVERS = (
    "VK_", "WGPU_", "MESA_", "LIBGL_", "GALLIUM_", "LP_", "ZINK_", "NVIDIA_", "CUDA_VISIBLE", "__GL", "__NV", "__VK",
    "DRI_", "RADV_", "AMD_", "ANV_", "INTEL_", "LD_", "DYLD_", "DISPLAY", "WAYLAND_", "XDG_RUNTIME", "XDG_CONFIG",
    "XDG_DATA", "ENABLE_", "DISABLE_",
)  # fmt: skip
MANIFESTS = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "VK_ADD_DRIVER_FILES", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH")

Rows = list[dict[str, Any]]


def take() -> Rows | None:
    """Return the rows from a child if nothing has changed since; they are deleted until `keep` is called."""
    path = _path()
    if path is None:
        return None
    try:
        with contextlib.suppress(FileNotFoundError):
            if not is_own(path):
                return None
            text = path.read_text(encoding="utf-8")
            path.unlink()
            said = json.loads(text)
            if said["circumstances"] == circumstances():
                return cast("Rows", said["rows"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # the contents are unusable, so a child is asked
    return None


def keep(rows: Rows) -> None:
    """Store the rows if there is a place to store them."""
    path = _path()
    if path is None:
        return
    with contextlib.suppress(OSError):
        put(path, json.dumps({"circumstances": circumstances(), "rows": rows}).encode())


def _path() -> Path | None:
    """Return the file of the rows: one for each set of circumstances, so a machine with two environments keeps both."""
    if os.name != "posix" or sys.platform == "emscripten" or os.environ.get(VARIABLE, "") == "always":
        return None
    digest = key_of(json.dumps(circumstances()))
    try:
        return cache_folder() / f"adapters-{digest}.json"
    except OSError:
        return None


def circumstances() -> list[Any]:
    """Return everything that decides which adapters wgpu finds here, as plain data."""
    found = importlib.util.find_spec("wgpu")
    package = Path(found.origin).parent if found is not None and found.origin else Path()
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
    return [path for folder in folders for path in _within(Path(folder, "vulkan"))]


def _within(folder: Path) -> Iterator[Path]:
    for kind in ("icd.d", "implicit_layer.d", "explicit_layer.d"):
        yield from sorted((folder / kind).glob("*.json"))


def _library(manifest: Path) -> Path | None:
    """Return the driver that a manifest names by its path."""
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


LONG = 50_000  # characters; parsing less takes no time
LOCK = threading.Lock()  # without it two threads would each take the other's reader for cffi's


@contextlib.contextmanager
def read_once() -> Generator[None]:
    """Stop cffi from parsing, inside the block, a long header that it has read in an earlier process."""
    with LOCK:
        try:
            version: str = importlib.import_module("cffi").__version__
            parser: Any = importlib.import_module("cffi.cparser").Parser
            folder, parse = cache_folder(), parser.parse
        except (ImportError, AttributeError, OSError):
            yield
            return
        parser.parse = _reader(parse, version, folder)
        try:
            yield
        finally:
            parser.parse = parse


def _reader(parse: Callable[..., None], version: str, folder: Path) -> Callable[..., None]:
    """Return cffi's `parse`, which stores the result for a long header in a folder."""

    def read(self: object, source: str, override: bool = False, **options: Any) -> None:
        if len(source) < LONG or override or any(options.values()) or vars(self)["_declarations"]:
            parse(self, source, override=override, **options)
            return
        path = folder / f"header-{key_of(source, version, sys.version, sys.prefix)}.json"
        known = _kept(path)
        if known is not None:
            vars(self).update(known)
        else:
            parse(self, source)
            with contextlib.suppress(Exception):  # if this fails, the next process parses as well
                put(path, as_json({name: x for name, x in vars(self).items() if name != "_structnode2type"}).encode())
        cffi_names.declare_what_occurs(self)  # because importing wgpu reads types already

    return read


def _kept(path: Path) -> dict[str, Any] | None:
    """Return the contents of a file, if this user wrote it."""
    try:
        if not is_own(path):
            return None
        known = from_json(path.read_text(encoding="utf-8"))
        os.utime(path)
    except Exception:  # whatever the file contains
        return None
    return known if "_declarations" in known else None


# Values are JSON's, or a list with a tag in front: a container, or the number of one of cffi.model's types.
CONTAINERS: Mapping[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "list": list, "set": set, "dict": dict}


def as_json(state: Mapping[str, Any]) -> str:
    """Return the state of a cffi parser as text. Raise TypeError for objects other than data and cffi.model's types."""
    base: type = importlib.import_module("cffi.model").BaseTypeByIdentity
    types: list[Any] = []
    numbers: dict[int, int] = {}

    def number(x: Any) -> int:
        if id(x) not in numbers:
            numbers[id(x)] = len(types)
            types.append(x)
        return numbers[id(x)]

    def plain(x: Any) -> Any:
        if x is None or isinstance(x, (bool, int, str)):
            return x
        if isinstance(x, base):
            return ["type", number(x)]
        if type(x).__name__ not in CONTAINERS:
            raise TypeError(f"{type(x)} is not kept")
        kind = type(x).__name__
        return [kind, *map(plain, x.items() if kind == "dict" else x)]

    known = plain(dict(state))
    rows: list[Any] = []
    while len(rows) < len(types):  # a type can name further ones
        rows.append([type(types[len(rows)]).__name__, plain(vars(types[len(rows)]))])
    return json.dumps([known, rows])


def from_json(text: str) -> dict[str, Any]:
    """Return the argument of `as_json`. Raise an exception of some kind if the text is damaged."""
    model: Any = importlib.import_module("cffi.model")
    known, rows = json.loads(text)
    makers: list[type] = [getattr(model, name) for name, _ in rows]
    if not all(issubclass(maker, model.BaseTypeByIdentity) for maker in makers):
        raise TypeError("not a type of cffi.model")
    types: list[Any] = [object.__new__(maker) for maker in makers]

    def value(x: Any) -> Any:
        if not isinstance(x, list):
            return x
        tag, *items = cast("list[Any]", x)
        return types[items[0]] if tag == "type" else CONTAINERS[tag](map(value, items))

    for made, (_, attributes) in zip(types, rows):
        made.__dict__.update(value(attributes))
    return value(known)
