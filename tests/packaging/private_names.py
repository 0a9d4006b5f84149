"""Finds uses of private names of torch, JAX and Triton in the product's source files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from framework_names import ROOT, chain, files

FRAMEWORKS = ("torch", "functorch", "jax", "jaxlib", "triton")
# Attributes with an underscore that torch documents, or that its own docs tell users to read.
KNOWN_ATTRIBUTES = frozenset({"_base", "_version"})
# Attributes of argparse, of named tuples, and of MLIR's bindings, which are no such framework.
_OTHERS = frozenset({"_actions", "_asdict", "_CAPICreate", "_CAPIPtr"})
# Dotted names of a framework inside a string: targets of patches, modules imported by name.
_TEXT = re.compile(r"(?:torch|functorch|jax|jaxlib|triton)(?:\.\w+)+\Z")


@dataclass(frozen=True)
class Use:
    """One use of a private name.

    Attributes:
        kind: `name` for a dotted name of a framework, `attribute` for an attribute of an object,
            `lookup` for one that `getattr` or `hasattr` asks for,
            `operator` for an operator in `torch.ops`, whose names are those that graphs have,
            `known` for an attribute in `KNOWN_ATTRIBUTES`, `mock` for `unittest.mock`.
    """

    line: int
    name: str
    kind: str


def is_private(part: str) -> bool:
    return part.startswith("_") and not (part.startswith("__") and part.endswith("__"))


def uses_in(text: str, own: frozenset[str] = frozenset()) -> list[Use]:
    """Returns the uses in one file, sorted by line.

    Args:
        own: private names that the project defines itself; as attributes they do not count.
    """
    return _without(own, _uses(list(ast.walk(ast.parse(text)))))


def _without(own: frozenset[str], uses: Iterable[Use]) -> list[Use]:
    others = {use for use in uses if use.kind != "attribute" or use.name not in own}
    return sorted(others, key=lambda use: (use.line, use.name))


def _uses(nodes: list[ast.AST]) -> Iterator[Use]:
    known: dict[str, str] = {}  # local names of things of a framework
    inner: set[int] = set()  # attributes that a longer dotted name contains
    for node in nodes:
        for local, name in _imported(node):
            if _is_of_framework(name) and any(map(is_private, name.split("."))):
                yield Use(node.lineno, name, "name")  # pyright: ignore[reportAttributeAccessIssue]
            if name.partition(".")[0] == "unittest" and "mock" in name:
                yield Use(node.lineno, name, "mock")  # pyright: ignore[reportAttributeAccessIssue]
            known[local] = name if local != name.partition(".")[0] else local
    for node in nodes:
        for local, name in _assigned(node, known):
            known[local] = name
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _TEXT.match(node.value) and any(map(is_private, node.value.split("."))):
                yield Use(node.lineno, node.value, "name")
        elif isinstance(node, ast.Call) and (named := _attribute_by_name(node)):
            yield Use(node.lineno, named, "lookup")
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        head, *parts = chain(node)
        inner.update(id(part) for part in _attributes(node))
        known_as = known.get(head, "")
        if _is_of_framework(known_as):
            name = ".".join((known_as, *parts))
            if any(map(is_private, name.split("."))):
                kind = "operator" if name.startswith("torch.ops.") else "name"
                yield Use(node.lineno, name, kind)
            continue
        if known_as:  # of another package
            continue
        for place, part in enumerate(parts):
            if head in ("self", "cls") and place == 0:
                continue
            if part in KNOWN_ATTRIBUTES:
                yield Use(node.lineno, part, "known")
            elif is_private(part) and part not in _OTHERS:
                yield Use(node.lineno, part, "attribute")


def _assigned(node: ast.AST, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Another local name for a thing of a framework: `aten = torch.ops.aten`."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=local)], value=value)
            | ast.AnnAssign(target=ast.Name(id=local), value=value)
        ) if isinstance(value, ast.Attribute | ast.Name):
            head, *parts = chain(value)
            if _is_of_framework(known.get(head, "")):
                yield local, ".".join((known[head], *parts))
        case _:
            pass


def _attribute_by_name(node: ast.Call) -> str:
    """The private attribute that `getattr` or `hasattr` asks for by a constant; else empty."""
    match node:
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]
        ) if is_private(name) and name != "_fields":
            return name
        case _:
            return ""


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Local and dotted name of each thing that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_of_framework(name: str) -> bool:
    return name.partition(".")[0] in FRAMEWORKS


def _attributes(node: ast.expr) -> Iterator[ast.Attribute]:
    while isinstance(node, ast.Attribute):
        yield node
        node = node.value


def _own_names(nodes: list[ast.AST]) -> Iterator[str]:
    """Private names that a file defines: functions, classes, attributes, methods."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case _:
                pass


@cache
def all_uses() -> dict[str, list[Use]]:
    """The uses of each file of the product, by its path below the repository."""
    found: dict[str, list[Use]] = {}
    own: set[str] = set()
    for path in files():
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        found[path.relative_to(ROOT).as_posix()] = list(_uses(nodes))
        own.update(filter(is_private, _own_names(nodes)))
    judged = {file: _without(frozenset(own), uses) for file, uses in found.items()}
    return {file: uses for file, uses in judged.items() if uses}


def report() -> str:
    """A table of counts by file, and every use below its file."""
    lines: list[str] = []
    for file, uses in sorted(all_uses().items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(uses):4} {file}")
        lines += (f"       {use.line}: {use.kind} {use.name}" for use in uses)
    total = [u for uses in all_uses().values() for u in uses]
    for kind in ("name", "attribute", "lookup", "operator", "known", "mock"):
        count = sum(u.kind == kind for u in total)
        holding = sum(any(u.kind == kind for u in uses) for uses in all_uses().values())
        lines.append(f"{count:4} uses of kind {kind} in {holding} files")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
