"""How many defects of kernels the checks see: python bench/mutants.py [--devices cpu webgpu] [--models cnn mlp].

A defect is one changed place in one kernel's text, as a wrong compiler or driver could make it. It is a neighbour's
element, a stride that is one less, a bound that is off by one, a guard without effect, or another operand. Each kernel
of a model is checked with each defect alone, by the code that checks it before a first step. Some changes change no
number, such as a tail that another loop overwrites. So compare two states of the checks; 100 % is not the aim.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from steps import WORKLOADS, machine, print_table, tracegrad_training, workload

import tracegrad as tg
from tracegrad.kernel_source import KernelSource, Texts
from tracegrad.render.c_steps import GatheredStep
from tracegrad.render.c_text import library_source
from tracegrad.runtime import cpu, cpu_verify, wgpu_verify
from tracegrad.runtime.verify import SWITCH, trials_of

# What is replaced in the text of C or WGSL. No change lets C write further than the margins of its arrays.
DEFECTS = {
    "a neighbour's element": (r"([=(,+*] ?[pb]\d+\[)", r"\g<1>1 + "),
    "a stride one less": (r"(\b[mnijkb]+\d+ \* \(?)(\d+)\b(?!\.)", r"\g<1>(\2 - 1)"),
    "a loop one turn short": (r"(\b(?:for|while)[^;{]*;[^;{]*< )(\d+);", r"\g<1>(\2 - 1);"),
    "a fold one turn further": (r"(\bj\d* < )(\d+);", r"\g<1>(\2 + 1);"),
    "a fold that begins at 1": (r"(\bj\d* = )0;", r"\g<1>1;"),
    "a guard without effect": (r"select ?\((0\.0f|0f|0), (\w+),", r"select(\2, \2,"),
    "a guard that never holds": (r"select ?\((0\.0f|0f|0), (\w+),", r"select(\1, \1,"),
    "a difference for a sum": (r"(\b[vats]a?\d+(?:\[l\])?) \+ ", r"\1 - "),
    "the first operand twice": (r"\bv1\b(?! =)", "v0"),
    "below for at most": (r"less_f32 ?\(([^,()]+), ([^,()]+)\)", r"(! less_f32 (\2, \1))"),
    "a constant halved": (r"(\d\.\d+(?:e-\d+)?)f\b(?= \*|\))", r"(0.5f * \1f)"),
}
PLACES = 3  # of one kind, in one kernel: the first, one in the middle and the last
HEAD = ("defect", "texts that compile", "found", "share")


def defects(text: str) -> Iterator[tuple[str, str]]:
    """Changed texts, with the kinds of their defects. Helpers that the check of single operations covers stay."""
    for kind, (old, new) in DEFECTS.items():
        found = [m for m in re.finditer(old, text) if "HELPER" not in text[text.rfind("\n", 0, m.start()) : m.start()]]
        for k in sorted({0, len(found) // 2, len(found) - 1} if len(found) > PLACES else set(range(len(found)))):
            begin, end = found[k].span()
            changed = text[:begin] + found[k].expand(new) + text[end:]
            if changed != text:
                yield kind, changed


def changed_lines(old: str, new: str) -> str:
    """The line that differs, before and after."""
    return next(f"{a.strip()}\n  -> {b.strip()}" for a, b in zip(old.split("\n"), new.split("\n")) if a != b)


class Tally:
    """Runs the checks of a device on kernels with defects, when they first run on kernels without."""

    def __init__(self) -> None:
        self.found, self.all = Counter[str](), Counter[str]()
        self.missed: list[str] = []
        self.inside = False

    def count(self, kind: str, place: str, how: bool | None) -> None:
        """Count a kernel whose check said `how`; None if it does not compile. Keep the place if nothing was found."""
        self.all[kind] += how is not None
        self.found[kind] += bool(how)
        if how is False:
            self.missed.append(f"{kind}: {place}")

    def on_c(self, session: Any, program: Any, libraries: Any) -> bool:
        """Stands for CpuSession._is_wrong."""
        if self.inside:
            return IS_WRONG(session, program, libraries)
        self.inside = True
        gathers = any(isinstance(s, GatheredStep) for k in program.kernels for s in k.texts["c"].steps)
        others = libraries[: 1 + gathers]  # the engine and what it shares
        for kernel in program.kernels:
            source = kernel.texts["c"]
            for n, function in enumerate(source.functions):
                for kind, text in defects(function):
                    functions = (*source.functions[:n], text, *source.functions[n + 1 :])
                    mutant = replace(kernel, texts=Texts(c=source._replace(functions=functions)))
                    place = f"{kernel.label}: {changed_lines(function, text)}"
                    self.count(kind, place, self.c_wrong(session, program, mutant, others))
        self.inside = False
        return False

    def c_wrong(self, session: Any, program: Any, mutant: KernelSource, others: Any) -> bool | None:
        """Whether the check refuses a kernel in C; None if it does not compile."""
        made = session._compiler.begin(library_source(list(mutant.texts["c"].functions)), session._children)
        if made.result() is None:
            return None
        few = replace(program, kernels=(mutant,), dispatches=())
        return IS_WRONG(session, few, [*others, made])

    def on_gpu(self, kernels: Any, trials: Any, launches: Any, session: Any) -> dict[str, str]:
        """Stands for wgpu_verify._checked."""
        for key, (kernel, layout) in kernels.items():
            shader = kernel.texts["wgsl"]
            helpers, name, body = shader.body.partition("fn k0(")
            for kind, text in defects(body):
                changed = replace(shader, body=helpers + name + text)
                mutant = {key: (replace(kernel, texts=Texts(wgsl=changed)), layout)}
                try:
                    how = bool(CHECKED(mutant, trials_of(mutant), launches, session).get(key))
                except tg.CompileError:
                    how = None
                self.count(kind, f"{kernel.label}: {changed_lines(body, text)}", how)
        return dict.fromkeys(kernels, "")


IS_WRONG = cpu.CpuSession._is_wrong  # pyright: ignore[reportPrivateUsage]
CHECKED = wgpu_verify._checked  # pyright: ignore[reportPrivateUsage]


def tally(name: str, device: str) -> Tally:
    """The defects of one model's kernels, and how many are found."""
    out = Tally()
    cpu.CpuSession._is_wrong = lambda *a: out.on_c(*a)  # pyright: ignore
    wgpu_verify._checked = lambda *a: out.on_gpu(*a)  # pyright: ignore[reportPrivateUsage]
    cpu_verify.warn_wrong = lambda *a: None  # defects are counted instead
    w = workload(name)
    train = tracegrad_training(w, device)
    _ = train.step(w.batch(np.random.default_rng(0))).loss
    train.close()
    return out


def rows(found: Counter[str], every: Counter[str]) -> list[str]:
    """One row for each kind of defect, and one for all."""
    kinds = [(kind, found[kind], every[kind]) for kind in DEFECTS if every[kind]]
    kinds.append(("all", found.total(), every.total()))
    return [f"| {kind} | {n} | {k} | {k / n:.1%} |" for kind, k, n in kinds]


def main() -> None:
    """A table for each device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", default=["cpu", "webgpu"])
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=["sine", "mlp", "cnn"])
    parser.add_argument("--missed", action="store_true", help="print each defect that no check sees")
    args = parser.parse_args()
    os.environ[SWITCH] = "on"
    print(machine())
    for device in args.devices:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.environ["XDG_CACHE_HOME"] = folder  # no verdicts
            tallies = [tally(name, device) for name in args.models]
        found = sum([x.found for x in tallies], Counter[str]())
        every = sum([x.all for x in tallies], Counter[str]())
        print(f"\n{device}: {', '.join(args.models)}")
        print_table(HEAD, ["all"], lambda _, found=found, every=every: rows(found, every))
        if args.missed:
            print("", *[line for x in tallies for line in x.missed], sep="\n")


if __name__ == "__main__":
    main()
