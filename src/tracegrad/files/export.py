"""`train.export`: a training as a static site, or as one HTML file, that trains in a browser without Python.

The page runs the same Program that trains here, from the same parameters, optimizer state, step and seed. The site has
the files of `tracegrad/js`, joined but unchanged, and data. Only JSON is generated.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracegrad import lr as schedules, safetensors
from tracegrad.arrays import HAVE_NUMPY, Array, as_array, describe, np
from tracegrad.compiler.build import Built
from tracegrad.compiler.dispatches import blamed
from tracegrad.compiler.feed import make_feed
from tracegrad.engine.forward import CompiledForward
from tracegrad.engine.inputs import fit_value, fitted
from tracegrad.engine.stepper import Snapshot, Stepper
from tracegrad.errors import InputError
from tracegrad.files import checkpoints
from tracegrad.files.atomic import replace_file, replace_files
from tracegrad.files.exported_sizes import RoomsByName, RoomSizes, exact, missing, programs, rooms_of, unnamed
from tracegrad.files.jsontext import dumped
from tracegrad.hypers import PREFIX
from tracegrad.introspection.tables import escape
from tracegrad.ir.graph import Graph
from tracegrad.program import VERSION, Field, Program
from tracegrad.refusals import shown
from tracegrad.runtime.javascript import CHECKS, core, runtime, source, without_imports

if TYPE_CHECKING:
    from tracegrad.runtime.recorded import Recorded

CURVE_POINTS = 128  # size of a free dimension in a demo that draws a curve
BINARY = ("weights", "data", "checks")  # parts of an export; the others are text
SHOWN_POINTS = 200  # examples drawn behind a curve
POLICY = (
    "default-src 'none'; script-src {script}; worker-src {worker}; style-src {style}; connect-src {connect}; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)


class Contents(NamedTuple):
    """The contents of a page besides the training. `CompiledTraining.export` documents the fields."""

    title: str
    forwards: Mapping[str, CompiledForward] | None
    data: Mapping[str, Any] | None
    labels: Sequence[str] | None
    vocabulary: Sequence[str] | None
    schedule: Sequence[str] = ()  # with several losses, their turns
    sizes: RoomSizes | Mapping[str, RoomSizes] | None = None


def export(
    snapshots: Sequence[Snapshot], steppers: Sequence[Stepper], path: str | os.PathLike[str], contents: Contents, *,
    single_file: bool,
) -> Path:  # fmt: skip
    """Write the site of a training. Returns its HTML file. snapshots, steppers: one for each loss.

    Raises InputError for contents that do not fit.
    """
    check_contents(path, contents, single_file)
    layout, attached = snapshots[0].program, dict[str, Any](contents.forwards or {})
    chosen = [x.source.free for x in (*steppers, *attached.values()) if isinstance(x, (Stepper, CompiledForward))]
    sizes = {} if contents.sizes is None else rooms_of(contents.sizes, chosen)
    steps = [steps_of(stepper, sizes) for stepper in steppers]
    fields = {f.name: f for first, *_ in steps for f in first.program.inputs if not f.name.startswith(PREFIX)}
    rows = checked_data(list(fields.values()), contents.data or {})
    forwards = {name: forwards_of(name, f, layout, sizes) for name, f in attached.items()}
    manifest: dict[str, Any] = {
        "version": VERSION,
        "title": contents.title,
        "seed": snapshots[0].seed,
        "forwards": {name: demo_of(b, rows) for name, b in forwards.items()},
        "labels": list(map(str, contents.labels or ())),
        "vocabulary": list(map(str, contents.vocabulary or ())),
    }
    own, checked = losses_of(snapshots, steps, rows)
    manifest |= {"losses": own[1:], "schedule": list(contents.schedule), **own[0]}
    for name, b in forwards.items():
        checked |= checks_at("", f"forwards.{name}", b)
    weights, data = b"".join(checkpoints.parts(*snapshots)), b"".join(safetensors.parts(rows)) if rows else b""
    checks = checks_of({name: check for name, check in checked.items() if check})
    manifest["checked"] = bool(checks)
    parts = {"program": manifest, "weights": weights, "data": data, "checks": checks}
    if single_file:
        return write_file(path, contents.title, parts)
    return write_site(Path(path), contents.title, parts)


def check_contents(path: str | os.PathLike[str], contents: Contents, single_file: bool) -> None:
    """Raise InputError for a path or for contents that do not fit."""
    if not os.fspath(path):
        raise InputError.here("export: the path is empty; name a folder, such as 'site', or '.' for this one")
    if not single_file and Path(path).suffix in (".html", ".htm"):
        raise InputError.here(
            f"export: {os.fspath(path)} names a file, but export writes a folder; for one file pass single_file=True"
        )
    given: object
    for name, example in (("labels", '["cat", "dog"]'), ("vocabulary", '["a", "b"]')):
        given = getattr(contents, name)
        if not isinstance(given, Iterable | None):
            raise InputError.here(f"export: pass {name} as a list of texts, such as {example}; got {shown(given)}")
    for name, example in (("forwards", '{"predict": infer}'), ("data", '{"x": xs, "y": ys}')):
        given = getattr(contents, name)
        if not isinstance(given, Mapping | None):
            raise InputError.here(
                f"export: pass {name} as a dict by name, such as {example}; got {type(given).__name__}"
            )


def losses_of(
    snapshots: Sequence[Snapshot], steps: Sequence[Sequence[Built]], rows: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Recorded | None]]:
    """Return the program of each loss as plain data, and the checks. The first loss is at the top of the manifest."""
    found: list[dict[str, Any]] = []
    checked: dict[str, Recorded | None] = {}
    for k, (snapshot, built) in enumerate(zip(snapshots, steps, strict=True)):
        program, own = built[0].program, loss_of(snapshot, built)
        at = f"{program.part}." if k else ""
        checked |= checks_at(at, "train", built)
        if rows:
            given = [f for f in program.inputs if f.name in rows]
            feed = make_feed(program, [f.name for f in given if rows[f.name].shape != f.shape])
            own["feed"], checked[f"{at}feed"] = feed.to_data(), check_of(feed)
        found.append(own)
    return found, checked


def write_site(folder: Path, title: str, parts: Mapping[str, Any]) -> Path:
    """Write the folder of a static site. Returns its index.html."""
    folder.mkdir(parents=True, exist_ok=True)
    policy = POLICY.format(script="'self'", worker="'self'", style="'self'", connect="'self'")
    head = '<link rel="stylesheet" href="page.css">'
    body = '<script type="module" src="page.js"></script>'
    files = {
        "index.html": page(title, policy, head, body),
        "page.css": source("page.css"),
        "page.js": source("page.js"),
        "tracegrad.js": runtime(),
        **{f"{name}.js": source(f"{name}.js") for name in CHECKS},
        "tracegrad.d.ts": source("tracegrad.d.ts"),
        "worker.js": source("worker.js"),
        "program.json": json_text(parts["program"]),
    }
    contents = {name: [text.encode()] for name, text in files.items()}
    contents |= {f"{name}.safetensors": [parts[name]] for name in BINARY if parts[name]}
    replace_files({folder / name: blobs for name, blobs in contents.items()})
    return folder / "index.html"


def write_file(path: str | os.PathLike[str], title: str, parts: Mapping[str, Any]) -> Path:
    """Write one HTML file with everything in it, which works from file://. Returns its path."""
    target = Path(path)
    if target.is_dir() or not target.suffix:
        target = target / "index.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    style, script = source("page.css"), source("page.js")
    policy = POLICY.format(script=f"{digest(script)} blob:", worker="blob:", style=digest(style), connect="'none'")
    blocks = [
        data_block("core", "text/plain", core()),
        data_block("client", "text/plain", without_imports("tracegrad.js")),
        data_block("program", "application/json", json_text(parts["program"])),
        *[data_block(name, "text/plain", base64.b64encode(parts[name]).decode()) for name in BINARY],
        f'<script type="module">{script}</script>',
    ]
    text = page(title, policy, f"<style>{style}</style>", "\n".join(blocks))
    replace_file(target, [text.encode()])
    return target


