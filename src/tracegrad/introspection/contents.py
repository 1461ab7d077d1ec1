"""What a file that tracegrad wrote holds, in words: checkpoints, parameters, exported programs and pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracegrad import safetensors
from tracegrad.engine.inputs import describe
from tracegrad.errors import InputError
from tracegrad.introspection.memory import NAMES
from tracegrad.introspection.tables import Table, amount

ROLES = {**NAMES, "data": "examples", "fed": "batches"}


def contents(path: Path) -> str:
    """A checkpoint's or a parameter file's tensors; an exported program's values, memory and dispatches.

    path: a .safetensors file, a Program's JSON, a site's program.json, or the folder of a site.
    Raises: InputError for a file of another kind or a damaged one; OSError.
    """
    if path.is_dir():
        path = path / "program.json"
    if path.suffix == ".safetensors":
        return _tensors(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _manifest(found) if "train" in found else _program(found)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        kinds = "a .safetensors file, a program.json, the JSON of a Program, or the folder of an exported site"
        raise InputError(f"{path} is nothing that tracegrad wrote; expected {kinds}") from e


def _tensors(path: Path) -> str:
    file = safetensors.read(path)
    total = sum(x.size for x in file.tensors.values())
    rows = [(name, describe(x), f"{x.size:,}") for name, x in file.tensors.items()]
    rows.append(("total", "", f"{total:,}"))
    table = Table(("name", "type", "count"), rows, left=("name", "type"), total=True)
    head = [f"{path.name}: {len(file.tensors)} tensors, {amount(4 * total, 'B')}"]
    if "tracegrad" in file.metadata:
        head = [f"{path.name}: a checkpoint"]
        head += [f"  {key}: {value}" for key, value in file.metadata.items() if key != "tracegrad"]
    return "\n".join([*head, "", table.text(widest=max(len(row[0]) for row in rows))])


def _manifest(found: Mapping[str, Any]) -> str:
    head = f"A page's program, {found['title']!r}; seed {found['seed']}, learning rate {json.dumps(found['lr'])}"
    parts = [head, "", _program(found["train"])]
    for name, forward in found["forwards"].items():
        parts += ["", f"Forward {name}", _program(forward["program"])]
    return "\n".join(parts)


def _program(p: Mapping[str, Any]) -> str:
    kernels: Sequence[Any] = p["kernels"]
    memory = Counter[str]()
    for b in p["buffers"]:
        role = str(b["role"])
        memory[ROLES.get(role, role)] += (2 if b["dtype"] == "f16" else 4) * int(b["size"])
    values = [
        f"  {what}: {', '.join(_field(f) for f in p[what]) or 'none'}" for what in ("inputs", "params", "outputs")
    ]
    rows = [
        (str(number), kernels[d["kernel"]]["label"], f"{d['grid'][0] * d['grid'][1]:,}")
        for number, d in enumerate(p["dispatches"])
    ]
    return "\n".join(
        [
            f"{len(kernels)} kernels, {len(rows)} dispatches, {len(p['copies'])} copies a run",
            *values,
            "  memory: " + ", ".join(f"{role} {amount(n, 'B')}" for role, n in memory.items()),
            *(f"  dispatches {x['begin']} to {x['end'] - 1} run {x['count']} times" for x in p["loops"]),
            "",
            Table(("#", "kernel", "workgroups"), rows, left=("kernel",)).text(),
        ]
    )


def _field(f: Mapping[str, Any]) -> str:
    return f"{f['name']} {f['dtype']}[{','.join(map(str, f['shape']))}]"
