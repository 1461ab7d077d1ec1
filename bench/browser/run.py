"""Time tracegrad, jax-js and TensorFlow.js on the same adapter in Chromium: python bench/browser/run.py [--share 0.25].

Each library trains the same models (sine MLP, MLP 784-512-512-10, CNN, small GPT) with Adam and batches from the host,
in a browser of its own. The columns are: time to the first step with all code loaded, time a step with the loss read
after each one and after every sixteenth, and bytes sent, gzipped. Needs Node with npm, which installs the peers;
Chromium; playwright.

--node runs the same under Node with Dawn instead. --pack FILE.tar.xz writes that as an archive for a machine with a GPU
but without network: unpack it and run ./node node.mjs sites.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export import export
from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
PACKAGES = (
    "@jax-js/jax@0.1.25",
    "@tensorflow/tfjs@4.22.0",
    "@tensorflow/tfjs-backend-webgpu@4.22.0",
    "esbuild@0.25",
    "webgpu@0.6",
)
LIBRARIES = ("tracegrad", "jax-js", "TensorFlow.js")
MODELS = ("sine", "mlp", "cnn", "gpt")
FOREIGN = ("darwin-universal", "win32-arm64", "win32-x64", "linux-arm64")  # parts of Dawn's package
REQUIRE = "import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);"
FOR_NODE = ("--platform=node", "--external:webgpu", "--out-extension:.js=.mjs", f"--banner:js={REQUIRE}")
SWIFTSHADER = "--use-webgpu-adapter=swiftshader"


def prepare(work: Path, share: float) -> None:
    """Peers from npm, the page as bundles, and tracegrad's exported sites, in `work`."""
    if not (work / "node_modules").exists():
        subprocess.run(["npm", "install", "--prefix", work, *PACKAGES], check=True)
    environment = {"NODE_PATH": str(work / "node_modules"), "PATH": str(Path(shutil.which("node") or "").parent)}
    common = ("--bundle", "--splitting", "--format=esm", "--minify", "--log-level=error")
    for entry, *more in (
        ("page.mjs", f"--outdir={work}/page"),
        ("node.mjs", f"--outdir={work}/node", *FOR_NODE),
    ):
        command = [work / "node_modules/.bin/esbuild", HERE / entry, *common, *more]
        subprocess.run(command, env=environment, check=True)
    export(work / "page/sites", share)
    (work / "page/index.html").write_text('<!doctype html><script type="module" src="page.js"></script>')
    (work / "page/sites/package.json").write_text('{"type": "module"}')  # for Node


def pack(work: Path, target: Path) -> None:
    """Node, Dawn, the bundles and the sites in one archive."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / "bench"
        shutil.copytree(work / "node", inside, ignore=shutil.ignore_patterns("node_modules"))
        shutil.copytree(work / "page/sites", inside / "sites", ignore=shutil.ignore_patterns("*.safetensors"))
        dawn = "node_modules/webgpu"
        shutil.copytree(work / dawn, inside / dawn, ignore=lambda _, names: [n for n in names if n in FOREIGN])
        shutil.copy2(str(shutil.which("node")), inside / "node")
        subprocess.run(["tar", "-cJf", target.absolute(), "-C", folder, "bench"], check=True)
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def on_node(work: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows that Node prints."""
    (work / "node/node_modules").unlink(missing_ok=True)
    (work / "node/node_modules").symlink_to(work / "node_modules")
    lists = [",".join(names) for names in (arguments.libraries, arguments.models)]
    numbers = [str(arguments.share), str(arguments.seconds)]
    command = ["node", work / "node/node.mjs", work / "page/sites", *numbers, *lists]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith("{"):
                yield {"sent": 0, **json.loads(line)}
            else:
                print(line.strip())


class Handler(http.server.SimpleHTTPRequestHandler):
    """Counts the bytes that it sends, compressed as a host would compress them."""

    sent = 0

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        Handler.sent += len(gzip.compress(content))
        outputfile.write(content)


def row(url: str, library: str, model: str, options: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one library on one model in a fresh browser. Return an error's text in place of figures if it fails."""
    with sync_playwright() as playwright:
        adapter = [] if arguments.gpu else [SWIFTSHADER]
        browser = playwright.chromium.launch(
            executable_path=shutil.which(arguments.chromium),
            args=["--no-sandbox", "--disable-background-networking", "--enable-unsafe-webgpu", *adapter],
        )
        page = browser.new_page()
        page.set_default_timeout(1000 * arguments.patience)
        Handler.sent = 0
        try:
            page.goto(url)
            found = page.evaluate("() => adapter()")
            figures = page.evaluate("([l, m, o]) => bench(l, m, o)", [library, model, options])
            return figures | {"sent": Handler.sent, "adapter": found}
        except Exception as e:
            return {"library": library, "name": model, "error": str(e).splitlines()[0]}
        finally:
            browser.close()


def text(r: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in r:
        return f"| {r['name']} | {r['library']} | {r['error']} |"
    first, last = r["losses"]
    return (
        f"| {r['name']}, batch {r['batch']} | {r['library']} | {r['first']:,.0f} | {r['read']:.2f} | {r['queued']:.2f} "
        f"| {r['sent'] / 1000:,.0f} | {first:.3f} → {last:.3f} in {r['steps']} |"
    )


def main() -> None:
    """Print the table as it grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the batches: software adapters are slow")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each of the two rates")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--libraries", nargs="*", default=LIBRARIES)
    parser.add_argument("--backend", default="webgpu", help="TensorFlow.js's")
    parser.add_argument("--gpu", action="store_true", help="this machine's GPU instead of the software adapter")
    parser.add_argument("--chromium", default="chromium")
    parser.add_argument("--patience", type=float, default=300, help="seconds for a row")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "tracegrad-bench")
    parser.add_argument("--node", action="store_true", help="under Node with Dawn instead of in Chromium")
    parser.add_argument("--pack", type=Path, help="write an archive for another machine, and measure nothing")
    arguments = parser.parse_args()
    prepare(arguments.work, arguments.share)
    if arguments.pack:
        pack(arguments.work, arguments.pack)
        return
    print(platform.processor() or platform.machine(), " ".join(sys.argv))
    print("| model | library | first step, ms | ms a step, loss read | ms a step, queued | kB sent | loss |")
    print("|---|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for r in on_node(arguments.work, arguments) if arguments.node else in_chromium(arguments):
        rows.append(r)
        print(text(r), flush=True)
    (arguments.work / "rows.json").write_text(json.dumps(rows))


def in_chromium(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each library on each model, in a browser of its own."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(arguments.work / "page"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"share": arguments.share, "seconds": arguments.seconds, "backend": arguments.backend}
    for model in arguments.models:
        for library in arguments.libraries:
            yield row(f"http://127.0.0.1:{server.server_port}/", library, model, options, arguments)


if __name__ == "__main__":
    main()
