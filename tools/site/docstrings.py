"""Docstrings as Markdown: the first paragraph as text, what follows as it is laid out, examples as code."""

from __future__ import annotations

from typing import Any

import griffe


def markdown(text: str) -> str:
    """Return a docstring of this project as Markdown, with its columns kept."""
    head, _, rest = text.partition("\n\n")
    parts = [" ".join(line.strip() for line in head.splitlines())]
    kind, lines = "", list[str]()

    def flush() -> None:
        block = "\n".join(lines).strip("\n")
        if block:
            parts.append(f"```{kind}\n{block}\n```")
        lines.clear()

    doctest = False
    for line in rest.splitlines():
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        new = "pycon" if doctest else "text"
        if new != kind:
            flush()
            kind = new
        lines.append(line)
    flush()
    return "\n\n".join(parts)


class Layout(griffe.Extension):
    """Applies `markdown` to every docstring. Plain attributes are left out: theirs is that of their value's type."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.is_attribute and "property" not in obj.labels:
            obj.docstring = None
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        if isinstance(made, griffe.Alias):  # that of a protocol is typing's, which no page shows
            del cls.members["__init__"]
