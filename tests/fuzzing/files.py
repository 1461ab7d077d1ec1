"""Damaged and hostile files: each is read or refused in one sentence, in time and memory that fit its size.

  tools/fuzz_files --examples 100000 --seed 1      more than the tests run
  tools/fuzz_files --replay                        the corpus

A file that fails is kept in tests/corpus/files, which the tests read first.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import numpy as reference

import tracegrad as tg
from tracegrad import lr, nn, optim, safetensors
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.errors import InputError
from tracegrad.files import checkpoints
from tracegrad.files.contents import contents
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program

CORPUS = Path(__file__).parents[1] / "corpus" / "files"
SECONDS, MEMORY, LEAST = 3.0, 60, 3_000_000  # of the processor; bytes for each byte of a file, and for any file
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 65, 2**31, 2**32, 2**53, 2**63, 2**64, 10**20, 10**400, 0.5, -0.0, 1e308, "", "x",
    "f32", "I32", "__metadata__", "\x1b[2J", "\ud800", "numpy", [], [0], [1] * 65, [0, 10**20], [[]], {}, {"a": 1},
    [None, "x"],
)  # fmt: skip


class Seeds(NamedTuple):
    """Files as tracegrad writes them, and what checkpoints are read for."""

    files: Mapping[str, bytes]
    program: Program
    knobs: Knobs


def scanned() -> Program:
    """A program with a loop, moving offsets and a constant."""
    with tracing():
        x = leaf("input", "x", TensorType(f32, (5, 3)))
        last, each = tg.scan(lambda c, r: (tg.tanh(c + r), c * r), np.float32([1, 2, 3]), x)
        return make_program(Graph({"last": last, "all": each}), Persistent(), {}, {"kind": "forward"})


@functools.cache
def seeds() -> Seeds:
    """One file of each kind, small."""
    schedule = lr.warmup(0.1, 5, lr.cosine_annealing(0.1, 0.01, 50))
    x = {"x": (4, 3)}
    with tempfile.TemporaryDirectory() as folder, tg.compile(
        model=nn.Linear(3, 2), loss=lambda m, x: tg.mean(tg.square(m(x))), inputs=x, seed=1, device="cpu",
        optimizer=optim.adamw(lr=schedule),
    ) as train:  # fmt: skip
        at = Path(folder)
        train.step(x=np.ones((4, 3), np.float32)).result()
        train.save(at / "checkpoint.safetensors")
        some = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int32(3), "c": np.zeros((0, 2), np.float32)}
        safetensors.write(at / "some.safetensors", some, {"k": "v"})
        train.export(at / "site", forwards={"predict": train.attach(forward=lambda m, x: m(x), inputs=x)})
        files = {p.name: p.read_bytes() for p in at.glob("*.safetensors")}
        files["program.json"] = scanned().to_json().encode()
        files["manifest.json"] = (at / "site/program.json").read_bytes()
        page = b'<!doctype html><script type="application/json" id="program">%s</script>'
        files["page.html"] = page % files["manifest.json"]
        hyper = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
        return Seeds(files, train.program, Knobs(Rate(schedule), hyper))


def draw(seed: int) -> tuple[str, bytes]:
    """A name and the bytes of a file with one to three faults."""
    rng = random.Random(seed)
    name = rng.choice(sorted(seeds().files))
    data = seeds().files[name]
    for _ in range(rng.randint(1, 3)):
        data = (_other_bytes if rng.random() < 0.3 else _other_values)(rng, name, data)
    return name, data


def _other_bytes(rng: random.Random, _: str, data: bytes) -> bytes:
    """Bytes changed, inserted, cut out or repeated."""
    at, size = rng.randrange(len(data) + 1), rng.choice([1, 1, 2, 8, 64, 1000])
    some = rng.choice([rng.randbytes(size), b"[" * size, b'"' * size, b"\\" * size, b"9" * size, data[at : at + size]])
    return rng.choice(
        [data[:at] + some + data[at + size :], data[:at] + some + data[at:], data[:at] + data[at + size :]]
    )


def _other_values(rng: random.Random, name: str, data: bytes) -> bytes:
    """A value of the JSON in a file changed, its lengths kept right."""
    try:
        if name.endswith(".safetensors"):
            end = 8 + int.from_bytes(data[:8], "little")
            text = _changed(rng, data[8:end])
            return len(text).to_bytes(8, "little") + text + data[end:]
        if name.endswith(".html"):
            head, mark, rest = data.partition(b'id="program">')
            return head + mark + _changed(rng, rest.removesuffix(b"</script>")) + b"</script>"
        return _changed(rng, data)
    except (ValueError, RecursionError, OverflowError):  # it is no JSON any more
        return _other_bytes(rng, name, data)


def _changed(rng: random.Random, text: bytes) -> bytes:
    top = json.loads(text)
    holders = list(_holders(top))
    if not holders:
        return text
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    value = holder[key]
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8:  # JSON in the metadata
        holder[key] = _changed(rng, value.encode()).decode()
    elif rng.random() < 0.2:
        del holder[key]
    elif rng.random() < 0.2 and isinstance(holder, dict):
        holder[rng.choice(["numpy", "calls", "c", "own", "more", "\x1b[2J"])] = copy.deepcopy(value)
    elif isinstance(value, int) and rng.random() < 0.5:
        holder[key] = value + rng.choice([-1, 1, 4, -4, 2**31, -(2**31)])
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return json.dumps(top).encode()


def _holders(value: Any) -> Iterator[Any]:
    """Every list and object that is not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for x in value.values() if isinstance(value, dict) else value:
            yield from _holders(x)


