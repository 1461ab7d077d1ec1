"""The `tracegrad` command."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import tracegrad
from tracegrad.commands import bench, doctor, site
from tracegrad.demo import digits, gpt, sine
from tracegrad.demo.common import Options
from tracegrad.errors import TracegradError
from tracegrad.files.contents import contents
from tracegrad.files.jsontext import printable_lines
from tracegrad.runtime.base import DEVICES

DEMOS = {"digits": digits, "sine": sine, "gpt": gpt}


def number(among: range, valid: str) -> Callable[[str], int]:
    """Return a function for argparse that parses an integer, and raises ArgumentTypeError unless it is in `among`."""

    def integer(text: str) -> int:  # argparse shows this name for a text that is no integer
        if (value := int(text)) not in among:
            raise argparse.ArgumentTypeError(f"must be {valid}, got {value}")
        return value

    return integer


COUNT, SEED = number(range(1, sys.maxsize), f"from 1 to {sys.maxsize - 1}"), number(range(2**32), "from 0 to 2**32 - 1")
PORT = number(range(2**16), "from 0 to 65535")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="tracegrad", description="Train small models on a GPU, on the CPU, and in browser pages."
    )
    top.add_argument("--version", action="version", version=f"tracegrad {tracegrad.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train a model on data that ships with the package")
    demo.add_argument(
        "which", nargs="?", choices=DEMOS, default="digits",
        help="digits: a convolutional classifier of handwriting (default); sine: a curve; gpt: a character model",
    )  # fmt: skip
    demo.add_argument("--out", type=Path, help="folder for results (default: tracegrad-demo, or with -sine or -gpt)")
    demo.add_argument("--device", choices=DEVICES, default="auto", help="where to train (default: a GPU, else the CPU)")
    steps = ", ".join(f"{name} {demo.STEPS}" for name, demo in DEMOS.items())
    demo.add_argument("--steps", type=COUNT, default=None, help=f"training steps (default: {steps})")
    demo.add_argument("--seed", type=SEED, default=0, help="seed of parameters and batches (default: %(default)s)")
    demo.add_argument("--digest", action="store_true", help="print a hash of the training's losses and state")

    check = commands.add_parser("doctor", help="list devices, and check the numbers that each computes")
    check.add_argument("--device", choices=DEVICES[1:], default=None, help="check this device only (default: all)")

    speed = commands.add_parser("bench", help="time training steps of the demos on each device")
    speed.add_argument("--device", choices=DEVICES[1:], help="time this device only (default: all but software GPUs)")
    speed.add_argument("--digest", action="store_true",
                       help="time nothing: train twice, once through a checkpoint, and print both hashes")  # fmt: skip

    look = commands.add_parser("inspect", help="show what a checkpoint, a parameter file or an exported page holds")
    look.add_argument(
        "file", type=Path, metavar="FILE", help=".safetensors, program.json, or a page: its folder or its HTML file"
    )

    serve = commands.add_parser("serve", help="open a page that train.export or a demo wrote in the browser")
    serve.add_argument("folder", type=Path, metavar="DIR", help="the folder with index.html")
    serve.add_argument("--port", type=PORT, default=0, help="port of the local server (default: any that is free)")
    serve.add_argument("--no-open", action="store_true", help="do not open a browser")
    return top


def run(args: argparse.Namespace) -> int:
    """Run a command. Returns the exit code."""
    match args.command:
        case "demo":
            own = "tracegrad-demo" if args.which == "digits" else f"tracegrad-demo-{args.which}"
            out = args.out or Path(own)
            return DEMOS[args.which].run(Options(out, args.device, args.steps, args.seed, args.digest))
        case "doctor":
            return doctor.run(args.device)
        case "bench":
            return bench.digests(args.device) if args.digest else bench.run(args.device)
        case "inspect":
            print(printable_lines(contents(args.file)))
            return 0
        case _:
            return site.serve(args.folder, args.port, browse=not args.no_open)


def say(message: Warning | str, *_: object) -> None:
    """Print a warning without a line of code: none of the code is the user's."""
    print(f"tracegrad: {message}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit code. Errors of library and system print one message, not a traceback.

    Raises SystemExit for arguments that do not parse."""
    given = sys.argv[1:] if argv is None else argv
    if not given:
        parser().print_help(sys.stderr)
        raise SystemExit(2)
    args = parser().parse_args(given)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal cannot encode are printed as escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = say
            return run(args)
    except BrokenPipeError:  # `tracegrad inspect FILE | head`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  else Python complains at its end
        return 1
    except (TracegradError, OSError) as e:
        print(f"tracegrad: {printable_lines(str(e))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ntracegrad: stopped", file=sys.stderr)
        return 130
