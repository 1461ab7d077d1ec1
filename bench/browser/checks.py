"""What the checks of kernels cost of a page's first step: python bench/browser/checks.py [--share 0.125] [--gpu].

Each first step, from `load` to the first loss, is that of a fresh Chromium, which knows no verdict. Those with and
without checks take turns, and the median counts. "again" is a first step behind a reload: the verdict is known.
Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import shutil
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import Any

from export import export
from playwright.sync_api import sync_playwright
from run import MODELS, SWIFTSHADER, Handler

FIRST = """async ([name, checks]) => {
  const { load } = await import(`/${name}/tracegrad.js`);
  const began = performance.now();
  const train = await load(`/${name}/`, checks ? {} : { checks: null });
  const result = await train.step();
  const ms = performance.now() - began;
  if (result.kind !== "completed") throw result.error;
  train.destroy();
  return ms;
}"""
HEAD = "| model | kernels | checks kB, gzipped | first step ms | with checks | share | again |"


def first_steps(url: str, name: str, checks: bool, options: argparse.Namespace) -> list[float]:
    """Milliseconds of the first step of a new browser and, with checks, of the one behind a reload."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(options.chromium),
            args=["--no-sandbox", "--enable-unsafe-webgpu", *([] if options.gpu else [SWIFTSHADER])],
        )
        page = browser.new_page()
        page.set_default_timeout(600_000)
        times: list[float] = []
        for _ in range(1 + checks):
            page.goto(url)
            times.append(page.evaluate(FIRST, [name, checks]))
        browser.close()
        return times


def main() -> None:
    """One row a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--share", type=float, default=1.0, help="of the batches")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--gpu", action="store_true", help="this machine's GPU instead of SwiftShader")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder), options.share)
        Path(folder, "index.html").write_text("<!doctype html><link rel=icon href=data:,>")
        handler = functools.partial(Handler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}/"
            print(HEAD, "|---|" + "---|" * 6, sep="\n")
            for name in options.models:
                print(row(url, Path(folder), name, options))
            server.shutdown()


def row(url: str, folder: Path, name: str, options: argparse.Namespace) -> str:
    """One row of the table."""
    found: dict[bool, list[Any]] = {True: [], False: []}
    for _ in range(options.runs):
        for checks, those in found.items():
            those.append(first_steps(url, name, checks, options))
    on, again = (median([times[k] for times in found[True]]) for k in (0, 1))
    off = median([times[0] for times in found[False]])
    size = len(gzip.compress((folder / name / "checks.safetensors").read_bytes())) / 1000
    kernels = (folder / name / "program.json").read_text().partition('"feed"')[0].count('"label"')
    return f"| {name} | {kernels} | {size:.0f} | {off:.0f} | {on:.0f} | {(on - off) / off:.0%} | {again:.0f} |"


if __name__ == "__main__":
    main()
