"""Names that users see and the glossary has to explain: read from the sources, nothing imported.

These are passes, their options, attributes of ops, and the words of notes, near misses and
refusals. tests/explore/test_glossary.py also checks the other direction: no entry is stale.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = "stack/explore/glossary.toml"
NOTES = ("note", "miss", "Why", "CannotTile")  # calls whose text users see
EVERYDAY = frozenset((ROOT / "tests/explore/everyday.txt").read_text(encoding="utf-8").split())


def glossary() -> dict[str, frozenset[str]]:
    """The terms of the glossary by kind."""
    tables = tomllib.loads((ROOT / GLOSSARY).read_text(encoding="utf-8"))
    return {kind: frozenset(terms) for kind, terms in tables.items()}


def _passes() -> Iterator[tuple[str, int, str, str]]:
    """Names of passes and of their options: file, line, kind and term."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    entries: dict[str, str] = tomllib.loads(project)["project"]["entry-points"]["stack.passes"]
    for name, target in entries.items():
        module, _, cls = target.partition(":")
        path = module.removeprefix("stack.").replace(".", "/") + ".py"
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name == cls:
                yield path, node.lineno, "pass", name
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        if "ClassVar" not in ast.unparse(field.annotation):
                            yield path, field.lineno, "option", field.target.id


def _attributes() -> Iterator[tuple[str, int, str, str]]:
    """Attributes that ops declare, as "axis: int" or "name?"."""
    for path in sorted((ROOT / "stack/ir").glob("*_op*.py")):
        source = path.read_text(encoding="utf-8")
        for declared in re.finditer(r"\battrs=\(([^()]*)\)", source):
            line = source.count("\n", 0, declared.start()) + 1
            for name in re.findall(r"\"(\w+)[^\"]*\"", declared[1]):
                yield str(path.relative_to(ROOT)), line, "attribute", name


def note_words(path: Path) -> dict[str, int]:
    """Words of notes, near misses and refusals in a file, each with a line."""
    source = path.read_text(encoding="utf-8")
    if not any(f"{call}(" in source for call in NOTES):
        return {}
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in NOTES:
                parts = [p for a in node.args for p in ast.walk(a) if isinstance(p, ast.Constant)]
                text = " ".join(p.value for p in parts if isinstance(p.value, str))
                found |= dict.fromkeys(re.findall(r"[a-z]+", text.lower()), node.lineno)
    return found


def note_files() -> list[Path]:
    """The files that write notes."""
    return [p for folder in ("passes", "stack/rewrite") for p in (ROOT / folder).rglob("*.py")]


def singular(word: str) -> str:
    """A word without the ending of the plural."""
    return re.sub("s$", "", re.sub("ies$", "y", re.sub("xes$", "xis", word)))


def missing() -> list[str]:
    """The lines to print for terms that the glossary lacks."""
    terms = glossary()
    known = {word for kind in terms.values() for term in kind for word in term.split()} | EVERYDAY
    found = [
        f'{path}:{line}: glossary: {kind} "{term}" (explain it in {GLOSSARY})'
        for path, line, kind, term in (*_passes(), *_attributes())
        if term not in terms[kind]
    ]
    for path in note_files():
        for word, line in note_words(path).items():
            if word not in known and singular(word) not in known:
                where = f"{path.relative_to(ROOT)}:{line}"
                found.append(f'{where}: glossary: word "{word}" (explain it in {GLOSSARY})')
    return found
