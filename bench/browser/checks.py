"""What the checks of kernels cost of a page's first step: python bench/browser/checks.py [--share 0.125] [--gpu].

Each first step, from `load` to the first loss, is that of a fresh Chromium, which knows no verdict. Those with and
without checks take turns, and the median counts. "processor" is the time of all processes of Chromium meanwhile, of
which the least counts: other work on the machine adds nothing to it. "again" is a first step behind a reload: the
verdict is known. Needs Chromium and playwright, and Linux for the processor's time.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import os
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
HEAD = (
    "| model | kernels | checks kB, gzipped | first step ms | with checks | share "
    "| processor ms | with checks | share | again |"
)
TICKS = os.sysconf("SC_CLK_TCK")


def processor() -> float:
    """Milliseconds of the processor that this process's descendants have used."""
    parents, used = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(stat.parent.name)
        parents[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])

    def descends(pid: int) -> bool:
        parent = parents.get(pid, 0)
        return parent == os.getpid() or (parent > 0 and descends(parent))

    return 1000 / TICKS * sum(ticks for pid, ticks in used.items() if descends(pid))


def first_steps(url: str, name: str, checks: bool, options: argparse.Namespace) -> list[tuple[float, float]]:
    """The first step of a new browser and, with checks, the one behind a reload: milliseconds, and of processors."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(options.chromium),
            args=["--no-sandbox", "--enable-unsafe-webgpu", *([] if options.gpu else [SWIFTSHADER])],
        )
        page = browser.new_page()
        page.set_default_timeout(600_000)
        times: list[tuple[float, float]] = []
        for _ in range(1 + checks):
            page.goto(url)
            page.wait_for_timeout(300)  # in which a new page settles
            used = processor()
            times.append((page.evaluate(FIRST, [name, checks]), processor() - used))
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
            print(HEAD, "|---|" + "---|" * 9, sep="\n")
            for name in options.models:
                print(row(url, Path(folder), name, options))
            server.shutdown()


def row(url: str, folder: Path, name: str, options: argparse.Namespace) -> str:
    """One row of the table."""
    found: dict[bool, list[Any]] = {True: [], False: []}
    for _ in range(options.runs):
        for checks, those in found.items():
            those.append(first_steps(url, name, checks, options))
    on, again = (median([times[k][0] for times in found[True]]) for k in (0, 1))
    off = median([times[0][0] for times in found[False]])
    used = [min(times[0][1] for times in found[checks]) for checks in (False, True)]
    size = len(gzip.compress((folder / name / "checks.safetensors").read_bytes())) / 1000
    kernels = (folder / name / "program.json").read_text().partition('"feed"')[0].count('"label"')
    return (
        f"| {name} | {kernels} | {size:.0f} | {off:.0f} | {on:.0f} | {(on - off) / off:.0%} "
        f"| {used[0]:.0f} | {used[1]:.0f} | {(used[1] - used[0]) / used[0]:.0%} | {again:.0f} |"
    )


if __name__ == "__main__":
    main()