def loss_of(snapshot: Snapshot, built: Sequence[Built]) -> dict[str, Any]:
    """Return a loss's programs, learning rate and hyperparameters as plain data, without weights."""
    rate = snapshot.knobs.rate.schedule.spec()
    schedules.from_spec(rate)  # raises here for a user's own schedule, which has no counterpart in the browser
    return {
        "train": built[0].program.to_data(),
        "rooms": [b.program.to_data() for b in built[1:]],
        "checkpoint": [asdict(f) for f in checkpoints.fields_of(built[0].program)],
        "lr": dict(rate),
        "hyper": dict(snapshot.knobs.values),
    }


def steps_of(stepper: Stepper, sizes: RoomsByName) -> list[Built]:
    """Return the programs of a loss: one, or if calls choose sizes, the programs for all sizes up to `sizes`."""
    source = stepper.source
    if not source.free.axes:
        return [stepper.built]
    what = f"the loss {stepper.program.part!r}" if stepper.program.part else "step"
    if absent := unnamed(source.free, sizes):
        raise missing(source.free, absent, what)
    return programs(source, sizes, what)


def forwards_of(name: str, forward: CompiledForward, program: Program, sizes: RoomsByName) -> list[Built]:
    """Build a forward for a page: first for its demo, then for the sizes that calls choose, if `sizes` has the largest.

    Raises InputError unless the forward shares the parameters of `program`, the step's program.
    """
    store = getattr(forward, "store", None)
    if store is None or store.layout is not program:
        raise InputError.here(
            f"export: the forward {name!r} is not attached to this training; make it with train.attach(...)"
        )
    source = forward.source._replace(like=program, model=store.model)
    free = source.free  # built for one example; if an example is one number, for the points of a curve
    shapes = [t.shape for t in free.types.values()]
    curve = all(len(shape) == 2 and not isinstance(shape[0], int) and shape[1] == 1 for shape in shapes)
    demo = exact(source, free.all(CURVE_POINTS if curve else 1))
    if not sizes or unnamed(free, sizes) == list(free.axes):
        return [demo]
    if absent := unnamed(free, sizes):
        raise missing(free, absent, f"the forward {name!r}")
    more = programs(source, sizes, f"the forward {name!r}")
    return [demo, *[b for b in more if b.program.meta["room"] != demo.program.meta["room"]]]