def check(name: str, data: bytes, folder: Path) -> frozenset[str]:
    """What could read a file: some of READERS. AssertionError, or whatever reading raises, for a fault of ours."""
    path = folder / name
    path.write_bytes(data)
    seeds()  # what a checkpoint is read for is made once, and is no part of what the file takes
    began = time.process_time()
    tracemalloc.start()
    try:
        done: set[str] = set()
        for reader, read in READERS.items():
            try:
                done |= {reader} if read(path, data) else set()
            except InputError as e:
                text = str(e).partition("\n  at ")[0]
                assert len(text) < 2500 and all(c.isprintable() or c == "\n" for c in text), (reader, text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    took = time.process_time() - began
    assert took < SECONDS, f"{took:.1f} s for {len(data)} bytes"
    assert peak < LEAST + MEMORY * len(data), f"{peak} bytes of memory for a file of {len(data)}"
    return frozenset(done)


def _inspected(path: Path, _: bytes) -> bool:
    said = contents(path)
    assert all(c.isprintable() or c == "\n" for c in said)
    return True


def _values(path: Path, data: bytes) -> bool:
    if path.suffix != ".safetensors":
        return False
    ours = safetensors.read(path)
    if b"BF16" not in data[:100_000]:  # which NumPy has no type for
        theirs = reference.load(data)
        assert theirs.keys() == ours.tensors.keys()
        assert all(x.tobytes() == theirs[n].tobytes() and x.shape == theirs[n].shape for n, x in ours.tensors.items())
    return True


def _checkpoint(path: Path, _: bytes) -> bool:
    if path.suffix != ".safetensors":
        return False
    state = checkpoints.read(path, safetensors.read(path), seeds().program, seeds().knobs)
    assert 0 <= state.step < 2**32 and 0 <= state.seed < 2**32
    assert all(np.isfinite(x).all() for x in state.params.values())
    for step in (1, 2, 10, 10**6):
        state.knobs.rate.schedule.at(step)
    return True


def _program(path: Path, data: bytes) -> bool:
    if path.suffix != ".json":
        return False
    program = Program.from_json(data)
    assert all(not k.own and k.texts.lacks("numpy") and k.texts.lacks("c") for k in program.kernels)
    assert Program.from_json(program.to_json()) == program
    for _ in program.unrolled():
        pass
    return True


READERS: Mapping[str, Callable[[Path, bytes], bool]] = {
    "inspect": _inspected, "tensors": _values, "checkpoint": _checkpoint, "program": _program,
}  # fmt: skip


def keep(name: str, data: bytes, label: str) -> Path:
    """Add a file to the corpus."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    path = CORPUS / f"{label}{Path(name).suffix}"
    path.write_bytes(data)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 1 if a file failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000, help="files to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default: %(default)s)")
    parser.add_argument("--replay", action="store_true", help="read the corpus instead")
    args = parser.parse_args(argv)
    outcomes, failed = Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        seeds()
        cases = ((p.name, p.read_bytes(), p.stem) for p in sorted(CORPUS.iterdir())) if args.replay else _drawn(args)
        for name, data, label in cases:
            try:
                outcomes["read" if check(name, data, Path(folder)) else "refused"] += 1
            except Exception as e:
                failed += 1
                print(f"{label}: {type(e).__name__}: {str(e)[:300]}\n  kept as {keep(name, data, label)}")
    print(f"{dict(outcomes)}, {failed} failed")
    return 1 if failed else 0


def _drawn(args: argparse.Namespace) -> Iterator[tuple[str, bytes, str]]:
    return ((*draw(seed), f"drawn-{seed}") for seed in range(args.seed, args.seed + args.examples))


if __name__ == "__main__":
    sys.exit(main())
