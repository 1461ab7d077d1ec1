"""What type checkers see of the installed package: a public name that is not re-exported is an error for users."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import tracegrad as tg
from tracegrad import nn, optim

PACKAGE = Path(tg.__file__).parent


def test_all_public_names_are_exported(tmp_path: Path) -> None:
    site = tmp_path / "venv" / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"
    shutil.copytree(PACKAGE, site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "venv" / "pyvenv.cfg").write_text("version = {}.{}\n".format(*sys.version_info[:2]))
    modules = {"tg": tg, "nn": nn, "optim": optim}
    used = [f"{module}.{name}" for module, m in modules.items() for name in m.__all__]
    (tmp_path / "user.py").write_text(
        "\n".join(
            ["import tracegrad as tg", "from tracegrad import nn, optim", "from tracegrad.nn import GRU, Linear", *used]
        )
        + "\nprint(Linear, GRU)\n"
    )
    settings = {"venvPath": ".", "venv": "venv", "include": ["user.py"], "reportUnusedExpression": "none"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    result = subprocess.run(["pyright", "--outputjson"], cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert [d["message"] for d in report["generalDiagnostics"]] == []