def demo_of(found: Sequence[Built], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the programs of a forward, and the demo that shows the first, as plain data."""
    built = found[0]
    fields = [f for f in built.program.inputs if not f.name.startswith(PREFIX)]
    demo = demo_kind(fields, built, data)
    rooms = [b.program.to_data() for b in found[1:]]
    return {"program": built.program.to_data(), "rooms": rooms, "structure": built.structure, "demo": demo}


def checks_at(before: str, name: str, found: Sequence[Built]) -> dict[str, Recorded | None]:
    """Return the checks of the programs of a step or forward, by the names that the page uses."""
    return {f"{before}{k or ''}{name}": check_of(b.program, b.graph) for k, b in enumerate(found)}


def check_of(program: Program, graph: Graph | None = None) -> Recorded | None:
    """Return data to check a program's kernels in a browser; None without NumPy. graph: has the user's source lines."""
    if not HAVE_NUMPY:
        return None
    from tracegrad.runtime.recorded import recorded

    lines = blamed(graph, program) if graph else {}
    return recorded(program, {n: [site.short for site in sites] for n, sites in lines.items()})


def checks_of(found: Mapping[str, Recorded]) -> bytes:
    """Join all checks into one file; b"" if there are none."""
    if not found:
        return b""
    from tracegrad.runtime.recorded import file_of

    return file_of(found)


def demo_kind(fields: Sequence[Field], built: Built, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of demo for a forward: a canvas to draw on, a curve, a text to continue, or plain numbers."""
    plain = {"kind": "values"}
    if len(fields) != 1 or built.structure is not None:
        return plain
    (x,), (y,) = fields, [f for f in built.program.outputs if f.name == "output"]
    if x.dtype == "f32" and len(x.shape) == 4 and x.shape[:2] == (1, 1) and y.size <= 100:
        return {"kind": "image", "height": x.shape[2], "width": x.shape[3]}
    if x.dtype == "f32" and len(x.shape) == 2 and x.shape[1] == 1 and y.shape == x.shape:
        return {"kind": "curve", **_points(x.name, data)}
    if x.dtype == "i32" and len(x.shape) == 2 and x.shape[0] == 1 and len(y.shape) == 3:
        return {"kind": "tokens", "context": x.shape[1], "size": y.shape[2]}
    return plain


def _points(name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the range and some points of one-dimensional data, to draw behind the curve."""
    xs = data.get(name)
    ys = next((v for n, v in data.items() if n != name and xs is not None and v.shape == xs.shape), None)
    if xs is None or ys is None or not xs.size:
        return {"low": -math.pi, "high": math.pi, "points": []}
    some = slice(None, None, max(1, len(xs) // SHOWN_POINTS))
    points = [[float(a), float(b)] for a, b in zip(xs[some, 0], ys[some, 0])]
    return {"low": float(xs.min()), "high": float(xs.max()), "points": points}


def checked_data(inputs: Sequence[Field], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training data in the dtypes of the inputs. Raises InputError naming everything that does not fit."""
    fields = {f.name: f for f in inputs}

    def fit(name: str, value: Any) -> Array:
        f, x = fields[name], as_array(value)
        if x.shape != f.shape and (not x.ndim or not len(x) or x.shape[1:] != f.shape[1:] or not f.shape):
            raise InputError(f"expected examples of {f.dtype}{list(f.shape[1:])}, got {describe(x)}")
        return checkpoints.storable(fit_value(replace(f, shape=x.shape), x), f.dtype)

    problems = [f"{n}: no such input" for n in data if n not in fields]
    problems += [f"{n}: missing, rows of {f.type}" for n, f in fields.items() if data and n not in data]
    out = fitted({name: x for name, x in data.items() if name in fields}, fit, problems)
    lengths = {n: len(x) for n, x in out.items() if x.shape != fields[n].shape}
    batches = {fields[n].shape[0] for n in lengths}
    # an input with one batch of rows counts too: the page would use these rows at each step, beside changing rows
    lengths |= {n: len(x) for n, x in out.items() if fields[n].shape[:1] and fields[n].shape[0] in batches}
    if len(set(lengths.values())) > 1:
        problems.append(f"numbers of examples differ: {lengths}")
    if problems:
        raise InputError.here("\n  ".join(["export: the data do not fit", *problems]))
    return {n: np.ascontiguousarray(out[n]) for n in fields if n in out}


def page(title: str, policy: str, head: str, body: str) -> str:
    """Return the HTML document. The title is the only text from the user."""
    values = {"title": escape(title), "policy": escape(policy), "head": head, "body": body}
    return re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], source("page.html"))


def json_text(value: Any) -> str:
    """Return JSON without characters that an HTML parser could read as markup."""
    text = dumped(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_block(name: str, kind: str, text: str) -> str:
    """Return a script element with data, which browsers do not execute."""
    assert not re.search(r"</script|<!--", text, re.IGNORECASE), name
    return f'<script type="{kind}" id="{name}">{text}</script>'


def digest(text: str) -> str:
    """Return the hash with which a content security policy allows one inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
