"""What MkDocs does not do by itself: generated pages, links to files of the repository, llms.txt."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import one_op
import reference
from mkdocs.structure.files import File

HOME = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()(\.\./[^)#\s]*)(#[^)]*)?(\))")
COPIES = "source"  # files of the repository that pages link to lie here, as text


def on_config(config: Any) -> Any:
    """List the pages of the reference and of the cookbook in the navigation; below Guide, pages that nothing lists."""
    listed = str(config.nav)
    recipes = sorted((HOME / "docs" / "cookbook").glob("*.md"))
    pages = {
        "Reference": [*(f"reference/{s.slug}.md" for s in reference.SECTIONS), "reference/pytorch.md"],
        "Cookbook": [f"cookbook/{p.name}" for p in recipes if p.name != "index.md"],
        "Guide": [p.name for p in sorted((HOME / "docs").glob("*.md")) if f"'{p.name}'" not in listed],
    }
    for entry in config.nav:
        for title, more in pages.items():
            if isinstance(entry, dict) and title in entry:
                entry[title] = [*entry[title], *more]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the reference, the page of one op, and copies of what pages link to outside docs/."""
    for path, text in {**reference.pages(), "one-op.md": one_op.text()}.items():
        files.append(File.generated(config, path, content=text))
    for path in sorted({name for name in linked(files) if name}):
        target = HOME / path
        text = listing(target) if target.is_dir() else target.read_text(encoding="utf-8")
        files.append(File.generated(config, copy_of(path), content=text))
    return files


def linked(files: Any) -> set[str]:
    """Return the paths in the repository, outside docs/, that pages link to."""
    found: set[str] = set()
    for file in files.documentation_pages():
        for match in LINK.finditer(file.content_string):
            found.add(outside(file.src_uri, match[2]))
    return found


def outside(page: str, link: str) -> str:
    """Return the path in the repository if a link of a page leads outside docs/; else ""."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if path.startswith("docs/") else path


def listing(folder: Path) -> str:
    return "\n".join(sorted(p.name for p in folder.iterdir() if not p.name.startswith(("_", ".")))) + "\n"


def copy_of(path: str) -> str:
    return f"{COPIES}/{path}.txt"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links that leave docs/ at the copies."""

    def replaced(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[2])
        if not path:
            return match[0]
        up = "../" * page.file.src_uri.count("/")
        return f"{match[1]}{up}{copy_of(path)}{match[4]}"

    return LINK.sub(replaced, markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt: a list of all pages, and llms-full.txt: their text, for programs that read documentation."""
    site = Path(config.site_dir)
    pages = sorted((HOME / "docs").rglob("*.md"))
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    texts: list[str] = []
    for path in pages:
        text = path.read_text(encoding="utf-8")
        title = next(line[2:] for line in text.splitlines() if line.startswith("# "))
        name = path.relative_to(HOME / "docs").with_suffix(".html").as_posix()
        lines.append(f"- [{title}]({name})")
        texts.append(text)
    lines += ["", "## Names", ""]
    for shown, (slug, path, value) in reference.names().items():
        lines.append(f"- [{shown}](reference/{slug}.html#{path}): {reference.first_line(value)}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(texts), encoding="utf-8")
