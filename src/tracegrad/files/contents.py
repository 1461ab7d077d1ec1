"""Descriptions of files that tracegrad writes: checkpoints, parameters, exported programs and pages.

Files are not trusted. They are checked as in loading, none of their code is executed, and control characters in names
are printed as escapes.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tracegrad import safetensors
from tracegrad.errors import InputError
from tracegrad.files.atomic import open_regular
from tracegrad.files.jsontext import cut, demand, parse, printable, shown
from tracegrad.introspection.explain import NAMES
from tracegrad.introspection.tables import Table, amount
from tracegrad.program import VERSION, Field, Program

ROLES = {**NAMES, "data": "examples", "fed": "batches"}
MOST_BYTES, MOST_JSON = 1 << 28, 1 << 26  # limits for a page, and for the program in it
LONGEST = 200  # characters shown of an entry of the metadata
WIDEST = 120  # characters shown of a name
BLOCK = b'<script type="application/json" id="program">', b"</script>"  # around the program in a single-file page
KINDS = "a .safetensors file, a program.json, the JSON of a Program, or an exported site: its folder or its HTML file"


def contents(path: Path) -> str:
    """Describe a file: the tensors of a checkpoint, or the values, memory and dispatches of an exported program.

    path: a .safetensors file, a Program's JSON, a site's program.json, the folder of a site, or a page of one file.
    Raises: InputError, in one sentence, for a file of another kind and for a damaged one; OSError.
    """
    if path.is_dir():
        path = path / "program.json"
    with open_regular(path) as f:
        size = os.fstat(f.fileno()).st_size
        begin = f.read(9)
        if path.suffix == ".safetensors" or (begin[8:] == b"{" and int.from_bytes(begin[:8], "little") <= size):
            return _tensors(path)
        if size > MOST_BYTES:
            raise InputError(f"{path} has {size} bytes; programs and pages may have at most {MOST_BYTES}")
        f.seek(0)
        data = f.read(size)  # a larger size would be allocated at once
    if begin.lstrip()[:1] == b"<":
        data = data.partition(BLOCK[0])[2].partition(BLOCK[1])[0]
    try:
        if len(data) > MOST_JSON:
            raise InputError(f"its program has {len(data)} bytes; the limit is {MOST_JSON}")
        found = parse(data)
        if not isinstance(found, dict):
            raise InputError(f"it holds {shown(found)}, not an object")
        top = cast("dict[str, Any]", found)
        return _manifest(top) if "train" in top else _program(Program.from_json(data))
    except InputError as e:
        raise InputError(f"{path} is not a file of tracegrad: {e}; expected {KINDS}") from None


def _tensors(path: Path) -> str:
    entries, metadata = safetensors.read_header(path)
    counts = [math.prod(e.shape) for e in entries]
    rows = [
        (_name(e.name), f"{e.dtype.lower()}[{','.join(map(str, e.shape))}]", f"{n:,}")
        for e, n in zip(entries, counts, strict=True)
    ]
    rows.append(("total", "", f"{sum(counts):,}"))
    table = Table(("name", "type", "count"), rows, left=("name", "type"), total=True)
    values = amount(sum(e.end - e.begin for e in entries), "B")
    kind = "a checkpoint, " if "tracegrad" in metadata else ""
    head = [f"{_name(path.name)}: {kind}{len(entries)} tensors, {values}"]
    head += [f"  {_name(k)}: {cut(printable(v[:1000]), LONGEST)}" for k, v in metadata.items() if k != "tracegrad"]
    return "\n".join([*head, "", table.text(widest=max(len(x) for row in rows for x in row))])


def _manifest(found: Mapping[str, Any]) -> str:
    if found.get("version") != VERSION:
        raise InputError(f"version {shown(found.get('version'))}; this library reads version {VERSION}")
    rate = cut(printable(json.dumps(found.get("lr"))), LONGEST)
    head = f"A page's program, {shown(found.get('title'))}; seed {shown(found.get('seed'))}, learning rate {rate}"
    parts = [head, "", _program(Program.from_data(found["train"], "train"))]
    for what, inner, kind in (("losses", "train", list), ("forwards", "program", dict)):
        given = found.get(what, kind())
        demand(isinstance(given, kind), what, given, f"a {kind.__name__}")
        for at, one in cast("list[Any]", [*given.items()] if kind is dict else [*enumerate(given)]):
            where = f"{what}[{shown(at)}]"
            demand(isinstance(one, dict) and inner in one, where, one, f"an object with {inner}")
            program = Program.from_data(one[inner], f"{where}.{inner}")
            title = f"Forward {_name(at)}" if kind is dict else f"Loss {_name(program.part)}"
            parts += ["", title, _program(program)]
    return "\n".join(parts)


def _program(p: Program) -> str:
    memory = Counter[str]()
    for b in p.buffers:
        memory[ROLES.get(b.role, b.role)] += b.bytes
    values = [
        f"  {what}: {', '.join(map(_field, fields)) or 'none'}"
        for what, fields in (("inputs", p.inputs), ("params", p.params), ("outputs", p.outputs))
    ]
    rows = [
        (str(number), printable(p.kernels[d.kernel].label), f"{math.prod(d.grid):,}")
        for number, d in enumerate(p.dispatches)
    ]
    return "\n".join(
        [
            f"{len(p.kernels)} kernels, {len(rows)} dispatches",
            *values,
            "  memory: " + ", ".join(f"{role} {amount(n, 'B')}" for role, n in memory.items()),
            *(f"  dispatches {x.begin} to {x.end - 1} run {x.count} times" for x in p.loops),
            "",
            Table(("#", "kernel", "workgroups"), rows, left=("kernel",)).text(),
        ]
    )


def _field(f: Field) -> str:
    return f"{_name(f.name)} {f.type}"


def _name(text: str) -> str:
    return cut(printable(text), WIDEST)
