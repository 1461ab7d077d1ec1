"""All rows of the table, of every group of ops."""

from __future__ import annotations

import importlib.util

import tracegrad as tg
from cases import CORE_CASES, Case

ALL_CASES: list[Case] = list(CORE_CASES)
if importlib.util.find_spec("cases_nn") is not None:
    from cases_nn import NN_CASES

    ALL_CASES += NN_CASES

if importlib.util.find_spec("cases_scan") is not None:
    from cases_scan import SCAN_CASES

    ALL_CASES += SCAN_CASES

if importlib.util.find_spec("cases_more") is not None:
    from cases_more import MORE_CASES

    ALL_CASES += MORE_CASES


def op_of(case: Case) -> str:
    """The op of a row: the most words of its name that are a public name, else its first word."""
    words = case.name.split("_")
    names = ["_".join(words[:k]) for k in range(len(words), 0, -1)]
    return next((n for n in names if hasattr(tg, n) or hasattr(tg.linalg, n)), words[0])


FIRST = {op_of(c): c for c in reversed(ALL_CASES)}  # the first row of each op: 198 of 476 rows


def is_first(case: Case) -> bool:
    """Whether no row before this one has its op."""
    return FIRST[op_of(case)].name == case.name
