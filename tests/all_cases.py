"""All rows of the table, of every group of ops."""

from __future__ import annotations

import importlib.util

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
