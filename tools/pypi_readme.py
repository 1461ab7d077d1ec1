"""Make the README of the package: PyPI shows no files of this repository, so links between them are rewritten.

hatchling calls it for each wheel and sdist. If pyproject.toml has a repository, as in
`[project.urls] Repository = "https://..."`, relative links point into it, at the tag of the version. Otherwise they
become plain text, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def rewritten(text: str, repository: str | None, tag: str) -> str:
    """Return `text` with absolute links into `repository`; without one, with plain text in place of relative links."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if repository is None:
            return "" if picture else words
        return f"{picture}[{words}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return LINK.sub(link, text)


class ReadmeHook(MetadataHookInterface):
    """Sets the field `readme` of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text and its type."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = rewritten(text, metadata.get("urls", {}).get("Repository"), f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
