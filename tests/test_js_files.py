"""Files that the browser's runtime reads, damaged: one sentence each, and never a hang or memory beyond the file's."""

from __future__ import annotations

import base64
import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import Training, gpt, gpt_logits, rnn, sine, sine_predict
from node import needs_node, run_node
from tracegrad import lr, optim, safetensors
from tracegrad.errors import InputError

pytestmark = needs_node

CORPUS = Path(__file__).parent / "corpus" / "js"
SINE = sine(batch=16, width=8, optimizer=lambda: optim.adamw(lr=lr.linear(0.1, 0.0, 9), clip_grad_norm=1.0))
RNN = rnn(batch=3, length=7, width=5)
GPT = gpt(batch=2, vocabulary=11, context=8, width=8, layers=1)
READ = """const { readManifest } = await source('manifest');
return a[0].map((text) => told(() => readManifest(text).version));"""
OPEN = """const { Training } = await source('training');
const out = [];
for (const manifest of a[0]) {
  out.push(await Training.open({ manifest, gpu: null }).then(() => null, (e) => [e.name, e.message]));
}
return out;"""
MISSING = object()


def exported(folder: Path, training: Training, **more: Any) -> Any:
    with tg.compile(**training.arguments(), seed=3, device="cpu") as train:
        if training is SINE:
            more["forwards"] = {"predict": train.attach(forward=sine_predict, inputs={"x": (None, 1)})}
        if training is GPT:
            more["forwards"] = {"write": train.attach(forward=gpt_logits, inputs={"tokens": tg.i32[None, 8]})}
        train.export(folder, **more)
    return json.loads((folder / "program.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `train.export` writes: with data, with a loop, with integers and constants."""
    folder = tmp_path_factory.mktemp("sites")
    x = np.linspace(-3, 3, 40, dtype=np.float32)[:, None]
    data = {"x": x, "y": np.sin(x)}
    return {
        "sine": exported(folder / "sine", SINE, data=data),
        "rnn": exported(folder / "rnn", RNN),
        "gpt": exported(folder / "gpt", GPT),
    }


def changed(manifest: Any, path: list[Any], value: Any) -> str:
    """The text of `manifest` with another value at `path`, or without what stands there."""
    out = copy.deepcopy(manifest)
    at = out
    for key in path[:-1]:
        at = at[key]
    if value is MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return json.dumps(out)


def assert_told(error: Any, *parts: str) -> None:
    """InputError, one sentence."""
    assert error is not None and error[0] == "InputError", error
    assert "\n" not in error[1] and len(error[1]) < 600, error
    for part in parts:
        assert part in error[1], (part, error)


def test_what_export_writes_is_taken(manifests: dict[str, Any]) -> None:
    texts = [json.dumps(m) for m in manifests.values()]
    assert run_node(READ, texts) == [[2, None]] * 3
    for name, message in run_node(OPEN, texts):
        assert name == "DeviceError" and "does not offer WebGPU" in message


TRAIN = ["train"]
FAULTS: list[tuple[list[Any], Any, str]] = [
    (["version"], 1, "program.json has version 1, and this runtime reads 2"),
    (["version"], MISSING, "was not written by train.export of tracegrad"),
    (["train"], MISSING, "train is missing, expected a record"),
    (["train"], [], "train is a list of 0, expected a record"),
    (["title"], 7, "title is 7, expected a text"),
    (["seed"], -1, "seed is -1, expected an integer below 2^32"),
    (["seed"], 2**32, "seed"),
    (["lr"], {"kind": "linear", "peak": 0.1, "steps": 5}, "schedule linear: final is missing"),
    (["lr"], None, "got null"),
    (["hyper", "beta1"], 2, "hyper: beta1 must be a number of at least 0 and below 1"),
    (["hyper", "beta1"], MISSING, "hyper.1-beta1"),
    (["hyper"], [], "hyper is a list of 0, expected a record"),
    (["labels"], ["a", 1], "labels[1] is 1, expected a text"),
    ([*TRAIN, "kernels"], MISSING, "train.kernels is missing, expected a list"),
    ([*TRAIN, "kernels", 0, "wgsl"], None, "train.kernels[0].wgsl is null, expected a text"),
    ([*TRAIN, "kernels", 0, "bindings", 0, "written"], 1, "bindings[0].written is 1, expected true or false"),
    ([*TRAIN, "kernels", 0, "slots"], 999, "its kernel takes 999"),
    ([*TRAIN, "kernels"], [], "kernel is 0; there are 0 kernels"),
    ([*TRAIN, "buffers", 0, "size"], -4, "train.buffers[0].size is -4, expected an integer of at least 0"),
    ([*TRAIN, "buffers", 0, "size"], 1.5, "train.buffers[0].size is 1.5"),
    ([*TRAIN, "buffers", 0, "size"], 2**60, "train.buffers[0].size"),
    ([*TRAIN, "buffers", 0, "size"], 2**40, "differ"),
    ([*TRAIN, "buffers", 0, "size"], 3, "train.params"),
    ([*TRAIN, "buffers", 0, "role"], "spare", "expected one of param, grad"),
    ([*TRAIN, "buffers", 0, "dtype"], "f64", "expected one of f32, i32, f16"),
    ([*TRAIN, "buffers", 0, "fill"], "zeros", "is neither a number nor the parameters"),
    ([*TRAIN, "dispatches", 0, "kernel"], 999, "train.dispatches[0].kernel is 999; there are"),
    ([*TRAIN, "dispatches", 0, "buffers", 0], 999, "train.dispatches[0].buffers[0] is 999; there are"),
    ([*TRAIN, "dispatches", 0, "buffers"], [], "train.dispatches[0].buffers are 0; its kernel takes"),
    ([*TRAIN, "dispatches", 0, "offsets", 0], 10**6, "train.dispatches[0].offsets[0] is outside its buffers"),
    ([*TRAIN, "dispatches", 0, "offsets", 0], -1, "train.dispatches[0].offsets[0] is -1"),
    ([*TRAIN, "dispatches", 0, "grid"], [1], "train.dispatches[0].grid is a list of 1, expected a list of 2"),
    ([*TRAIN, "dispatches", 0, "grid"], [1, 65536], "train.dispatches[0].grid is above 65535"),
    ([*TRAIN, "dispatches", 0, "moves"], [[0, {"depth": 0, "step": 4, "ring": 9}]], "moves no offset, or is in"),
    ([*TRAIN, "loops"], [{"begin": 0, "end": 999, "count": 2}], "train.loops[0] is not nested"),
    ([*TRAIN, "loops"], [{"begin": 999, "end": 1000, "count": 2}], "train.loops[0] has no dispatch to begin at"),
    ([*TRAIN, "loops"], [{"begin": 0, "end": 1, "count": 2**40}], "launches; the limit is 1048576"),
    ([*TRAIN, "loops"], [{"begin": 0, "end": 1, "count": 2}] * 2**13, "is not nested"),
    ([*TRAIN, "inputs", 0, "buffer"], 99, "train.inputs[0].buffer is 99; there are"),
    ([*TRAIN, "inputs", 0, "offset"], 10**6, "train.inputs[0] ends after its buffer"),
    ([*TRAIN, "inputs", 0, "shape"], [2**53 - 1, 2**53 - 1], "train.inputs[0] ends after its buffer"),
    ([*TRAIN, "inputs", 0, "shape"], [-1], "train.inputs[0].shape[0] is -1"),
    ([*TRAIN, "inputs", 0, "dtype"], "i32", "train.inputs[0].dtype is i32, in a buffer of f32"),
    ([*TRAIN, "inputs", 0, "name"], "hyper.unheard", 'train.inputs[0].name is "hyper.unheard", which has no value'),
    ([*TRAIN, "outputs"], [], "train.outputs lacks loss"),
    ([*TRAIN, "params", 0, "spec"], {}, "train.params[0].spec.init is missing"),
    ([*TRAIN, "params", 0, "spec", "init"], {"kind": "lunar"}, "train.params[0].spec.init.kind"),
    ([*TRAIN, "params", 0, "spec", "init"], {"kind": "literal", "dtype": "f32", "data": "AAAA"}, "bytes in base64"),
    ([*TRAIN, "params", 0, "buffer"], 6, "train.params[0].buffer has the role input, which is not kept"),
    ([*TRAIN, "meta", "ranges"], {"beta1": {"low": "x"}}, "train.meta.ranges.beta1.low"),
    (["checkpoint", 0, "buffer"], 6, "checkpoint[0].buffer has the role input"),
    (["feed", "buffers", 0, "name"], "data.z", "feed.buffers lacks data.x"),
    (["feed", "buffers", 4, "name"], "output.f32", "feed.buffers[4] is not an input of the step"),
    (["forwards", "predict", "program"], None, 'forwards["predict"].program is null'),
    (["forwards", "predict", "structure"], ["lost"], 'forwards["predict"].structure names something that is not'),
    (["forwards", "predict", "demo"], {"kind": "film"}, 'forwards["predict"].demo.kind'),
    (["forwards", "predict", "demo", "points"], [[1]], "demo.points[0] is a list of 1"),
    (["forwards", "predict", "program", "buffers", 0, "size"], 4, 'buffer "params" differ'),
]  # fmt: skip


def test_every_fault_of_a_program_has_its_sentence(manifests: dict[str, Any]) -> None:
    texts = [changed(manifests["sine"], path, value) for path, value, _ in FAULTS]
    for (path, _, want), (_, error) in zip(FAULTS, run_node(READ, texts), strict=True):
        assert error is not None, path
        assert_told(error, want)


def test_a_text_that_is_no_program_has_its_sentence(manifests: dict[str, Any]) -> None:
    whole = json.dumps(manifests["sine"])
    texts = [
        "",
        whole[: len(whole) // 2],
        "<!doctype html><title>404</title>",
        "null",
        "[]",
        "7",
        "{}",
        '"text"',
        "[" * 10**6,
    ]
    for error in run_node(OPEN, texts):
        assert_told(error, "program.json ")
    code = """const { readManifest } = await source('manifest');
      return [null, 7, [], undefined].map((x) => told(() => readManifest(x))[1]);"""
    for error in run_node(code):
        assert_told(error, "program.json was not written by train.export of tracegrad")


# --- fuzzed ---

# Every mutant is refused in one sentence, or taken as far as there is no device; at once, without memory of its own
FUZZ = """
const { uniform } = await source('random');
const { Training } = await source('training');
const [text, seed, mutants, given] = a;
let draws = 0;
const below = (n) => Math.floor(n * uniform(seed, draws++));
const pick = (list) => list[below(list.length)];
const JUNK = [null, true, -1, 0, 1, 2, 0.5, 7, 255, 65536, 2 ** 31, 2 ** 32, 2 ** 40, 2 ** 53, 1e300, 1e999, '', 'f32',
  'params', 'halted', '__proto__', [], [[]], [0], {}, { toString: 1 }, { length: 2 }, { kind: 'linear' }];
const places = (x, path = []) => (x && typeof x === 'object'
  ? Object.keys(x).flatMap((k) => [[...path, k], ...places(x[k], [...path, k])]) : []);
const all = places(JSON.parse(text));
function mutant() {
  const copy = JSON.parse(text);
  const path = pick(all).slice();
  const key = path.pop();
  const at = path.reduce((x, k) => x[k], copy);
  const old = at[key];
  const kind = below(6);
  if (kind === 0) delete at[key];
  else if (kind === 1 && typeof old === 'number') at[key] = old + pick([-1, 1, 1e3, -1e3]);
  else if (kind === 2 && Array.isArray(old)) at[key] = pick([old.slice(1), [...old, ...old], [...old].reverse()]);
  else if (kind === 3) at[key] = structuredClone(pick(all).reduce((x, k) => x?.[k], copy) ?? null);
  else if (kind === 4) return JSON.stringify(copy).slice(0, below(text.length));
  else at[key] = pick(JUNK);
  return JSON.stringify(copy);
}
const wrong = [];
const kinds = {};
for (let k = 0; k < (given?.length ?? mutants); k++) {
  const json = given ? given[k] : mutant();
  const before = process.memoryUsage().arrayBuffers, began = performance.now();
  const error = await Training.open({ manifest: json, gpu: null }).then(() => null, (e) => e);
  const ms = performance.now() - began, more = process.memoryUsage().arrayBuffers - before;
  kinds[error?.name] = (kinds[error?.name] ?? 0) + 1;
  const sentence = error && !/\\n/.test(error.message) && error.message.length < 600;
  const own = error?.name === 'InputError' || (error?.name === 'DeviceError' && /WebGPU/.test(error.message));
  if (own && sentence && ms < 2000 && more <= json.length) continue;
  wrong.push([json, error?.name, error?.stack ?? '', ms, more]);
}
return [wrong.slice(0, 3), kinds];
"""


@pytest.mark.parametrize("name", ["sine", "rnn"])
def test_programs_at_random_are_refused_or_taken(manifests: dict[str, Any], name: str) -> None:
    text = json.dumps(manifests[name])
    wrong, kinds = run_node(FUZZ, text, 1, 400)
    for json_text, kind, stack, ms, more in wrong:
        (CORPUS / "new.json").write_text(json_text, encoding="utf-8")
        pytest.fail(f"{kind} after {ms:.0f} ms, {more} bytes: {stack}\nthe text is in {CORPUS / 'new.json'}")
    assert kinds["InputError"] > 200 and kinds["DeviceError"] > 5, kinds  # changes of titles and texts are no faults


TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.arange(3, dtype=np.int32),
    "none": np.zeros((0, 4), np.float32),
}
# The tensors' bits by name, or the error; too slow or too much memory counts as an error of its own
SAFETENSORS = """
const { readSafetensors } = await source('safetensors');
return a[0].map((text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const before = process.memoryUsage().arrayBuffers, began = performance.now();
  const answer = told(() => [...readSafetensors(bytes).tensors].map(([name, { shape, data }]) =>
    [name, shape, Array.from(new Int32Array(data.buffer, data.byteOffset, data.length))]));
  if (performance.now() - began > 2000) return [null, ['slow', '']];
  return process.memoryUsage().arrayBuffers - before > 2 * bytes.length + 100 ? [null, ['memory', '']] : answer;
});
"""


def file_of(header: Any, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def damaged_files() -> Iterator[bytes]:
    """Of what the format forbids, one of each kind."""
    parts = safetensors.parts(TENSORS, {"a": "b"})
    header, data = json.loads(parts[1]), b"".join(parts[2:])
    whole = b"".join(parts)
    yield from (b"", whole[:7], whole[:40], whole[:-1], whole + b"\0", b"\xff" * 16)
    yield (2**40).to_bytes(8, "little") + whole[8:]
    for header_text in (b"[1]", b"7", b"null", b"\xef\xbb\xbf" + parts[1], b"\xff\xfe{}", b"{" * 100_000, b"[" * 10**6):
        yield file_of(header_text, data)
    for name, value in (
        ("w", None), ("w", 7), ("w", []), ("w", {}),
        ("__metadata__", 7), ("__metadata__", {"a": 1}), ("__metadata__", []),
    ):  # fmt: skip
        yield file_of({**header, name: value}, data)
    for key, value in (
        ("dtype", "F99"), ("dtype", None), ("dtype", {"toString": 1}), ("dtype", ["F32"]), ("more", 1),
        ("shape", [2, -3]), ("shape", [2, 1.5]), ("shape", 6), ("shape", [2, "3"]), ("shape", [2**53, 2**53]),
        ("shape", [2, 4]), ("data_offsets", [0]), ("data_offsets", [24, 0]), ("data_offsets", [0, 24, 0]),
        ("data_offsets", [4, 28]), ("data_offsets", [0, 2**60]), ("data_offsets", [0.5, 24.5]),
    ):  # fmt: skip
        yield file_of({**header, "w": {**header["w"], key: value}}, data)
    yield file_of({n: row for n, row in header.items() if n != "w"}, data)  # bytes that belong to none
    yield file_of({**header, "v": header["w"]}, data)  # overlap
    twice = parts[1].rstrip()[:-1] + b"," + json.dumps({"w": header["w"]}).encode()[1:]
    yield file_of(twice, data)
    yield file_of(parts[1].replace(b'"dtype":"F32"', b'"dtype":"I32","dtype":"F32"', 1), data)
    yield file_of(parts[1].replace(b'{"a":"b"}', b'{"a":"b","a":"c"}'), data)


def random_files(seed: int, n: int) -> Iterator[bytes]:
    """Bytes changed, removed and repeated at random."""
    rng = random.Random(seed)
    whole = b"".join(safetensors.parts(TENSORS, {"a": 'b:c\\"'}))
    for _ in range(n):
        out = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(out))
            kind = rng.randrange(4)
            if kind == 0:
                out[at] = rng.choice(b'0123456789[]{}",:\\-.eE \0\xff')
            elif kind == 1:
                del out[at : at + rng.randrange(1, 9)]
            elif kind == 2:
                out[at:at] = out[at : at + rng.randrange(1, 40)]
            else:
                out[at] ^= 1 << rng.randrange(8)
        yield bytes(out)


def python_reads(path: Path, data: bytes) -> dict[str, Any] | None:
    path.write_bytes(data)
    try:
        return safetensors.read(path).tensors
    except InputError:
        return None


def assert_reads_as_python(tmp_path: Path, files: list[bytes]) -> int:
    """How many were refused. What Python reads and JavaScript does not has another dtype."""
    refused = 0
    texts = [base64.b64encode(x).decode() for x in files]
    for data, (found, error) in zip(files, run_node(SAFETENSORS, texts), strict=True):
        want = python_reads(tmp_path / "file", data)
        if error is not None:
            assert_told(error, "not a valid safetensors file: ")
            refused += 1
            assert want is None or "expected one of F32, I32" in error[1], (data, error)
            continue
        if want is None:  # a whole number written as a float, 0e4, which JavaScript does not tell from 0
            assert re.search(rb"[0-9][.eE]", data), data
            continue
        assert {n: list(x.shape) for n, x in want.items()} == {n: shape for n, shape, _ in found}
        for name, _, bits in found:
            np.testing.assert_array_equal(want[name].reshape(-1).view(np.int32), bits)
    return refused


def test_damaged_safetensors_have_their_sentence(tmp_path: Path) -> None:
    files = list(damaged_files())
    assert assert_reads_as_python(tmp_path, files) == len(files)


def test_safetensors_at_random_are_read_as_python_reads_them(tmp_path: Path) -> None:
    files = [b"".join(safetensors.parts(TENSORS, {"a": "b"})), *random_files(2, 600)]
    assert 200 < assert_reads_as_python(tmp_path, files) < 600


WRITE = """const { writeSafetensors } = await source('checkpoint');
return a[0].map((names) => {
  const data = names.map((_, k) => new (k % 2 ? Int32Array : Float32Array)(2 * k).fill(k));
  return [...writeSafetensors(names.map((name, k) => [name, { shape: [k, 2], data: data[k] }]), { note: 'x' })];
});"""


def test_a_checkpoint_of_a_page_has_the_bytes_that_python_writes() -> None:
    """Whatever the length of the header, whose padding keeps the values aligned."""
    lists = [["a" * n, "b", "c"] for n in range(1, 10)]
    for names, found in zip(lists, run_node(WRITE, lists), strict=True):
        tensors = {name: np.full((k, 2), k, (np.float32, np.int32)[k % 2]) for k, name in enumerate(names)}
        assert bytes(found) == b"".join(safetensors.parts(tensors, {"note": "x"}))


FROZEN = """const { readCheckpoint, writeSafetensors } = await source('checkpoint');
const params = [{ name: 'w', spec: {} }, { name: 'fixed', spec: { trainable: false } }];
const facts = { tracegrad: '1', step: '3', seed: '0', lr: '0.1', lr_start: '1', hyper: '{}' };
return a[0].map(([freeze, frozen]) => told(() => {
  const bytes = writeSafetensors([], { ...facts, frozen: JSON.stringify(frozen) });
  const losses = [{ name: '', checkpoint: [], program: { params, meta: { freeze } } }];
  return readCheckpoint(bytes, losses, 'load').facts[0].frozen;
}));"""


def test_a_checkpoint_freezes_only_what_the_export_can_freeze() -> None:
    cases = [[True, []], [True, ["w"]], [False, []], [False, ["w"]], [True, ["fixed"]], [True, ["w", "other"]]]
    found = run_node(FROZEN, cases)
    assert [value for value, _ in found] == [[], ["w"], [], None, None, None]
    for _, error in found[3:]:
        assert_told(error, "it has frozen parameters that this export cannot freeze")


# --- what failed once: taken, or refused with a bare TypeError, or never answered ---


def test_the_corpus_of_programs_is_refused(manifests: dict[str, Any]) -> None:
    texts = [changed(manifests["sine"], *row) for row in json.loads((CORPUS / "programs.json").read_text())]
    texts += [path.read_text(encoding="utf-8") for path in sorted(CORPUS.glob("new*.json"))]
    for k, error in enumerate(run_node(OPEN, texts)):
        assert error is not None and error[0] == "InputError", (k, error)
        assert_told(error, "program.json is damaged: ")


def test_the_corpus_of_safetensors_is_refused(tmp_path: Path) -> None:
    files = [path.read_bytes() for path in sorted(CORPUS.glob("*.safetensors"))]
    assert len(files) >= 25 and assert_reads_as_python(tmp_path, files) == len(files)
