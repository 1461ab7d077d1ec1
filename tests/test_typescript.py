"""`tracegrad.d.ts` under the TypeScript compiler: a page's script compiles, and wrong uses of it do not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from browser import SOURCES
from node import NODE, needs_node

COMPILER = Path(os.environ.get("TRACEGRAD_TYPESCRIPT") or Path(__file__).parent.parent / "node_modules" / "typescript")

PAGE = """
import { load, checkWebGPU, singleFlight, type RemoteTraining, type StepResult } from "./tracegrad.js";

const show = (text: string): void => { document.body.textContent = text; };

export async function main(): Promise<void> {
  const gpu = await checkWebGPU();
  if (!gpu.ok) return show(gpu.message);
  const train: RemoteTraining = await load("./");
  const x = new Float32Array(8);
  const r: StepResult = await train.step({ x: { data: x, shape: [8, 1] }, y: [[1], [2]] });
  switch (r.kind) {
    case "completed": show(`${r.step}: ${r.loss.toFixed(3)}`); break;
    case "failed": show(r.error.message); break;
    case "aborted": show(r.reason); break;
  }
  await train.step("d", { x });
  const many = await train.runSteps(10, { x });
  if (many.kind === "completed") show(String(many.losses.length));
  await train.setLR(0.1);
  await train.setLR({ kind: "cosine_annealing", peak: 0.1, final: 0, steps: 100 });
  const predict = singleFlight((values: number[]) => train.forwards["predict"]!.run({ x: values }));
  const out = await predict([1, 2]);
  if (out.kind === "completed") show(String(out.output));
  const record = await train.downloadParams();
  await train.uploadParams(record);
  const kept = await train.saveCheckpoint();
  await train.loadCheckpoint(new Blob([kept]) && kept);
  train.destroy();
}
"""
# a line of a page, and what the compiler says about it
WRONG = (
    ("(await train.step({ x: 1 })).loss;", "Property 'loss' does not exist on type 'Aborted'"),
    ("await train.step([1, 2]);", "is not assignable to parameter"),
    ("await train.step({ x: 'text' });", "is not assignable to type 'ArrayLike'"),
    ("await train.runSteps({ x: 1 });", "is not assignable to parameter of type 'number'"),
    ("await train.setLR('0.1');", "is not assignable to parameter"),
    ("await train.setLR({ kind: 'linear', peak: 1, steps: 3 });", "is not assignable to parameter"),
    ("train.forwards.predict.run({ x: 1 });", "possibly 'undefined'"),
    ("train.lr = 3;", "read-only property"),
)


def compiled(folder: Path, **scripts: str) -> list[str]:
    """Return what the compiler says about the scripts of a page, one entry for each error: its place and text."""
    shutil.copy(SOURCES / "tracegrad.d.ts", folder)
    for name, text in scripts.items():
        (folder / f"{name}.ts").write_text(text)
    flags = "--strict --noEmit --noUncheckedIndexedAccess --exactOptionalPropertyTypes --module es2022"
    flags += " --moduleResolution bundler --target es2022 --lib es2022,dom"
    command = [str(NODE), str(COMPILER / "bin" / "tsc"), *flags.split(), *[f"{name}.ts" for name in scripts]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return re.findall(r"^\S.*error TS.*(?:\n .*)*", done.stdout, re.MULTILINE)


@needs_node
def test_a_page_compiles_and_wrong_uses_do_not(tmp_path: Path) -> None:
    if not (COMPILER / "bin" / "tsc").exists():
        pytest.skip("TypeScript is needed: npm install --no-save typescript, or TRACEGRAD_TYPESCRIPT names its folder")
    wrong = ['import type { RemoteTraining } from "./tracegrad.js";']
    wrong += [
        f"export const w{k} = async (train: RemoteTraining) => {{ {line} }};" for k, (line, _) in enumerate(WRONG)
    ]
    found = compiled(tmp_path, page=PAGE, wrong="\n".join(wrong))
    for k, (line, said) in enumerate(WRONG, 2):
        own = [e for e in found if e.startswith(f"wrong.ts({k},")]
        assert len(own) == 1 and re.search(said, own[0]), (line, own)
    assert len(found) == len(WRONG), found  # none of them is in page.ts
