"""Adds two kinds of pages to the MkDocs site: the generated reference, and READMEs of folders.

A page keeps its path in the repository, so that one relative link works in both places. Pages of
docs/ move up by one folder on the site; `on_page_markdown` rewrites links that cross this border.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parents[1]
ON_GITHUB = frozenset({"README.md", "stack/ir/ops.md"})  # docs/index.md, and reference/ops.md
# [text](target) and ![text](target), outside of code
LINK = re.compile(r"(`[^`\n]*`)|(!?\[[^\]\n]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```\w+) [^\n]*$", re.MULTILINE)  # ```sh parsed


def on_files(files: Files, config: Any) -> Files:
    """Add the reference, the documents of other folders, and their pictures."""
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    style = HtmlFormatter(style="friendly").get_style_defs(".codehilite")
    files.append(File.generated(config, "pygments.css", content=str(style)))
    for path in documents():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Drop what follows the language of a fence, and rewrite links into the repository."""
    source = page.file.src_uri
    in_docs = (ROOT / "docs" / source).is_file()
    folder = posixpath.dirname(posixpath.join("docs", source) if in_docs else source)

    def rewritten(found: re.Match[str]) -> str:
        code, head, target, tail = found.groups()
        if code or "://" in target or target.startswith("#"):
            return found[0]
        name, mark, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(folder, name))
        place = {"stack/ir/ops.md": "reference/ops.md", "README.md": "index.md"}.get(place, place)
        place = place.removeprefix("docs/")
        link = posixpath.relpath(place, posixpath.dirname(source) or ".")
        return f"{head}{link}{mark}{anchor}{tail}"

    parts = re.split(r"(^```.*?^```$)", FENCE.sub(r"\1", markdown), flags=re.M | re.S)
    return "".join(p if p.startswith("```") else LINK.sub(rewritten, p) for p in parts)


def on_post_build(config: Any) -> None:
    """Replace the search of MkDocs, which needs a server, by `search.js`."""
    folder = Path(config["site_dir"]) / "search"
    found = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))["docs"]
    sections = [entry for entry in found if "#" in entry["location"]]  # others repeat their text
    for unused in ("search_index.json", "worker.js"):
        (folder / unused).unlink()
    (folder / "main.js").write_text((ROOT / "docs" / "search.js").read_text(encoding="utf-8"))
    (folder / "index.js").write_text(f"var searchIndex = {json.dumps(sections)};\n")


def documents() -> Iterator[str]:
    """Paths of the documents outside of docs/, and of the pictures that they show."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "demos/results/*.png", "demos/results/*.svg"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for path in listed:
        if not path.startswith(("docs/", "tests/")) and path not in ON_GITHUB:
            yield path
