"""Groups of parameters, which have values of their own for some hyperparameters.

The host sets these values like all others. The first group's value for `weight_decay` is the hyperparameter
"weight_decay@0". A group's "lr@0" is a factor on the schedule.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tracegrad.errors import InputError
from tracegrad.hypers import ANY, GROUP, Range, checked
from tracegrad.patterns import Selection, chosen, label, matcher
from tracegrad.refusals import shown
from tracegrad.wrong_calls import remedy

EXAMPLE = 'such as {"backbone.*": {"lr": 0.1}}'


class Groups(NamedTuple):
    """Groups in order: a parameter belongs to the first group that matches its name."""

    selections: tuple[Selection, ...] = ()
    overrides: tuple[Mapping[str, float], ...] = ()

    @staticmethod
    def checked(given: Any, known: Mapping[str, float], ranges: Mapping[str, Range], what: str) -> Groups:
        """Parse the option `groups`. known: names that groups can override. Raises InputError for anything else."""
        if not isinstance(given, Mapping):
            raise InputError.here(f"{what}: groups map patterns to values, {EXAMPLE}; got {shown(given)}")
        selections: list[Selection] = []
        overrides: list[Mapping[str, float]] = []
        for selection, values in typing.cast("Mapping[Selection, object]", given).items():
            who = f"{what}: groups[{label(selection)}]"
            matcher(selection, who)
            if not isinstance(values, Mapping):
                raise InputError.here(f"{who} must be a dict of values, {EXAMPLE}; got {shown(values)}")
            values_ = typing.cast("Mapping[str, Any]", values)
            for name in values_:
                if name not in known:
                    instead = remedy(name, values_[name], list(known), "groups")
                    raise InputError.here(
                        f"{who}: {name} is not a value of a group{instead}; it has {', '.join(known)}"
                    )
            overrides.append({n: checked(n, x, ranges.get(n, ANY), who) for n, x in values_.items()})
            selections.append(selection)
        return Groups(tuple(selections), tuple(overrides))

    @property
    def names(self) -> set[str]:
        """Names of the hyperparameters that a group overrides."""
        return {name for values in self.overrides for name in values}

    @property
    def hyper(self) -> dict[str, float]:
        """First values of the groups' own hyperparameters."""
        return {f"{name}{GROUP}{k}": x for k, values in enumerate(self.overrides) for name, x in values.items()}

    def leaf(self, name: str, parameter: str) -> str:
        """Return the hyperparameter that replaces `name` for a parameter."""
        for k, selection in enumerate(self.selections):
            if matcher(selection, "groups")(parameter):
                return f"{name}{GROUP}{k}" if name in self.overrides[k] else name
        return name

    def runs(self, name: str, parts: Iterator[tuple[str, int]]) -> list[tuple[str, int]]:
        """Return (hyperparameter, end) for each run of neighbours that share it. parts: (parameter, end) in order."""
        out: list[tuple[str, int]] = []
        for parameter, end in parts:
            leaf = self.leaf(name, parameter)
            if out and out[-1][0] == leaf:
                out.pop()
            out.append((leaf, end))
        return out

    def check(self, parameters: list[str], what: str) -> None:
        """Check that each group matches one of the `parameters`, trained or frozen. Raises InputError otherwise."""
        for selection in self.selections:
            chosen(parameters, selection, what)

    def spec(self) -> list[list[Any]]:
        """Return plain data: for each group its pattern or name, and its overrides."""
        return [[s if isinstance(s, str) else label(s), dict(v)] for s, v in zip(self.selections, self.overrides)]


NO_GROUPS = Groups()
