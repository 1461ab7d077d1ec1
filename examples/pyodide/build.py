"""Write the page into a folder that any static host can serve.

python examples/pyodide/build.py site                                      # Pyodide from its CDN
python examples/pyodide/build.py site --pyodide node_modules/pyodide      # your own copy, from npm
tracegrad serve site
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CDN = "https://cdn.jsdelivr.net/pyodide/v314.0.7/full/"
FILES = ("index.html", "page.js", "worker.js", "runner.py", "sine.py")


def build(folder: Path, pyodide: Path | None = None, wheel: Path | None = None) -> None:
    """Write the page, with the wheel of this checkout or with `wheel`."""
    folder.mkdir(parents=True, exist_ok=True)
    if wheel is None:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(HERE.parents[1])]
        subprocess.run(command, check=True)
        wheel = max(folder.glob("tracegrad-*.whl"), key=lambda p: p.stat().st_mtime)
    elif wheel.parent != folder:
        shutil.copy(wheel, folder)
    for name in FILES:
        shutil.copy(HERE / name, folder)
    if pyodide is not None:
        shutil.copytree(pyodide, folder / "pyodide", dirs_exist_ok=True)
    config = {"pyodide": CDN if pyodide is None else "pyodide/", "wheel": wheel.name}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the Pyodide page.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pyodide", type=Path, help="a folder of Pyodide to serve too, such as the npm package")
    parser.add_argument("--wheel", type=Path, help="a wheel instead of this checkout's")
    arguments = parser.parse_args()
    build(arguments.folder, arguments.pyodide, arguments.wheel)
    print(f"tracegrad serve {arguments.folder}")
